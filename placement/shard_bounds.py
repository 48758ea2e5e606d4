"""Bounds of table sharding: seconds that the busiest server needs at least, however tables are cut and placed.

Work and memory traffic may be spread perfectly; what every shard asks for by itself may not: to take and look at all ids
of its table and, unless columns may be cut, the whole pooled tensor. Knows nothing of how shardings are found.
"""

from __future__ import annotations

import numpy as np

from placement.shard_state import UNIT, Floats, Sharding, whole_piece
from problem.model import EmbeddingTable


def sharding_bound(state: Sharding) -> float:
    """Return the seconds that no sharding of the state's tables over its servers is below.

    Parameters
    ----------
    state : Sharding
        Servers, and whether rows and columns may be cut; what is placed does not count.
    """
    if not state.model.tables or not len(state.nodes):
        return 0.0
    whole, fastest = state.whole(), state.rates.max(axis=0)
    each = np.array([_each(state, table) for table in state.model.tables]) if state.row_splits else whole
    spread = whole.sum(axis=0) / state.rates.sum(axis=0)
    packed = [packing_bound(each[:, i].tolist(), len(state.nodes)) / fastest[i] for i in range(4)]
    return float(max(*spread, *packed, *_ruled_seconds(state), *_cut_seconds(state, whole - each, each)))


def _each(state: Sharding, table: EmbeddingTable) -> Floats:
    """(4,) What each shard of a table asks for at least."""
    return state.each(table.name, 0 if _in_strips(state, table) else table.dim)


def _in_strips(state: Sharding, table: EmbeddingTable) -> bool:
    return state.columns and table.dim >= 2 * UNIT


def _cut_seconds(state: Sharding, share: Floats, each: Floats) -> list[float]:
    """Seconds that each resource needs at least, as many shards being counted as that makes necessary."""
    fastest, fewest = state.rates.max(axis=0), _fewest_shards(state)
    return [
        level_bound(share[:, i] / fastest[i], each[:, i] / fastest[i], len(state.nodes), fewest)
        for i in range(4)
        if np.isfinite(fastest[i]) and state.row_splits
    ]


def _fewest_shards(state: Sharding) -> Floats:
    """(table,) Shards that the memory of the largest server makes necessary."""
    largest = int(max(node.memory_bytes for node in state.nodes))
    needed = [fewest_shards(state, table, largest) for table in state.model.tables]
    return np.asarray(np.minimum(np.array(needed, dtype=float), len(state.nodes)))


def fewest_shards(state: Sharding, table: EmbeddingTable, memory_bytes: int) -> int:
    """Return how many shards a table needs at least, each with the sessions' buffers in some bytes of memory."""
    if _in_strips(state, table):
        return max(1, -(-table.total_bytes // max(1, memory_bytes - state.buffer(table, 0))))
    rows = max(1, (memory_bytes - state.buffer(table, table.dim)) // table.bytes_per_row)
    return -(-table.rows // rows)


def _ruled_seconds(state: Sharding) -> list[float]:
    """Seconds that servers need at least for what is pinned to them, and the fastest one for what stays together."""
    pinned, fastest = np.zeros_like(state.load), state.rates.max(axis=0)
    table = state.model.table
    for name in state.rules.whole:
        server = state.rules.server_of(state.rules.unit(name))
        if server is not None and server < len(state.nodes):
            pinned[server] += state.demand(whole_piece(table[name]))
    together = [sum(state.demand(whole_piece(table[n])) for n in unit) / fastest for unit in state.rules.together]
    return [float(np.max(part)) for part in (pinned / state.rates, *together)]


def packing_bound(sizes: list[float], bins: int) -> float:
    """Least height of the fullest of ``bins`` bins: of the k bins + 1 largest, some k + 1 share one (Martello, Toth)."""
    largest, best = sorted(sizes, reverse=True), 0.0
    for k in range((len(sizes) - 1) // bins + 1 if sizes else 0):
        best = max(best, sum(largest[k * (bins - 1) : k * bins + 1]))
    return best


def level_bound(share: Floats, each: Floats, servers: int, fewest: Floats) -> float:
    """Least level of servers that are filled with tables, each shard of a table costing something by itself.

    With a level T, table j needs at least n_j = share_j / (T - each_j) shards, rounded up; all together they need
    sum_j (share_j + n_j each_j) <= servers T. The left side falls and the right side rises with T, so bisection finds it.

    Parameters
    ----------
    share, each : (table,) arrays of float
        Seconds that the shards of a table share out, and that each of them costs.
    servers : int
        How many there are, as fast as the fastest.
    fewest : (table,) array of float
        Shards of each table at least.
    """
    low = max(float((share + fewest * each).sum()) / servers, float((each + share / servers).max(initial=0.0)))
    high = float((share + each).sum()) + low
    for _ in range(50 if low > 0 else 0):
        level = (low + high) / 2
        spare = np.maximum(level - each, 1e-300)
        shards = np.maximum(fewest, np.ceil(share / spare * (1 - 1e-9)))
        if float((share + shards * each).sum()) > servers * level * (1 + 1e-12):
            low = level
        else:
            high = level
    return low
