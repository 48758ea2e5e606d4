"""Throughput from the ends of steps: warm-up cut off, batch means, confidence interval.

Batch means (Law and Kelton, Simulation Modeling and Analysis, 3rd ed., section 9.5.3): the steps after the warm-up are cut
into batches of equal length; their throughputs are taken as independent, and Student's t gives the half width. Pure
functions of the times at which steps ended.

Control variate (the same, section 11.4): where core times of a step are multiplied by a factor whose mean is known to be 1,
the times of steps are corrected by what the factors that happened to be drawn explain of them. Any fixed slope leaves their
mean as it is; the slope is that of all sessions' batches together. Times are corrected and not throughputs, for times are
linear in the factors: the mean of 1 / x is not 1 / the mean of x.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
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
    return _rate(_step_ns(done, begun, first, last), batch)


def _rate(step_ns: npt.NDArray[np.float64], batch: int) -> float:
    """Samples per second of sessions whose steps take so long."""
    return math.fsum((batch * NANOSECONDS / step_ns).tolist()) if np.all(step_ns > 0.0) else math.inf


def _step_ns(
    done: Sequence[Sequence[int]], begun: Sequence[int], first: Sequence[int], last: Sequence[int]
) -> npt.NDArray[np.float64]:
    """Mean nanoseconds of a range of steps of each session."""
    found = zip(done, begun, first, last, strict=True)
    return np.array(
        [(ends[high - 1] - (ends[low - 1] if low else begin)) / (high - low) for ends, begin, low, high in found]
    )


def estimate(
    done: Sequence[Sequence[int]],
    begun: Sequence[int],
    batch: int,
    warmup: int,
    period: int = 1,
    factors: Sequence[Sequence[float]] | None = None,
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
    factors : sequence of sequence of float, optional
        For each session and step, a factor of its core times whose mean is 1: the control variate.

    Returns
    -------
    (float, float)
        Samples per second; half width, NaN when there are fewer than 2 batches (of 2 steps or of 1 period) to judge by.
    """
    kept = kept_steps(done, warmup)
    unit = period if min(kept) - warmup >= period else 1
    counts = [(steps - warmup) // unit for steps in kept]
    whole = _step_ns(done, begun, [warmup] * len(kept), [warmup + unit * count for count in counts])
    batches = min(BATCHES, min(counts) // (2 if unit == 1 else 1))
    if batches < 2:
        return _rate(whole, batch), math.nan
    cuts = [[warmup + unit * (count * index // batches) for count in counts] for index in range(batches + 1)]
    times = np.array([_step_ns(done, begun, low, high) for low, high in itertools.pairwise(cuts)])
    if factors is not None:
        means = np.array([_means(factors, low, high) for low, high in itertools.pairwise(cuts)])
        slope = _slope(means, times)
        times -= slope * (means - 1.0)
        whole -= slope * (_means(factors, cuts[0], cuts[-1]) - 1.0)
    if not np.all(times > 0.0):
        return _rate(whole, batch), math.nan
    totals = [_rate(row, batch) for row in times]
    return _rate(whole, batch), float(stdtrit(batches - 1, 0.975) * np.std(totals, ddof=1) / math.sqrt(batches))


def _means(factors: Sequence[Sequence[float]], first: Sequence[int], last: Sequence[int]) -> npt.NDArray[np.float64]:
    """Mean factor of a range of steps of each session."""
    found = zip(factors, first, last, strict=True)
    return np.array([math.fsum(drawn[low:high]) / (high - low) for drawn, low, high in found])


def _slope(means: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> float:
    """Slope of the times over the factors, each session (axis 1) about its own mean over the batches (axis 0)."""
    x, y = means - means.mean(axis=0), times - times.mean(axis=0)
    spread = math.fsum((x * x).ravel().tolist())
    return math.fsum((x * y).ravel().tolist()) / spread if spread else 0.0
