"""Table sharding: which rows of which table on which embedding server.

Problem. Spread tables over servers so that the busiest resource of any server (cores, memory bandwidth, NIC in, NIC
out) is as little loaded as possible, within the memory of each: min-max vector assignment, the formulation of RecShard
(Sethi et al., ASPLOS 2022, section 4) without memory tiers.

Sets and data: tables j with core-seconds, memory traffic, bytes of ids and of pooled rows for one batch; servers p with
their rates. A row shard takes its share of the work and memory, but gets all ids and answers with a whole pooled tensor
(the server filters), so splitting costs NIC bytes. Variables: x_jp, how many of a class of equal tables are on p.
Objective: minimise Z. Constraints: (S1) each table is placed; (S2) each resource of p takes at most Z; (S3) memory;
(S4) a pinned table is on its server; (S5) tables kept apart share no server; tables kept together are one piece.

A table stays whole unless no server has room for it (then its rows are cut in proportion to the room there is), or
unless cutting balances the work of the servers better. Longest processing time first gives a start, moves improve it, and
the integer program (``count_program``) closes what is left, where it is small enough; equal pieces are counted, not
named. For balance, equal tables are wrapped around as seldom as asked (``cuts``); others are cut into fair shares, or
poured into what whole tables leave below a common level (``pouring``), whichever scores best. Tables with rules
(``table_rules``) are not cut for balance.

The bound holds for every table-wise or row-wise sharding: work and memory traffic spread perfectly; what is pinned or
kept together; at each level as many shards as tables then need, each with its own cost (``level_bound``); for the NICs,
where every shard costs as much as the whole table, the bin-packing bound over whole tables. Without row splits
it is what the integer program proved for whole tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from cost_models.costs import CostTable
from placement.count_program import CountProgram, classes_of
from placement.cuts import fewest_cuts
from placement.errors import DoesNotFit
from placement.keeping import Held, kept, move_one
from placement.plan import Shard
from placement.pouring import poured
from placement.shard_state import Sharding
from placement.table_rules import NO_RULES, TableRules
from problem.cluster import Node
from problem.model import Model

#: Variables above which the integer program is not tried: longest first is within a table's cost of the bound by then.
MOST_VARIABLES = 20_000
#: Gap that is good enough: loads are predictions, not measurements.
GOOD_GAP = 1e-3
#: What a sharding is worth, from its shards and the load of the busiest server: less is better, then less of the second.
Score = Callable[[tuple[Shard, ...], float], tuple[float, float]]


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
        What decides between shardings, from shards and the busiest server's load; default: that load.
    rules : TableRules
        What the user demands of tables.
    row_splits : bool
        Whether tables may be cut at all; without, the bound is that of whole tables.
    held : Held
        Where rows are now, if they are to stay there where that does not cost more than ``score`` allows.
    """

    sessions: int = 1
    local: bool = False
    deterministic_seconds: float = 2.0
    enough_seconds: float = 0.0
    per_server: float | None = None
    score: Score | None = None
    rules: TableRules = NO_RULES
    row_splits: bool = True
    held: Held = field(default_factory=dict)


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
    ConstraintsConflict
        When tables that belong on one server exceed its memory, or there are too few servers for the rules.
    """
    if not model.tables:
        return ShardingResult((), 0.0, 0.0)
    if not servers:
        raise DoesNotFit("embedding tables", "0 embedding servers", sum(t.total_bytes for t in model.tables), 0)
    chosen = options or ShardingOptions()

    def empty() -> Sharding:
        return Sharding(
            model,
            batch,
            servers,
            costs,
            chosen.sessions,
            local=chosen.local,
            rules=chosen.rules,
            row_splits=chosen.row_splits,
        )

    best, bound = _best(empty, chosen)
    return ShardingResult(best.shards(), best.seconds, min(bound, best.seconds))


def _best(empty: Callable[[], Sharding], options: ShardingOptions) -> tuple[Sharding, float]:
    """Return the best sharding and a bound: as few cuts as asked for, else whole tables, else cut for balance."""
    tried, bound = _proposed(empty, options)
    if options.held:
        tried += kept(empty, options.held)
    worth = options.score or (lambda _, seconds: (seconds, 0.0))
    return min(tried, key=lambda state: (worth(state.shards(), state.seconds), len(state.shards()))), bound


def _proposed(empty: Callable[[], Sharding], options: ShardingOptions) -> tuple[list[Sharding], float]:
    if options.per_server and not options.rules and (wrapped := _wrapped(empty(), options.per_server)) is not None:
        return [wrapped], wrapped.bound()
    whole, proven = _filled(empty(), {}, options.deterministic_seconds)
    if not options.row_splits:
        return [whole], proven
    bound, tried = whole.bound(), [whole]
    if whole.seconds > max(options.enough_seconds, bound * (1 + GOOD_GAP)):
        tried.append(_filled(empty(), _parts(whole), 0.0)[0])
        level = poured(empty, bound, min(state.seconds for state in tried), GOOD_GAP)
        tried += [level] if level is not None else []
    return tried, bound


def _wrapped(state: Sharding, per_server: float) -> Sharding | None:
    """Fill servers with equal tables one after the other, cut as seldom as possible; None where that is not possible."""
    tables, used = list(state.model.tables), 0
    for taken, servers in fewest_cuts(len(tables), len(state.nodes), per_server) or ():
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
    return state if not tables and int(state.room.min()) >= 0 else None


def _parts(state: Sharding) -> dict[str, int]:
    """Number of pieces of each table so that none asks for more than a server's fair share."""
    cores = state.whole()[:, 0]
    fair = cores.sum() / len(state.nodes) or 1.0
    return {
        table.name: max(1, min(len(state.nodes), table.rows, ceil(share / fair * (1 - 1e-9))))
        for table, share in zip(state.model.tables, cores.tolist(), strict=True)
    }


def _filled(state: Sharding, parts: Mapping[str, int], deterministic_seconds: float) -> tuple[Sharding, float]:
    """Place everything, longest first; then move pieces; then, where small enough, solve the integer program.

    Returns the state, and a bound for these pieces.
    """
    state.fill(parts)
    _move(state)
    bound = state.bound()
    open_ = deterministic_seconds > 0 and state.seconds > bound * (1 + GOOD_GAP)
    if open_ and len(classes_of(state)) * len(state.nodes) <= MOST_VARIABLES:
        bound = _improve(state, bound, deterministic_seconds)
    return state, bound


def _move(state: Sharding, budget: int = 2000) -> None:
    """Move pieces off the busiest server as long as that lowers the busiest load; about ``budget`` tries."""
    while budget > 0 and (tries := move_one(state)):
        budget -= tries


def _improve(state: Sharding, bound: float, deterministic_seconds: float) -> float:
    """Solve the integer program, keep its sharding if it is better, and return the bound that it proved."""
    before, old = state.seconds, dict(state.at)
    chosen, proven = CountProgram(state, bound, GOOD_GAP / 2).solve(deterministic_seconds)
    _put_all(state, chosen or old)
    if state.seconds > before:
        _put_all(state, old)
    return max(bound, proven)


def _put_all(state: Sharding, places: Mapping[tuple[str, int], int]) -> None:
    moved = [piece for piece in state.pieces if piece.key in state.at and state.at[piece.key] != places[piece.key]]
    for piece in moved:
        state.take(piece)
    for piece in moved:
        state.put(piece, places[piece.key])
