"""The closed forms against hand calculations, exact mean value analysis and the levels with events."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.costs import MessageCost
from placement.plan import Sync
from problem.errors import BadInput
from simulator.bound import mean_value_analysis
from simulator.fidelity import Fidelity
from simulator.paths import Load
from simulator.simulate import simulate
from tests.simulator.instances import BATCH, US, chain_model, exact_mva, make_costs, make_plan, table

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


@pytest.mark.parametrize("customers", [1, 4, 16, 64])
def test_approximation_of_exact_mean_value_analysis(customers):
    """Three stations and a delay: within 6 % of the exact recursion, exact for one customer."""
    demands, think = [5.0, 8.0, 3.0], 60.0
    work, ones = np.array([demands]), np.ones(3)
    load = Load(work, work, ones, ones, ones, (-1, -1, -1), ((), (), ()))
    rates, _ = mean_value_analysis(load, np.array([think + sum(demands)]), customers, [0])
    assert rates.sum() == pytest.approx(exact_mva(demands, think, customers), rel=1e-6 if customers == 1 else 0.06)


@pytest.mark.parametrize("hogwild", [1, 3, 6])
@pytest.mark.parametrize("tags", [{}, {"layer1": 2}], ids=["all-dp", "cut"])
def test_levels_agree(hogwild, tags):
    """The closed form is within 15 % of fluid on a small contended plan."""
    model = chain_model(3, [table("a"), table("b")])
    plan = make_plan(model, nodes=3, ranks=3, hogwild=hogwild, servers=2, tags=tags)
    assert rate(plan) == pytest.approx(rate(plan, level="fluid"), rel=0.15)


def test_an_unknown_level_is_refused():
    """One line that names the levels there are."""
    with pytest.raises(BadInput, match="auto, bound, fifo, fluid"):
        simulate(make_plan(CHAIN), make_costs(CHAIN), fidelity="exact")
