"""Each disturbance changes the run the way it should; without any nothing changes."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from statistics import mean, stdev

import numpy as np
import pytest

from cost_models.costs import MessageCost
from placement.plan import Shard, Sync
from problem.errors import BadInput
from simulator.conditions import Conditions, Failures, lognormal
from simulator.engine import Engine
from simulator.folding import Folding, strongest
from simulator.levels import compare_levels, levels_text
from simulator.machines import Sharing
from simulator.network import Network, Nic
from simulator.simulate import simulate
from tests.simulator.instances import BATCH, US, chain_model, make_costs, make_plan, table

CHAIN = chain_model(2)
STEP = 72
LEVELS = ("fifo", "fluid")


def rate(plan, level="fluid", costs=None, **conditions) -> float:
    """Samples per second without variation."""
    settings = {"variation": 0.0, "steps": 60, "fidelity": level, "conditions": Conditions(**conditions)}
    return simulate(plan, costs or make_costs(plan.model), **settings).samples_per_second


@pytest.mark.parametrize("level", [*LEVELS, "bound"])
def test_a_slow_node_holds_up_those_that_meet_it(level):
    """One of three ranks at half speed: all take its 2 x 72 us and the all-reduce, 15.3 us (18 where it sends both phases
    at once, the others' slices having arrived long before)."""
    plan, costs = make_plan(CHAIN, nodes=3, ranks=3), make_costs(CHAIN, message=MessageCost())
    assert rate(plan, level, costs, slow_nodes={"g0n1": 2.0}) == pytest.approx(
        3 * BATCH / ((2 * STEP + 16.7) * US), rel=0.01
    )


@pytest.mark.parametrize("level", LEVELS)
def test_a_slow_node_among_groups_slows_only_its_own(level):
    """Two groups that meet in the background only: one at half speed leaves 1 + 1 / 2 of the throughput."""
    plan = make_plan(CHAIN, groups=2, sync_servers=1, sync=Sync("background", gap=20))
    assert rate(plan, level, slow_nodes={"g1n0": 2.0}) / rate(plan, level) == pytest.approx(0.75, rel=0.02)


def test_stragglers_slow_a_synchronous_group_more_the_more_ranks_it_has():
    """With a lognormal factor of sigma 0.3 the mean step is that of the slowest of R: 1, then more, then more again."""
    costs = make_costs(CHAIN, message=MessageCost())
    slowdown = []
    for ranks in (1, 2, 8):
        plan = make_plan(CHAIN, nodes=ranks, ranks=ranks)
        slowdown.append(rate(plan, costs=costs) / rate(plan, costs=costs, worker_sigma=0.3))
    assert slowdown[0] == pytest.approx(1.0, abs=0.1)
    assert slowdown[0] + 0.08 < slowdown[1]
    assert slowdown[1] + 0.1 < slowdown[2]


def test_stragglers_do_not_depend_on_names_of_others():
    """The draws of a worker depend on the seed and its name alone: adding a second rank leaves those of the first."""
    one, two = (make_plan(CHAIN, nodes=ranks, ranks=ranks) for ranks in (1, 2))
    settings = {"variation": 0.0, "steps": 5, "conditions": Conditions(worker_sigma=0.5)}
    first, second = (simulate(plan, make_costs(CHAIN), **settings).timeline.workers[0].busy for plan in (one, two))
    kept = [
        i
        for i, op in enumerate(simulate(two, make_costs(CHAIN), steps=1).timeline.workers[0].instructions)
        if type(op).__name__ != "AllReduce"
    ]
    assert np.allclose(first, second[:, kept], rtol=1e-9)


def test_bursts():
    """Steps that begin a burst of three at five times the time, always: the step takes five times as long; never: once."""
    plan = make_plan(CHAIN)
    always = rate(plan, burst_probability=1.0, burst_steps=3, burst_factor=5.0)
    assert always == pytest.approx(rate(plan) / 5, rel=1e-6)
    some = rate(plan, burst_probability=0.05, burst_steps=3, burst_factor=5.0)
    assert always < some < rate(plan)


def test_nodes_that_differ():
    """A lognormal factor per node, drawn once: four lone groups differ, and every step of one takes the same."""
    plan = make_plan(CHAIN, groups=4, sync_servers=1, sync=Sync("background", gap=20))
    conditions = Conditions(node_sigma=0.3)
    result = simulate(plan, make_costs(CHAIN), steps=10, variation=0.0, conditions=conditions)
    steps = [np.diff(worker.ends[:, -1]) for worker in result.timeline.ranks()]
    assert len({round(times.mean() * 1e9) for times in steps}) == 4
    assert all(times.std() < 1e-3 * times.mean() for times in steps)


def test_lognormal_has_mean_one():
    """Its mean over 20,000 draws is 1 within 3.25 standard errors; sigma 0 draws nothing."""
    draws = [lognormal(Random(seed), 0.5) for seed in range(20_000)]
    assert abs(mean(draws) - 1.0) < 3.25 * stdev(draws) / math.sqrt(len(draws))
    assert lognormal(Random(1), 0.0) == 1.0


@pytest.mark.parametrize("level", [*LEVELS, "bound"])
@pytest.mark.parametrize("hogwild", [1, 2])
def test_readers_that_are_too_slow(level, hogwild):
    """Readers of 10,000 batches a second a node cap the throughput at that, however many threads read."""
    plan = make_plan(CHAIN, hogwild=hogwild)
    assert rate(plan, level, reader_batches_per_second=10_000) == pytest.approx(10_000 * BATCH, rel=0.02)


def test_waiting_for_readers_is_booked():
    """100 us a batch leave 28 us of a step of 72 us to waiting for the reader; fast readers leave none."""
    settings = {"steps": 40, "variation": 0.0}
    slow = simulate(
        make_plan(CHAIN), make_costs(CHAIN), **settings, conditions=Conditions(reader_batches_per_second=10_000)
    )
    fast = simulate(
        make_plan(CHAIN), make_costs(CHAIN), **settings, conditions=Conditions(reader_batches_per_second=1e6)
    )
    assert slow.time_split["reader"] == pytest.approx(28 * US, rel=1e-3)
    assert "waiting for readers" in slow.bottleneck
    assert fast.time_split["reader"] == 0.0


def test_uplink_between_racks():
    """Two racks of two, uplink half of their NICs: two messages across share it, 1 byte/ns; inside a rack none does."""
    for messages, ends in (([(0, 2), (1, 3)], [2000, 2000]), ([(0, 1), (2, 3)], [1000, 1000])):
        engine = Engine()
        seen: list[int] = []
        nics = [Nic(f"host{i}", 1e9, 0.0, rack=i // 2) for i in range(4)]
        network = Network(engine, nics, uplinks=[1e9, 1e9])
        for source, target in messages:
            network.send(source, target, 1000, lambda arrived: arrived[0].append(arrived[1].now), (seen, engine))
        engine.run()
        assert seen == ends


@pytest.mark.parametrize("level", [*LEVELS, "bound"])
def test_oversubscribed_racks_cost_throughput(level):
    """A trainer and its server in racks of their own: an uplink of a 40th slows the step, one of the NIC's rate does not."""
    model = chain_model(2, [table()])
    plan = make_plan(model, servers=1, hogwild=4)
    free, none = rate(plan, level, nodes_per_rack=1), rate(plan, level)
    assert free == pytest.approx(none, rel=1e-3)
    assert rate(plan, level, nodes_per_rack=1, oversubscription=40.0) < 0.8 * none
    assert rate(plan, level, nodes_per_rack=8, oversubscription=40.0) == pytest.approx(none, rel=1e-3)


def test_useful_fraction_of_a_job_that_fails():
    """Renewals simulated 4,000 times: work, checkpoint, failure, restart; the closed form is within 3.25 sigma."""
    failures = Failures(1000.0, 60.0, 5.0, 20.0)
    times = []
    for seed in range(4000):
        draws, now = Random(seed), 0.0
        need = 65.0
        while (left := draws.expovariate(1 / 100)) < need:
            now, need = now + left, 65.0 + 20.0
        times.append(now + need)
    exact = 60.0 / failures.useful_fraction(10)
    assert abs(mean(times) - exact) < 3.25 * stdev(times) / math.sqrt(len(times))


def test_failures_cost_throughput():
    """Fewer failures and quicker restarts give more; the result says what is left; rare failures cost only checkpoints."""
    plan, hour = make_plan(CHAIN, nodes=2, ranks=2), 3600.0
    often = rate(plan, failures=Failures(hour, 600.0, 10.0, 60.0))
    quick = rate(plan, failures=Failures(hour, 600.0, 10.0, 6.0))
    seldom = rate(plan, failures=Failures(1e6 * hour, 600.0, 10.0, 60.0))
    assert often < quick < seldom < rate(plan)
    assert seldom == pytest.approx(rate(plan) * 600 / 610, rel=1e-3)
    said = simulate(plan, make_costs(CHAIN), conditions=Conditions(failures=Failures(hour, 600.0, 10.0, 60.0)))
    assert any("Failures of 2 nodes" in sentence for sentence in said.left_out)
    assert Failures(1.0, 1e6).useful_fraction(10) == 0.0


def test_what_differs_is_not_folded():
    """Nodes that differ forbid folding; workers that differ forbid that one rank stands for others, not one group."""
    plan = make_plan(CHAIN, nodes=2, ranks=2)
    grouped = make_plan(CHAIN, groups=3, sync_servers=1, sync=Sync("background", gap=4))
    assert strongest(plan, Sharing.NODE) == Folding(ranks=2, merged=True)
    assert strongest(plan, Sharing.NODE, Conditions(worker_sigma=0.1)) == Folding(merged=True)
    assert strongest(grouped, Sharing.NODE, Conditions(worker_sigma=0.1)) == Folding(groups=3, merged=True)
    assert strongest(grouped, Sharing.NODE, Conditions(slow_nodes={"g0n0": 2.0})) == Folding(merged=True)


@pytest.mark.parametrize(
    "field",
    [
        {"worker_sigma": -1.0},
        {"burst_probability": 1.5},
        {"reader_batches_per_second": 0.0},
        {"oversubscription": 0.0},
        {"slow_nodes": {"g0n0": 0.0}},
    ],
    ids=lambda field: next(iter(field)),
)
def test_conditions_out_of_range_are_refused(field):
    """Each gives one line that names the field."""
    with pytest.raises(BadInput, match=next(iter(field))):
        Conditions(**field)


def test_a_slow_node_that_is_not_there_is_refused():
    """A misspelt node never passes silently; the node that was meant is named."""
    with pytest.raises(BadInput, match=r"slow_nodes\.g0n00 = 2.0: a node of the plan, such as g0n0"):
        simulate(make_plan(CHAIN), make_costs(CHAIN), conditions=Conditions(slow_nodes={"g0n00": 2.0}))


def test_levels_are_compared():
    """The table has a line for each level, gaps relative to the finest, which has none."""
    model = chain_model(2, [table()])
    plan = make_plan(model, servers=1, hogwild=3, shards=[Shard("table", 0, 0, 100)])
    levels = compare_levels(plan, make_costs(model), steps=40)
    assert [level.fidelity for level in levels] == ["bound", "fifo", "fluid"]
    assert levels[-1].gap == 0.0
    assert all(abs(level.gap) < 0.15 for level in levels)
    assert [line.split()[0] for line in levels_text(levels).splitlines()] == ["level", "bound", "fifo", "fluid"]


def test_a_run_ends_when_the_interval_is_narrow_enough():
    """Asked for 5 % it makes fewer of 400 steps than asked for 1 %; every session makes the same number, all is said."""
    model = chain_model(3, [table("a"), table("b")])
    plan = make_plan(model, nodes=3, ranks=3, hogwild=3, servers=2, tags={"layer1": 2})
    runs = [
        simulate(plan, make_costs(model), steps=400, variation=0.3, precision=precision) for precision in (0.05, 0.01)
    ]
    assert runs[0].steps < runs[1].steps < 400
    for run, precision in zip(runs, (0.05, 0.01), strict=True):
        assert run.ci95 <= 2.0 * precision * run.samples_per_second  # the steps under way are ended after the decision
        assert {len(worker.ends) for worker in run.timeline.workers} == {run.steps}
        assert any(f"{run.steps} of 400 steps" in sentence for sentence in run.left_out)


def test_undisturbed_is_the_default():
    """Conditions without any disturbance change nothing at all."""
    plan, costs = make_plan(CHAIN, hogwild=3), make_costs(CHAIN)
    plain, undisturbed = simulate(plan, costs), simulate(plan, costs, conditions=Conditions())
    assert replace(plain, timeline=None, wall_seconds=0.0) == replace(undisturbed, timeline=None, wall_seconds=0.0)
