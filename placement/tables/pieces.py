"""Pieces: what sharding puts on a server as one, and how narrow a strip of columns may be. Knows no servers."""

from __future__ import annotations

from dataclasses import dataclass

from placement.plan import Shard, Span
from problem.graph import FLOAT_BYTES
from problem.model import EmbeddingTable

#: Narrowest strip that columns are cut into: 64 bytes, a cache line, as rows are read at random.
UNIT = 64 // FLOAT_BYTES


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a table that is placed as one, or several tables that are kept together, whole.

    Parameters
    ----------
    tables : tuple of EmbeddingTable
        The tables.
    begin, end : int
        Rows of the only table; all of them where there are several.
    columns : tuple of int or None
        Columns, begin and end; None: all.
    number : int
        Tells the pieces of a table apart.
    """

    tables: tuple[EmbeddingTable, ...]
    begin: int
    end: int
    columns: Span | None = None
    number: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """First table and number."""
        return self.tables[0].name, self.number

    def shards(self, server: int) -> tuple[Shard, ...]:
        """Return the shards that it is on a server."""
        if len(self.tables) == 1:
            return (Shard(self.tables[0].name, server, self.begin, self.end, self.columns),)
        return tuple(Shard(table.name, server, 0, table.rows) for table in self.tables)


def whole_piece(*tables: EmbeddingTable) -> Piece:
    """Return the piece of a whole table, or of several that are kept together."""
    return Piece(tables, 0, tables[0].rows)
