"""Why nothing fits: the smallest statement that a user can act on.

In this order: an item whose every tag is forbidden, one that no machine can hold (and the component that ties it
together), pins that overfill a node, the sum of everything, and a sum that fits where no assignment does. What was not
proven is said to be open.
"""

from __future__ import annotations

from placement.errors import ConstraintsConflict, DoesNotFit, NothingFound, PlacementError
from placement.evaluation.group import GroupProblem
from placement.evaluation.loads import fixed_tally
from placement.plan import DP
from placement.tables.shard_bounds import packing_bound
from placement.tagging.baselines import baselines
from placement.tagging.nets import Contracted

#: Operators that a message names, the largest ones; a traced model has thousands.
NAMED = 8


def no_fit(contracted: Contracted, proven: bool = True) -> PlacementError:
    """Return the error that says why a group that has no placement has none.

    Parameters
    ----------
    contracted : Contracted
        A group for which no placement was found.
    proven : bool
        Whether the solver proved that there is none. Otherwise only what follows from sizes is called impossible.
    """
    return _barred(contracted) or _one_item(contracted) or _pinned(contracted) or _sum(contracted, proven)


def _barred(contracted: Contracted) -> ConstraintsConflict | None:
    problem = contracted.problem
    for item in contracted.barred:
        names, tags = ", ".join(item.ops), ", ".join(map(str, sorted(item.forbidden, key=str, reverse=True)))
        why = "has no tag left" if item.fixed is None else f"is pinned or tied to {item.fixed!r}"
        return ConstraintsConflict(
            f"operator {names} {why} in groups of {problem.size} nodes: forbidden are {tags}", item.ops
        )
    return None


def _room(problem: GroupProblem) -> list[float]:
    """Memory of each node that is left for operators."""
    fixed = fixed_tally(problem).memory
    return [node.memory_bytes - fixed[index] for index, node in enumerate(problem.nodes)]


def _least(contracted: Contracted, index: int) -> int:
    """Bytes that an item needs at least: as an MP operator, or with its DP copy for H threads, whichever is less."""
    problem, work = contracted.problem, contracted.work[index]
    tag = contracted.items[index].fixed
    sessions = problem.hogwild if tag == DP or (tag is None and problem.ranks > 1) else problem.sessions
    return work.resident_bytes + sessions * work.session_bytes


def _one_item(contracted: Contracted) -> DoesNotFit | None:
    problem, room = contracted.problem, _room(contracted.problem)
    largest = max(range(len(room)), key=lambda n: room[n])
    for index, item in enumerate(contracted.items):
        needed = _least(contracted, index)
        if needed > room[largest]:
            component = problem.model.graph[item.ops[0]].component
            names = ", ".join(item.ops)
            what = f"operator {names}"
            if len(item.ops) > 1:
                what = f"component {component!r} ({names}), whose operators must share one node's memory,"
            if item.fixed is not None:
                what += f" pinned to {item.fixed!r}"
            return DoesNotFit(what, f"any node ({problem.nodes[largest].name} has most room)", needed, room[largest])
    return None


def _pinned(contracted: Contracted) -> DoesNotFit | None:
    problem, room = contracted.problem, _room(contracted.problem)
    for node in range(problem.size):
        tags = (node, DP) if node < problem.ranks else (node,)
        here = [i for i, item in enumerate(contracted.items) if item.fixed in tags and item.fixed is not None]
        needed = sum(_least(contracted, i) for i in here)
        if needed > room[node]:
            names = ", ".join(op for i in here for op in contracted.items[i].ops)
            return DoesNotFit(
                f"operators {names}, pinned or tied to the rank,",
                f"node {problem.nodes[node].name}",
                needed,
                room[node],
            )
    return None


def _sum(contracted: Contracted, proven: bool) -> PlacementError:
    problem, room = contracted.problem, _room(contracted.problem)
    sizes = [float(_least(contracted, index)) for index in range(len(contracted.items))]
    names = _largest({item.name: size for item, size in zip(contracted.items, sizes, strict=True) if size})
    where = f"the {problem.size} nodes of a group"
    if sum(sizes) > sum(room):
        return DoesNotFit(f"the sum of all operators ({names})", where, sum(sizes), sum(room))
    in_sum = f"in sum they would fit, messages aside: {sum(sizes):,.0f} of {sum(room):,.0f} bytes"
    crowded = packing_bound(sizes, problem.size)
    if crowded <= max(room):
        if not proven:
            return NothingFound(f"operators {names} on {where} ({in_sum})")
        worst = [row.evaluation.overflow for row in baselines(contracted)]
        crowded = min(load.memory_needed for load in worst if load is not None)
    what = f"every assignment of operators {names} overfills a node ({in_sum}), so the fullest node"
    return DoesNotFit(what, where, crowded, max(room))


def _largest(sizes: dict[str, float]) -> str:
    """Names of the largest operators, and how many more there are."""
    named = sorted(sizes, key=lambda name: -sizes[name])[:NAMED]
    more = f" and {len(sizes) - NAMED} more" if len(sizes) > NAMED else ""
    return ", ".join(named) + more
