"""Table sharding: which rows and columns of which table on which embedding server.

Problem. Spread tables over servers so that the busiest resource of any server (cores, memory bandwidth, NIC in, NIC
out) is as little loaded as possible, within the memory of each: min-max vector assignment, the formulation of RecShard
(Sethi et al., ASPLOS 2022, section 4) without memory tiers.

Sets and data: tables j with core-seconds, memory traffic, bytes of ids and of pooled rows for one batch, summed over the
features that read them; servers p with their rates. A range of rows takes its share of the lookups (``popularity``), but
all ids, and answers with whole pooled tensors. A strip of columns takes its share of the columns, all ids, and answers with
its columns; row-wise state is held once more. Variables: x_jp, how many of a class of equal tables are on p.
Objective: minimise Z. Constraints: (S1) each table is placed; (S2) each resource of p takes at most Z; (S3) memory;
(S4) a pinned table is on its server; (S5) tables kept apart share no server; (S6) none is on a server that is forbidden;
tables kept together are one piece.

A table stays whole unless no server has room for it (then its rows are cut in proportion to the room there is), or
unless cutting balances the work of the servers better. Longest processing time first gives a start, moves improve it,
and the integer program (``count_program``) closes what is left, where it is small enough; equal pieces are counted, not
named. For balance, equal tables are wrapped around as seldom as asked (``cuts``); others are cut into fair shares, or
poured into what whole tables leave below a common level (``pouring``): once by rows, once by columns as far as whole
cache lines of columns go. What scores best is taken. Tables that are pinned, kept together or apart (``table_rules``)
are not cut for balance; one whose rows may not be cut is cut by columns, and the reverse.

The bound (``shard_bounds``) holds for every sharding by tables, rows and columns: work and memory traffic spread perfectly;
what is pinned or kept together; at each level as many shards as tables then need, each with what it costs by itself; and a
bin-packing bound over that. Without splits it is what the integer program proved for whole tables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil

from cost_models.costs import CostTable
from placement.deadline import Deadline, Phase
from placement.errors import DoesNotFit
from placement.plan import Shard
from placement.tables.count_program import CountProgram, classes_of
from placement.tables.cuts import fewest_cuts
from placement.tables.keeping import Held, kept, move_one
from placement.tables.pieces import UNIT
from placement.tables.pouring import poured
from placement.tables.shard_bounds import sharding_bound
from placement.tables.shard_state import Demands, Floats, Sharding
from placement.tables.table_rules import NO_RULES, TableRules
from problem.cluster import Node
from problem.model import EmbeddingTable, Model

#: Variables above which the integer program is not tried: longest first is within a table's cost of the bound by then.
MOST_VARIABLES = 20_000
#: Gap that is good enough: loads are predictions, not measurements.
GOOD_GAP = 1e-3
#: Makes the servers without tables; whether tables are to be cut by columns rather than by rows.
Make = Callable[[bool], Sharding]
#: What a sharding is worth, from its shards and the load of the busiest server: less is better, then less of the second.
Score = Callable[[tuple[Shard, ...], float], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class ShardingResult:
    """Shards and what they load.

    Parameters
    ----------
    shards : tuple of Shard
        Parts of tables; they tile every table.
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
    column_splits : bool
        Whether columns may be cut as well as rows.
    deadline : Deadline
        When to stop improving; a first sharding is made in any case.
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
    column_splits: bool = True
    deadline: Deadline = field(default_factory=Deadline)
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

    known: Demands = {}
    rules = chosen.rules
    if not chosen.column_splits and rules.no_rows:
        rules = replace(rules, no_columns=frozenset(model.table))

    def make(columns: bool) -> Sharding:
        return Sharding(
            model,
            batch,
            servers,
            costs,
            chosen.sessions,
            local=chosen.local,
            rules=rules,
            row_splits=chosen.row_splits,
            columns=columns,
            known=known,
        )

    best, bound = _best(make, chosen)
    return ShardingResult(best.shards(), best.seconds, min(bound, best.seconds))


def sharding_of(model: Model, servers: Sequence[Node]) -> Phase:
    """Return a first sharding as a phase of a search: every table looks at every server."""
    return "sharding", max(1, len(model.tables) * len(servers))


def _best(make: Make, options: ShardingOptions) -> tuple[Sharding, float]:
    """Return the best sharding and a bound: as few cuts as asked for, else whole tables, else cut for balance."""
    tried, bound = _proposed(make, options)
    if options.held:
        tried += kept(lambda: make(False), options.held)
    if len(tried) == 1:
        return tried[0], bound
    worth = options.score
    if worth is None or not options.deadline.allows(("scoring", len(tried))):
        return min(tried, key=lambda state: (state.seconds, len(state.shards()))), bound
    with options.deadline.phase("scoring", len(tried)):
        best = min(tried, key=lambda state: (worth(state.shards(), state.seconds), len(state.shards())))
    return best, bound


def _proposed(make: Make, options: ShardingOptions) -> tuple[list[Sharding], float]:
    modes = [False, True] if options.column_splits and options.row_splits else [False]
    first = make(False)
    with options.deadline.phase(*sharding_of(first.model, first.nodes)):
        bound = sharding_bound(make(modes[-1]))
        wrapped = [_wrapped(make(mode), options.per_server) for mode in modes] if options.per_server else []
        found = [state for state in wrapped if state is not None and not options.rules]
        if not found:
            first.fill({})
    if found:
        return found, bound
    whole, proven = _improved(first, bound, options)
    if not options.row_splits:
        return [whole], proven
    tried = [whole]
    for columns in modes:
        if min(state.seconds for state in tried) > max(options.enough_seconds, bound * (1 + GOOD_GAP)):
            tried += _cut_for_balance(functools.partial(make, columns), bound, tried, options)
    return tried, bound


