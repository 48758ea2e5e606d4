"""Throughput from the ends of steps: warm-up cut off, batch means, confidence interval.

Batch means (Law and Kelton, Simulation Modeling and Analysis, 3rd ed., section 9.5.3): the steps after the warm-up are cut
into batches of equal length; their throughputs are taken as independent, and Student's t gives the half width. Pure
functions of the times at which steps ended.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from simulator.engine import NANOSECONDS

BATCHES = 10  # most that are formed; 10 to 30 are usual (Law and Kelton, as above)


def default_warmup(steps: int) -> int:
    """Steps to leave out at the start: a third, at most 10 (the pipeline of a session is two steps deep)."""
    return min(10, steps // 3)


def throughput(done: Sequence[Sequence[int]], begun: Sequence[int], batch: int, first: int, last: int) -> float:
    """Samples per second of steps ``first`` to ``last`` (exclusive), summed over the sessions.

    Parameters
    ----------
    done : sequence of sequence of int
        For each session, the end of each step in nanoseconds.
    begun : sequence of int
        For each session, when its first step began.
    batch : int
        Samples per step.
    first, last : int
        Range of steps; each session's time is counted from the end of its step ``first - 1``.
    """
    rate = 0.0
    for ends, begin in zip(done, begun, strict=True):
        elapsed = ends[last - 1] - (ends[first - 1] if first else begin)
        rate += batch * (last - first) * NANOSECONDS / elapsed if elapsed else math.inf
    return rate


def half_width(done: Sequence[Sequence[int]], begun: Sequence[int], batch: int, warmup: int, steps: int) -> float:
    """Half width of the 95 % confidence interval of the throughput; NaN when there are fewer than 4 steps to judge by."""
    batches = min(BATCHES, (steps - warmup) // 2)
    if batches < 2:
        return math.nan
    cuts = [warmup + (steps - warmup) * index // batches for index in range(batches + 1)]
    rates = [throughput(done, begun, batch, a, b) for a, b in itertools.pairwise(cuts)]
    if not all(math.isfinite(rate) for rate in rates):
        return math.nan
    return float(stats.t.ppf(0.975, batches - 1) * np.std(rates, ddof=1) / math.sqrt(batches))
