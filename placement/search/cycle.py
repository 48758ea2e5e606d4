"""The cycle of a step: what one session of a group takes from one step to the next, wherever its operators are."""

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
