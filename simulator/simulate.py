"""The front of the simulator: a plan and its costs in, a predicted run out."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cost_models.costs import CostTable
from placement.plan import Plan
from problem.errors import BadInput
from programs.transform import transform
from simulator import statistics
from simulator.bound import bound
from simulator.conditions import UNDISTURBED, Conditions
from simulator.draws import STRATA
from simulator.fidelity import AFFORDABLE, JUDGED_STEPS, TIME_STEPS, Fidelity, choose, fluid_work
from simulator.folding import UNFOLDED, Folding, primitives_per_step, strongest
from simulator.machines import Sharing, default_sharing, nodes_of
from simulator.observer import Observer
from simulator.phases import simulate_phases
from simulator.report import report
from simulator.result import SimulationResult
from simulator.scenario import Scenario, fans_may, stage
from simulator.watching import Watcher

#: Primitives per run above which what is alike is simulated once, messages are merged and a run ends early.
BUDGET = 150_000
#: Primitives of a run (as it is simulated) above which fewer steps are made: a quarter of a minute's work.
MOST_PRIMITIVES = 1_500_000
#: Steps that such a run makes at least, and how many of them are warm-up unless the user says otherwise: 10 steps of a
#: thread were within 0.7 % of 300 on contended clusters (docs/simulation.md, "Large plans").
FEWEST_STEPS, SHORT_WARMUP = 12, 3
#: Half width of the 95 % interval, relative to the throughput, at which the run of a large plan ends.
PRECISION = 0.01
#: Groups that are simulated for all that are alike: of one alone, messages that meet at a server would come from every group
#: at once. At level fluid more of them take too long, unless time steps are used (docs/simulation.md, "Large plans").
SIMULATED_GROUPS = {Fidelity.FIFO: 4, Fidelity.FLUID: 2}
#: The same where shares are worked out in time steps, which cost hardly more where more is under way.
STEPPED_GROUPS = 4

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
    fidelity: Fidelity | str = Fidelity.AUTO,
    precision: float | None = None,
    conditions: Conditions = UNDISTURBED,
    fold: bool = True,
    watcher: Watcher | None = None,
    progress: Callable[[float], None] | None = None,
) -> SimulationResult:
    """Simulate a plan.

    Parameters
    ----------
    plan : Plan
        What is run.
    costs : CostTable
        What everything costs, for the plan's batch size.
    steps : int
        Steps of every session, at most. A plan above :data:`BUDGET` may make fewer, as ``left_out`` says.
    warmup : int, optional
        Steps left out of the figures; chosen from the number of steps if None.
    sharing : Sharing, optional
        Who shares cores and memory bandwidth; chosen from the plan's hosts if None.
    variation : float, optional
        Coefficient of variation of core times from step to step; None: :data:`VARIATION` where sessions meet at shared
        resources, else 0.
    record : bool
        Whether to keep the timeline.
    fidelity : Fidelity or str
        ``bound``, ``fifo``, ``fluid`` or ``auto`` (``simulator.fidelity``).
    precision : float, optional
        End the run when the half width of the 95 % interval is at most this part of the throughput. None:
        :data:`PRECISION` for a plan above :data:`BUDGET`, else all steps are made. 0 makes all steps.
    conditions : Conditions
        Stragglers, slow nodes and readers, racks, failures.
    fold : bool
        Whether one group or rank may stand for all that are alike in a plan above :data:`BUDGET`.
    watcher : Watcher, optional
        Told of the start and the end of every instruction (:mod:`simulator.watching`); nothing is folded or merged then.
    progress : callable, optional
        Told the part of the steps that has been made, a hundred times at most.

    Returns
    -------
    SimulationResult
        The predicted run; what was left out is in ``left_out``.

    Raises
    ------
    BadInput
        A setting is out of range, or the costs are for another batch size.
    Deadlock
        The programs wait for each other.
    LawBroken
        The result contradicts itself (a fault of the simulator).
    """
    began = time.perf_counter()
    _check(plan, costs, steps, warmup, variation, precision, conditions)
    if conditions.resizes:
        settings: dict[str, Any] = {"steps": steps, "warmup": warmup, "sharing": sharing, "variation": variation}
        settings |= {
            "record": record,
            "fidelity": fidelity,
            "precision": precision,
            "fold": fold,
            "watcher": watcher,
            "progress": progress,
        }
        return simulate_phases(plan, conditions, lambda part, now: simulate(part, costs, conditions=now, **settings))
    sharing = sharing or default_sharing(plan)
    if variation is None:
        variation = VARIATION if sharing is not Sharing.NONE and plan.elp > plan.batch else 0.0
    job = transform(plan)
    large = watcher is None and primitives_per_step(job) * steps > BUDGET
    folding = (strongest(plan, sharing, conditions) if fold else Folding(merged=True)) if large else UNFOLDED
    level = choose(_fidelity(fidelity), job, folding.with_groups(plan, SIMULATED_GROUPS[Fidelity.FLUID]), steps)
    if level is Fidelity.BOUND:
        lane = transform(replace(plan, hogwild=1))
        scenario = stage(lane, costs, sharing, 0.0, strongest(plan, sharing, conditions), conditions=conditions)
        return bound(scenario, plan.hogwild, time.perf_counter() - began)
    merge, time_steps = large and not record, 0
    stepped = folding.with_groups(plan, STEPPED_GROUPS)
    if level is Fidelity.FLUID and fluid_work(job, stepped) * min(steps, JUDGED_STEPS) > AFFORDABLE:
        time_steps = TIME_STEPS if merge and fans_may(job, sharing, conditions) else 0
    folding = stepped if time_steps else folding.with_groups(plan, SIMULATED_GROUPS[level])
    disturbed: dict[str, Any] = {"conditions": conditions, "time_steps": time_steps}
    scenario = stage(job, costs, sharing, variation, folding, merge=merge, fidelity=level, **disturbed)
    made = _affordable(scenario, steps, warmup) if large else steps
    if warmup is None:
        warmup = min(SHORT_WARMUP, made // 3) if large else statistics.default_warmup(made)
    if precision is None and large and not conditions.eventful:
        precision = PRECISION
    if scenario.mixing and warmup < made - STRATA:
        warmup = -(-warmup // STRATA) * STRATA
    observer = Observer(scenario, made, warmup, record, precision or None, watcher, progress)
    observer.run()
    return report(observer, steps, time.perf_counter() - began)


def _fidelity(name: Fidelity | str) -> Fidelity:
    try:
        return Fidelity(name)
    except ValueError:
        raise BadInput("simulate", "fidelity", name, ", ".join(Fidelity)) from None


def _affordable(scenario: Scenario, steps: int, warmup: int | None) -> int:
    """Steps that are made: those asked for, fewer of a plan above the budget."""
    primitives = sum(len(runner.flat) for runner in scenario.runners)
    fewest = max(FEWEST_STEPS, 2 * warmup) if warmup else FEWEST_STEPS
    return min(steps, max(fewest, MOST_PRIMITIVES // primitives))


def _check(
    plan: Plan,
    costs: CostTable,
    steps: int,
    warmup: int | None,
    variation: float | None,
    precision: float | None,
    conditions: Conditions,
) -> None:
    if steps < 1:
        raise BadInput("simulate", "steps", steps, "at least 1")
    if warmup is not None and not 0 <= warmup < steps:
        raise BadInput("simulate", "warmup", warmup, f"0 to {steps - 1}, fewer than the steps")
    if variation is not None and not 0.0 <= variation <= 0.5:
        raise BadInput("simulate", "variation", variation, "0 to 0.5")
    if precision is not None and not 0.0 <= precision < 1.0:
        raise BadInput("simulate", "precision", precision, "at least 0, below 1")
    if costs.batch != plan.batch:
        raise BadInput("simulate", "costs.batch", costs.batch, f"the plan's batch size, {plan.batch}")
    known = sorted({node.name for node in nodes_of(plan)})
    for name, (where, value) in conditions.named_nodes.items():
        if name not in known:
            raise BadInput("conditions", where, value, f"a node of the plan, such as {_like(name, known)}")


def _like(name: str, known: list[str]) -> str:
    """Return the known name that is most like this one."""
    return difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
