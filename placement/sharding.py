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
from math import ceil, floor

from ortools.sat.python import cp_model

from cost_models.costs import CostTable
from placement.cuts import fewest_cuts
from placement.errors import DoesNotFit
from placement.plan import Shard
from placement.shard_state import Piece, Sharding
from problem.cluster import Node
from problem.model import Model

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


@dataclass(frozen=True)
class ShardingOptions:
    """How tables are to be sharded.

    Parameters
    ----------
    sessions : int
        Sessions of the whole job; each has buffers on each server that holds a shard.
    local : bool
        Whether the servers are on the trainers' host: then no NIC is loaded.
    deterministic_seconds : float
        Solver work for the integer program.
    enough_seconds : float
        Load below which tables are not cut just for balance (something else binds).
    per_server : float or None
        If all tables are equal: cut as seldom as possible for this many tables' work a server, if that fits.
    score : callable or None
        Seconds that decide between shardings, from shards and the busiest server's load; default: that load.
    """

    sessions: int = 1
    local: bool = False
    deterministic_seconds: float = 2.0
    enough_seconds: float = 0.0
    per_server: float | None = None
    score: Score | None = None


def shard_tables(
    model: Model, batch: int, servers: Sequence[Node], costs: CostTable, options: ShardingOptions | None = None
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
    options : ShardingOptions, optional
        How.

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
    chosen = options or ShardingOptions()

    def empty() -> Sharding:
        return Sharding(model, batch, servers, costs, chosen.sessions, local=chosen.local)

    best, bound = _best(empty, chosen)
    return ShardingResult(best.shards(), best.seconds, min(bound, best.seconds))


def _best(empty: Callable[[], Sharding], options: ShardingOptions) -> tuple[Sharding, float]:
    """Return the best sharding and a bound: as few cuts as asked for, else whole tables, else cut for balance."""
    if options.per_server and (wrapped := _wrapped(empty(), options.per_server)) is not None:
        return wrapped, wrapped.bound()
    whole = _filled(empty(), {}, options.deterministic_seconds)
    bound, tried = whole.bound(), [whole]
    if whole.seconds > max(options.enough_seconds, bound * (1 + GOOD_GAP)):
        tried += [_filled(empty(), _parts(whole, finer), options.deterministic_seconds) for finer in FINER]
    worth = options.score or (lambda _, seconds: seconds)
    return min(tried, key=lambda state: (worth(state.shards(), state.seconds), len(state.shards()))), bound


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
