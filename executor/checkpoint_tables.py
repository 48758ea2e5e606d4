"""Tables in a checkpoint: whole, whatever the shards that hold them.

Of each table the rows, (rows, dim), and the state: (rows, dim) for adagrad; (2, rows, dim) for adam; for row-wise adagrad
(rows, strips), or (rows,) of one strip, a scalar for each row and column strip, the strips being named in the manifest.
Shards that have all columns are read and written where they lie; others are put together a block of rows at a time.

Another cut of the columns changes nothing of rows, adagrad or adam. A strip of row-wise adagrad gets, for each row, the
mean over its columns of what they had: the mean of squares over a whole row is the mean over its strips, weighted by width,
so strips that are joined go on as if they had never been apart, and strips that are cut start from what they shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from executor.arrays import Floats
from executor.parameters import TableRows
from problem.model import EmbeddingTable

#: Name of an array in the file, its shape, and its pieces in order; one that is read is filled before the next is asked for.
Entry = tuple[str, tuple[int, ...], Iterable[Floats]]
#: Columns, begin and end.
Span = tuple[int, int]
#: Shards by their strip, in the order of columns; those of a strip in the order of rows.
Strips = Mapping[Span, Sequence[TableRows]]

#: Rows that are put together at a time.
BLOCK_ROWS = 4096


def table_facts(shards: Iterable[TableRows | None]) -> dict[str, Any]:
    """Return what the manifest says of each table: its strips, and how often adam has updated it."""
    return {
        table.name: {
            "strips": [list(span) for span in strips],
            "updates": max(int(shard.updates[0]) for parts in strips.values() for shard in parts),
        }
        for table, strips in _by_table(shards)
    }


def table_entries(shards: Iterable[TableRows | None]) -> Iterator[Entry]:
    """Yield the arrays of all tables, to be written."""
    for table, strips in _by_table(shards):
        yield _name(table), (table.rows, table.dim), _whole(table, strips, None, store=False)
        yield from _state_entries(table, strips, list(strips), store=False)


def fill_tables(shards: Iterable[TableRows | None], facts: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the arrays of all tables, to be read into the shards.

    Parameters
    ----------
    shards : iterable of TableRows or None
        Shards of the plan that goes on.
    facts : Mapping
        What :func:`table_facts` said of the shards that were written; a table that is not in it had all columns together.
    """
    for table, strips in _by_table(shards):
        found = facts.get(table.name, {})
        for parts in strips.values():
            for shard in parts:
                shard.updates[0] = found.get("updates", 0)
        yield _name(table), (table.rows, table.dim), _whole(table, strips, None, store=True)
        written = [(int(begin), int(end)) for begin, end in found.get("strips", [(0, table.dim)])]
        yield from _state_entries(table, strips, written, store=True)


def _by_table(shards: Iterable[TableRows | None]) -> list[tuple[EmbeddingTable, Strips]]:
    found: dict[str, dict[Span, list[TableRows]]] = {}
    tables: dict[str, EmbeddingTable] = {}
    for shard in sorted((s for s in shards if s is not None), key=lambda s: (s.column_begin, s.row_begin)):
        tables[shard.table.name] = shard.table
        span = (shard.column_begin, shard.column_begin + shard.rows.shape[1])
        found.setdefault(shard.table.name, {}).setdefault(span, []).append(shard)
    return [(tables[name], strips) for name, strips in sorted(found.items())]


def _name(table: EmbeddingTable, suffix: str = "") -> str:
    return f"table/{table.name}{suffix}"


def _state_entries(table: EmbeddingTable, strips: Strips, written: Sequence[Span], *, store: bool) -> Iterator[Entry]:
    state = next(iter(strips.values()))[0].state
    if not state.size:
        return
    if state.ndim == 1:
        shape = (table.rows,) if len(written) == 1 else (table.rows, len(written))
        yield _name(table, ".state"), shape, _scalars(table, strips, written, store=store)
    else:
        moments = range(state.shape[0]) if state.ndim == 3 else [-1]
        pieces = (piece for moment in moments for piece in _whole(table, strips, moment, store=store))
        lead = (len(moments),) if state.ndim == 3 else ()
        yield _name(table, ".state"), (*lead, table.rows, table.dim), pieces


def _held(shard: TableRows, moment: int | None) -> Floats:
    """The rows (None), the state (-1), or one moment of it, (rows, width)."""
    if moment is None:
        return shard.rows
    return shard.state if moment < 0 else shard.state[moment]


def _whole(table: EmbeddingTable, strips: Strips, moment: int | None, *, store: bool) -> Iterator[Floats]:
    """Yield all elements of a table, row after row: where they lie if no column is cut, else in blocks."""
    if len(strips) == 1:
        yield from (_held(shard, moment) for shard in next(iter(strips.values())))
        return
    for begin in range(0, table.rows, BLOCK_ROWS):
        end = min(table.rows, begin + BLOCK_ROWS)
        block = np.empty((end - begin, table.dim), np.float32)
        views = [
            (rows, _held(shard, moment)[inside], shard.columns) for shard, rows, inside in _overlaps(strips, begin, end)
        ]
        for rows, held, columns in () if store else views:
            block[rows, columns] = held
        yield block
        for rows, held, columns in views if store else ():
            held[...] = block[rows, columns]


def _scalars(table: EmbeddingTable, strips: Strips, written: Sequence[Span], *, store: bool) -> Iterator[Floats]:
    """Yield the state of row-wise adagrad by the strips ``written``, in blocks of rows."""
    number = {span: i for i, span in enumerate(strips)}
    shares = np.array([[_overlap(old, new) for new in strips] for old in written], np.float32)  # (written, strips)
    for begin in range(0, table.rows, BLOCK_ROWS):
        end = min(table.rows, begin + BLOCK_ROWS)
        block = np.empty((end - begin, len(written)), np.float32)
        views = [
            (rows, shard.state[inside], number[shard.columns.start, shard.columns.stop])
            for shard, rows, inside in _overlaps(strips, begin, end)
        ]
        for rows, held, strip in () if store else views:
            block[rows, strip] = held
        yield block
        mixed = block @ shares if store else block
        for rows, held, strip in views if store else ():
            held[...] = mixed[rows, strip]


def _overlap(old: Span, new: Span) -> float:
    """Share of the columns of a strip that another one had."""
    return max(0, min(old[1], new[1]) - max(old[0], new[0])) / (new[1] - new[0])


def _overlaps(strips: Strips, begin: int, end: int) -> Iterator[tuple[TableRows, slice, slice]]:
    """Yield shards with rows in a range: the rows in terms of the range, and of the shard."""
    for shard in (shard for parts in strips.values() for shard in parts):
        first, last = max(begin, shard.row_begin), min(end, shard.row_end)
        if first < last:
            yield shard, slice(first - begin, last - begin), slice(first - shard.row_begin, last - shard.row_begin)
