"""Table sharding: which rows of which table on which embedding server.

Problem. Spread tables over servers so that the busiest resource of any server (cores, memory bandwidth, NIC in, NIC
out) is as little loaded as possible, within the memory of each: min-max vector assignment, the formulation of RecShard
(Sethi et al., ASPLOS 2022, section 4) without memory tiers.

Sets and data: tables j with core-seconds, memory traffic, bytes of ids and of pooled rows for one batch; servers p with
their rates. A row shard takes its share of the work and memory, but gets all ids and answers with a whole pooled tensor
(the server filters), so splitting costs NIC bytes. Variables: x_jp, how many of a class of equal tables are on p.
Objective: minimise Z. Constraints: (S1) each table is placed; (S2) each resource of p takes at most Z; (S3) memory.

A table stays whole unless no server has room for it (then its rows are cut in proportion to the room there is), or
unless equal pieces balance the work of the servers better. Longest processing time first gives a start, moves improve
it, and the integer program closes what is left, where it is small enough; equal pieces are counted, not named.

The bound holds for every table-wise or row-wise sharding: work and memory traffic spread perfectly; for the NICs, where
every shard costs as much as the whole table, the bin-packing bound over whole tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, floor

from ortools.sat.python import cp_model

from cost_models.costs import CostTable
from cost_models.memory import ids_bytes, pooled_bytes, shard_in_flight_bytes
from placement.cuts import fewest_cuts
from placement.errors import DoesNotFit
from placement.plan import Shard
from problem.cluster import Node
from problem.model import EmbeddingTable, Model

#: Variables above which the integer program is not tried: longest first is within a table's cost of the bound by then.
MOST_VARIABLES = 20_000
#: Gap that is good enough: loads are predictions, not measurements.
GOOD_GAP = 1e-3
#: What a sharding is worth, from its shards and the load of the busiest server.
Score = Callable[[tuple[Shard, ...], float], float]
#: Finest pieces that are tried for balance, as fractions of a server's fair share.
FINER = (1, 4)


@dataclass(frozen=True, slots=True)
class ShardingResult:
    """Shards and what they load.

    Parameters
    ----------
    shards : tuple of Shard
        Row ranges; they tile every table.
    max_load_seconds : float
        Seconds that the busiest server resource needs for one batch.
    bound_seconds : float
        No sharding of these tables over these servers needs less.
    """

    shards: tuple[Shard, ...]
    max_load_seconds: float
    bound_seconds: float


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


def shard_tables(
    model: Model,
    batch: int,
    servers: Sequence[Node],
    costs: CostTable,
    *,
    sessions: int = 1,
    deterministic_seconds: float = 2.0,
    local: bool = False,
    enough_seconds: float = 0.0,
    per_server: float | None = None,
    score: Score | None = None,
) -> ShardingResult:
    """Place all tables on embedding servers.

    Parameters
    ----------
    model : Model
        Gives the tables.
    batch : int
        Samples per batch.
    servers : sequence of Node
        Machines.
    costs : CostTable
        Work of the tables, and of messages.
    sessions : int
        Sessions of the whole job; each has buffers on each server that holds a shard.
    deterministic_seconds : float
        Solver work for the integer program.
    local : bool
        Whether the servers are on the trainers' host: then no NIC is loaded.
    enough_seconds : float
        Load below which tables are not cut just for balance (something else binds).
    per_server : float, optional
        If all tables are equal: cut as seldom as possible for this many tables' work a server, if that fits.
    score : callable, optional
        Seconds that decide between shardings, from shards and the busiest server's load; default: that load.

    Returns
    -------
    ShardingResult
        The shards, the busiest server's load and a bound.

    Raises
    ------
    DoesNotFit
        When the servers together lack memory; the table that finds no room is named.
    """
    if model.tables and not servers:
        raise DoesNotFit("embedding tables", "0 embedding servers", sum(t.total_bytes for t in model.tables), 0)

    def empty() -> Sharding:
        return Sharding(model, batch, servers, costs, sessions, local=local)

    if per_server and (wrapped := _wrapped(empty(), per_server)) is not None:
        return ShardingResult(wrapped.shards(), wrapped.seconds, min(wrapped.bound(), wrapped.seconds))
    whole = _filled(empty(), {}, deterministic_seconds)
    bound, tried = whole.bound(), [whole]
    if whole.seconds > max(enough_seconds, bound * (1 + GOOD_GAP)):
        tried += [_filled(state := empty(), _parts(state, finer), deterministic_seconds) for finer in FINER]
    worth = score or (lambda _, seconds: seconds)
    best = min(tried, key=lambda state: (worth(state.shards(), state.seconds), len(state.shards())))
    return ShardingResult(best.shards(), best.seconds, min(bound, best.seconds))


def _wrapped(state: Sharding, per_server: float) -> Sharding | None:
    """Fill servers with equal tables one after the other, cut as seldom as possible; None where that is not possible."""
    tables, used = list(state.model.tables), 0
    for taken, servers in fewest_cuts(len(tables), len(state.servers), per_server) or ():
        part, tables = tables[:taken], tables[taken:]
        total = sum(table.rows for table in part)
        edges = [total * p // servers for p in range(servers + 1)]
        begin = 0
        for table in part:
            for p in range(servers):
                rows = min(edges[p + 1], begin + table.rows) - max(edges[p], begin)
                if rows > 0:
                    state.add(table, used + p, rows)
            begin += table.rows
        used += servers
    return state if not tables and min(state.room) >= 0 else None


def _parts(state: Sharding, finer: int) -> dict[str, int]:
    """Number of pieces of each table so that none asks for more than 1 / ``finer`` of a server's fair share."""
    fair = sum((state.demand(Piece(t, t.rows)).core_seconds for t in state.model.tables), 0.0) / len(state.servers)
    parts: dict[str, int] = {}
    for table in state.model.tables:
        share = state.demand(Piece(table, table.rows)).core_seconds * finer / (fair or 1.0)
        parts[table.name] = max(1, min(len(state.servers), table.rows, ceil(share * (1 - 1e-9))))
    return parts


