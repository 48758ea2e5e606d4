"""The state of a sharding: servers, their loads and room, and the pieces of tables that are on them.

Knows what a piece asks of a server, which servers may take it, and how to put it there, longest first; ``sharding``
decides which pieces there are. Arrays have the axes (server, resource), the resources being core-seconds, bytes of memory
traffic, bytes in and bytes out, for one batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cost_models.costs import CostTable
from cost_models.memory import ids_bytes, pooled_bytes, shard_in_flight_bytes
from placement.errors import DoesNotFit
from placement.plan import Shard
from placement.table_rules import TableRules, check_room
from problem.cluster import Node
from problem.model import EmbeddingTable, Model

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of tables that are placed as one: of a table, or of several that are kept together, whole.

    Parameters
    ----------
    tables : tuple of EmbeddingTable
        The tables.
    rows : int
        Rows of the only table; all of them where there are several.
    number : int
        Tells equal pieces of a table apart.
    """

    tables: tuple[EmbeddingTable, ...]
    rows: int
    number: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """First table and number."""
        return self.tables[0].name, self.number

    @property
    def parts(self) -> tuple[tuple[EmbeddingTable, int], ...]:
        """Each table with its rows."""
        if len(self.tables) == 1:
            return ((self.tables[0], self.rows),)
        return tuple((table, table.rows) for table in self.tables)


