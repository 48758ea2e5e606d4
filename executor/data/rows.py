"""Samples held in memory as arrays, and the two ways to read them: round and round, or a number of passes and no more.

Knows nothing of files; the readers fill it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from executor.arrays import Floats, Ids
from executor.data.batch import Batch


@dataclass(frozen=True)
class Rows:
    """N samples; batch i of n samples is rows i n to (i + 1) n - 1, and the first row follows the last.

    Parameters
    ----------
    dense : ndarray of float32, shape (N, F)
        Dense features.
    ids : Mapping of str to ndarray of int32, shape (N, L)
        For each table the ids of each sample, short bags filled up with ``NO_ID``.
    labels : ndarray of float32, shape (N,)
        0 or 1.
    weights : Mapping of str to ndarray of float32, shape (N, L)
        Factors of the ids of tables that pool by weight.
    """

    dense: Floats
    ids: Mapping[str, Ids]
    labels: Floats
    weights: Mapping[str, Floats] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: int, size: int) -> Batch:
        """Return batch number ``index`` of ``size`` samples."""
        return self.chosen((index * size + np.arange(size)) % len(self))

    def chosen(self, rows: npt.NDArray[np.intp] | slice) -> Batch:
        """Return a batch of some rows."""
        ids = {name: np.ascontiguousarray(found[rows]) for name, found in self.ids.items()}
        weights = {name: np.ascontiguousarray(found[rows]) for name, found in self.weights.items()}
        return Batch(self.dense[rows], ids, self.labels[rows], weights)


@dataclass(frozen=True)
class Passes:
    """Some passes over samples: the last batch of a pass may be short, and behind the last pass all batches are empty.

    Parameters
    ----------
    rows : Rows
        The samples.
    passes : int
        How often they are read.
    """

    rows: Rows
    passes: int = 1

    def batches(self, size: int) -> int:
        """Return the batches of all passes."""
        return self.passes * -(-len(self.rows) // size)

    def steps(self, size: int, sessions: int) -> int:
        """Return the steps in which so many sessions read everything."""
        return -(-self.batches(size) // sessions)

    def batch(self, index: int, size: int) -> Batch:
        """Return batch number ``index`` of at most ``size`` samples."""
        begin, end = self._span(index, size)
        return self.rows.chosen(slice(begin, end))

    def samples(self, index: int, size: int) -> int:
        """Return how many samples batch number ``index`` has."""
        begin, end = self._span(index, size)
        return end - begin

    def _span(self, index: int, size: int) -> tuple[int, int]:
        if index >= self.batches(size):
            return 0, 0
        begin = index % -(-len(self.rows) // size) * size
        return begin, min(begin + size, len(self.rows))
