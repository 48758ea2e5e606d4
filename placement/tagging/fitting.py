"""Any placement that fits: by packing, and where messages leave too little room by the integer program of memory alone.

How long its step is does not matter. Knows memory, and no times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ortools.sat.python import cp_model

from placement.plan import Tag
from placement.tagging.formulation import Formulation
from placement.tagging.limits import Limits
from placement.tagging.nets import Contracted
from placement.tagging.packing import Packing, has_room, pack
from placement.tagging.solver import run, solver_for

#: Seconds for a placement that fits, where none was found and no time is left.
LAST_CALL = 1.0


def fitting(
    contracted: Contracted, limits: Limits, start: Mapping[str, Tag] | None = None, *, hard: bool = True
) -> Packing:
    """Find any placement that fits, or prove that there is none.

    Parameters
    ----------
    contracted : Contracted
        The group problem.
    limits : Limits
        When to stop.
    start : Mapping of str to Tag, optional
        A placement that might be near one that fits.
    hard : bool
        Whether the integer program is asked where a packing does not answer: the group is small enough.
    """
    packing = pack(contracted, limits.deadline, limits.seed, start)
    if packing.tags is not None or packing.impossible or not hard:
        return packing
    if limits.deadline.passed:  # the search goes on after its end only for want of any plan
        limits = replace(limits, deadline=limits.deadline.no_sooner(LAST_CALL))
    return _programmed(contracted, limits)


def _programmed(contracted: Contracted, limits: Limits) -> Packing:
    """Ask the integer program until what it proposes fits; it may understate what is held."""
    form = Formulation(contracted, best_seconds=1.0, objective=False)
    for _ in range(limits.rounds):
        solver = solver_for(contracted, limits, 0.0)
        status, interrupted = run(solver, form.model, limits.deadline)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Packing(None, status == cp_model.INFEASIBLE, interrupted)
        tags = form.read(solver)
        if has_room(contracted.problem, tags) or interrupted:
            return Packing(tags if has_room(contracted.problem, tags) else None, interrupted=interrupted)
        form.exclude(tags)
    return Packing()
