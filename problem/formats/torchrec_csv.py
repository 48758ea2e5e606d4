"""TorchRec sharding plans, one table a line: CSV, or the report that the planner prints.

Rows, dim and pooling factor of each table, and the ranks that hold its shards.

The columns are those of the planner's own report (torchrec/distributed/planner/stats.py): ``hash_size`` rows,
``emb_dim``, ``cw_dim`` (columns of a shard), ``sum_pooling_factor`` (ids per sample of all features together),
``sharding`` and ``ranks`` (``0-95`` or ``11,27,27``: a rank may hold several column shards).

==========  =======================================================================================================
``TW``      table-wise: the whole table on one rank
``CW``      column-wise: blocks of ``cw_dim`` columns, one for each rank listed; ``TWCW`` the same
``RW``      row-wise: blocks of ceil(rows / ranks) rows, the last ones smaller or empty; ``TWRW`` the same
==========  =======================================================================================================

A name that appears again is another table, and gets a number: ``table_1750 (2)``.
Dropped: predicted times and memory, sequences (they count as pooled), weights.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

from problem.documents import Document, parse_csv
from problem.errors import BadInput
from problem.formats.content import Content
from problem.formats.placement import PlacedShard, Placement
from problem.formats.tables_model import model_around
from problem.formats.torchrec_stats import parse_report
from problem.model import Model

_COLUMNS = ("table", "sharding", "ranks", "hash_size", "emb_dim")
MAX_RANKS = 100_000


def read_model(content: Content) -> Model:
    """Return a model of the tables, with an assumed dense part.

    Raises
    ------
    BadInput
        When a column is missing or a value is not allowed.
    """
    document = _document(content)
    rows = document.data["tables"]
    tables = [
        {"name": row["table"], "rows": row["hash_size"], "dim": row["emb_dim"], "pooling_factor": _pooling(row)}
        for row in rows
    ]
    idle = sum(not float(table["pooling_factor"]) for table in tables if _is_number(table["pooling_factor"]))
    notes = [f"{len(rows)} tables of a TorchRec plan; sequences count as pooled, all rows are float32"]
    if idle:
        notes.append(f"{idle} tables with pooling factor 0 are looked up once a sample")
    return model_around(content.stem, tables, content.source, notes=notes, lines=document.lines)


def read_placement(content: Content) -> Placement:
    """Return where the plan puts each table.

    Raises
    ------
    BadInput
        When a column is missing, a sharding type is not one of those above, or the shards do not fill a table.
    """
    document = _document(content)
    shards = [shard for i, row in enumerate(document.data["tables"]) for shard in _shards(row, i, document)]
    devices = 1 + max(shard.device for shard in shards)
    return Placement(content.stem, devices, tuple(shards), read_model(content))


def _document(content: Content) -> Document:
    parse = parse_report if content.head_text.startswith("#") else _parse_csv
    document = parse(content.text, content.source)
    rows = document.data["tables"]
    if not rows:
        raise BadInput(content.source, "tables", [], "at least one line below the header")
    seen: Counter[str] = Counter()
    for i, row in enumerate(rows):
        missing = next((column for column in _COLUMNS if column not in row), None)
        if missing is not None:
            raise BadInput(document.where(("tables", i)), missing, None, "a value in this column for every table")
        seen[row["table"]] += 1
        if seen[row["table"]] > 1:
            row["table"] += f" ({seen[row['table']]})"
    return document


def _parse_csv(text: str, source: str) -> Document:
    return parse_csv(text, source, "tables")


def _pooling(row: Mapping[str, str]) -> str:
    return row.get("sum_pooling_factor", "1")


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"\d+(\.\d+)?([eE][+-]?\d+)?", text))


def _shards(row: Mapping[str, str], index: int, document: Document) -> Iterator[PlacedShard]:
    name, kind, where = row["table"], row["sharding"], document.where(("tables", index))
    ranks = _ranks(row["ranks"], where)
    size, dim = _whole(row, "hash_size", where), _whole(row, "emb_dim", where)
    if kind in {"RW", "TWRW", "row_wise", "table_row_wise"}:
        yield from (PlacedShard(name, rank, rows=part) for rank, part in _blocks(ranks, size, ceil(size / len(ranks))))
    elif kind in {"CW", "TWCW", "column_wise", "table_column_wise"}:
        width = _whole(row, "cw_dim", where) if row.get("cw_dim") else ceil(dim / len(ranks))
        if not (len(ranks) - 1) * width < dim <= len(ranks) * width:
            raise BadInput(where, f"{name}.ranks", row["ranks"], f"one rank for each {width} of {dim} columns")
        yield from (PlacedShard(name, rank, columns=part) for rank, part in _blocks(ranks, dim, width))
    elif kind in {"TW", "table_wise"} and len(ranks) == 1:
        yield PlacedShard(name, ranks[0])
    else:
        raise BadInput(
            where, f"{name}.sharding", f"{kind} on {len(ranks)} ranks", "TW on one rank, RW, TWRW, CW or TWCW"
        )


def _blocks(ranks: list[int], size: int, width: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield each rank with its block; the last blocks may be smaller or empty."""
    for i, rank in enumerate(ranks):
        yield rank, (min(size, i * width), min(size, (i + 1) * width))


def _whole(row: Mapping[str, Any], key: str, where: str) -> int:
    text = row[key]
    if not text.isdecimal() or int(text) < 1:
        raise BadInput(where, f"{row['table']}.{key}", text, "a whole number, at least 1")
    return int(text)


def _ranks(text: str, where: str) -> list[int]:
    """Return the ranks of ``0-95`` or ``11,27,27``."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None or int(match[2] or match[1]) - int(match[1]) > MAX_RANKS:
            raise BadInput(where, "ranks", text, "numbers and ranges, such as 0-95 or 3,11")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found
