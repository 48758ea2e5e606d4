"""Click logs in Criteo's layouts: a label, 13 counts, 26 categories in hexadecimal.

Two layouts are told apart by the first line. The raw Kaggle layout has no header and TAB between columns. The CSV layout
has the header ``label,I1,...,C26`` and commas (``criteo_sample.csv`` of DeepCTR). The rules for both:

* label: 0 or 1.
* count: a whole number, ``7`` or ``7.0``. Feature log(1 + count); negative counts count as 0, and so does a
  missing one.
* category: 1 to 16 hexadecimal digits. Row = value modulo the rows of the table ("hashing trick"); a missing one is
  row 0, which it shares with the values that the modulo sends there.
* blank lines are skipped; the last line needs no line end.

All rows are checked when the file is opened, and kept in memory (160 bytes a row): use ``limit`` for a part of a file,
or ``data.store`` for files that are larger than memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from executor.arrays import Floats, Ids
from executor.data.batch import Batch, dense_width
from executor.data.rows import Rows
from problem.errors import BadInput
from problem.model import Model

COUNTS = 13
CATEGORIES = 26
COLUMNS = ("label", *(f"I{i}" for i in range(1, COUNTS + 1)), *(f"C{i}" for i in range(1, CATEGORIES + 1)))

_LABEL, _COUNT, _CATEGORY = "[01]", r"(?:[+-]?[0-9]{1,18}(?:\.0*)?)?", "(?:[0-9a-fA-F]{1,16})?"
#: Pattern and meaning of each column.
_RULES = (
    (_LABEL, "must be 0 or 1"),
    *((_COUNT, "must be a whole number or empty"),) * COUNTS,
    *((_CATEGORY, "must be 1 to 16 hexadecimal digits or empty"),) * CATEGORIES,
)
#: Rows that are parsed together.
_CHUNK = 16384

_Arrays = tuple[Floats, Floats, Ids]


class CriteoTsv:
    """Batches from a file in one of Criteo's layouts, read round and round.

    Parameters
    ----------
    path : str or Path
        The file.
    model : Model
        Needs 13 dense features and 26 tables, in the order of the file's categories, with one id per sample.
    limit : int, optional
        Read at most so many rows.

    Raises
    ------
    BadInput
        If the model has another shape, the file cannot be read or has no rows, or a line breaks a rule: names file,
        line, column and value.
    """

    def __init__(self, path: str | Path, model: Model, limit: int | None = None) -> None:
        labels, dense, ids = (np.concatenate(parts) for parts in zip(*criteo_chunks(path, model, limit), strict=True))
        columns = {
            table.name: np.ascontiguousarray(ids[:, i : i + 1]) for i, table in enumerate(model.feature.values())
        }
        #: All rows of the file.
        self.rows = Rows(dense, columns, labels)

    def __len__(self) -> int:
        """Rows of the file."""
        return len(self.rows)

    def batch(self, index: int, size: int) -> Batch:
        """Return batch number ``index``: rows index * size and on; the first row follows the last."""
        return self.rows.batch(index, size)


def criteo_chunks(path: str | Path, model: Model, limit: int | None = None) -> Iterator[_Arrays]:
    """Yield labels (n,), dense features (n, 13) and row numbers (n, 26) of the rows of a file, some thousand at a time.

    Raises
    ------
    BadInput
        As :class:`CriteoTsv`.
    """
    _check_model(path, model)
    sizes = np.array([feature.rows for feature in model.feature.values()], np.uint64)
    rows, found = islice(_rows(path), limit), False
    while chunk := list(islice(rows, _CHUNK)):
        found = True
        yield _arrays(chunk, sizes)
    if not found:
        raise BadInput(path, "rows", 0, "the file must have at least one row")


def _check_model(path: str | Path, model: Model) -> None:
    """Refuse a model that Criteo's columns do not fit."""
    if dense_width(model) != COUNTS:
        raise BadInput(path, f"model {model.name!r}, dense features", dense_width(model), f"Criteo data has {COUNTS}")
    if len(model.feature) != CATEGORIES:
        raise BadInput(path, f"model {model.name!r}, tables", len(model.feature), f"Criteo data has {CATEGORIES}")
    for table in model.feature.values():
        if table.ids_per_sample != 1:
            field = f"model {model.name!r}, ids per sample of table {table.name!r}"
            raise BadInput(path, field, table.ids_per_sample, "Criteo data has 1")
        if table.pooling == "weighted":
            raise BadInput(
                path, f"model {model.name!r}, pooling of table {table.name!r}", "weighted", "Criteo data has no weights"
            )


def _rows(path: str | Path) -> Iterator[list[str]]:
    """Yield the fields of each row, after checking them."""
    separator, matches = "\t", _line_rule("\t")
    try:
        with Path(path).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                text = line.rstrip("\n")
                if number == 1 and text.startswith("label,I1"):
                    separator, matches = ",", _line_rule(",")
                    _check_header(path, text)
                elif text.strip(" "):  # not strip(): a row of nothing but TABs is a row, without a label
                    fields = text.split(separator)
                    if not matches(text):
                        raise _fault(path, number, fields)
                    yield fields
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            path,
            "file",
            getattr(error, "strerror", None) or str(error),
            "must be a readable text file in Criteo's layout",
        ) from error


def _line_rule(separator: str) -> Callable[[str], re.Match[str] | None]:
    """Return the test of a whole line: 40 columns, each by its rule (one match is faster than 40)."""
    return re.compile(separator.join(pattern for pattern, _ in _RULES)).fullmatch


def _check_header(path: str | Path, text: str) -> None:
    names = text.split(",")
    for index, name in enumerate(COLUMNS):
        if names[index : index + 1] != [name]:
            raise BadInput(path, f"line 1, column {index + 1}", "".join(names[index : index + 1]), f"must be {name}")


def _fault(path: str | Path, line: int, fields: list[str]) -> BadInput:
    """Return what is wrong with a line that breaks a rule: the first such column, or the number of columns."""
    if len(fields) != len(COLUMNS):
        missing = f" (the first that is missing is {COLUMNS[len(fields)]})" if len(fields) < len(COLUMNS) else ""
        return BadInput(path, f"line {line}, columns", len(fields), f"must be {len(COLUMNS)}{missing}")
    index = next(i for i, (pattern, _) in enumerate(_RULES) if not re.fullmatch(pattern, fields[i]))
    return BadInput(path, f"line {line}, column {COLUMNS[index]}", fields[index], _RULES[index][1])


def _arrays(rows: list[list[str]], sizes: npt.NDArray[np.uint64]) -> _Arrays:
    """Return labels (N,), dense features (N, 13) and row numbers (N, 26) of checked rows; ``sizes`` of the tables."""
    labels = np.array([fields[0] == "1" for fields in rows], np.float32)
    counts = (int(text.partition(".")[0]) if text else 0 for fields in rows for text in fields[1 : COUNTS + 1])
    values = (int(text, 16) if text else 0 for fields in rows for text in fields[COUNTS + 1 :])
    clicks = np.fromiter(counts, np.float64, len(rows) * COUNTS).reshape(-1, COUNTS)
    hashed = np.fromiter(values, np.uint64, len(rows) * CATEGORIES).reshape(-1, CATEGORIES) % sizes
    return labels, np.log1p(np.maximum(clicks, 0.0)).astype(np.float32), hashed.astype(np.int32)
