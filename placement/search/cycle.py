"""The cycle of a step: what one session of a group takes from one step to the next, wherever its operators are.

Its longest way, however many places share the work; and all of its work, which its places share, one thread each.
"""

from __future__ import annotations

from placement.evaluation.group import GroupProblem
from placement.evaluation.loads import runs_backward
from problem.graph import Kind


def cycle_seconds(problem: GroupProblem) -> float:
    """Return the longest way forward and back of one session: no session has less time from step to step.

    It begins where somebody waits for the gradient before the next step: at a table, for which the rank does, whose step has
    a batch and a metric besides; or at an operator with a gradient, whose own place does. What comes before the first
    gradient may overlap the step before.

    Parameters
    ----------
    problem : GroupProblem
        A group; of its machines and servers nothing is asked.
    """
    costs = problem.costs
    rank, longest = costs.next_batch_seconds + costs.metric_seconds, dict[str, float]()
    for op in problem.model.graph:
        cost, before = costs.ops.get(op.name), max((longest[name] for name in op.inputs), default=0.0)
        if op.kind is Kind.LOOKUP:
            longest[op.name] = rank
        elif runs_backward(problem, op):
            longest[op.name] = before + (cost.forward.core_seconds + cost.backward.core_seconds if cost else 0.0)
        else:
            longest[op.name] = 0.0
    return max(rank, *longest.values())


def session_seconds(problem: GroupProblem) -> float:
    """Return the core-seconds of one session in a step: its places, of which each has one thread for it, share them.

    Parameters
    ----------
    problem : GroupProblem
        A group; of its machines and servers nothing is asked.
    """
    seconds = problem.costs.next_batch_seconds + problem.costs.metric_seconds
    for op in problem.model.graph:
        if op.kind is not Kind.LOOKUP and (cost := problem.costs.ops.get(op.name)):
            seconds += cost.forward.core_seconds
            seconds += cost.backward.core_seconds if runs_backward(problem, op) else 0.0
            seconds += cost.update.core_seconds if op.parameters else 0.0
    return seconds
