"""Throughput from the ends of steps: warm-up cut off, batch means, confidence interval.

Batch means (Law and Kelton, Simulation Modeling and Analysis, 3rd ed., section 9.5.3): the steps after the warm-up are cut
into batches of equal length; their throughputs are taken as independent, and Student's t gives the half width. Pure
functions of the times at which steps ended.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from simulator.engine import NANOSECONDS

BATCHES = 10  # most that are formed; 10 to 30 are usual (Law and Kelton, as above)


def default_warmup(steps: int) -> int:
    """Steps to leave out at the start: a third, at most 10 (the pipeline of a session is two steps deep)."""
    return min(10, steps // 3)


def kept_steps(done: Sequence[Sequence[int]], warmup: int) -> list[int]:
    """Steps of each session that ended before the first session had ended its last: later ones had less company.

    Parameters
    ----------
    done : sequence of sequence of int
        For each session, the end of each step in nanoseconds.
    warmup : int
        Each session keeps at least one step more than these.
    """
    first_end = min(ends[-1] for ends in done)
    return [max(warmup + 1, bisect_right(ends, first_end)) for ends in done]


def throughput(
    done: Sequence[Sequence[int]], begun: Sequence[int], batch: int, first: Sequence[int], last: Sequence[int]
) -> float:
    """Samples per second of a range of steps of each session, summed over the sessions.

    Parameters
    ----------
    done : sequence of sequence of int
        For each session, the end of each step in nanoseconds.
    begun : sequence of int
        For each session, when its first step began.
    batch : int
        Samples per step.
    first, last : sequence of int
        For each session, the range of steps (``last`` exclusive); time is counted from the end of step ``first - 1``.
    """
    rate = 0.0
    for ends, begin, low, high in zip(done, begun, first, last, strict=True):
        elapsed = ends[high - 1] - (ends[low - 1] if low else begin)
        rate += batch * (high - low) * NANOSECONDS / elapsed if elapsed else math.inf
    return rate


def estimate(
    done: Sequence[Sequence[int]], begun: Sequence[int], batch: int, warmup: int, period: int = 1
) -> tuple[float, float]:
    """Throughput after the warm-up and the half width of its 95 % confidence interval.

    Parameters
    ----------
    done, begun, batch
        As for :func:`throughput`.
    warmup : int
        Steps left out at the start.
    period : int
        Steps after which the work repeats (the gap of a foreground exchange); whole periods are counted if there are any.

    Returns
    -------
    (float, float)
        Samples per second; half width, NaN when there are fewer than 4 periods to judge by.
    """
    kept = kept_steps(done, warmup)
    unit = period if min(kept) - warmup >= period else 1
    counts = [(steps - warmup) // unit for steps in kept]
    rate = throughput(done, begun, batch, [warmup] * len(kept), [warmup + unit * count for count in counts])
    batches = min(BATCHES, min(counts) // 2)
    if batches < 2:
        return rate, math.nan
    cuts = [[warmup + unit * (count * index // batches) for count in counts] for index in range(batches + 1)]
    rates = [throughput(done, begun, batch, low, high) for low, high in itertools.pairwise(cuts)]
    if not all(math.isfinite(found) for found in rates):
        return rate, math.nan
    return rate, float(stdtrit(batches - 1, 0.975) * np.std(rates, ddof=1) / math.sqrt(batches))
