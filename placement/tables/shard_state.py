"""The state of a sharding: servers, their loads and room, and the pieces of tables that are on them.

Knows what a piece asks of a server, which servers may take it, and how to put it there, longest first; ``sharding``
decides which pieces there are. Arrays have the axes (server, resource), the resources being core-seconds, bytes of memory
traffic, bytes in and bytes out, for one batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from cost_models.costs import CostTable
from cost_models.memory import pooled_bytes, request_tensors, shard_in_flight_bytes
from cost_models.routing import TAKE_SECONDS, each_ids_bytes, ids_bytes, is_routed, routed_sizes
from placement.errors import DoesNotFit
from placement.plan import Shard
from placement.tables.pieces import UNIT, Piece, whole_piece
from placement.tables.shares import row_share, shard_cost
from placement.tables.table_rules import TableRules, check_room
from problem.cluster import Node
from problem.model import EmbeddingTable, Model
from problem.popularity import Mixture, popularity

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
#: What shards ask for, (4,) each; the server does not matter.
Demands = dict[Shard, Floats]


class Sharding:
    """Tables, servers and the pieces placed so far.

    Parameters
    ----------
    model, batch : Model, int
        Gives the tables; samples per batch.
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
    row_splits, columns : bool
        Whether tables may be cut; whether by columns, as far as that goes, rather than by rows.
    known : dict, optional
        What shards ask for, to be kept for other states of the same tables and costs.
    pooled_share : float
        Share of the float32 bytes of pooled rows and their gradients that travels.
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
        columns: bool = False,
        known: Demands | None = None,
        pooled_share: float = 1.0,
    ) -> None:
        self.model, self.batch, self.costs, self.sessions = model, batch, costs, sessions
        self.nodes, self.row_splits, self.columns = nodes, row_splits, columns
        self.rules, self.pooled_share = rules or TableRules(), pooled_share
        self.rates = np.array([_rates(node, costs, local=local) for node in nodes]).reshape(-1, 4)
        self.load = np.zeros((len(nodes), 4))
        self.room = np.array([node.memory_bytes for node in nodes], dtype=np.int64)
        self.cuts: list[Shard] = []  # shards that were placed for good
        self.at: dict[tuple[str, int], int] = {}  # server of each placed piece
        self._demands = {} if known is None else known
        self._popularity: dict[str, Mixture] = {}
        self.pieces: list[Piece] = []
        self.held: dict[str, Counter[int]] = {}  # pieces of each table that is kept apart, by server
        self._barred: dict[tuple[str, ...], Bools] = {}

    # ---- what a piece asks for

    def work(self, shard: Shard, *, routed: bool | None = None) -> Floats:
        """Return (4,) what shards share out: lookups and updates of a shard's rows, for all features of its table.

        ``routed``: with the ids of these rows, which are sent alone; by default where the table is not cut by columns.
        """
        total = np.zeros(4)
        routed = not self._by_columns(self.model.table[shard.table]) if routed is None else routed
        for feature in self.model.readers[shard.table]:
            cost = shard_cost(self.costs.tables[feature.name], feature, shard)
            total[0] += cost.total.core_seconds - cost.each.core_seconds
            total[1] += cost.total.traffic_bytes - cost.each.traffic_bytes
            if routed and is_routed(feature, self.batch):
                share = row_share(feature, shard.row_begin, shard.row_end)
                ids = routed_sizes(feature, self.batch, share).total - each_ids_bytes(feature, self.batch)
                total += (self.costs.message.receive_variable(ids, 0), 0.0, ids, 0.0)
        return total

    def each(self, table: str, width: int, *, routed: bool | None = None) -> Floats:
        """Return (4,) what every shard of some columns asks for, whatever its rows.

        It takes all ids, or what leads those of its rows, and pooled rows in its columns both ways. ``routed`` as in
        :meth:`work`.
        """
        message, total = self.costs.message, np.zeros(4)
        routed = not self._by_columns(self.model.table[table]) if routed is None else routed
        for feature in self.model.readers[table]:
            strip = Shard(table, 0, 0, feature.rows, (0, width))
            own = shard_cost(self.costs.tables[feature.name], feature, strip).each
            total[:2] += own.core_seconds, own.traffic_bytes
            ids = (each_ids_bytes if routed else ids_bytes)(feature, self.batch)
            pooled = self.pooled_share * pooled_bytes(feature, self.batch, width)
            handled = message.receive_variable(ids + pooled, 1 + request_tensors(feature))
            handled += message.send_variable(pooled, 1)
            total += (handled, 0.0, ids + pooled, pooled)
        return total

    def demand(self, piece: Piece) -> Floats:
        """Return (4,) what a piece asks for: its share of the work, and what every shard of its columns asks for."""
        total = np.zeros(4)
        for shard in piece.shards(0):
            if shard not in self._demands:
                table = self.model.table[shard.table]
                routed = shard.rows < table.rows
                each = self.each(table.name, shard.width(table), routed=routed)
                self._demands[shard] = self.work(shard, routed=routed) + each
                readers = self.model.readers[shard.table] if routed else ()
                self._demands[shard][0] += TAKE_SECONDS.value * sum(is_routed(f, self.batch) for f in readers)
            total += self._demands[shard]
        return total

    def whole(self) -> Floats:
        """Return (table, 4) what whole tables ask for."""
        return np.array([self.demand(whole_piece(table)) for table in self.model.tables]).reshape(-1, 4)

    def bytes_of(self, piece: Piece) -> int:
        """Memory of a piece on a server, with the sessions' buffers."""
        return sum(self._bytes(shard) for shard in piece.shards(0))

    def _bytes(self, shard: Shard) -> int:
        table = self.model.table[shard.table]
        return shard.bytes(table) + self.buffer(table, shard.width(table))

    def buffer(self, table: EmbeddingTable, width: int) -> int:
        """Memory of the sessions' buffers for one shard of some columns."""
        return self.sessions * self.session_bytes(table, width)

    def session_bytes(self, table: EmbeddingTable, width: int) -> int:
        """Memory of one session's buffers for one shard of some columns."""
        return sum(shard_in_flight_bytes(feature, self.batch, width) for feature in self.model.readers[table.name])

    def popularity(self, table: EmbeddingTable) -> Mixture:
        """Return how often which rows of a table are read, features weighed by the core-seconds that are shared out."""
        if table.name not in self._popularity:
            features = self.model.readers[table.name]
            costs = [self.costs.tables[feature.name] for feature in features]
            parts = [popularity(feature) for feature in features]
            shared = [cost.total.core_seconds - cost.each.core_seconds for cost in costs]
            self._popularity[table.name] = Mixture(parts, shared)
        return self._popularity[table.name]

    def widths(self, table: EmbeddingTable) -> range:
        """Return the widths that a strip of a table may have, below all its columns; none where columns are not cut."""
        return range(UNIT, table.dim - UNIT + 1, UNIT) if self._by_columns(table) else range(0)

    def _by_columns(self, table: EmbeddingTable) -> bool:
        """Whether a table is cut by columns rather than by rows: if its rows may not be cut, in any case."""
        name = table.name
        return (self.columns or name in self.rules.no_rows) and name not in self.rules.no_columns

    def cuttable(self, table: EmbeddingTable) -> bool:
        """Whether a table may be cut for balance."""
        return table.name not in self.rules.ruled and (table.name not in self.rules.no_rows or bool(self.widths(table)))

    def allowed(self, piece: Piece) -> Bools:
        """Return (server,) where the rules allow a piece."""
        names = [table.name for table in piece.tables]
        server = self.rules.server_of(names)
        mask = ~self.barred(piece)
        if server is not None:
            mask &= np.arange(len(self.nodes)) == server
        for apart in self.rules.apart:
            if any(name in apart for name in names):
                others = (self.held.get(name, Counter[int]()) for name in apart if name not in names)
                mask[[server for held in others for server, count in held.items() if count]] = False
        return mask

    def barred(self, piece: Piece) -> Bools:
        """Return (server,) where it is forbidden that a piece is, whatever else is there."""
        names = tuple(table.name for table in piece.tables)
        if names not in self._barred:
            self._barred[names] = np.array(self.rules.barred(names, self.nodes), dtype=bool)
        return self._barred[names]

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
            for piece in self.pieces_of(unit, parts.get(table.name, 1) if self.cuttable(table) else 1)
        ]
        mean, largest = self.rates.mean(axis=0), int(self.room.max(initial=0))
        return sorted(self.pieces, key=lambda p: self._order(p, mean, largest))

    def pieces_of(self, tables: tuple[EmbeddingTable, ...], parts: int) -> list[Piece]:
        """Return equal strips of a table where that is possible, else ranges of rows that are read equally often.

        Parameters
        ----------
        tables : tuple of EmbeddingTable
            The table; or several, which stay in one piece.
        parts : int
            How many pieces at most.
        """
        table = tables[0]
        if parts == 1:
            return [whole_piece(*tables)]
        if table.name in self.rules.no_rows:
            parts = min(parts, table.dim // UNIT)
        if self._by_columns(table) and table.dim >= parts * UNIT:
            cuts = [table.dim * i // parts // UNIT * UNIT for i in range(parts)]
            return [Piece(tables, 0, table.rows, span, i) for i, span in enumerate(pairwise([*cuts, table.dim]))]
        read = self.popularity(table)
        edges = [0, *(read.row_at(i / parts) for i in range(1, parts)), table.rows]
        return [Piece(tables, begin, end, None, i) for i, (begin, end) in enumerate(pairwise(edges)) if begin < end]

    def _check(self) -> None:
        if self.rules:
            size_of = {t.name: self.bytes_of(whole_piece(t)) for t in self.model.tables}
            check_room(self.rules, self.model, size_of, self.nodes)

    def _order(self, piece: Piece, mean: Floats, largest: int) -> tuple[int, bool, float, int]:
        """Pinned pieces come first, then others with rules, then those that must be cut, then by falling load and size."""
        names, size = [table.name for table in piece.tables], self.bytes_of(piece)
        ruled = any(name in self.rules.ruled or name in self.rules.forbidden for name in names)
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
        if piece.columns is None and self.widths(table) and self._cut_columns(piece):
            return
        if table.name in self.rules.no_rows:
            self.refuse(table, "even split by columns")
        width = table.dim if piece.columns is None else piece.columns[1] - piece.columns[0]
        row = table.row_bytes(width)
        capacity = np.maximum(0, self.room - self.buffer(table, width)) // row * self.allowed(piece)
        begin = piece.begin
        for p, rows in _shared_out(piece.end - piece.begin, capacity):
            self.add(Shard(table.name, p, begin, begin + rows, piece.columns))
            begin += rows
        if begin < piece.end:
            self.refuse(table)

    def _cut_columns(self, piece: Piece) -> bool:
        """Cut a piece into strips, if that is enough."""
        table, units = piece.tables[0], piece.tables[0].dim // UNIT
        rows = piece.end - piece.begin
        sizes = np.array([rows * table.row_bytes(u * UNIT) + self.buffer(table, u * UNIT) for u in range(units + 1)])
        capacity = (np.searchsorted(sizes, self.room, side="right") - 1).clip(0) * self.allowed(piece)
        shares, begin = _shared_out(units, capacity), 0
        if sum(taken for _, taken in shares) < units or table.dim % UNIT:
            return False
        for p, taken in shares:
            columns = (begin, begin + taken * UNIT)
            self.add(Shard(table.name, p, piece.begin, piece.end, columns if taken < units else None))
            begin += taken * UNIT
        return True

    def add(self, shard: Shard) -> None:
        """Put a shard on its server, for good."""
        self.cuts.append(shard)
        self._book(
            Piece((self.model.table[shard.table],), shard.row_begin, shard.row_end, shard.columns), shard.server, 1
        )

    def refuse(self, table: EmbeddingTable, how: str = "even split by rows") -> None:
        """Say that a table finds no room, with its size and the largest server."""
        size = self.bytes_of(whole_piece(table))
        raise DoesNotFit(
            f"table {table.name!r} ({size:,} bytes with optimizer state and buffers), {how},",
            self._where(),
            sum(self.bytes_of(whole_piece(other)) for other in self.model.tables),
            sum(node.memory_bytes for node in self.nodes),
        )

    def refuse_whole(self, piece: Piece) -> None:
        """Say that tables that may not be cut find no room on any one server."""
        names = ", ".join(repr(table.name) for table in piece.tables)
        what = f"{'tables' if len(piece.tables) > 1 else 'table'} {names}, uncut, with optimizer state and buffers,"
        had = int(np.where(self.allowed(piece), self.room, 0).max(initial=0))
        raise DoesNotFit(what, f"what others leave of {self._where()}", self.bytes_of(piece), had)

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

    def shards(self) -> tuple[Shard, ...]:
        """Return the shards, tables in model order; neighbours of one strip on one server become one shard."""
        placed = [s for p in self.pieces if p.key in self.at for s in p.shards(self.at[p.key])]
        order = {table.name: number for number, table in enumerate(self.model.tables)}
        found: list[Shard] = []
        for shard in sorted((*placed, *self.cuts), key=lambda s: (order[s.table], s.columns or (), s.row_begin)):
            last = found[-1] if found else None
            if last and (last.table, last.server, last.columns) == (shard.table, shard.server, shard.columns):
                found[-1] = replace(last, row_end=shard.row_end)
            else:
                found.append(shard)
        return tuple(found)


def _shared_out(total: int, capacity: Ints) -> list[tuple[int, int]]:
    """Share something out over the fewest servers, in proportion to what they can take: (server, amount)."""
    order = np.argsort(-capacity, kind="stable")
    held = np.cumsum(capacity[order])
    used = order[: int(np.searchsorted(held, total)) + 1]
    room, left, found = int(capacity[used].sum()), total, []
    for p in (int(server) for server in used):
        taken = min(left, int(capacity[p]), -(-total * int(capacity[p]) // max(1, room)))
        left -= taken
        if taken:
            found.append((p, taken))
    return found


def _rates(node: Node, costs: CostTable, *, local: bool) -> tuple[float, float, float, float]:
    nic = float("inf") if local else node.nic_bytes_per_second
    return node.cores / costs.slowdown(node), node.memory_bandwidth_bytes_per_second, nic, nic
