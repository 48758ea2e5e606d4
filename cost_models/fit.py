"""Fits of measured seconds: pure functions on arrays.

Three fits, all judged by RELATIVE error, because costs span 1e-6 to 1 s and least squares on seconds would serve only
the largest (measured, docs/costs.md: ordinary least squares errs by 11-115 % in the median, these by 2-10 %):

* an operator that was measured: piecewise linear in the batch (:func:`interpolate`);
* a shape that was not: non-negative combination of features (:func:`fit_nonnegative`);
* a message: fixed part + part per byte + part per tensor (:func:`fit_measured`).

Non-negative coefficients keep a prediction from going below zero and from falling as a feature grows. Knows nothing of
operators, files or machines.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field
from scipy.optimize import nnls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

FOLDS = 5  # of the cross-validation: the usual compromise between bias and work (Hastie et al., ESL, section 7.10)


@dataclass(frozen=True, slots=True)
class Residual:
    """Relative errors of a fit on points that it had not seen.

    Parameters
    ----------
    median, p95 : float
        Quantiles of abs(predicted / measured - 1).
    count : int
        Number of points predicted.
    """

    median: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    p95: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    count: Annotated[int, Field(ge=1)]

    def __str__(self) -> str:
        return f"median {self.median:.1%}, p95 {self.p95:.1%} of {self.count}"


def residual(errors: ArrayLike) -> Residual | None:
    """Summarise relative errors (any shape); None if there are none."""
    values = np.abs(np.asarray(errors, dtype=float)).ravel()
    if not values.size:
        return None
    return Residual(float(np.median(values)), float(np.quantile(values, 0.95)), int(values.size))


def interpolate(batches: Sequence[int], seconds: Sequence[float], batch: int) -> float:
    """Return the seconds at ``batch``, piecewise linear between measured batches.

    Beyond the ends the line through the two nearest points goes on, but never falls as the batch grows; below the
    smallest it also never falls under that point's seconds per sample, so the result is never negative.

    Parameters
    ----------
    batches : sequence of int, (n,)
        Measured batch sizes, strictly increasing.
    seconds : sequence of float, (n,)
        Measured seconds.
    batch : int
        Wanted batch size.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    ValueError
        If there is no point, if batches do not increase, or if one point is all there is and it is not the wanted one.
    """
    if not batches or any(a >= b for a, b in pairwise(batches)):
        raise ValueError(f"measured batches must be strictly increasing, at least one: {list(batches)}")
    if batch in batches:
        return seconds[list(batches).index(batch)]
    if len(batches) == 1:
        raise ValueError(f"measured at batch {batches[0]} only: batch {batch} needs a second point")
    if batch < batches[0]:
        line = seconds[0] - _slope(batches, seconds, 0) * (batches[0] - batch)
        return max(line, seconds[0] * batch / batches[0])
    if batch > batches[-1]:
        return seconds[-1] + _slope(batches, seconds, len(batches) - 2) * (batch - batches[-1])
    return float(np.interp(batch, batches, seconds))


def between(points: Mapping[float, Sequence[float]], at: float) -> list[float]:
    """Return each value at ``at``, piecewise linear between the nearest of some points; beyond the ends as at the ends.

    Parameters
    ----------
    points : Mapping of float to sequence of float, (values,)
        What was measured, one point or more.
    at : float
        Where it is wanted.
    """
    known = sorted(points)
    return [float(np.interp(at, known, column)) for column in zip(*(points[one] for one in known), strict=True)]


def _slope(batches: Sequence[int], seconds: Sequence[float], i: int) -> float:
    """Slope between points i and i + 1, seconds per sample, not below 0."""
    return max(0.0, (seconds[i + 1] - seconds[i]) / (batches[i + 1] - batches[i]))


def interpolation_errors(batches: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """Relative error of each inner point when it is left out and interpolated from the others.

    Points of zero seconds are skipped: no error is relative to nothing.
    """
    errors = []
    for i in range(1, len(batches) - 1):
        if seconds[i] > 0:
            rest = [*batches[:i], *batches[i + 1 :]], [*seconds[:i], *seconds[i + 1 :]]
            errors.append(interpolate(*rest, batches[i]) / seconds[i] - 1)
    return errors


def fit_nonnegative(features: ArrayLike, seconds: ArrayLike) -> NDArray[np.float64]:
    """Return the non-negative coefficients that minimise the squared RELATIVE error.

    Rows are divided by the measured seconds, columns by their largest entry (for conditioning only); then non-negative
    least squares (Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23).

    Parameters
    ----------
    features : array_like, (n, p)
        Non-negative features of each point.
    seconds : array_like, (n,)
        Measured seconds, all positive.

    Returns
    -------
    ndarray, (p,)
        Coefficients; ``features @ coefficients`` are the fitted seconds.

    Raises
    ------
    ValueError
        If a duration is not positive and finite: a relative error needs one.
    """
    y = np.asarray(seconds, dtype=float)
    if not (np.isfinite(y).all() and (y > 0).all()):
        raise ValueError("seconds must be positive and finite")
    rows = np.asarray(features, dtype=float) / y[:, None]
    scale = rows.max(axis=0)
    scale[scale == 0] = 1.0
    solution, _ = nnls(rows / scale, np.ones(len(y)))
    return np.asarray(solution / scale)


def held_out_errors(
    features: ArrayLike, seconds: ArrayLike, groups: Sequence[str], folds: int = FOLDS, seed: int = 0
) -> NDArray[np.float64]:
    """Relative errors of :func:`fit_nonnegative` on shapes that it has not seen (k-fold by group).

    Parameters
    ----------
    features : array_like, (n, p)
        Features of each point.
    seconds : array_like, (n,)
        Measured seconds, all positive.
    groups : sequence of str, (n,)
        Shape of each point. Points of one shape are left out together, or the error would be that of interpolation.
    folds : int
        Number of parts.
    seed : int
        Decides which shapes are left out together.

    Returns
    -------
    ndarray, (n,)
        predicted / measured - 1 in the order of the points; empty if there are fewer than two shapes.
    """
    x, y = np.asarray(features, dtype=float), np.asarray(seconds, dtype=float)
    names = list(dict.fromkeys(groups))
    if len(names) < 2:
        return np.empty(0)
    order = np.random.default_rng(seed).permutation(len(names))
    fold_of = {names[shape]: position % folds for position, shape in enumerate(order)}
    fold = np.array([fold_of[group] for group in groups])
    errors = np.empty(len(y))
    for left_out in np.unique(fold):
        test = fold == left_out
        errors[test] = x[test] @ fit_nonnegative(x[~test], y[~test]) / y[test] - 1
    return errors


def fit_measured(features: ArrayLike, seconds: ArrayLike) -> list[float]:
    """Fit seconds that may be zero, below the clock's resolution: those points are left out.

    Parameters
    ----------
    features : array_like, (n, p)
        Features of each message (or of each batch).
    seconds : array_like, (n,)
        Measured seconds.

    Returns
    -------
    list of float, (p,)
        Coefficients as of :func:`fit_nonnegative`; all 0 if no point is left.
    """
    x, y = np.asarray(features, dtype=float), np.asarray(seconds, dtype=float)
    if not (y > 0).any():
        return [0.0] * x.shape[1]
    return [float(part) for part in fit_nonnegative(x[y > 0], y[y > 0])]
