"""Click logs in files: which format a file has, and where in it the columns are that a model reads.

Formats: ``criteo`` (``data.criteo``), ``csv`` (a header, comma or TAB between cells), ``parquet`` (needs ``pyarrow``, the
optional extra ``parquet``), ``slots`` (PaddleRec: lines of ``slot:value``). Without being told, a file is Parquet if its
name ends so; slots if its first line has nothing but pairs with colons; Criteo if that begins with ``label,I1`` or with a
label and a TAB; else CSV.

Columns of CSV and Parquet are found by name. Ids are in the column named like the table. The label is in ``label``,
``click``, ``clk`` or ``target``, dense features in what is left over, in the order of the file, if that is as many as the
model has: else their names must be given. In slots the label is ``click`` or ``label``, the dense features are
``dense_feature`` in order, and ids of the i-th table are in the slot of its name or, if there is none, in slot i (from 1);
a slot that comes several times has several ids.

What cells mean is the business of ``data.cells``.
"""

from __future__ import annotations

import csv
import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from executor.data.batch import dense_width
from executor.data.cells import Column, Sheet
from executor.data.criteo import CriteoTsv
from executor.data.rows import Rows
from problem.errors import BadInput
from problem.model import Model

FORMATS = ("criteo", "csv", "parquet", "slots")
#: Names of a column of labels, the first that is there is taken.
LABELS = ("label", "click", "clk", "target")
DENSE_SLOT = "dense_feature"

_PAIRS = re.compile(r"\S+:\S+(\s+\S+:\S+)*")


@dataclass(frozen=True)
class DataOptions:
    """How to read a file.

    Parameters
    ----------
    format : str
        One of :data:`FORMATS`; empty: as the file looks.
    hash_ids : bool
        Hash ids to rows instead of refusing those outside their table (Criteo's categories always are).
    label : str
        Column (or slot) of the labels; empty: see above.
    dense : tuple of str
        Columns (or the one slot) of the dense features; empty: see above.
    limit : int or None
        Rows to read at most.
    """

    format: str = ""
    hash_ids: bool = False
    label: str = ""
    dense: tuple[str, ...] = ()
    limit: int | None = None


def open_data(path: str | Path, model: Model, options: DataOptions = DataOptions()) -> Rows:
    """Read a click log.

    Parameters
    ----------
    path : str or Path
        The file.
    model : Model
        What it is for.
    options : DataOptions
        How to read it.

    Raises
    ------
    BadInput
        The file cannot be read, lacks a column, or has a cell that breaks a rule: names file, line, column and value.
    """
    chosen = options.format or _looks_like(path)
    if chosen == "criteo":
        return CriteoTsv(path, model, options.limit).rows
    readers: dict[str, Callable[[str | Path, Model, DataOptions], Sheet]] = {
        "csv": _csv_sheet,
        "parquet": _parquet_sheet,
        "slots": _slot_sheet,
    }
    if chosen not in readers:
        raise BadInput(path, "format", chosen, f"must be one of {', '.join(FORMATS)}")
    return readers[chosen](path, model, options).rows(model, hash_ids=options.hash_ids)


def _looks_like(path: str | Path) -> str:
    suffix = Path(path).suffix.lower()
    if suffix in {".parquet", ".pq"}:
        return "parquet"
    if suffix in {".npz", ".npy", ".h5", ".gz", ".zip", ".json"}:
        raise BadInput(path, "format", suffix, f"must be one of {', '.join(FORMATS)}")
    _, first = next(_lines(path), (0, ""))
    if _PAIRS.fullmatch(first):
        return "slots"
    return "criteo" if first.startswith("label,I1") or re.match("[01]?\t", first) else "csv"


