"""Whole simulations against times worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cost_models.costs import MessageCost
from placement.plan import Sync
from problem.errors import BadInput
from programs.instructions import Send, Update
from programs.transform import transform
from simulator import simulate as front
from simulator.errors import Deadlock
from simulator.machines import Sharing
from simulator.observer import Observer
from simulator.scenario import stage
from simulator.simulate import simulate
from tests.simulator.instances import BATCH, US, chain_model, make_costs, make_plan, table

CHAIN = chain_model(2)  # forward 2 x 10, loss 1 + 1, backward 2 x 20, update 2 x 5: 72 us
STEP = 72
WITH_TABLE = chain_model(2, [table()])


def rate(microseconds: float, sessions: int = 1) -> float:
    """Samples per second of sessions whose step takes so long."""
    return pytest.approx(sessions * BATCH / (microseconds * US), rel=1e-9)


def test_a_session_alone():
    """One rank, no tables: the step is the sum of its operators, 72 us, one event for each that takes time."""
    result = simulate(make_plan(CHAIN), make_costs(CHAIN), steps=20)
    assert result.samples_per_second == rate(STEP)
    assert result.ci95 == pytest.approx(0.0, abs=1e-6)
    assert result.time_split == pytest.approx({"compute": STEP * US} | dict.fromkeys(list(result.time_split)[1:], 0.0))
    assert result.simulated_seconds == pytest.approx(20 * STEP * US)
    assert result.events == 20 * 7 + 1
    assert result.node_utilization["g0n0"]["cpu"] == pytest.approx(0.5)
    assert result.utilization.keys() == {"trainer"}


def test_one_embedding_server():
    """Request 2 + 6, server 3 + 8 + 2, answer 6 + 3, dense 62, push 2, update 10: 104 us; the sparse update overlaps.

    Of the wait of 25 us, 6 are the answer on the wire and 19 are waiting for the server to answer.
    """
    result = simulate(make_plan(WITH_TABLE, servers=1), make_costs(WITH_TABLE), steps=20)
    assert result.samples_per_second == rate(104)
    assert result.time_split["compute"] == pytest.approx(79 * US)
    assert result.time_split["transfer"] == pytest.approx(6 * US)
    assert result.time_split["ps_queue"] == pytest.approx(19 * US)
    assert result.utilization["server"]["cpu"] == pytest.approx((3 + 8 + 2 + 3 + 4) / (2 * 104))
    assert result.utilization["server"]["nic_rx"] == pytest.approx(2 / 104)
    assert result.utilization["trainer"]["nic_tx"] == pytest.approx(2 / 104)


def test_a_cut_between_two_nodes():
    """Layer 1 on node 1: four messages of 2 + 6 + 3 us; node 1's update overlaps: 72 - 5 + 44 = 111 us."""
    result = simulate(make_plan(CHAIN, nodes=2, tags={"layer1": 1}), make_costs(CHAIN), steps=20)
    assert result.samples_per_second == rate(111)
    assert result.time_split["peer"] + result.time_split["transfer"] == pytest.approx((111 - 35 - 2 - 10) * US)


@pytest.mark.parametrize("ranks", [2, 4, 5])
def test_all_reduce_takes_the_closed_form(ranks):
    """Messages that cost no core time: 2 (latency + (R - 1) / R bytes / rate) on top of the step."""
    model = chain_model(2, parameters=1250)  # 10 kB
    costs = make_costs(model, message=MessageCost())
    result = simulate(make_plan(model, nodes=ranks, ranks=ranks), costs, steps=20, variation=0.0)
    extra = 2 * (5 + (ranks - 1) / ranks * 10)
    assert result.samples_per_second == rate(STEP + extra, sessions=ranks)


def test_all_reduce_with_core_costs():
    """Two ranks, 4000 bytes: twice send 2, wire 2 + 5, receive 3, once the sum of 2000 bytes at 1 ns, and the copy of 2000
    to their place, which counts as a sum: 28 us.
    """
    costs = make_costs(CHAIN, sum_seconds_per_byte=1e-9)
    result = simulate(make_plan(CHAIN, nodes=2, ranks=2), costs, steps=20, variation=0.0)
    assert result.samples_per_second == rate(STEP + 28, sessions=2)


@pytest.mark.parametrize(("threads", "at_once"), [(1, 1), (2, 2), (4, 2), (7, 2)])
def test_hogwild_threads_share_the_cores_of_their_node(threads, at_once):
    """Threads that only compute get as many steps done as there are cores, two here."""
    result = simulate(make_plan(CHAIN, hogwild=threads), make_costs(CHAIN), steps=40, variation=0.0)
    assert result.samples_per_second == pytest.approx(at_once * BATCH / (STEP * US), rel=2e-3)
    assert result.utilization["trainer"]["cpu"] == pytest.approx(at_once / 2, rel=2e-3)
    if threads > 2:
        assert result.bottleneck == "cores of g0n0 busy 100% of the time"
        waiting = STEP * (threads / 2 - 1)
        assert result.time_split["contention"] == pytest.approx(waiting * US, rel=0.01)


