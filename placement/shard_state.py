"""The state of a sharding: servers, their loads and room, and the pieces of tables that are on them.

Knows what a piece of a table asks of a server and how to put it there, longest first; ``sharding`` decides which pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from cost_models.costs import CostTable
from cost_models.memory import ids_bytes, pooled_bytes, shard_in_flight_bytes
from placement.errors import DoesNotFit
from placement.plan import Shard
from problem.cluster import Node
from problem.model import EmbeddingTable, Model


@dataclass(frozen=True, slots=True)
class Demand:
    """What a table, or a shard of it, asks of a server for one batch, and the memory it takes."""

    core_seconds: float = 0.0
    traffic_bytes: float = 0.0
    in_bytes: float = 0.0
    out_bytes: float = 0.0

    def __add__(self, other: Demand) -> Demand:
        return Demand(*(a + b for a, b in zip(self.parts, other.parts, strict=True)))

    def __sub__(self, other: Demand) -> Demand:
        return Demand(*(a - b for a, b in zip(self.parts, other.parts, strict=True)))

    @property
    def parts(self) -> tuple[float, float, float, float]:
        """The four amounts."""
        return self.core_seconds, self.traffic_bytes, self.in_bytes, self.out_bytes


@dataclass(frozen=True, slots=True)
class Server:
    """A server's rates for the four parts of a demand, and its memory."""

    rates: tuple[float, float, float, float]
    memory_bytes: int

    def seconds(self, demand: Demand) -> float:
        """Seconds that the busiest resource needs."""
        return max(part / rate for part, rate in zip(demand.parts, self.rates, strict=True))


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of a table that are placed as one; ``number`` tells equal pieces of a table apart."""

    table: EmbeddingTable
    rows: int
    number: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """Table and number."""
        return self.table.name, self.number


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
    """

    def __init__(
        self, model: Model, batch: int, nodes: Sequence[Node], costs: CostTable, sessions: int, *, local: bool
    ) -> None:
        self.model, self.batch, self.costs, self.sessions = model, batch, costs, sessions
        self.nodes = nodes
        self.servers = [_server(node, costs, local=local) for node in nodes]
        self.load = [Demand() for _ in nodes]
        self.room = [server.memory_bytes for server in self.servers]
        self.cuts: list[tuple[str, int, int]] = []  # table, server, rows
        self.at: dict[tuple[str, int], int] = {}  # server of each placed piece
        self.pieces: list[Piece] = []

    def demand(self, piece: Piece) -> Demand:
        """What a piece asks for: its share of the work, all ids, a whole pooled tensor and its gradient."""
        table, share = piece.table, piece.rows / piece.table.rows
        cost, message = self.costs.tables[table.name], self.costs.message
        work = (cost.lookup + cost.update).scaled(share)
        ids, pooled = ids_bytes(table, self.batch), pooled_bytes(table, self.batch)
        handled = message.receive_seconds_per_byte * (ids + pooled) + message.send_seconds_per_byte * pooled
        return Demand(work.core_seconds + handled, work.traffic_bytes, ids + pooled, pooled)

    def bytes_of(self, piece: Piece) -> int:
        """Memory of a piece on a server, with the sessions' buffers."""
        return piece.rows * piece.table.bytes_per_row + self.buffer(piece.table)

    def buffer(self, table: EmbeddingTable) -> int:
        """Memory of the sessions' buffers for one shard."""
        return self.sessions * shard_in_flight_bytes(table, self.batch)

    def fill(self, parts: Mapping[str, int]) -> None:
        """Place all tables, cut into ``parts`` equal pieces each: first those no server can hold, then by falling load."""
        mean, largest = _mean_server(self.servers), max(self.room, default=0)
        self.pieces = [p for table in self.model.tables for p in _pieces(table, parts.get(table.name, 1))]
        for piece in sorted(self.pieces, key=lambda p: _order(self, mean, largest, p)):
            self.place(piece)

    def place(self, piece: Piece) -> None:
        """Put a piece on the server that is least loaded afterwards, by memory on ties; cut it if none has room."""
        demand, size = self.demand(piece), self.bytes_of(piece)
        fitting = [p for p, room in enumerate(self.room) if size <= room]
        if not fitting:
            self.cut(piece)
            return
        after = {p: self.servers[p].seconds(self.load[p] + demand) for p in fitting}
        self.put(piece, min(fitting, key=lambda p: (after[p], -self.room[p], p)))

    def put(self, piece: Piece, server: int) -> None:
        """Put a piece on a server."""
        self.load[server] += self.demand(piece)
        self.room[server] -= self.bytes_of(piece)
        self.at[piece.key] = server

    def take(self, piece: Piece) -> None:
        """Take a piece off its server."""
        server = self.at.pop(piece.key)
        self.load[server] -= self.demand(piece)
        self.room[server] += self.bytes_of(piece)

    def cut(self, piece: Piece) -> None:
        """Cut a piece over the fewest servers that have room for it, in proportion to the room.

        Raises
        ------
        DoesNotFit
            When all servers together have no room.
        """
        table = piece.table
        capacity = [max(0, room - self.buffer(table)) // table.bytes_per_row for room in self.room]
        order = sorted(range(len(capacity)), key=lambda p: (-capacity[p], p))
        held = list(accumulate(capacity[p] for p in order))
        if not held or held[-1] < piece.rows:
            self.refuse(table)
        used = order[: next(i for i, rows in enumerate(held) if rows >= piece.rows) + 1]
        total, left = held[len(used) - 1], piece.rows
        for p in used:
            rows = min(left, -(-piece.rows * capacity[p] // total))
            left -= rows
            self.add(table, p, rows)

    def add(self, table: EmbeddingTable, server: int, rows: int) -> None:
        """Put some rows of a table on a server, for good."""
        part = Piece(table, rows)
        self.cuts.append((table.name, server, rows))
        self.load[server] += self.demand(part)
        self.room[server] -= self.bytes_of(part)

    def refuse(self, table: EmbeddingTable) -> None:
        """Say that a table finds no room, with its size and the largest server."""
        largest = max(self.nodes, key=lambda node: node.memory_bytes)
        where = f"{len(self.nodes)} embedding servers, the largest {largest.name} with {largest.memory_bytes:,} bytes"
        size = self.bytes_of(Piece(table, table.rows))
        raise DoesNotFit(
            f"table {table.name!r} ({size:,} bytes with optimizer state and buffers), even split by rows,",
            where,
            sum(self.bytes_of(Piece(other, other.rows)) for other in self.model.tables),
            sum(node.memory_bytes for node in self.nodes),
        )

    @property
    def seconds(self) -> float:
        """Seconds that the busiest server resource needs."""
        return max((s.seconds(load) for s, load in zip(self.servers, self.load, strict=True)), default=0.0)

    def bound(self) -> float:
        """Seconds that the busiest resource needs at least, whatever the sharding (see the module)."""
        whole = [self.demand(Piece(table, table.rows)).parts for table in self.model.tables]
        spread = [
            sum(parts[i] for parts in whole) / (sum(server.rates[i] for server in self.servers) or 1.0)
            for i in range(4)
        ]
        fastest = [max(server.rates[i] for server in self.servers) for i in (2, 3)] if self.servers else []
        packed = [
            packing_bound([parts[i] for parts in whole], len(self.servers)) / rate
            for i, rate in zip((2, 3), fastest, strict=False)
        ]
        return max((*spread, *packed), default=0.0)

    def shards(self) -> tuple[Shard, ...]:
        """Return the shards, tables in model order; pieces of one table on one server become one shard."""
        rows: dict[str, dict[int, int]] = {table.name: {} for table in self.model.tables}
        placed = [(p.table.name, self.at[p.key], p.rows) for p in self.pieces if p.key in self.at]
        for name, server, count in (*placed, *self.cuts):
            rows[name][server] = rows[name].get(server, 0) + count
        found = []
        for name, held in rows.items():
            begin = 0
            for server, count in sorted(held.items()):
                found.append(Shard(name, server, begin, begin + count))
                begin += count
        return tuple(found)


def _pieces(table: EmbeddingTable, parts: int) -> list[Piece]:
    rows, extra = divmod(table.rows, parts)
    return [Piece(table, rows + (number < extra), number) for number in range(parts)]


def packing_bound(sizes: list[float], bins: int) -> float:
    """Least height of the fullest of ``bins`` bins: of the k bins + 1 largest, some k + 1 share one (Martello, Toth)."""
    largest, best = sorted(sizes, reverse=True), 0.0
    for k in range((len(sizes) - 1) // bins + 1 if sizes else 0):
        best = max(best, sum(largest[k * (bins - 1) : k * bins + 1]))
    return best


def _server(node: Node, costs: CostTable, *, local: bool) -> Server:
    cores = node.cores / costs.slowdown(node)
    nic = float("inf") if local else node.nic_bytes_per_second
    return Server((cores, node.memory_bandwidth_bytes_per_second, nic, nic), node.memory_bytes)


def _mean_server(servers: Sequence[Server]) -> Server:
    rates = [sum(server.rates[part] for server in servers) / max(1, len(servers)) or 1.0 for part in range(4)]
    return Server((rates[0], rates[1], rates[2], rates[3]), 0)


def _order(state: Sharding, mean: Server, largest: int, piece: Piece) -> tuple[bool, float, int]:
    """Pieces that must be cut come first, then by falling load, then by falling size."""
    return state.bytes_of(piece) <= largest, -mean.seconds(state.demand(piece)), -state.bytes_of(piece)