def _lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines that are not blank."""
    try:
        with Path(path).open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip(" \r\n"):
                    yield number, line.rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            path, "file", getattr(error, "strerror", None) or str(error), "must be a readable text file"
        ) from error


# ---- columns by name


@dataclass(frozen=True)
class _Names:
    """Names of the columns that a model reads."""

    label: str
    dense: tuple[str, ...]
    ids: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (self.label, *self.dense, *self.ids)

    def sheet(self, path: str | Path, cells: Mapping[str, Sequence[Any]], places: Sequence[int], place: str) -> Sheet:
        columns = {name: Column(name, cells[name]) for name in self.all}
        dense = [columns[name] for name in self.dense]
        return Sheet(str(path), columns[self.label], dense, {name: columns[name] for name in self.ids}, places, place)


def _names(path: str | Path, header: Sequence[str], model: Model, options: DataOptions) -> _Names:
    """Find the columns in a header."""
    twice = next((name for index, name in enumerate(header) if name in header[:index]), None)
    if twice is not None:
        raise BadInput(path, "header", twice, "names of columns must be distinct")
    ids = tuple(table.name for table in model.feature.values())
    label = options.label or next((name for name in LABELS if name in header), LABELS[0])
    rest = tuple(name for name in header if name != label and name not in ids)
    dense, wanted = options.dense or rest, dense_width(model)
    absent = next((name for name in (label, *ids, *options.dense) if name not in header), None)
    if absent is not None:
        raise BadInput(path, "header", ",".join(header), f"must have a column {absent!r}")
    if len(dense) != wanted:
        allowed = f"{wanted}, as many as model {model.name!r} has; name them, if the file has other columns too"
        raise BadInput(path, "dense columns", ",".join(dense), allowed)
    return _Names(label, dense, ids)


def _csv_sheet(path: str | Path, model: Model, options: DataOptions) -> Sheet:
    numbers: list[int] = []

    def texts() -> Iterator[str]:
        for number, line in _lines(path):
            numbers.append(number)
            yield line

    first = next(_lines(path), (0, ""))[1]
    records = csv.reader(texts(), delimiter="\t" if "\t" in first else ",")
    header = next(records, [])
    names = _names(path, header, model, options)
    at = [header.index(name) for name in names.all]
    cells: list[list[str]] = [[] for _ in at]
    places: list[int] = []
    for record in islice(_records(path, records, numbers), options.limit):
        if len(record) != len(header):
            raise BadInput(
                path, f"line {numbers[-1]}, columns", len(record), f"must be {len(header)}, as in the header"
            )
        places.append(numbers[-1])
        for column, index in zip(cells, at, strict=True):
            column.append(record[index])
    return names.sheet(path, dict(zip(names.all, cells, strict=True)), places, "line")


def _records(path: str | Path, records: Iterator[list[str]], numbers: list[int]) -> Iterator[list[str]]:
    try:
        yield from records
    except csv.Error as error:
        raise BadInput(path, f"line {numbers[-1]}", str(error), "must be a line of CSV") from error


def _parquet_sheet(path: str | Path, model: Model, options: DataOptions) -> Sheet:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise BadInput(path, "format", "parquet", "needs pyarrow: pip install hiertrain[parquet]") from None
    try:
        file = parquet.ParquetFile(path)
        names = _names(path, file.schema_arrow.names, model, options)
        table = file.read(columns=list(names.all)).slice(0, options.limit)
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise BadInput(path, "file", str(error).partition("\n")[0], "must be a readable Parquet file") from error
    cells = {name: table.column(name).to_pylist() for name in names.all}
    return names.sheet(path, cells, range(len(table)), "row")


def _slot_sheet(path: str | Path, model: Model, options: DataOptions) -> Sheet:
    places, records = [], []
    for number, line in islice(_lines(path), options.limit):
        found: dict[str, list[str]] = {}
        for pair in line.split():
            slot, colon, value = pair.partition(":")
            if not colon or not slot:
                raise BadInput(path, f"line {number}", pair, "must be pairs slot:value")
            found.setdefault(slot, []).append(value)
        places.append(number)
        records.append(found)
    seen = {slot for record in records for slot in record}
    label = options.label or next((name for name in ("click", "label") if name in seen), "click")
    slot, width = options.dense[0] if options.dense else DENSE_SLOT, dense_width(model)
    for number, record in zip(places, records, strict=True):
        for name, count in ((label, 1), (slot, width)):
            if len(record.get(name, ())) != count:
                raise BadInput(
                    path, f"line {number}, slot {name}", len(record.get(name, ())), f"must come {count} times"
                )
    dense = [Column(f"{slot}[{i}]", [record[slot][i] for record in records]) for i in range(width)]
    ids = {}
    for index, table in enumerate(model.feature.values(), start=1):
        name = table.name if table.name in seen else str(index)
        ids[table.name] = Column(name, [record.get(name, []) for record in records])
    return Sheet(str(path), Column(label, [record[label][0] for record in records]), dense, ids, places)
