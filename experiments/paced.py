"""Schedule and synchronisation alone: what ``hiertrain figure paced`` does.

Every instruction of a run really happens, then sleeps to a modelled duration, so costs cannot be wrong and a difference
between prediction and measurement is one of order, waiting or synchronisation. Durations are the measured ones times a
factor, large enough that the machine's few cores can do the real work within them. Wall clock, the first half of the run
left out (workers start late and catch up); never to be quoted as accuracy of costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from cost_models.costs import CostTable, OpCost, PhaseCost, TableCost
from cost_models.profile_costs import profile_costs
from executor.clock import ClockKind
from executor.run import RunOptions, run
from experiments.compare import measure_at
from experiments.training import modelled_durations
from experiments.validation import models, plans_of
from placement.plan import Plan
from problem.local import this_node
from simulator.machines import Sharing
from simulator.simulate import simulate

#: How much longer than measured every instruction is made.
STRETCH = 16.0
#: Lateness, as a part of the run, beyond which a machine did not keep up and the row says nothing.
MOST_LAG = 0.01


@dataclass(frozen=True)
class PacedRow:
    """One plan: predicted samples per second and measured on the wall, processes, and how late steps ended (of the run)."""

    plan: str
    workers: int
    predicted: float
    measured: float
    lag: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured

    @property
    def conclusive(self) -> bool:
        """Whether the machine kept up with the pace: steps ended late by less than :data:`MOST_LAG` of the run."""
        return self.lag < MOST_LAG


def paced_rows(steps: int = 30, watch: Callable[[str], None] | None = None) -> list[PacedRow]:
    """Run every plan of the second validation model on the paced clock."""
    model = models()[1]
    measured = profile_costs(measure_at(model, model.batch), model, model.batch, this_node())
    rows = []
    for plan in plans_of(model):
        if watch is not None:
            watch(plan.name)
        rows.append(_paced(plan, stretched(measured, STRETCH), steps))
    return rows


def _paced(plan: Plan, costs: CostTable, steps: int) -> PacedRow:
    options = RunOptions(
        steps=steps, warmup=steps // 2, clock=ClockKind.PACED, durations=modelled_durations(plan, costs)
    )
    result = run(plan, options)
    predicted = simulate(plan, costs, steps=steps, warmup=steps // 2, sharing=Sharing.NONE, record=False)
    seconds = max(float(worker.ends[-1, -1]) for worker in result.timeline.ranks())
    rates = predicted.samples_per_second, result.wall_samples_per_second
    return PacedRow(plan.name, len(result.workers), *rates, result.lag_seconds / seconds)


def stretched(costs: CostTable, factor: float) -> CostTable:
    """Return costs with every core-second multiplied by ``factor``."""
    return replace(
        costs,
        ops={
            name: OpCost(*(_times(p, factor) for p in (op.forward, op.backward, op.update)))
            for name, op in costs.ops.items()
        },
        tables={
            name: TableCost(*(_times(p, factor) for p in (t.lookup, t.update, t.shard_lookup, t.shard_update)))
            for name, t in costs.tables.items()
        },
        message=costs.message.scaled(factor),
        next_batch_seconds=costs.next_batch_seconds * factor,
        metric_seconds=costs.metric_seconds * factor,
        sum_seconds_per_byte=costs.sum_seconds_per_byte * factor,
        exchange_seconds_per_byte=costs.exchange_seconds_per_byte * factor,
        sum_seconds=costs.sum_seconds * factor,
    )


def _times(cost: PhaseCost, factor: float) -> PhaseCost:
    return PhaseCost(cost.core_seconds * factor, cost.traffic_bytes)