def _cut_for_balance(
    empty: Callable[[], Sharding], bound: float, tried: list[Sharding], options: ShardingOptions
) -> list[Sharding]:
    """Return shardings that are cut in one direction: into fair shares, and poured to a level."""
    found = []
    if options.deadline.allows(("fair shares", 1.0)):
        with (
            suppress(DoesNotFit),
            options.deadline.phase("fair shares"),
        ):  # they need not fill servers as well as the first
            found.append(_filled(empty(), _parts(empty()), bound, replace(options, deterministic_seconds=0.0))[0])
    most = min(state.seconds for state in (*tried, *found))
    level = poured(empty, bound, most, GOOD_GAP, options.deadline)
    return found + ([level] if level is not None else [])


def _wrapped(state: Sharding, per_server: float) -> Sharding | None:
    """Fill servers with equal tables one after the other, cut as seldom as possible; None where that is not possible."""
    tables, used = list(state.model.tables), 0
    for taken, servers in fewest_cuts(len(tables), len(state.nodes), per_server) or ():
        part, tables = tables[:taken], tables[taken:]
        edges = sorted({*range(taken + 1), *(taken * p / servers for p in range(servers))})
        for begin, end in pairwise(edges):
            number = min(int(begin + 1e-9), taken - 1)
            server = used + min(int((begin + end) / 2 * servers / taken), servers - 1)
            shard = _range_of(state, part[number], begin - number, end - number, server)
            if shard is not None:
                state.add(shard)
        used += servers
    return state if not tables and int(state.room.min()) >= 0 else None


def _range_of(state: Sharding, table: EmbeddingTable, begin: float, end: float, server: int) -> Shard | None:
    """Return the part of a table between two shares of its work; None if it is empty."""
    if end - begin > 1 - 1e-9:
        return Shard(table.name, server, 0, table.rows)
    if state.widths(table):
        first, last = (min(round(at * table.dim / UNIT) * UNIT, table.dim) for at in (begin, end))
        last = table.dim if end > 1 - 1e-9 else last
        span = None if (first, last) == (0, table.dim) else (first, last)
        return Shard(table.name, server, 0, table.rows, span) if first < last else None
    read = state.popularity(table)
    first, last = (table.rows if at > 1 - 1e-9 else read.row_at(at) if at > 1e-9 else 0 for at in (begin, end))
    return Shard(table.name, server, first, last) if first < last else None


def _parts(state: Sharding) -> dict[str, int]:
    """Number of pieces of each table so that none takes longer than a server would if all resources were spread evenly."""
    whole, fastest = state.whole(), state.rates.max(axis=0)
    fair = float((whole.sum(axis=0) / state.rates.sum(axis=0)).max()) or 1.0
    shares = zip(state.model.tables, ((whole / fastest).max(axis=1) / fair).tolist(), strict=True)
    return {table.name: _even(state, table, ceil(share * (1 - 1e-9)), fair * fastest) for table, share in shares}


def _even(state: Sharding, table: EmbeddingTable, parts: int, fair: Floats) -> int:
    """Number of pieces, from ``parts`` on, of which none asks for more than is fair: hot rows cannot be cut."""
    most = min(len(state.nodes), table.rows)
    for count in range(max(1, min(parts, most)), min(2 * parts, most) + 1):
        pieces = state.pieces_of((table,), count)
        if all((state.demand(piece) <= fair * (1 + 1e-9)).all() for piece in pieces):
            return count
    return max(1, min(parts, most))


def _filled(
    state: Sharding, parts: Mapping[str, int], bound: float, options: ShardingOptions
) -> tuple[Sharding, float]:
    """Place everything, longest first; then move pieces; then, where small enough, solve the integer program.

    Returns the state, and a bound for these pieces.
    """
    state.fill(parts)
    return _improved(state, bound, options)


def _improved(state: Sharding, bound: float, options: ShardingOptions) -> tuple[Sharding, float]:
    """Move pieces of a full state; then, where small enough, solve the integer program."""
    _move(state, options.deadline)
    bound = sharding_bound(state) if not state.row_splits else bound
    open_ = options.deterministic_seconds > 0 and state.seconds > bound * (1 + GOOD_GAP) and not options.deadline.passed
    if open_ and len(classes_of(state)) * len(state.nodes) <= MOST_VARIABLES:
        bound = _improve(state, bound, options)
    return state, bound


def _move(state: Sharding, deadline: Deadline, budget: int = 2000) -> None:
    """Move pieces off the busiest server as long as that lowers the busiest load; about ``budget`` tries."""
    while budget > 0 and not deadline.passed and (tries := move_one(state)):
        budget -= tries


def _improve(state: Sharding, bound: float, options: ShardingOptions) -> float:
    """Solve the integer program, keep its sharding if it is better, and return the bound that it proved."""
    before, old = state.seconds, dict(state.at)
    program = CountProgram(state, bound, GOOD_GAP / 2)
    chosen, proven = program.solve(options.deterministic_seconds, options.deadline.left)
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
