"""The front of the simulator: a plan and its costs in, a predicted run out."""

from __future__ import annotations

import time

from cost_models.costs import CostTable
from placement.plan import Plan
from problem.errors import BadInput
from programs.transform import transform
from simulator import statistics
from simulator.folding import UNFOLDED, primitives_per_step, strongest
from simulator.machines import Sharing, default_sharing
from simulator.observer import Observer
from simulator.report import report
from simulator.result import SimulationResult
from simulator.scenario import Scenario, stage

#: Primitives per run above which identical groups are folded and fewer steps are made (a few seconds' work).
BUDGET = 150_000
#: Steps that a run above the budget makes at least, and how many of them are warm-up unless the user says otherwise:
#: 10 steps of a thread were within 0.7 % of 300 on contended clusters (docs/simulation.md, "Large plans").
FEWEST_STEPS, SHORT_WARMUP = 12, 3


#: Core times of a step vary by this much where sessions share resources. Without any variation sessions fall into step
#: after some 20 steps, all computing, then all sending (18 % less throughput); from 2 % to 30 % the figure is the same
#: within 0.5 % (docs/simulation.md, "Variation").
VARIATION = 0.02


def simulate(
    plan: Plan,
    costs: CostTable,
    *,
    steps: int = 60,
    warmup: int | None = None,
    sharing: Sharing | None = None,
    variation: float | None = None,
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
        Steps of every session. A plan above :data:`BUDGET` makes fewer, as ``left_out`` says.
    warmup : int, optional
        Steps left out of the figures; chosen from the number of steps if None.
    sharing : Sharing, optional
        Who shares cores and memory bandwidth; chosen from the plan's hosts if None.
    variation : float, optional
        Coefficient of variation of core times from step to step; None: :data:`VARIATION` where sessions meet at shared
        resources, else 0.
    record : bool
        Whether to keep the timeline.

    Returns
    -------
    SimulationResult
        The predicted run; what was left out is in ``left_out``.

    Raises
    ------
    BadInput
        ``steps``, ``warmup`` or ``variation`` is out of range, or the costs are for another batch size.
    Deadlock
        The programs wait for each other.
    LawBroken
        The result contradicts itself (a fault of the simulator).
    """
    began = time.perf_counter()
    _check(plan, costs, steps, warmup, variation)
    sharing = sharing or default_sharing(plan)
    if variation is None:
        variation = VARIATION if sharing is not Sharing.NONE and plan.elp > plan.batch else 0.0
    job = transform(plan)
    large = primitives_per_step(job) * steps > BUDGET
    folding = strongest(plan, sharing) if large else UNFOLDED
    scenario = stage(job, costs, sharing, variation, folding, merge=large and not record)
    made = _affordable(scenario, steps, warmup)
    if warmup is None:
        warmup = statistics.default_warmup(made) if made == steps else min(SHORT_WARMUP, made // 3)
    observer = Observer(scenario, made, warmup, record)
    observer.run()
    return report(observer, steps, time.perf_counter() - began)


def _primitives(scenario: Scenario) -> int:
    """Primitives of one step of all sessions."""
    return sum(len(runner.flat) for runner in scenario.runners)


def _affordable(scenario: Scenario, steps: int, warmup: int | None) -> int:
    """Steps that are made: those asked for, fewer of a plan above the budget."""
    fewest = max(FEWEST_STEPS, 2 * warmup) if warmup else FEWEST_STEPS
    return min(steps, max(fewest, BUDGET // _primitives(scenario)))


def _check(plan: Plan, costs: CostTable, steps: int, warmup: int | None, variation: float | None) -> None:
    if steps < 1:
        raise BadInput("simulate", "steps", steps, "at least 1")
    if warmup is not None and not 0 <= warmup < steps:
        raise BadInput("simulate", "warmup", warmup, f"0 to {steps - 1}, fewer than the steps")
    if variation is not None and not 0.0 <= variation <= 0.5:
        raise BadInput("simulate", "variation", variation, "0 to 0.5")
    if costs.batch != plan.batch:
        raise BadInput("simulate", "costs.batch", costs.batch, f"the plan's batch size, {plan.batch}")
