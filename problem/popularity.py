"""Which rows of a table are read how often: the law that streams draw ids by and that row shards are balanced by.

A feature comes with a measured histogram (shares of its lookups over equal ranges of rows; inside a range rows are alike),
or with the exponent a of a power law: rank r = 0, 1, ... has probability proportional to the integral of x^-a from r + 1 to
r + 2, up to x = n + 1 (a = 0 is uniform). Where rows are ranked, rank r is row r. Else popular rows lie anywhere, as after
hashing, and what is expected of a range is its share of the rows; its hottest row may make it more. Knows nothing of shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from problem.model import EmbeddingTable

Floats = npt.NDArray[np.float64]


class Popularity:
    """Popularity of the rows of a feature, cumulated.

    Parameters
    ----------
    rows : int
        Rows of the table.
    skew : float
        Exponent of the power law, of rows that are ranked; else 0.
    histogram : tuple of float
        Shares of equal ranges of rows, in place of the power law; empty: none.
    """

    def __init__(self, rows: int, skew: float, histogram: tuple[float, ...] = ()) -> None:
        self.rows, self._skew = rows, 0.0 if histogram else skew
        shares = histogram or (1.0,)
        self._edges: Floats = np.linspace(0.0, rows, len(shares) + 1)
        self._cumulated: Floats = np.concatenate([[0.0], np.cumsum(shares)]) / sum(shares)

    def below(self, row: npt.ArrayLike) -> Floats:
        """Return the share of the lookups of rows below ``row``, of the same shape."""
        at = np.asarray(row, dtype=np.float64)
        if self._skew:
            return _integral(at, self._skew) / float(_integral(np.float64(self.rows), self._skew))
        return np.asarray(np.interp(at, self._edges, self._cumulated))

    def draw(self, uniform: Floats) -> npt.NDArray[np.int64]:
        """Return rows for numbers that are uniform in [0, 1), by the histogram."""
        found = np.interp(uniform, self._cumulated, self._edges).astype(np.int64)
        return np.minimum(found, self.rows - 1)


class Mixture:
    """Popularity of the rows of a table that several features read, by weight.

    Parameters
    ----------
    parts : sequence of Popularity
        Of each feature.
    weights : sequence of float
        What a lookup by each of them counts.
    """

    def __init__(self, parts: Sequence[Popularity], weights: Sequence[float]) -> None:
        total = sum(weights)
        self._parts = [(p, w / total if total else 1 / len(parts)) for p, w in zip(parts, weights, strict=True)]
        self.rows = parts[0].rows

    def below(self, row: npt.ArrayLike) -> Floats:
        """Return the share of the lookups of rows below ``row``, of the same shape."""
        return np.asarray(sum(weight * part.below(row) for part, weight in self._parts))

    def row_at(self, share: float) -> int:
        """Return the last row below which at most ``share`` of the lookups are, by bisection."""
        low, high = 0, self.rows
        while low < high:
            middle = (low + high + 1) // 2
            if float(self.below(middle)) <= share * (1 + 1e-12):
                low = middle
            else:
                high = middle - 1
        return low


def popularity(feature: EmbeddingTable) -> Popularity:
    """Return the popularity of the rows of a feature; equal ones are made once."""
    return _cached(feature.rows, feature.skew if feature.ranked else 0.0, feature.histogram)


@lru_cache(maxsize=4096)
def _cached(rows: int, skew: float, histogram: tuple[float, ...]) -> Popularity:
    return Popularity(rows, skew, histogram)


def _integral(ranks: Floats | np.float64, skew: float) -> Floats:
    """Return the integral of x^-skew from 1 to ranks + 1."""
    rest = 1.0 - skew
    if abs(rest) < 1e-9:
        return np.asarray(np.log1p(ranks))
    return np.asarray(np.expm1(rest * np.log1p(ranks)) / rest)
