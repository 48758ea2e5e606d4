"""From the tables of a description to tables and features: counts written out, defaults filled in, rows capped.

Knows nothing of operators: what a lookup costs is the business of ``expand``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from problem.errors import BadInput
from problem.model import EmbeddingTable
from problem.schema import ModelSpec, TableSpec


def expand_tables(spec: ModelSpec, source: str) -> tuple[EmbeddingTable, ...]:
    """Return the tables with counts written out, defaults filled in and rows capped at ``max_rows``.

    Raises
    ------
    BadInput
        When a table has no dim and the model no ``embedding_dim``, or two tables have one name.
    """
    tables = tuple(
        _table(spec, entry, i, source) for entry in spec.tables if not entry.shares for i in range(entry.count)
    )
    names = [_name(entry, i) for entry in spec.tables for i in range(entry.count)]
    twice = next((name for name, later in zip(sorted(names), sorted(names)[1:], strict=False) if name == later), None)
    if twice is not None:
        raise BadInput(source, "tables", twice, "distinct table names")
    return tables


def _table(spec: ModelSpec, entry: TableSpec, index: int, source: str) -> EmbeddingTable:
    dim = entry.dim or spec.embedding_dim
    if dim is None:
        raise BadInput(source, f"tables({entry.name}).dim", None, "a dim here, or embedding_dim for all tables")
    _check_bags(entry, source)
    _check_histogram(entry, source)
    rows = entry.rows or 1
    return EmbeddingTable(
        name=_name(entry, index),
        rows=min(rows, spec.max_rows or rows),
        dim=dim,
        pooling_factor=entry.pooling_factor,
        skew=spec.skew if entry.skew is None else entry.skew,
        optimizer=entry.optimizer or spec.table_optimizer,
        dtype=entry.dtype,
        pooling=entry.pooling,
        max_ids=entry.max_ids or 0,
        histogram=entry.histogram,
        ranked=entry.ranked,
    )


def _check_bags(entry: TableSpec, source: str) -> None:
    if entry.max_ids is not None and entry.pooling_factor > entry.max_ids:
        allowed = f"at least the mean, pooling_factor = {entry.pooling_factor:g}"
        raise BadInput(source, f"tables({entry.name}).max_ids", entry.max_ids, allowed)


def _check_histogram(entry: TableSpec, source: str) -> None:
    if entry.histogram and not sum(entry.histogram):
        raise BadInput(source, f"tables({entry.name}).histogram", list(entry.histogram), "a share above 0")


def _name(entry: TableSpec, index: int) -> str:
    return entry.name if entry.count == 1 else f"{entry.name}_{index}"


def expand_shared(spec: ModelSpec, tables: Sequence[EmbeddingTable], source: str) -> tuple[EmbeddingTable, ...]:
    """Return the features that read the rows of other tables, those that :func:`expand_tables` returned.

    Raises
    ------
    BadInput
        When a feature shares a table that there is not.
    """
    owner = {table.name: table for table in tables}
    sharing = [entry for entry in spec.tables if entry.shares]
    for entry in sharing:
        if entry.shares not in owner:
            allowed = "a table of the model with its own rows"
            raise BadInput(source, f"tables({entry.name}).shares", entry.shares, allowed)
        _check_bags(entry, source)
        _check_histogram(entry, source)
    return tuple(_feature(spec, e, owner[str(e.shares)], index) for e in sharing for index in range(e.count))


def _feature(spec: ModelSpec, entry: TableSpec, table: EmbeddingTable, index: int) -> EmbeddingTable:
    return replace(
        table,
        name=_name(entry, index),
        shares=table.name,
        pooling_factor=entry.pooling_factor,
        skew=spec.skew if entry.skew is None else entry.skew,
        pooling=entry.pooling,
        max_ids=entry.max_ids or 0,
        histogram=entry.histogram,
        ranked=entry.ranked,
    )
