"""Bounds of a group's step that hold for more than its own order and shards: the integer program, asked once.

Its latency constraint lets the operators of a place follow each other in any order, or is left out (``latency_model``). A
placement is not forbidden once it was judged, for that was in one order and with one sharding only; so there is one round.
"""

from __future__ import annotations

from ortools.sat.python import cp_model

from placement.tagging.formulation import Formulation, Paths
from placement.tagging.limits import Limits
from placement.tagging.nets import Contracted
from placement.tagging.solver import run, solver_for


def any_order_seconds(contracted: Contracted, most_seconds: float, limits: Limits) -> float:
    """Return a bound of the step of a group whatever the order in which its operators run.

    Parameters
    ----------
    contracted : Contracted
        The group problem, small enough for the integer program (:func:`proves`).
    most_seconds : float
        Longer steps are of no interest: the bound is no more than that.
    limits : Limits
        When to stop.

    Raises
    ------
    KeyboardInterrupt
        When it came while the solver ran.
    """
    return _one_round(contracted, most_seconds, limits, "in any order")


def load_seconds(contracted: Contracted, most_seconds: float, limits: Limits) -> float:
    """Return a bound of what the busiest resource of a node of the group takes, whatever the critical path.

    Parameters and errors are those of :func:`any_order_seconds`.
    """
    return _one_round(contracted, most_seconds, limits, "left out")


def _one_round(contracted: Contracted, most_seconds: float, limits: Limits, paths: Paths) -> float:
    size = max(1, len(contracted.items)) * contracted.problem.size
    with limits.deadline.phase("formulation", size):
        form = Formulation(contracted, most_seconds, paths=paths)
    solver = solver_for(contracted, limits, 0.0)
    status, interrupted = run(solver, form.model, limits.deadline)
    if interrupted:
        raise KeyboardInterrupt
    if status == cp_model.INFEASIBLE:  # nothing as good is left
        return most_seconds
    return min(most_seconds, form.seconds(solver.best_objective_bound))