def _filled(state: Sharding, parts: Mapping[str, int], deterministic_seconds: float) -> Sharding:
    """Place everything, longest first; then move pieces; then, where small enough, solve the integer program."""
    state.fill(parts)
    _move(state)
    bound = state.bound()
    if state.seconds > bound * (1 + GOOD_GAP) and len(state.at) * len(state.servers) <= MOST_VARIABLES:
        _improve(state, bound, deterministic_seconds)
    return state


def _mean_server(servers: Sequence[Server]) -> Server:
    rates = [sum(server.rates[part] for server in servers) / max(1, len(servers)) or 1.0 for part in range(4)]
    return Server((rates[0], rates[1], rates[2], rates[3]), 0)


def _order(state: Sharding, mean: Server, largest: int, piece: Piece) -> tuple[bool, float, int]:
    """Pieces that must be cut come first, then by falling load, then by falling size."""
    return state.bytes_of(piece) <= largest, -mean.seconds(state.demand(piece)), -state.bytes_of(piece)


def _move(state: Sharding, budget: int = 2000) -> None:
    """Move pieces off the busiest server as long as that lowers the busiest load."""
    improved = True
    while improved and budget > 0:
        improved, before = False, state.seconds
        busiest = max(range(len(state.servers)), key=lambda p: state.servers[p].seconds(state.load[p]), default=0)
        for piece in [p for p in state.pieces if state.at.get(p.key) == busiest]:
            budget -= 1
            state.take(piece)
            state.place(piece)
            if state.seconds < before * (1 - 1e-12):
                improved = True
                break
            state.take(piece)
            state.put(piece, busiest)


def _improve(state: Sharding, bound: float, deterministic_seconds: float) -> None:
    """Solve (S1)-(S3) by integer counts of equal pieces; keep the result if it is better."""
    pieces = [piece for piece in state.pieces if piece.key in state.at]
    classes: dict[tuple[object, ...], list[Piece]] = {}
    for piece in pieces:
        classes.setdefault((state.demand(piece), state.bytes_of(piece)), []).append(piece)
    before, old = state.seconds, dict(state.at)
    for piece in pieces:
        state.take(piece)
    counts = _solve_counts(state, list(classes.values()), before, bound, deterministic_seconds, old)
    chosen = {piece.key: server for group, taken in counts for piece, server in zip(group, taken, strict=True)} or old
    for piece in pieces:
        state.put(piece, chosen[piece.key])
    if state.seconds > before:
        for piece in pieces:
            state.take(piece)
            state.put(piece, old[piece.key])


def _solve_counts(
    state: Sharding,
    classes: list[list[Piece]],
    best: float,
    bound: float,
    deterministic_seconds: float,
    old: dict[tuple[str, int], int],
) -> list[tuple[list[Piece], list[int]]]:
    """Return, for each class of equal pieces, the server of each member; empty if nothing was found."""
    scale = 10**7
    model, servers = cp_model.CpModel(), range(len(state.servers))
    z = model.new_int_var(floor(bound / best * scale), scale, "Z")
    x = {(j, p): model.new_int_var(0, len(c), f"x[{j},{p}]") for j, c in enumerate(classes) for p in servers}
    demands = [state.demand(members[0]) for members in classes]
    for j, members in enumerate(classes):
        model.add(sum(x[j, p] for p in servers) == len(members)).with_name(f"(S1) {members[0].key}")
        had = Counter(old[piece.key] for piece in members)
        for p in servers:
            model.add_hint(x[j, p], had[p])
    for p in servers:
        for part, rate in enumerate(state.servers[p].rates):
            units = [floor(d.parts[part] / rate / best * scale) for d in demands]
            fixed = floor(state.load[p].parts[part] / rate / best * scale)
            model.add(sum(u * x[j, p] for j, u in enumerate(units)) + fixed <= z).with_name(f"(S2) {part},{p}")
        held = sum(state.bytes_of(members[0]) * x[j, p] for j, members in enumerate(classes))
        model.add(held <= state.room[p]).with_name(f"(S3) {p}")
    model.minimize(z)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = deterministic_seconds
    solver.parameters.relative_gap_limit = GOOD_GAP
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return []
    return [(members, [p for p in servers for _ in range(solver.value(x[j, p]))]) for j, members in enumerate(classes)]
