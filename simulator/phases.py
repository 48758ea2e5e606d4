"""A job whose number of groups changes: each number is simulated by itself, and time is divided among them.

A change takes a pause (moving parameters, new processes) in which nothing is trained. Transients after a change, a step or
two, are left out. Knows nothing of how a phase is simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from placement.plan import Plan
from problem.errors import BadInput
from simulator.conditions import Conditions, Resize
from simulator.result import SimulationResult


@dataclass(frozen=True)
class _Phase:
    begin: float
    end: float
    pause: float
    groups: int

    @property
    def training_seconds(self) -> float:
        return max(0.0, self.end - self.begin - self.pause)


def simulate_phases(
    plan: Plan, conditions: Conditions, simulate: Callable[[Plan, Conditions], SimulationResult]
) -> SimulationResult:
    """Simulate a plan that trains with fewer groups at times.

    Parameters
    ----------
    plan : Plan
        With the most groups.
    conditions : Conditions
        With changes and a duration.
    simulate : callable
        Simulates a plan under conditions without changes.

    Returns
    -------
    SimulationResult
        Of the last phase, but with the throughput of the whole duration; ``happened`` tells of each phase.

    Raises
    ------
    BadInput
        More groups than the plan has machines for, or a change after the end.
    """
    phases = _phases(plan, conditions)
    steady = replace(conditions, resizes=(), duration_seconds=0.0)
    found = [simulate(_with_groups(plan, phase.groups), steady) for phase in phases]
    total = conditions.duration_seconds
    parts = [phase.training_seconds / total for phase in phases]
    rate = sum(part * result.samples_per_second for part, result in zip(parts, found, strict=True))
    half_width = sum(part * result.ci95 for part, result in zip(parts, found, strict=True))
    told = tuple(map(_told, phases, found))
    return replace(found[-1], samples_per_second=rate, ci95=half_width, happened=(*told, *found[-1].happened))


def _phases(plan: Plan, conditions: Conditions) -> list[_Phase]:
    end, most = conditions.duration_seconds, len(plan.groups)
    changes = [Resize(0.0, most), *sorted(conditions.resizes, key=lambda change: change.at_seconds)]
    for change in changes:
        if change.groups > most:
            raise BadInput("conditions", "resizes.groups", change.groups, f"1 to {most}, the groups of the plan")
        if change.at_seconds >= end:
            raise BadInput("conditions", "resizes.at_seconds", change.at_seconds, f"below duration_seconds, {end:g}")
    ends = [change.at_seconds for change in changes[1:]] + [end]
    return [
        _Phase(change.at_seconds, until, change.pause_seconds, change.groups)
        for change, until in zip(changes, ends, strict=True)
        if until > change.at_seconds
    ]


def _with_groups(plan: Plan, groups: int) -> Plan:
    return plan if groups == len(plan.groups) else replace(plan, groups=plan.groups[:groups])


def _told(phase: _Phase, result: SimulationResult) -> str:
    groups = "group" if phase.groups == 1 else "groups"
    pause = f" after a pause of {phase.pause:g} s" if phase.pause else ""
    return f"{phase.begin:g} to {phase.end:g} s: {phase.groups} {groups}{pause}, {result.samples_per_second:,.0f} samples/s."
