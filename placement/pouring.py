"""Cutting tables for balance: fill every server to a common level, and seek the lowest level that works.

For a level Z, whole tables go where they fit tightest (best fit, largest first); the rest is poured into what is left,
each shard as large as the server's resources and memory allow, so that about one table is cut per server (McNaughton's
wrap-around rule, 1959, with a charge per cut and memory limits). The tables that are poured are those whose cuts cost
least for the work they carry; how many is tried out. Bisection over Z.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from placement.shard_state import Floats, Piece, Sharding
from problem.model import EmbeddingTable

#: Steps of the bisection: the last one is below 0.1 % of the first interval.
STEPS = 11
#: How many tables are poured, as multiples of the number of servers.
POURED = (0.0, 0.25, 0.5, 1.0, 2.0)


def poured(empty: Callable[[], Sharding], bound: float, most: float, gap: float = 1e-4) -> Sharding | None:
    """Return the best sharding found with a level below ``most``; None if there is none.

    Parameters
    ----------
    empty : callable
        Gives the servers without tables.
    bound, most : float
        Seconds that no sharding is below; seconds that a known one has.
    gap : float
        Relative difference to the bound that is good enough.
    """
    best: Sharding | None = None
    for share in POURED:
        low, high = bound, most
        for _ in range(STEPS if most > bound * (1 + gap) else 0):
            level = (low + high) / 2
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
            if piece.tables[0].name in state.rules.ruled:
                return None
    return state if all(_pour(state, table, level) for table in left) else None


def _cheapest_cuts(state: Sharding, count: int) -> frozenset[str]:
    """Tables whose shards cost least, for the work that a whole one carries."""

    def charge(table: EmbeddingTable) -> float:
        share, each = (float((part / state.rates.max(axis=0)).max()) for part in state.parts_of(table))
        return each / share if share else float("inf")

    free = [table for table in state.model.tables if table.name not in state.rules.ruled]
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
    """Cut a table over the servers with most space below the level; return whether all of it found a place."""
    left = table.rows
    while left:
        capacity = _capacity(state, table, level)
        enough = np.flatnonzero(capacity >= left)
        server = int(enough[np.argmin(capacity[enough])]) if len(enough) else int(np.argmax(capacity))
        rows = min(left, int(capacity[server]))
        if rows <= 0:
            return False
        state.add(table, server, rows)
        left -= rows
    return True


def _capacity(state: Sharding, table: EmbeddingTable, level: float) -> Floats:
    """(server,) Rows that each server can take below the level, its memory included."""
    share, each = state.parts_of(table)
    spare = level * state.rates - state.load - each
    spare[np.isinf(state.rates)] = np.inf
    limits = np.full_like(spare, np.inf)
    np.divide(spare, share / table.rows, out=limits, where=share > 0)
    limits[spare < 0] = 0.0
    memory = np.maximum(0, state.room - state.buffer(table)) // table.bytes_per_row
    return np.asarray(np.floor(np.minimum(np.minimum(limits.min(axis=1), memory), table.rows)))
