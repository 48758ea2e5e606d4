"""Cutting tables for balance: fill every server to a common level, and seek the lowest level that works.

For a level Z, whole tables go where they fit tightest (best fit, largest first); the rest is poured into what is left, by
columns or by rows, each shard as large as the server's resources and memory allow, so that about one table is cut per server
(McNaughton's wrap-around rule, 1959, with a charge per cut and memory limits). The tables that are poured are those whose
cuts cost least for the work they carry; how many is tried out. Bisection over Z.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from placement.deadline import Deadline
from placement.plan import Shard, Span
from placement.tables.pieces import UNIT, Piece
from placement.tables.shard_state import Bools, Floats, Sharding
from problem.model import EmbeddingTable

#: Steps of the bisection: the last one is below 0.1 % of the first interval.
STEPS = 11
#: How many tables are poured, as multiples of the number of servers.
POURED = (0.0, 0.25, 0.5, 1.0, 2.0)


def poured(
    empty: Callable[[], Sharding], bound: float, most: float, gap: float = 1e-4, deadline: Deadline | None = None
) -> Sharding | None:
    """Return the best sharding found with a level below ``most``; None if there is none.

    Parameters
    ----------
    empty : callable
        Gives the servers without tables.
    bound, most : float
        Seconds that no sharding is below; seconds that a known one has.
    gap : float
        Relative difference to the bound that is good enough.
    deadline : Deadline, optional
        When to return what there is.
    """
    deadline = deadline or Deadline()
    best: Sharding | None = None
    for share in POURED:
        low, high = bound, most
        for _ in range(STEPS if most > bound * (1 + gap) else 0):
            if not deadline.allows(("pouring", 1.0)):
                return best
            level = (low + high) / 2
            with deadline.phase("pouring"):
                state = _fill(empty(), level, round(share * len(empty().nodes)))
            if state is None:
                low = level
            else:
                best, most, high = state, state.seconds, min(level, state.seconds)
            if high <= low * (1 + gap):
                break
    return best


def _fill(state: Sharding, level: float, cut: int) -> Sharding | None:
    """Fill servers up to a level, ``cut`` tables being poured; None if something finds no place."""
    pour = _cheapest_cuts(state, cut)
    left: list[EmbeddingTable] = []
    for piece in state.prepared({}):
        if piece.tables[0].name in pour or not _fit(state, piece, level):
            left.append(piece.tables[0])
            if not state.cuttable(piece.tables[0]):
                return None
    return state if all(_pour(state, table, level) for table in left) else None


def _cheapest_cuts(state: Sharding, count: int) -> frozenset[str]:
    """Tables whose shards cost least, for the work that a whole one carries."""

    def charge(table: EmbeddingTable) -> float:
        fastest = state.rates.max(axis=0)
        share = float((state.work(Shard(table.name, 0, 0, table.rows)) / fastest).max())
        each = float((state.each(table.name, 0 if state.widths(table) else table.dim) / fastest).max())
        return each / share if share else float("inf")

    free = [table for table in state.model.tables if state.cuttable(table)]
    return frozenset(table.name for table in sorted(free, key=charge)[:count])


def _fit(state: Sharding, piece: Piece, level: float) -> bool:
    """Put a piece on the fullest server that stays below the level, memory not filling before time; False if none."""
    after = ((state.load + state.demand(piece)) / state.rates).max(axis=1) / level
    room = state.room - state.bytes_of(piece)
    fitting = (after <= 1) & (room >= 0) & state.allowed(piece)
    if not fitting.any():
        return False
    held = 1 - room / np.array([node.memory_bytes for node in state.nodes])
    tight = after - 2 * np.maximum(0.0, held - after)  # memory that is gone leaves time that nothing can use
    state.put(piece, int(np.argmax(np.where(fitting, tight, -np.inf))))
    return True


def _pour(state: Sharding, table: EmbeddingTable, level: float) -> bool:
    """Cut a table over the servers with most space below the level; return whether all of it found a place.

    Where the state cuts columns, strips as wide as they fit come first; the columns that are left are cut by rows.
    """
    begin = 0
    while (found := _widest(state, table, begin, level)) is not None:
        server, width = found
        span = None if width == table.dim else (begin, begin + width)
        state.add(Shard(table.name, server, 0, table.rows, span))
        begin += width
        if begin == table.dim:
            return True
    if table.name in state.rules.no_rows:
        return False
    return _pour_rows(state, table, None if begin == 0 else (begin, table.dim), level)


def _widest(state: Sharding, table: EmbeddingTable, begin: int, level: float) -> tuple[int, int] | None:
    """Return the server that takes most of the columns left, or all of them tightest, and how many."""
    left = table.dim - begin
    widths = [w for w in state.widths(table) if w <= left - UNIT] + [left] if state.widths(table) else []
    best = None
    for width in widths:
        span = None if width == table.dim else (begin, begin + width)
        piece = Piece((table,), 0, table.rows, span)
        fits = _below(state, piece, level)
        if not fits.any():
            break
        after = ((state.load + state.demand(piece)) / state.rates).max(axis=1)
        best = int(np.argmax(np.where(fits, after, -np.inf))), width
    return best


def _below(state: Sharding, piece: Piece, level: float) -> Bools:
    """(server,) Whether a piece stays below the level, memory included."""
    after = ((state.load + state.demand(piece)) / state.rates).max(axis=1)
    return np.asarray((after <= level) & (state.room >= state.bytes_of(piece)) & state.allowed(piece))


def _pour_rows(state: Sharding, table: EmbeddingTable, span: Span | None, level: float) -> bool:
    """Cut the rows of a strip over the servers with most space."""
    read, begin = state.popularity(table), 0
    while begin < table.rows:
        capacity, memory = _capacity(state, table, span, begin, level)
        left = 1.0 - float(read.below(begin))
        enough = np.flatnonzero((capacity >= left * (1 + 1e-9)) & (memory >= table.rows - begin))
        server = int(enough[np.argmin(capacity[enough])]) if len(enough) else int(np.argmax(capacity))
        end = table.rows
        if not len(enough):
            end = min(begin + int(memory[server]), read.row_at(1.0 - left + float(capacity[server])))
        if end <= begin:
            return False
        state.add(Shard(table.name, server, begin, end, span))
        begin = end
    return True


def _capacity(
    state: Sharding, table: EmbeddingTable, span: Span | None, begin: int, level: float
) -> tuple[Floats, Floats]:
    """(server,) Share of the lookups that each server can take below the level, and rows that its memory holds."""
    strip = Shard(table.name, 0, 0, table.rows, span)
    width = strip.width(table)
    work, each = state.work(strip), state.each(table.name, width)
    spare = level * state.rates - state.load - each
    spare[np.isinf(state.rates)] = np.inf
    limits = np.full_like(spare, np.inf)
    np.divide(spare, work, out=limits, where=work > 0)
    limits[spare < 0] = 0.0
    limits[state.barred(Piece((table,), 0, table.rows))] = 0.0
    memory = np.maximum(0, state.room - state.buffer(table, width)) // table.row_bytes(width)
    read = state.popularity(table)
    held = read.below(np.minimum(begin + memory, table.rows)) - float(read.below(begin))
    return np.minimum(limits.min(axis=1), np.where(memory > 0, held, 0.0)), memory
