"""A batch of samples, what a stream of batches is, and the check that ids lie inside their tables.

Knows nothing of files or of how samples are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from executor.arrays import Floats, Ids
from problem.errors import BadInput
from problem.graph import Kind
from problem.model import Model

_Cell = TypeVar("_Cell", bound=np.generic)

#: Takes the place of an id where a sample has fewer than others.
NO_ID = -1


@dataclass(frozen=True)
class Batch:
    """B places for samples, of which the first n hold one: all, but in a batch that :func:`fill` made whole.

    Parameters
    ----------
    dense : ndarray of float32, shape (B, F)
        Dense features.
    ids : Mapping of str to ndarray of int32, shape (B, L)
        For each feature the row numbers that each sample looks up; L is the feature's ``ids_per_sample``.
        Where a sample has fewer, :data:`NO_ID` fills the rest.
    labels : ndarray of float32, shape (n,)
        1 for a click, 0 for none.
    weights : Mapping of str to ndarray of float32, shape (B, L)
        For each table that pools by weight, the factors of its ids.
    mean_over : int
        Samples over which the loss of the step is a mean, those of all ranks of a group; 0: ranks times B.
    """

    dense: Floats
    ids: Mapping[str, Ids]
    labels: Floats
    weights: Mapping[str, Floats] = field(default_factory=dict)
    mean_over: int = 0

    @property
    def places(self) -> int:
        """Rows of all arrays but the labels."""
        return len(self.dense)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        tables = [*self.ids.values(), *self.weights.values()]
        return self.dense.nbytes + self.labels.nbytes + sum(array.nbytes for array in tables)

    def __len__(self) -> int:
        return len(self.labels)


def fill(batch: Batch, size: int) -> Batch:
    """Return a batch with ``size`` places: behind its samples come zeros, and no ids.

    What fills the places takes part in no loss, has no gradient and touches no row.
    """
    missing = size - batch.places
    if not missing:
        return batch

    def longer(array: npt.NDArray[_Cell], value: float) -> npt.NDArray[_Cell]:
        return np.concatenate([array, np.full((missing, array.shape[1]), value, array.dtype)])

    ids = {name: longer(found, NO_ID) for name, found in batch.ids.items()}
    weights = {name: longer(found, 0.0) for name, found in batch.weights.items()}
    return replace(batch, dense=longer(batch.dense, 0.0), ids=ids, weights=weights)


class Stream(Protocol):
    """A source of batches. Session s of S reads batches s, S + s, 2 S + s, ..., so that none is read twice."""

    def batch(self, index: int, size: int) -> Batch:
        """Return batch number ``index`` of ``size`` samples: the same whenever, and wherever, it is asked for."""
        ...


@runtime_checkable
class Finite(Protocol):
    """A stream that ends: its last batch may have fewer samples than were asked for, those behind it have none."""

    def samples(self, index: int, size: int) -> int:
        """Return the samples of batch number ``index`` when batches of ``size`` are asked for."""
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
    expected = (batch.places, dense_width(model))
    if batch.dense.shape != expected:
        raise BadInput(source, "dense", batch.dense.shape, f"the model takes an array of shape {expected}")
    for table in model.feature.values():
        expected = (batch.places, table.ids_per_sample)
        ids = batch.ids.get(table.name)
        if ids is None or ids.shape != expected or ids.dtype != np.int32:
            found = None if ids is None else (ids.shape, str(ids.dtype))
            raise BadInput(source, f"ids.{table.name}", found, f"the model takes an int32 array of shape {expected}")
        check_ids(table.name, table.rows, ids[: len(batch)], source, short=table.max_ids > 0)
        check_ids(table.name, 0, ids[len(batch) :], source, short=True)
        if table.pooling == "weighted":
            _check_weights(table.name, batch.weights.get(table.name), expected, source)


def _check_weights(table: str, weights: Floats | None, expected: tuple[int, int], source: str) -> None:
    if weights is None or weights.shape != expected or weights.dtype != np.float32:
        found = None if weights is None else (weights.shape, str(weights.dtype))
        allowed = f"a float32 array of shape {expected}: the table pools by weight"
        raise BadInput(source, f"weights.{table}", found, allowed)
    if not np.isfinite(weights).all():
        raise BadInput(source, f"weights.{table}", "a value that is not finite", "finite numbers")