class Sharding:
    """Tables, servers and the pieces placed so far.

    Parameters
    ----------
    model : Model
        Gives the tables.
    batch : int
        Samples per batch.
    nodes : sequence of Node
        Server machines.
    costs : CostTable
        Work of the tables.
    sessions : int
        Sessions of the whole job; each has buffers on each server.
    local : bool
        Whether no NIC is loaded.
    rules : TableRules, optional
        What the user demands of tables.
    row_splits : bool
        Whether tables may be cut.
    """

    def __init__(
        self,
        model: Model,
        batch: int,
        nodes: Sequence[Node],
        costs: CostTable,
        sessions: int,
        *,
        local: bool,
        rules: TableRules | None = None,
        row_splits: bool = True,
    ) -> None:
        self.model, self.batch, self.costs, self.sessions = model, batch, costs, sessions
        self.nodes, self.rules, self.row_splits = nodes, rules or TableRules(), row_splits
        self.rates = np.array([_rates(node, costs, local=local) for node in nodes]).reshape(-1, 4)
        self.load = np.zeros((len(nodes), 4))
        self.room = np.array([node.memory_bytes for node in nodes], dtype=np.int64)
        self.cuts: list[tuple[str, int, int]] = []  # table, server, rows
        self.at: dict[tuple[str, int], int] = {}  # server of each placed piece
        self.pieces: list[Piece] = []
        self.held: dict[str, Counter[int]] = {}  # pieces of each table that is kept apart, by server

    # ---- what a piece asks for

    @cached_property
    def _demands(self) -> dict[str, tuple[Floats, Floats]]:
        """Of each table: what is shared out by rows, and what every shard asks for."""
        return {table.name: self._demand(table) for table in self.model.tables}

    def _demand(self, table: EmbeddingTable) -> tuple[Floats, Floats]:
        cost, message = self.costs.tables[table.name], self.costs.message
        work = cost.lookup + cost.update
        ids, pooled = ids_bytes(table, self.batch), pooled_bytes(table, self.batch)
        handled = message.receive_seconds_per_byte * (ids + pooled) + message.send_seconds_per_byte * pooled
        return np.array([work.core_seconds, work.traffic_bytes, 0, 0]), np.array([handled, 0.0, ids + pooled, pooled])

    def parts_of(self, table: EmbeddingTable) -> tuple[Floats, Floats]:
        """Return (4,) what the shards of a table share out by rows, and (4,) what each of them asks for."""
        return self._demands[table.name]

    def demand(self, piece: Piece) -> Floats:
        """Return (4,) what a piece asks for: its share of the work, all ids, a whole pooled tensor and its gradient."""
        total = np.zeros(4)
        for table, rows in piece.parts:
            share, each = self._demands[table.name]
            total += share * (rows / table.rows) + each
        return total

    def whole(self) -> Floats:
        """Return (table, 4) what whole tables ask for."""
        return np.array([share + each for share, each in self._demands.values()]).reshape(-1, 4)

    def bytes_of(self, piece: Piece) -> int:
        """Memory of a piece on a server, with the sessions' buffers."""
        return sum(rows * table.bytes_per_row + self.buffer(table) for table, rows in piece.parts)

    def buffer(self, table: EmbeddingTable) -> int:
        """Memory of the sessions' buffers for one shard."""
        return self.sessions * shard_in_flight_bytes(table, self.batch)

    def allowed(self, piece: Piece) -> Bools:
        """Return (server,) where the rules allow a piece."""
        names = [table.name for table in piece.tables]
        server = self.rules.server_of(names)
        mask = np.ones(len(self.nodes), dtype=bool) if server is None else np.arange(len(self.nodes)) == server
        for apart in self.rules.apart:
            if any(name in apart for name in names):
                others = (self.held.get(name, Counter[int]()) for name in apart if name not in names)
                mask[[server for held in others for server, count in held.items() if count]] = False
        return mask

    # ---- placing

    def fill(self, parts: Mapping[str, int]) -> None:
        """Place all tables, cut into ``parts`` equal pieces each, each piece where the load is least afterwards."""
        for piece in self.prepared(parts):
            self.place(piece)

    def prepared(self, parts: Mapping[str, int]) -> list[Piece]:
        """Return the pieces in the order of placing: those with rules, those too big for any server, then by load."""
        units = [tuple(self.model.table[name] for name in self.rules.unit(t.name)) for t in self.model.tables]
        self._check()
        self.pieces = [
            piece
            for table, unit in zip(self.model.tables, units, strict=True)
            if unit[0] == table
            for piece in _pieces(unit, 1 if table.name in self.rules.ruled else parts.get(table.name, 1))
        ]
        mean, largest = self.rates.mean(axis=0), int(self.room.max(initial=0))
        return sorted(self.pieces, key=lambda p: self._order(p, mean, largest))

    def _check(self) -> None:
        if self.rules:
            size_of = {t.name: self.bytes_of(Piece((t,), t.rows)) for t in self.model.tables}
            check_room(self.rules, self.model, size_of, [node.memory_bytes for node in self.nodes])

    def _order(self, piece: Piece, mean: Floats, largest: int) -> tuple[int, bool, float, int]:
        """Pinned pieces come first, then others with rules, then those that must be cut, then by falling load and size."""
        names, size = [table.name for table in piece.tables], self.bytes_of(piece)
        ruled = any(name in self.rules.ruled for name in names)
        rank = 0 if self.rules.server_of(names) is not None else 1 if ruled else 2
        return rank, size <= largest, -float((self.demand(piece) / mean).max()), -size

    def place(self, piece: Piece) -> None:
        """Put a piece on the server that is least loaded afterwards, by memory on ties; cut it if none has room."""
        fitting = (self.room >= self.bytes_of(piece)) & self.allowed(piece)
        if not fitting.any():
            self.cut(piece)
            return
        after = ((self.load + self.demand(piece)) / self.rates).max(axis=1)
        after[~fitting] = np.inf
        least = np.flatnonzero(after <= after.min())
        self.put(piece, int(least[np.argmax(self.room[least])]))

    def put(self, piece: Piece, server: int) -> None:
        """Put a piece on a server."""
        self._book(piece, server, 1)
        self.at[piece.key] = server

    def take(self, piece: Piece) -> None:
        """Take a piece off its server."""
        self._book(piece, self.at.pop(piece.key), -1)

    def _book(self, piece: Piece, server: int, times: int) -> None:
        self.load[server] += times * self.demand(piece)
        self.room[server] -= times * self.bytes_of(piece)
        for table in piece.tables if self.rules.apart else ():
            self.held.setdefault(table.name, Counter())[server] += times

    def cut(self, piece: Piece) -> None:
        """Cut a piece over the fewest servers that have room for it, in proportion to the room.

        Raises
        ------
        DoesNotFit
            When all servers together have no room, or the piece may not be cut.
        """
        table = piece.tables[0]
        if not self.row_splits or table.name in self.rules.whole:
            self.refuse_whole(piece)
        capacity = np.maximum(0, self.room - self.buffer(table)) // table.bytes_per_row * self.allowed(piece)
        order = np.argsort(-capacity, kind="stable")
        held = np.cumsum(capacity[order])
        if not len(held) or held[-1] < piece.rows:
            self.refuse(table)
        used = order[: int(np.searchsorted(held, piece.rows)) + 1]
        total, left = int(held[len(used) - 1]), piece.rows
        for p in (int(server) for server in used):
            rows = min(left, -(-piece.rows * int(capacity[p]) // total))
            left -= rows
            self.add(table, p, rows)

    def add(self, table: EmbeddingTable, server: int, rows: int) -> None:
        """Put some rows of a table on a server, for good."""
        self.cuts.append((table.name, server, rows))
        self._book(Piece((table,), rows), server, 1)

    def refuse(self, table: EmbeddingTable) -> None:
        """Say that a table finds no room, with its size and the largest server."""
        size = self.bytes_of(Piece((table,), table.rows))
        raise DoesNotFit(
            f"table {table.name!r} ({size:,} bytes with optimizer state and buffers), even split by rows,",
            self._where(),
            sum(self.bytes_of(Piece((other,), other.rows)) for other in self.model.tables),
            sum(node.memory_bytes for node in self.nodes),
        )

    def refuse_whole(self, piece: Piece) -> None:
        """Say that tables that may not be cut find no room on any one server."""
        names = ", ".join(repr(table.name) for table in piece.tables)
        what = f"{'tables' if len(piece.tables) > 1 else 'table'} {names}, uncut, with optimizer state and buffers,"
        had = int(np.where(self.allowed(piece), self.room, 0).max(initial=0))
        raise DoesNotFit(what, f"what others leave of {self._where()},", self.bytes_of(piece), had)

    def _where(self) -> str:
        largest = max(self.nodes, key=lambda node: node.memory_bytes)
        return f"{len(self.nodes)} embedding servers, the largest {largest.name} with {largest.memory_bytes:,} bytes"

    # ---- what it is worth

    @property
    def busy(self) -> Floats:
        """(server,) Seconds that the busiest resource of each server needs."""
        return np.asarray((self.load / self.rates).max(axis=1, initial=0.0))

    @property
    def seconds(self) -> float:
        """Seconds that the busiest server resource needs."""
        return float(self.busy.max(initial=0.0))

    def bound(self) -> float:
        """Seconds that the busiest resource needs at least, whatever the sharding (see ``sharding``)."""
        if not self.model.tables or not len(self.nodes):
            return 0.0
        whole, fastest = self.whole(), self.rates.max(axis=0)
        spread = whole.sum(axis=0) / self.rates.sum(axis=0)
        uncut = (2, 3) if self.row_splits else (0, 1, 2, 3)
        packed = [packing_bound(whole[:, i].tolist(), len(self.nodes)) / fastest[i] for i in uncut]
        return float(max(*spread, *packed, *self._ruled_seconds(), *self._cut_seconds()))

    def _cut_seconds(self) -> list[float]:
        """Seconds that each resource needs at least, as many shards being counted as that makes necessary."""
        share, each = (np.array(part) for part in zip(*self._demands.values(), strict=True))
        fastest, fewest = self.rates.max(axis=0), self._fewest_shards()
        return [
            level_bound(share[:, i] / fastest[i], each[:, i] / fastest[i], len(self.nodes), fewest)
            for i in range(4)
            if np.isfinite(fastest[i])
        ]

    def _fewest_shards(self) -> Floats:
        """(table,) Shards that the memory of the largest server makes necessary."""
        largest = int(max(node.memory_bytes for node in self.nodes))
        rows = [max(1, (largest - self.buffer(table)) // table.bytes_per_row) for table in self.model.tables]
        needed = [-(-table.rows // most) for table, most in zip(self.model.tables, rows, strict=True)]
        return np.asarray(np.minimum(np.array(needed, dtype=float), len(self.nodes)))

    def _ruled_seconds(self) -> list[float]:
        """Seconds that servers need at least for what is pinned to them, and the fastest one for what stays together."""
        pinned, fastest = np.zeros_like(self.load), self.rates.max(axis=0)
        for name in self.rules.whole:
            server = self.rules.server_of(self.rules.unit(name))
            if server is not None and server < len(self.nodes):
                pinned[server] += sum(self._demands[name])
        together = [sum(sum(self._demands[name]) for name in unit) / fastest for unit in self.rules.together]
        return [float(np.max(part)) for part in (pinned / self.rates, *together)]

    def shards(self) -> tuple[Shard, ...]:
        """Return the shards, tables in model order; pieces of one table on one server become one shard."""
        rows: dict[str, dict[int, int]] = {table.name: {} for table in self.model.tables}
        placed = [(t.name, self.at[p.key], count) for p in self.pieces if p.key in self.at for t, count in p.parts]
        for name, server, count in (*placed, *self.cuts):
            rows[name][server] = rows[name].get(server, 0) + count
        found = []
        for name, held in rows.items():
            begin = 0
            for server, count in sorted(held.items()):
                found.append(Shard(name, server, begin, begin + count))
                begin += count
        return tuple(found)


def _pieces(tables: tuple[EmbeddingTable, ...], parts: int) -> list[Piece]:
    rows, extra = divmod(tables[0].rows, parts)
    return [Piece(tables, rows + (number < extra), number) for number in range(parts)]


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


def _rates(node: Node, costs: CostTable, *, local: bool) -> tuple[float, float, float, float]:
    nic = float("inf") if local else node.nic_bytes_per_second
    return node.cores / costs.slowdown(node), node.memory_bandwidth_bytes_per_second, nic, nic