def test_cpu_clock_gives_every_worker_a_core():
    """With Sharing.NONE seven threads on two cores are seven times as fast as one: that is what a cpu clock measures."""
    result = simulate(make_plan(CHAIN, hogwild=7), make_costs(CHAIN), steps=20, sharing=Sharing.NONE)
    assert result.samples_per_second == rate(STEP, sessions=7)
    assert any("cpu clock" in sentence for sentence in result.left_out)


def on_one_host(plan):
    """The same plan on nodes that are parts of one host."""
    groups = tuple(tuple(replace(node, host="here") for node in group) for group in plan.groups)
    return replace(plan, groups=groups, servers=tuple(replace(node, host="here") for node in plan.servers))


def test_wall_clock_shares_the_cores_of_the_host():
    """Four ranks on four nodes of one host of two cores: two at a time by the wall clock, four by the cpu clock."""
    plan, costs = on_one_host(make_plan(CHAIN, nodes=4, ranks=4)), make_costs(CHAIN, message=MessageCost())
    wall = simulate(plan, costs, steps=40, sharing=Sharing.HOST, variation=0.0)
    cpu = simulate(plan, costs, steps=40)
    assert cpu.sharing is Sharing.NONE
    assert cpu.samples_per_second == rate(STEP, sessions=4)
    assert wall.samples_per_second == pytest.approx(2 * BATCH / (STEP * US), rel=2e-3)


def test_nodes_of_one_host_use_no_network():
    """On one host the wire costs nothing: the cut plan's 111 us without its four times 6 us of wire."""
    plan = on_one_host(make_plan(CHAIN, nodes=2, tags={"layer1": 1}))
    result = simulate(plan, make_costs(CHAIN), steps=20)
    assert result.samples_per_second == rate(111 - 24)
    assert result.utilization["trainer"]["nic_tx"] == 0.0


def test_memory_bandwidth_binds():
    """Traffic of 1 MB a layer and phase at 1 MB per 100 us: two threads share it, so a step takes 6 x 100 x 2 + 2 us."""
    costs = make_costs(CHAIN)
    heavy = {
        name: replace(
            cost,
            forward=replace(cost.forward, traffic_bytes=1e6),
            backward=replace(cost.backward, traffic_bytes=1e6),
            update=replace(cost.update, traffic_bytes=5e5),
        )
        for name, cost in costs.ops.items()
        if name.startswith("layer")
    }
    costs = replace(costs, ops={**costs.ops, **heavy})
    plan = make_plan(CHAIN, hogwild=2, changes={"memory_bandwidth_bytes_per_second": 1e10})
    result = simulate(plan, costs, steps=40, variation=0.0)
    assert result.utilization["trainer"]["memory_bandwidth"] == pytest.approx(1.0, abs=0.01)
    assert result.samples_per_second == pytest.approx(2 * BATCH / (2 * 500 * US), rel=0.01)
    assert result.bottleneck == "memory bandwidth of g0n0 busy 100% of the time"


SYNCED = {"groups": 2, "sync_servers": 1}


def test_foreground_synchronisation_stops_the_step():
    """Every second step an exchange of 4000 bytes: 2 + 9, server 3 + 4 + 2, 9 + 3 + 4 = 36 us, 18 a step."""
    plan = make_plan(CHAIN, **SYNCED, sync=Sync("foreground", gap=2))
    result = simulate(plan, make_costs(CHAIN, exchange_seconds_per_byte=1e-9), steps=40, variation=0.0)
    assert result.samples_per_second == rate(STEP + 18, sessions=2)
    assert result.time_split["sync"] == pytest.approx(18 * US)
    assert result.average_sync_gap == 2
    assert result.utilization["sync"]["nic_rx"] == pytest.approx(4 / (STEP + 18), rel=0.05)


def test_background_synchronisation_does_not():
    """A shadow worker with a core to itself leaves the step at 72 us and exchanges every second step."""
    plan = make_plan(CHAIN, **SYNCED, sync=Sync("background", gap=2))
    result = simulate(plan, make_costs(CHAIN, exchange_seconds_per_byte=1e-9), steps=40, variation=0.0)
    assert result.samples_per_second == rate(STEP, sessions=2)
    assert result.time_split["sync"] == 0.0
    assert result.average_sync_gap == 2


def test_background_synchronisation_that_is_too_slow_lags():
    """An exchange that takes longer than the gap follows the one before it: the measured gap is above the wanted one."""
    plan = make_plan(CHAIN, **SYNCED, sync=Sync("background", gap=1))
    result = simulate(plan, make_costs(CHAIN, exchange_seconds_per_byte=50e-9), steps=40, variation=0.0)
    assert result.samples_per_second == rate(STEP, sessions=2)
    assert result.average_sync_gap > 2


