"""The front of the simulator: a plan and its costs in, a predicted run out."""

from __future__ import annotations

import time

from cost_models.costs import CostTable
from placement.plan import Plan
from problem.errors import BadInput
from programs.transform import transform
from simulator import statistics
from simulator.machines import Sharing, default_sharing
from simulator.observer import Observer
from simulator.report import report
from simulator.result import SimulationResult
from simulator.scenario import Scenario, foldable, stage

#: Primitives per run above which identical groups are folded and the run ends once it is precise enough (about 5 s).
BUDGET = 500_000
#: Relative half width of the confidence interval at which a run above the budget ends.
PRECISION = 0.005
#: Warm-up steps of a run above the budget, unless the user says otherwise.
SHORT_WARMUP = 4


def simulate(
    plan: Plan,
    costs: CostTable,
    *,
    steps: int = 60,
    warmup: int | None = None,
    sharing: Sharing | None = None,
    record: bool = True,
) -> SimulationResult:
    """Simulate a plan.

    Parameters
    ----------
    plan : Plan
        What is run.
    costs : CostTable
        What everything costs, for the plan's batch size.
    steps : int
        Steps of every session. Of a plan above :data:`BUDGET` it is the most that are made.
    warmup : int, optional
        Steps left out of the figures; chosen from the number of steps if None.
    sharing : Sharing, optional
        Who shares cores and memory bandwidth; chosen from the plan's hosts if None.
    record : bool
        Whether to keep the timeline.

    Returns
    -------
    SimulationResult
        The predicted run; what was left out is in ``left_out``.

    Raises
    ------
    BadInput
        ``steps`` or ``warmup`` is out of range, or the costs are for another batch size.
    Deadlock
        The programs wait for each other.
    LawBroken
        The result contradicts itself (a fault of the simulator).
    """
    began = time.perf_counter()
    _check(plan, costs, steps, warmup)
    sharing = sharing or default_sharing(plan)
    job = transform(plan)
    scenario = stage(job, costs, sharing, fold=False)
    heavy = _primitives(scenario) * steps > BUDGET
    if heavy and foldable(plan, sharing):
        scenario = stage(job, costs, sharing, fold=True)
        heavy = _primitives(scenario) * steps > BUDGET
    if warmup is None:
        warmup = min(SHORT_WARMUP, steps // 3) if heavy else statistics.default_warmup(steps)
    observer = Observer(scenario, steps, warmup, record, PRECISION if heavy else None)
    observer.run()
    return report(observer, steps, time.perf_counter() - began)


def _primitives(scenario: Scenario) -> int:
    """Primitives of one step of all sessions."""
    return sum(len(runner.flat) for runner in scenario.runners)


def _check(plan: Plan, costs: CostTable, steps: int, warmup: int | None) -> None:
    if steps < 1:
        raise BadInput("simulate", "steps", steps, "at least 1")
    if warmup is not None and not 0 <= warmup < steps:
        raise BadInput("simulate", "warmup", warmup, f"0 to {steps - 1}, fewer than the steps")
    if costs.batch != plan.batch:
        raise BadInput("simulate", "costs.batch", costs.batch, f"the plan's batch size, {plan.batch}")
