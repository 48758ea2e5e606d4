"""Tables change servers where that shortens the critical path of a plan.

Sharding balances loads; a session also waits for the rows of one table longer than for those of another, by which tables
share a server with it, and which servers are asked before: a session asks them in the order of the plan. Knows the plan
that the search found, whose loads of nodes it leaves alone; proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

from placement.deadline import Deadline
from placement.evaluation.evaluate import evaluate_timed, evaluation_of
from placement.evaluation.group import GroupProblem
from placement.plan import Shard
from placement.search.outcome import Solved, coded, distinct, job_value
from placement.tables.table_rules import TableRules
from placement.tagging.limits import PRECISION

Shards = tuple[Shard, ...]

#: Shardings that are judged at most.
LOOKS = 1000


def resharded(
    found: Solved, problems: Callable[[Shards], tuple[GroupProblem, ...]], rules: TableRules, deadline: Deadline
) -> Solved:
    """Return the plan, or a better one that differs in which server holds which shards.

    Two servers change places with all they hold, a shard goes to another server, or two shards change places, whenever
    that makes more samples per second; again until nothing does, or :data:`LOOKS` shardings were judged. Tables about
    which there are rules stay, and no server gets two shards of a table.

    Parameters
    ----------
    found : Solved
        A plan.
    problems : callable
        Gives the groups' problems for shards.
    rules : TableRules
        What the user demands of tables.
    deadline : Deadline
        When to stop.
    """
    first, tags = replace(found.problems[0], codecs=found.codecs), dict(found.tags or {})
    if len(found.shape.servers) < 2 or not deadline.allows(evaluation_of(first, tags)):
        return found
    fixed, looks = rules.ruled.union(rules.forbidden), iter(range(LOOKS))
    try:
        better: Solved | None = found if evaluate_timed(first, tags, deadline).waits else None
        while better:
            found, better = better, _better(better, problems, fixed, looks, deadline)
    except KeyboardInterrupt:  # what was found stands
        deadline.stop()
    return found


def _better(
    found: Solved,
    problems: Callable[[Shards], tuple[GroupProblem, ...]],
    fixed: frozenset[str],
    looks: Iterator[int],
    deadline: Deadline,
) -> Solved | None:
    """Return the first neighbour that makes more samples per second, if there is one within time and count."""
    tags = dict(found.tags or {})
    for _, shards in zip(looks, _neighbours(found.shards, len(found.shape.servers), fixed), strict=False):
        if not deadline.allows(evaluation_of(found.problems[0], tags)):
            return None
        of = problems(shards)
        kinds = coded(distinct(of), found.codecs)
        value, _ = job_value(kinds, tags, evaluate_timed(kinds[0][0], tags, deadline), deadline)
        if value is not None and value > found.value * (1 + PRECISION):
            return replace(found, shards=shards, problems=of, value=value, score=value, rivals=[])
    return None


def _neighbours(shards: Shards, servers: int, fixed: frozenset[str]) -> Iterator[Shards]:
    """Yield the shardings in which two servers have changed places, a shard is on another server, or two have changed."""
    held, free = {(s.table, s.server) for s in shards}, [i for i, s in enumerate(shards) if s.table not in fixed]

    def moved(*places: tuple[int, int]) -> Shards:
        at = dict(places)
        return tuple(replace(s, server=at[i]) if i in at else s for i, s in enumerate(shards))

    stay = {s.server for s in shards if s.table in fixed}
    for one, other in combinations([server for server in range(servers) if server not in stay], 2):
        turned = {one: other, other: one}
        yield moved(*((i, turned[s.server]) for i, s in enumerate(shards) if s.server in turned))
    for i in free:
        for server in range(servers):
            if (shards[i].table, server) not in held:
                yield moved((i, server))
    for i, j in combinations(free, 2):
        there, here = shards[j].server, shards[i].server
        if not {(shards[i].table, there), (shards[j].table, here)} & held:
            yield moved((i, there), (j, here))
