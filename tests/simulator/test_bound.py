"""The closed forms against hand calculations, exact mean value analysis and the levels with events."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cost_models.costs import MessageCost
from placement.plan import Sync
from problem.errors import BadInput
from programs.transform import transform
from simulator.bound import bounds, mean_value_analysis
from simulator.fidelity import Fidelity
from simulator.machines import Sharing
from simulator.paths import Load
from simulator.scenario import stage
from simulator.simulate import simulate
from tests.simulator.instances import BATCH, US, chain_model, closed_plan, exact_mva, make_costs, make_plan, table
from tests.simulator.operational import operational_bounds

CHAIN = chain_model(2)
WITH_TABLE = chain_model(2, [table()])


def rate(plan, costs=None, level="bound", **settings) -> float:
    """Samples per second of a plan at a level."""
    return simulate(plan, costs or make_costs(plan.model), fidelity=level, record=False, **settings).samples_per_second


@pytest.mark.parametrize(
    "plan",
    [
        make_plan(CHAIN),
        make_plan(WITH_TABLE, servers=1),
        make_plan(CHAIN, nodes=2, tags={"layer1": 1}),
        make_plan(CHAIN, groups=2, sync_servers=1, sync=Sync("background", gap=2)),
    ],
    ids=["alone", "server", "cut", "background"],
)
def test_a_lone_session_takes_its_path(plan):
    """With one thread a rank there is nothing to queue for: the closed form is the simulated throughput."""
    assert rate(plan) == pytest.approx(rate(plan, level="fluid", variation=0.0), rel=0.02)


def test_foreground_exchange_counts_with_its_part_of_a_step():
    """Every second step an exchange of 36 us, 18 a step, as in the simulation with events; the server adds a queue."""
    plan = make_plan(CHAIN, groups=2, sync_servers=1, sync=Sync("foreground", gap=2))
    found = rate(plan, make_costs(CHAIN, exchange_seconds_per_byte=1e-9))
    assert found == pytest.approx(2 * BATCH / (90 * US), rel=0.03)


@pytest.mark.parametrize("ranks", [2, 5])
def test_all_reduce_takes_the_closed_form(ranks):
    """Messages that cost no core time: 2 (latency + (R - 1) / R bytes / rate) on top of the step."""
    model = chain_model(2, parameters=1250)
    found = rate(make_plan(model, nodes=ranks, ranks=ranks), make_costs(model, message=MessageCost()))
    assert found == pytest.approx(ranks * BATCH / ((72 + 2 * (5 + (ranks - 1) / ranks * 10)) * US), rel=1e-4)


@pytest.mark.parametrize("threads", [4, 8, 32])
def test_cores_bind(threads):
    """Many threads on two cores: the bottleneck bound, 2 / 72 us, of which mean value analysis comes within 2 %."""
    result = simulate(make_plan(CHAIN, hogwild=threads), make_costs(CHAIN), fidelity="bound")
    assert result.samples_per_second == pytest.approx(2 * BATCH / (72 * US), rel=0.02)
    assert result.utilization["trainer"]["cpu"] == pytest.approx(1.0, abs=0.02)
    assert result.fidelity is Fidelity.BOUND


def schweitzer(demand: float, think: float, customers: int) -> float:
    """Schweitzer's throughput of one station and a delay, which has a closed form.

    R = D (1 + (N - 1) / N Q) and Q = N R / (Z + R) give R^2 + (Z - N D) R - D Z = 0.
    """
    half = (customers * demand - think) / 2
    return customers / (think + half + math.sqrt(half * half + demand * think))


def approximate(demands: list[float], think: float, customers: int) -> float:
    """Throughput of single servers and a delay, by the level's mean value analysis."""
    work, ones = np.array([demands]), np.ones(len(demands))
    load = Load(work, work, ones, ones, ones, (-1,) * len(demands), ((),) * len(demands))
    return float(mean_value_analysis(load, np.array([think + sum(demands)]), customers, [0])[0].sum())


@pytest.mark.parametrize("customers", [1, 4, 16, 64])
def test_mean_value_analysis_is_schweitzers(customers):
    """One station and a delay: the root of the quadratic equation that Schweitzer's fixed point becomes."""
    assert approximate([8.0], 60.0, customers) == pytest.approx(schweitzer(8.0, 60.0, customers), rel=1e-6)


@pytest.mark.parametrize("customers", [1, 4, 16, 64])
def test_approximation_is_on_the_safe_side_of_the_exact_recursion(customers):
    """Three stations and a delay: exact for one customer; for more the approximation takes queues for longer than they are,
    so it is below the exact throughput, and above the balanced job bound (Zahorjan and others 1982)."""
    demands, think = [5.0, 8.0, 3.0], 60.0
    total, exact, found = sum(demands), exact_mva(demands, think, customers), approximate(demands, think, customers)
    balanced = customers / (think + total + (customers - 1) * max(demands) / (1 + think / (customers * total)))
    assert balanced * (1 - 1e-6) <= found <= exact * (1 + 1e-6)
    if customers == 1:
        assert found == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("threads", [1, 4, 9, 16])
def test_a_plan_of_product_form(threads):
    """Threads that think for 72 us and queue for 8 at one server: the level's prediction is Schweitzer's closed form."""
    plan, costs = closed_plan(threads)
    assert rate(plan, costs) == pytest.approx(schweitzer(8.0, 72.0, threads) * BATCH / US, rel=1e-4)


@pytest.mark.parametrize("hogwild", [1, 3, 6])
@pytest.mark.parametrize("tags", [{}, {"layer1": 2}], ids=["all-dp", "cut"])
def test_bounds_bound_what_is_simulated(hogwild, tags):
    """A small contended plan: fluid is below the latency and the bottleneck bound, but for the interval of the run and 1 %
    for ranks whose steps overlap a little more than one step begun together shows; the closed form is above the least that
    any way of sharing gives."""
    model = chain_model(3, [table("a"), table("b")])
    plan = make_plan(model, nodes=3, ranks=3, hogwild=hogwild, servers=2, tags=tags)
    lane = stage(transform(replace(plan, hogwild=1)), make_costs(model), Sharing.NODE, 0.0)
    found, _ = bounds(lane, hogwild)
    fluid = simulate(plan, make_costs(model), fidelity="fluid", record=False)
    assert fluid.samples_per_second <= 1.01 * min(found.latency, found.bottleneck) + fluid.ci95
    least, _ = operational_bounds(plan, make_costs(model), Sharing.NODE, "fluid")
    assert least <= min(found.least, fluid.samples_per_second + fluid.ci95)


def test_an_unknown_level_is_refused():
    """One line that names the levels there are."""
    with pytest.raises(BadInput, match="auto, bound, fifo, fluid"):
        simulate(make_plan(CHAIN), make_costs(CHAIN), fidelity="exact")
