"""A batch of samples, what a stream of batches is, and the check that ids lie inside their tables.

Knows nothing of files or of how samples are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from executor.arrays import Floats, Ids
from problem.errors import BadInput
from problem.graph import Kind
from problem.model import Model

#: Takes the place of an id where a sample has fewer than others.
NO_ID = -1


@dataclass(frozen=True)
class Batch:
    """B samples.

    Parameters
    ----------
    dense : ndarray of float32, shape (B, F)
        Dense features.
    ids : Mapping of str to ndarray of int32, shape (B, L)
        For each table the row numbers that each sample looks up; L is the table's ``ids_per_sample``.
        Where a sample has fewer, :data:`NO_ID` fills the rest.
    labels : ndarray of float32, shape (B,)
        1 for a click, 0 for none.
    weights : Mapping of str to ndarray of float32, shape (B, L)
        For each table that pools by weight, the factors of its ids.
    """

    dense: Floats
    ids: Mapping[str, Ids]
    labels: Floats
    weights: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        tables = [*self.ids.values(), *self.weights.values()]
        return self.dense.nbytes + self.labels.nbytes + sum(array.nbytes for array in tables)

    def __len__(self) -> int:
        return len(self.labels)


class Stream(Protocol):
    """A source of batches. Session s of S reads batches s, S + s, 2 S + s, ..., so that none is read twice."""

    def batch(self, index: int, size: int) -> Batch:
        """Return batch number ``index`` of ``size`` samples: the same whenever, and wherever, it is asked for."""
        ...


def dense_width(model: Model) -> int:
    """Return the number of dense features of a model; 0 without a dense input."""
    return sum(op.width for op in model.graph if op.kind is Kind.DENSE_INPUT)


def check_ids(table: str, rows: int, ids: Ids, source: str = "batch", *, short: bool = False) -> None:
    """Refuse ids outside a table. Kernels do not check bounds; every batch from outside passes here or hashes its ids.

    Parameters
    ----------
    table : str
        Name of the table, for the message.
    rows : int
        Rows of the table.
    ids : ndarray of integers, any shape
        Row numbers.
    source : str
        File or other source of the ids, for the message.
    short : bool
        Whether bags may be filled up with :data:`NO_ID`.

    Raises
    ------
    BadInput
        Naming the first id outside 0 to ``rows`` - 1, its table and its position.
    """
    wrong = (ids < (NO_ID if short else 0)) | (ids >= rows)
    if wrong.any():
        place = tuple(int(axis) for axis in np.argwhere(wrong)[0])
        raise BadInput(source, f"ids.{table}{list(place)}", int(ids[place]), f"rows of the table are 0 to {rows - 1}")


def check_batch(batch: Batch, model: Model, source: str = "batch") -> None:
    """Refuse a batch that does not fit a model.

    Raises
    ------
    BadInput
        On a missing table, an array of another shape than the model's, an id outside its table, or weights that are
        missing or not finite.
    """
    expected = (len(batch), dense_width(model))
    if batch.dense.shape != expected:
        raise BadInput(source, "dense", batch.dense.shape, f"the model takes an array of shape {expected}")
    for table in model.tables:
        expected = (len(batch), table.ids_per_sample)
        ids = batch.ids.get(table.name)
        if ids is None or ids.shape != expected or ids.dtype != np.int32:
            found = None if ids is None else (ids.shape, str(ids.dtype))
            raise BadInput(source, f"ids.{table.name}", found, f"the model takes an int32 array of shape {expected}")
        check_ids(table.name, table.rows, ids, source, short=table.max_ids > 0)
        if table.pooling == "weighted":
            _check_weights(table.name, batch.weights.get(table.name), expected, source)


def _check_weights(table: str, weights: Floats | None, expected: tuple[int, int], source: str) -> None:
    if weights is None or weights.shape != expected or weights.dtype != np.float32:
        found = None if weights is None else (weights.shape, str(weights.dtype))
        allowed = f"a float32 array of shape {expected}: the table pools by weight"
        raise BadInput(source, f"weights.{table}", found, allowed)
    if not np.isfinite(weights).all():
        raise BadInput(source, f"weights.{table}", "a value that is not finite", "finite numbers")