def test_followers_receive_the_leaders_difference():
    """Two ranks and background sync: only the leader exchanges DP parameters, then passes them on to the other rank."""
    plan = make_plan(CHAIN, nodes=2, ranks=2, **SYNCED, sync=Sync("background", gap=4))
    result = simulate(plan, make_costs(CHAIN), steps=24, variation=0.0)
    shadows = {worker.worker: worker for worker in result.timeline.workers if worker.role == "shadow"}
    leader, follower = shadows["g0/n0/shadow"], shadows["g0/n1/shadow"]
    exchanges = min(len(leader.ends), len(follower.ends))
    assert exchanges >= 4
    assert (leader.ends[:exchanges, 0] < follower.ends[:exchanges, 0]).all()


def test_ordered_updates_come_one_after_the_other():
    """Synchronous plan, messages free: the copies of layer 1 meet, update in rank order, and go on together."""
    plan = make_plan(CHAIN, nodes=2, ranks=2, tags={"layer1": 1}, synchronous=True)
    result = simulate(plan, make_costs(CHAIN, message=MessageCost()), steps=5, variation=0.0)
    intervals = [
        (worker.starts[:, index], worker.ends[:, index])
        for worker in result.timeline.workers
        for index, instruction in enumerate(worker.instructions)
        if isinstance(instruction, Update) and instruction.ordered
    ]
    (start_a, end_a), (start_b, end_b) = intervals
    assert (end_a == end_b).all()
    both = [max(a, b) for a, b in zip(start_a, start_b, strict=True)]
    assert end_a == pytest.approx([start + 10 * US for start in both])


def test_deadlock_names_who_waits_for_what():
    """A program whose Send was removed: the simulation ends with the worker, its instruction and the message."""
    job = transform(make_plan(WITH_TABLE, servers=1))
    (session,) = job.sessions
    rank = session.programs[0]
    cut = tuple(i for i in rank.instructions if not (isinstance(i, Send) and i.channel.endswith("ids")))
    broken = replace(session, programs=(replace(rank, instructions=cut), *session.programs[1:]))
    scenario = stage(replace(job, sessions=(broken,)), make_costs(WITH_TABLE), Sharing.NODE, 0.0)
    with pytest.raises(
        Deadlock, match=r"2 workers wait for ever: g0/n0/t0 .*Recv.*ps0>n0:pooled.*ps0/serves-g0n0t0.*ids"
    ):
        Observer(scenario, 2, 0, False).run()


def test_result_is_ready_for_json():
    """The JSON form has the documented keys, real numbers, and None where an interval cannot be told."""
    found = json.loads(
        json.dumps(simulate(make_plan(CHAIN), make_costs(CHAIN), steps=2).to_json_dict(), allow_nan=False)
    )
    documented = {
        "samples_per_second",
        "ci95",
        "utilization",
        "bottleneck",
        "events",
        "simulated_seconds",
        "wall_seconds",
    }
    assert documented <= found.keys()
    assert found["ci95"] is None
    assert set(found["utilization"]["trainer"]) == {"cpu", "memory_bandwidth", "nic_tx", "nic_rx"}


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"steps": 0}, "steps"), ({"steps": 3, "warmup": 3}, "warmup"), ({"variation": -0.1}, "variation")],
)
def test_bad_settings_are_refused(settings, field):
    """Settings out of range give one line that names the field."""
    with pytest.raises(BadInput, match=field):
        simulate(make_plan(CHAIN), make_costs(CHAIN), **settings)


def test_costs_of_another_batch_size_are_refused():
    """A cost table for another batch size never passes silently."""
    with pytest.raises(BadInput, match="batch"):
        simulate(make_plan(CHAIN), replace(make_costs(CHAIN), batch=1))


def test_a_large_plan_makes_fewer_steps_and_says_so(monkeypatch):
    """Above the budgets alike groups are folded and fewer steps are made; both are said."""
    monkeypatch.setattr(front, "BUDGET", 10)
    monkeypatch.setattr(front, "MOST_PRIMITIVES", 10)
    plan = make_plan(CHAIN, groups=3, sync_servers=1, sync=Sync("background", gap=4))
    result = simulate(plan, make_costs(CHAIN), steps=60)
    assert result.steps == front.FEWEST_STEPS
    assert {worker.role for worker in result.timeline.workers} == {"rank", "shadow", "sync"}
    assert sum(worker.role == "rank" for worker in result.timeline.workers) == 2
    assert any("simulated: 2 for 3 alike" in sentence for sentence in result.left_out)
    assert any("12 of 60 steps" in sentence for sentence in result.left_out)
    assert result.samples_per_second == pytest.approx(3 * BATCH / (STEP * US), rel=0.05)


def test_without_a_record_the_figures_are_the_same():
    """record=False leaves out the timeline and changes nothing else."""
    plan, costs = make_plan(WITH_TABLE, servers=1, hogwild=3), make_costs(WITH_TABLE)
    with_, without = simulate(plan, costs, steps=20), simulate(plan, costs, steps=20, record=False)
    assert without.timeline is None
    assert replace(with_, timeline=None, wall_seconds=0.0) == replace(without, wall_seconds=0.0)
