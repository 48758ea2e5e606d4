"""Groups that average among themselves, without sync servers: simulated times against the ring's closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models.costs import MessageCost
from placement.plan import Sync
from programs.transform import transform
from simulator.conditions import Conditions, NodeLoss
from simulator.fidelity import Fidelity
from simulator.folding import UNFOLDED, Folding, strongest
from simulator.machines import Sharing
from simulator.observer import Observer
from simulator.scenario import stage
from simulator.simulate import simulate
from tests.simulator.instances import BATCH, US, chain_model, make_costs, make_plan

CHAIN = chain_model(2)  # 4000 bytes of parameters
STEP, LATENCY = 72 * US, 5 * US
EVERY = Sync("foreground", 1, 1.0, "ma")


def ring_seconds(groups, size=4000, rate=1e9):
    """2 (G - 1) (latency + chunk / rate)."""
    return 2 * (groups - 1) * (LATENCY + size / groups / rate)


def simulated(plan, level="fluid", message=None, **settings):
    """The plan without variation."""
    costs = make_costs(plan.model, message=message or MessageCost(), **settings.pop("costs", {}))
    return simulate(plan, costs, **{"variation": 0.0, "steps": 40, "fidelity": level, **settings})


@pytest.mark.parametrize("groups", [2, 4, 5, 8])
@pytest.mark.parametrize("level", ["fifo", "fluid", "bound"])
def test_a_ring_takes_its_closed_form(groups, level):
    """Where nothing but the wire takes time, an exchange adds 2 (G - 1) (latency + S / (G rate)) to a step."""
    plan = make_plan(CHAIN, groups=groups, sync=EVERY)
    step = groups * BATCH / simulated(plan, level).samples_per_second
    assert step == pytest.approx(STEP + ring_seconds(groups), rel=1e-9)


def test_a_foreground_average_by_hand():
    """Every second step two groups send 2 chunks of 2000 bytes: twice 2 + 7 + 3, an addition, a copy of 2, the rule 2 x 4:
    36 us."""
    plan = make_plan(CHAIN, groups=2, sync=replace(EVERY, gap=2))
    message = MessageCost(send_seconds=2 * US, receive_seconds=3 * US)
    costs = {"exchange_seconds_per_byte": 1e-9, "sum_seconds_per_byte": 1e-9}
    result = simulated(plan, message=message, costs=costs)
    assert result.samples_per_second == pytest.approx(2 * BATCH / (STEP + 18 * US), rel=1e-9)
    assert result.time_split["sync"] == pytest.approx(18 * US, rel=1e-9)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_the_ring_and_pass_on_what_they_found(ranks):
    """R ranks average S / R each, then send it to the R - 1 others, one after the other through their NICs."""
    plan = make_plan(CHAIN, nodes=ranks, ranks=ranks, groups=3, sync=EVERY)
    alone = make_plan(CHAIN, nodes=ranks, ranks=ranks)
    part = 4000 / ranks
    passed = LATENCY + (ranks - 1) * part / 1e9
    longer = (
        3 * BATCH * ranks / simulated(plan).samples_per_second - BATCH * ranks / simulated(alone).samples_per_second
    )
    chunk = -(-part // 12) * 4  # whole elements
    assert longer == pytest.approx(ring_seconds(3, chunk * 3) + passed, rel=1e-6)


def test_a_node_averages_its_own_operators_beside_the_others():
    """An MP layer is averaged by the node that holds it, at the same time as the rank averages the other layer: with half
    of the parameters each, an exchange takes as long as one of half the parameters."""
    plan = make_plan(chain_model(2, parameters=60_000), nodes=2, groups=2, tags={"layer1": 1}, sync=EVERY)
    steps = transform(plan).shadows
    assert [step.bytes for step in steps.values()] == [240_000, 240_000]
    never = replace(plan, sync=replace(EVERY, gap=1000))
    longer = 2 * BATCH / simulated(plan).samples_per_second - 2 * BATCH / simulated(never).samples_per_second
    assert longer == pytest.approx(ring_seconds(2, 240_000), rel=0.01)


@pytest.mark.parametrize("groups", [2, 3, 5])
def test_the_bytes_are_those_of_the_closed_form(groups):
    """In an exchange each NIC sends and receives 2 (G - 1) chunks, and nothing else in a model without tables."""
    plan = make_plan(CHAIN, groups=groups, sync=EVERY)
    observer = Observer(stage(transform(plan), make_costs(CHAIN), Sharing.NODE, 0.0), 10, 0, record=False)
    observer.run()
    chunk = transform(plan).shadows[0].chunk_bytes
    assert observer.scenario.network.sent_bytes == groups * 10 * 2 * (groups - 1) * chunk
    assert 4000 <= groups * chunk < 4000 + 4 * groups


def background(nodes, tags, folding, level):
    """Times of rank 0 of the first of four groups, and of its exchanges, in the background every two steps."""
    sync, ranks = Sync("background", 2, 1.0, "ma"), 1 if tags else nodes
    plan = make_plan(CHAIN, nodes=nodes, ranks=ranks, groups=4, tags=tags, sync=sync, hogwild=2)
    most = strongest(plan, Sharing.NODE)
    assert (most.groups, most.ranks) == (4, ranks)
    staged = stage(transform(plan), make_costs(CHAIN), Sharing.NODE, 0.0, folding or most, fidelity=Fidelity(level))
    one = Observer(staged, 30, 0, record=False)
    one.run()
    shadow = next(s for s in one.scenario.shadows if s.pace.worker.group == 0)
    return one.ranks[0].done, shadow.runner.done, shadow.paced_at


@pytest.mark.parametrize("level", ["fifo", "fluid"])
@pytest.mark.parametrize(("nodes", "tags"), [(1, {}), (2, {}), (2, {"layer1": 1})])
def test_one_group_stands_for_all(nodes, tags, level):
    """Of groups in step, one that sends to itself through its NIC tells the same to the nanosecond as all of them."""
    merged = replace(UNFOLDED, merged=True)
    assert background(nodes, tags, Folding(4, 1, merged=True), level) == background(nodes, tags, merged, level)


@pytest.mark.parametrize("level", ["fifo", "fluid"])
def test_one_rank_of_one_group_stands_for_all(level):
    """Ranks that pass on what they found fold too: within 1 % (queues at NICs are served in another order)."""
    folded, merged = background(2, {}, None, level), background(2, {}, replace(UNFOLDED, merged=True), level)
    assert folded[0][-1] == pytest.approx(merged[0][-1], rel=0.01)
    assert len(folded[1]) == len(merged[1])


def test_groups_are_not_folded_where_the_slowest_matters():
    """Workers with times of their own, or copies that take turns, are simulated for every group."""
    plan = make_plan(CHAIN, groups=4, sync=Sync("background", 2, 1.0, "ma"))
    assert strongest(plan, Sharing.NODE).groups == 4
    assert strongest(plan, Sharing.NODE, Conditions(worker_sigma=0.1)).groups == 1
    assert strongest(replace(plan, synchronous=True), Sharing.NODE).groups == 1
    through = make_plan(CHAIN, groups=4, sync_servers=1, sync=plan.sync)
    assert strongest(through, Sharing.NODE, Conditions(worker_sigma=0.1)).groups == 4


def test_a_ring_scales_where_a_server_does_not():
    """With large parameters, a server's NIC carries those of all groups in turn: from 2 to 8 groups an exchange takes four
    times as long. Round a ring it takes less than twice as long, and never more than through one server."""
    model = chain_model(2, parameters=1_000_000)

    def stall(groups, servers):
        plan = make_plan(model, groups=groups, sync_servers=servers, sync=EVERY)
        return groups * BATCH / simulated(plan, steps=20).samples_per_second - STEP

    few, many = (stall(2, 1), stall(2, 0)), (stall(8, 1), stall(8, 0))
    assert many[0] / few[0] == pytest.approx(4.0, rel=0.01)
    assert many[1] / few[1] == pytest.approx(7 / 8 / (1 / 2), rel=0.01)
    assert few[1] < few[0]


@pytest.mark.parametrize("level", ["fifo", "fluid"])
def test_a_slow_group_holds_up_everybody_in_the_foreground(level):
    """One of three groups at half speed makes all as slow; in the background the others train on and exchange less often."""
    slow = Conditions(slow_nodes={"g1n0": 2.0})
    plan = make_plan(CHAIN, groups=3, sync=replace(EVERY, gap=5))
    assert simulated(plan, level, conditions=slow).samples_per_second / simulated(
        plan, level
    ).samples_per_second == pytest.approx(0.5, abs=0.06)
    beside = replace(plan, sync=Sync("background", 4, 1.0, "ma"))
    free = simulated(beside, level).samples_per_second
    held = simulated(beside, level, conditions=slow, steps=80)
    assert held.samples_per_second == pytest.approx(free * 2.5 / 3, rel=0.01)
    assert held.average_sync_gap > 5


def test_background_averages_cost_no_step_but_where_they_share_the_nic():
    """Beside threads that send nothing, an average in the background costs nothing; its gap grows with its bytes."""
    plan = make_plan(CHAIN, groups=4, sync=Sync("background", 1, 1.0, "ma"))
    alone = make_plan(CHAIN)
    found, large = simulated(plan), chain_model(2, parameters=500_000)
    assert found.samples_per_second == pytest.approx(4 * simulated(alone).samples_per_second, rel=1e-9)
    more = simulated(make_plan(large, groups=4, sync=plan.sync), steps=400)
    assert more.average_sync_gap == pytest.approx(ring_seconds(4, 4e6) / STEP, rel=0.05)


def test_a_lost_group_is_waited_for_in_the_foreground_only():
    """A node of one of three groups is lost for 2.5 ms. In the foreground all groups stand still and make steps again; in
    the background the others train on, and their exchanges wait until it is back."""
    lost = Conditions(losses=(NodeLoss("g1n0", 1e-3, detect_seconds=5e-4, restart_seconds=2e-3),))
    stops = make_plan(CHAIN, groups=3, sync=replace(EVERY, gap=5))
    beside = replace(stops, sync=Sync("background", 4, 1.0, "ma"))
    first, second = (simulated(plan, steps=100, conditions=lost) for plan in (stops, beside))
    assert "all 3 groups stood still until 0.0035 s" in first.happened[0]
    assert "group 1 stood still until 0.0035 s" in second.happened[0]
    assert simulated(beside, steps=100).average_sync_gap == 4.0
    assert second.average_sync_gap > 5.0
