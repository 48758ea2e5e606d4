"""What the cells of a click log mean, column by column: labels, dense features, bags of ids.

The rules, the same for every format that comes here (CSV with header, Parquet, slots):

* label: 0 or 1.
* dense feature: a finite number, taken as it is; a missing one is 0.
* ids: one, or several: a list, or a text with ``|`` or ``^`` between them. A missing cell has none. A table with ``max_ids``
  takes the first so many of a bag; of any other every cell must have the same number, ``ids_per_sample``.
* weight: behind the id and a colon (``7:0.5``), for tables that pool by weight only; 1 where there is none.
* an id is a row number, 0 to rows - 1, and any other is refused; or, if asked for, every id is *hashed*: row = the first
  8 bytes, little end first, of the BLAKE2b digest of its text in UTF-8, modulo the rows of the table (a missing cell of a
  table of one id is the empty text). Whole numbers are written in decimal before, so 7 and "7" are the same id.

Knows cells, not files: a fault names file, line (or row), column and value.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from executor.arrays import Floats, Ids
from executor.data.batch import NO_ID
from executor.data.rows import Rows
from problem.errors import BadInput
from problem.model import EmbeddingTable, Model

_BETWEEN_IDS = re.compile(r"[|^]")


@dataclass(frozen=True)
class Column:
    """A column of a file: its name there, and a cell for each row (text, number, list, or None where nothing is)."""

    name: str
    cells: Sequence[Any]


@dataclass(frozen=True)
class Sheet:
    """The columns of a file that a model reads.

    Parameters
    ----------
    path : str
        The file, for messages.
    label : Column
        Labels.
    dense : sequence of Column
        Dense features.
    ids : Mapping of str to Column
        Ids by table.
    places : sequence of int
        Number of each row in the file, for messages.
    place : str
        What the number counts: ``line`` or ``row``.
    """

    path: str
    label: Column
    dense: Sequence[Column]
    ids: Mapping[str, Column]
    places: Sequence[int]
    place: str = "line"

    def fault(self, row: int, column: Column, allowed: str) -> BadInput:
        """Return what to raise about a cell."""
        return BadInput(self.path, f"{self.place} {self.places[row]}, column {column.name}", column.cells[row], allowed)

    def floats(self, column: Column, parse: Callable[[Any], float], allowed: str) -> Floats:
        """Return a column of numbers, (N,); ``parse`` raises ValueError or TypeError on a cell that is none."""
        values = np.empty(len(column.cells), np.float32)
        for row, cell in enumerate(column.cells):
            try:
                values[row] = parse(cell)
            except (ValueError, TypeError):
                raise self.fault(row, column, allowed) from None
        return values

    def rows(self, model: Model, *, hash_ids: bool) -> Rows:
        """Turn all cells into what a model trains on.

        Raises
        ------
        BadInput
            There is no row, or a cell breaks a rule.
        """
        if not self.label.cells:
            raise BadInput(self.path, "rows", 0, "the file must have at least one row")
        labels = self.floats(self.label, _label, "must be 0 or 1")
        dense = [self.floats(column, _number, "must be a finite number or empty") for column in self.dense]
        bags = {table.name: _Bags(self, table, hash_ids) for table in model.feature.values()}
        return Rows(
            np.stack(dense, axis=1) if dense else np.zeros((len(labels), 0), np.float32),
            {name: bag.ids for name, bag in bags.items()},
            labels,
            {table.name: bags[table.name].weights for table in model.feature.values() if table.pooling == "weighted"},
        )


def _label(cell: Any) -> float:
    value = float(cell)
    if value not in {0.0, 1.0}:
        raise ValueError
    return value


def _number(cell: Any) -> float:
    value = 0.0 if missing(cell) else float(cell)
    if not math.isfinite(value):
        raise ValueError
    return value


def missing(cell: Any) -> bool:
    """Whether a cell holds nothing."""
    return cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))


def hashed(text: str, rows: int) -> int:
    """Return the row of an id, by the rule of this module."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") % rows


@dataclass
class _Bags:
    """Ids (N, L) and weights (N, L) of one table."""

    sheet: Sheet
    table: EmbeddingTable
    hash_ids: bool
    known: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        column, places = self.sheet.ids[self.table.name], self.table.ids_per_sample
        self.ids: Ids = np.full((len(column.cells), places), NO_ID, np.int32)
        self.weights: Floats = np.ones((len(column.cells), places), np.float32)
        for row, cell in enumerate(column.cells):
            items = self._items(cell)
            if self.table.max_ids:
                items = items[:places]
            elif len(items) != places:
                has = "one id" if places == 1 else f"{places} ids"
                raise self.sheet.fault(row, column, f"must have {has} (table {self.table.name!r} has no max_ids)")
            try:
                self._fill(row, items)
            except ValueError as error:
                raise self.sheet.fault(row, column, str(error)) from None

    def _items(self, cell: Any) -> Sequence[Any]:
        if isinstance(cell, list):
            return cell
        if missing(cell):
            return [""] if self.hash_ids and not self.table.max_ids and self.table.ids_per_sample == 1 else []
        return _BETWEEN_IDS.split(cell) if isinstance(cell, str) else [cell]

    def _fill(self, row: int, items: Iterable[Any]) -> None:
        for place, item in enumerate(items):
            found = item
            if isinstance(item, str) and self.table.pooling == "weighted":
                found, colon, weight = item.partition(":")
                self.weights[row, place] = _weight(weight) if colon else 1.0
            self.ids[row, place] = self._row(found)

    def _row(self, item: Any) -> int:
        text = item.strip() if isinstance(item, str) else _whole(item)
        if text not in self.known:
            self.known[text] = hashed(text, self.table.rows) if self.hash_ids else self._checked(text)
        return self.known[text]

    def _checked(self, text: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", text) or int(text) >= self.table.rows:
            raise ValueError(
                f"must be rows of table {self.table.name!r}, 0 to {self.table.rows - 1}, unless ids are hashed"
            )
        return int(text)


def _weight(text: str) -> float:
    try:
        return _number(text)
    except ValueError:
        raise ValueError("must have finite weights behind the colons") from None


def _whole(item: Any) -> str:
    """Return a number as text: 7.0 (a whole number in a column with missing ones) as 7."""
    return str(int(item)) if isinstance(item, float) and item.is_integer() else str(item)
