"""The solver of a group's integer programs: one thread, limits in deterministic time, and Ctrl-C. Knows no model."""

from __future__ import annotations

import threading

from ortools.sat.python import cp_model

from placement.deadline import Deadline
from placement.tagging.limits import Limits
from placement.tagging.nets import Contracted

#: Open items up to which the linear relaxation holds all constraints: without those between Booleans, what presolve leaves
#: of a tiny group may raise the bound by one unit of 1e-8 a conflict, so cheaply that no limit of work ends it.
FEW_ITEMS = 40
#: Seconds between two requests to stop.
TICK = 0.05


def solver_for(contracted: Contracted, limits: Limits, spent: float) -> cp_model.CpSolver:
    """Return a solver for a group: one thread, and what is left of its limits.

    Parameters
    ----------
    contracted : Contracted
        The group problem.
    limits : Limits
        When to stop.
    spent : float
        Deterministic seconds that are spent already.
    """
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False
    solver.parameters.random_seed = limits.seed
    solver.parameters.max_deterministic_time = max(0.0, limits.deterministic_seconds - spent)
    solver.parameters.max_time_in_seconds = min(3600.0, max(0.0, limits.deadline.left))
    solver.parameters.linearization_level = 2 if len(contracted.free) <= FEW_ITEMS else 1
    solver.parameters.relative_gap_limit = limits.gap / 2
    return solver


def run(solver: cp_model.CpSolver, model: cp_model.CpModel, deadline: Deadline) -> tuple[cp_model.CpSolverStatus, bool]:
    """Run the solver in a thread of its own, so that Ctrl-C reaches this one; return its status and whether it came.

    The solver looks at its time limit now and then only; it is told to stop as well.

    Parameters
    ----------
    solver : cp_model.CpSolver
        With its limits.
    model : cp_model.CpModel
        What it solves.
    deadline : Deadline
        When it is told to stop.
    """
    status: list[cp_model.CpSolverStatus] = []
    done, interrupted = threading.Event(), False

    def work() -> None:
        try:
            status.append(solver.solve(model))
        finally:
            done.set()

    threading.Thread(target=work).start()
    while not done.is_set():
        try:
            if not done.wait(TICK if interrupted else max(TICK, min(3600.0, deadline.left))):
                solver.stop_search()
        except KeyboardInterrupt:
            interrupted = True
    return (status[0] if status else cp_model.UNKNOWN), interrupted
