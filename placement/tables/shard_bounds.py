"""Bounds of table sharding: seconds that the busiest server needs at least, however tables are cut and placed.

Work and memory traffic may be spread perfectly, and ids where each shard gets its own; what every shard asks for by itself
may not: all ids of its table, or what leads its own, and, unless columns may be cut, the whole pooled tensor. Knows nothing
of how shardings are found.
"""

from __future__ import annotations

import numpy as np

from placement.plan import Shard
from placement.tables.pieces import UNIT, whole_piece
from placement.tables.shard_state import Floats, Ints, Sharding
from placement.tables.table_rules import confined

#: Levels that a curve holds at most; where there are more, only the first shards of each table count.
MOST_LEVELS = 10**6


class TableNeeds:
    """What tables ask of any server, whatever the number of servers: counted once for the bounds of all numbers.

    Parameters
    ----------
    state : Sharding
        Tables, and whether rows and columns may be cut; its servers do not count.
    """

    def __init__(self, state: Sharding) -> None:
        tables = state.model.tables
        self.row_splits, self.whole = state.row_splits, least(state)
        self.in_strips = np.array([state.columns and table.dim >= 2 * UNIT for table in tables], bool)
        widths = [0 if strips else table.dim for table, strips in zip(tables, self.in_strips, strict=True)]
        each = [state.each(table.name, width, routed=True) for table, width in zip(tables, widths, strict=True)]
        self.each = np.array(each).reshape(-1, 4) if state.row_splits else self.whole
        self.session = np.array([state.session_bytes(t, w) for t, w in zip(tables, widths, strict=True)], float)
        self.row = np.array([table.bytes_per_row for table in tables], float)
        self.rows = np.array([table.rows for table in tables], float)

    def fewest_shards(self, memory_bytes: int, sessions: int) -> Floats:
        """Return (table,) how many shards each table needs at least, each with buffers in some bytes of memory.

        Parameters
        ----------
        memory_bytes : int
            Of the largest server.
        sessions : int
            That have buffers there.
        """
        room = np.maximum(1.0, memory_bytes - sessions * self.session)
        rows = np.maximum(1.0, np.floor(room / self.row * (1 + 1e-12)))
        strips = np.ceil(self.rows * self.row / room * (1 - 1e-12))
        return np.asarray(np.maximum(1.0, np.where(self.in_strips, strips, np.ceil(self.rows / rows))))


def least(state: Sharding) -> Floats:
    """Return (table, 4) what each table asks for at least, its ids sent to shards alone or all at once."""
    if not state.row_splits:
        return state.whole()
    alone = [
        state.work(Shard(table.name, 0, 0, table.rows), routed=True) + state.each(table.name, table.dim, routed=True)
        for table in state.model.tables
    ]
    return np.asarray(np.minimum(state.whole(), np.array(alone).reshape(-1, 4)))


class ShardCurve:
    """How many shards tables need, and the bytes of requests that come with them, at each level of the servers' load.

    A shard costs its server ``each`` and a share of the rest, so below the level each + share / n a table needs more than
    n shards, on as many servers. All these levels, sorted, with the sums of ids beside them, answer for every level and
    every number of servers by binary search.

    Parameters
    ----------
    needs : TableNeeds
        The tables.
    fastest : (4,) array
        Rates of the fastest server.
    ids_bytes : (table,) array of int
        Bytes of a request of one batch that come with every further shard.
    servers : int
        Most servers there are.
    """

    def __init__(self, needs: TableNeeds, fastest: Floats, ids_bytes: Ints, servers: int) -> None:
        share, each = (needs.whole - needs.each) / fastest, needs.each / fastest
        least = float((each + share / servers).max(initial=0.0))
        open_ = np.flatnonzero((each + share).max(axis=1, initial=0.0) > least)
        count = np.arange(1, min(servers, 2 + MOST_LEVELS // max(1, len(open_))))
        levels = (each[open_, None] + share[open_, None] / count[:, None]).max(axis=2, initial=0.0) * (1 - 1e-9)
        order = np.argsort(-levels, axis=None, kind="stable")
        self._falling = -levels.ravel()[order]
        self._more = np.concatenate([[0], np.cumsum(np.repeat(ids_bytes[open_], len(count))[order])])

    def more_ids_bytes(self, level_seconds: float) -> int:
        """Return the bytes of ids besides those of whole tables, if no server is busier than a level."""
        return int(self._more[np.searchsorted(self._falling, -level_seconds, side="left")])


def sharding_bound(state: Sharding, needs: TableNeeds | None = None) -> float:
    """Return the seconds that no sharding of the state's tables over its servers is below.

    Parameters
    ----------
    state : Sharding
        Servers, and whether rows and columns may be cut; what is placed does not count.
    needs : TableNeeds, optional
        Of these tables, if they were counted before.
    """
    if not state.model.tables or not len(state.nodes):
        return 0.0
    needs = needs or TableNeeds(state)
    whole, each, fastest = needs.whole, needs.each, state.rates.max(axis=0)
    spread = whole.sum(axis=0) / state.rates.sum(axis=0)
    packed = [packing_bound(each[:, i].tolist(), len(state.nodes)) / fastest[i] for i in range(4)]
    return float(max(*spread, *packed, *_ruled_seconds(state), *_cut_seconds(state, needs)))


def _cut_seconds(state: Sharding, needs: TableNeeds) -> list[float]:
    """Seconds that each resource needs at least, as many shards being counted as that makes necessary."""
    servers, fastest = len(state.nodes), state.rates.max(axis=0)
    largest = int(max(node.memory_bytes for node in state.nodes))
    fewest = np.minimum(needs.fewest_shards(largest, state.sessions), servers)
    share, each = (needs.whole - needs.each) / fastest, needs.each / fastest
    finite = np.flatnonzero(np.isfinite(fastest) if state.row_splits else np.zeros(4, bool))
    return [level_bound(share[:, i], each[:, i], servers, fewest) for i in finite]


def _ruled_seconds(state: Sharding) -> list[float]:
    """Seconds that servers need at least for what must be on them, and the fastest one for what stays together."""
    pinned, fastest = np.zeros_like(state.load), state.rates.max(axis=0)
    table = state.model.table
    for name in state.rules.whole:
        server = state.rules.server_of(state.rules.unit(name))
        if server is not None and server < len(state.nodes):
            pinned[server] += state.demand(whole_piece(table[name]))
    together = [sum(state.demand(whole_piece(table[n])) for n in unit) / fastest for unit in state.rules.together]
    lowest = dict(zip(table, least(state), strict=True)) if state.rules.forbidden else {}
    here = confined(state.rules, state.nodes) if state.rules.forbidden else {}
    left = [
        sum(lowest[n] for n in names) / state.rates[~np.array(barred)].sum(axis=0)
        for barred, names in here.items()
        if not all(barred)
    ]
    return [float(np.max(part)) for part in (pinned / state.rates, *together, *left)]


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
