"""Which elements of a tensor are kept: thresholds, masks, and exact counts.

A threshold is taken on absolute values, by rows (samples of a cut; a flat gradient is one row). The rule for keeping is
(|x| >= threshold) and (x != 0): if more than the share to be dropped are zeros (rectified rows, dead units), the threshold
is 0, and would keep everything. So what is kept is never 0, and who gets it knows the mask.
"""

from __future__ import annotations

import math

import numpy as np

from executor.arrays import Floats
from executor.codecs.wire import Mask


def kept_of(cols: int, keep: float) -> int:
    """Return how many elements of a row of ``cols`` are kept: the share, rounded up (as ``cost_models.codecs.Message``)."""
    return math.ceil(round(cols * keep, 9))


def thresholds(values: Floats, count: int) -> Floats:
    """Return the ``count``-th largest absolute value of each row, (rows, 1); infinity if ``count`` is 0.

    With the elements of a row sorted upwards and counted from 0, it is element floor(cols * eta) of DCT, where
    eta = 1 - keep: without ties exactly ``count`` elements reach it.
    """
    rows, cols = values.shape
    if count == 0:
        return np.full((rows, 1), np.inf, np.float32)
    at = cols - count
    return np.partition(np.abs(values), at, axis=1)[:, at : at + 1]


def reaching(values: Floats, threshold: Floats | float) -> Mask:
    """Return which elements reach a threshold (rows, 1) or one number, and are not 0; same shape as ``values``."""
    mask = np.abs(values) >= threshold
    mask &= values != 0
    return mask


def largest(values: Floats, count: int) -> Mask:
    """Return the ``count`` largest elements of each row by absolute value, fewer where fewer are not 0.

    Of equal ones, those further to the left.
    """
    mask = reaching(values, thresholds(values, count))
    for row in np.flatnonzero(mask.sum(axis=1) > count):
        order = np.argsort(-np.abs(values[row]), kind="stable")
        mask[row, order[count:]] = False
    return mask


def laplace(values: Floats, keep: float, *, one_sided: bool) -> tuple[float, float]:
    """Return the centre and the distance from it beyond which a Laplace law fitted to all elements has a share ``keep``.

    With mean m, variance s^2 and b = s / sqrt(2): two-sided P(|x - m| >= t) = keep gives t = -b ln(keep). One-sided
    P(x - m >= t) = keep gives t = -b ln(2 keep) for keep <= 1/2, else b ln(2 (1 - keep)).
    """
    centre, scale = float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64)) / math.sqrt(2.0)
    if not one_sided:
        return centre, -scale * math.log(keep)
    if keep <= 0.5:
        return centre, -scale * math.log(2 * keep)
    return centre, scale * math.log(2 * (1 - keep)) if keep < 1 else -math.inf
