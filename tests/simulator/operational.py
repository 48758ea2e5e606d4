"""Bounds of operational analysis that hold for every way of sharing (Lazowska and others, Quantitative System Performance,
1984, chapter 5)."""

from __future__ import annotations

from dataclasses import replace

from cost_models.costs import CostTable
from placement.plan import Plan
from programs.transform import transform
from simulator.bound import bounds
from simulator.machines import Sharing
from simulator.paths import idle_paths, loads
from simulator.scenario import stage
from simulator.simulate import simulate


def operational_bounds(plan: Plan, costs: CostTable, sharing: Sharing, fidelity: str) -> tuple[float, float]:
    """Least and most samples per second: N / (path + work of the others) and min(N X(1), 1 / busiest resource).

    At worst each session meets the work of all others at every resource; at best N threads do N times what one does, and
    never more than the busiest resource.
    """
    one = replace(plan, hogwild=1)
    lane = stage(transform(one), costs, sharing, 0.0)
    load, path = loads(lane, plan.hogwild), max(idle_paths(lane))
    others = (plan.hogwild * load.work.sum(axis=0) / load.capacity).sum()
    alone = simulate(one, costs, sharing=sharing, variation=0.0, fidelity=fidelity, record=False).samples_per_second
    least = plan.hogwild * plan.ranks * plan.batch * 1e9 / (path + others)
    return least, min(plan.hogwild * alone, bounds(lane, plan.hogwild)[0].bottleneck)
