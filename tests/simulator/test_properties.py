"""What must hold for every plan: scaling, determinism, names, lower bounds, the timeline's consistency, folding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.plan import Plan, Sync
from programs.instructions import Recv, Send
from programs.transform import transform
from simulator.folding import UNFOLDED, Folding
from simulator.machines import Sharing
from simulator.observer import Observer
from simulator.primitives import Emit, Work
from simulator.scenario import stage
from simulator.simulate import simulate
from tests.simulator.instances import BATCH, chain_model, make_costs, make_plan, table

MODEL = chain_model(3, [table("a"), table("b")])


def plan_of(nodes: int, ranks: int, hogwild: int, cut: bool, **settings) -> Plan:
    """A plan with two tables on two servers; ``cut`` puts the middle layer on the last node."""
    tags = {"layer1": nodes - 1} if cut else {}
    return make_plan(MODEL, nodes=nodes, ranks=min(ranks, nodes), hogwild=hogwild, servers=2, tags=tags, **settings)


plans = st.builds(plan_of, st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.booleans())


def slower(plan: Plan, factor: float) -> Plan:
    """The plan on machines whose network takes ``factor`` times as long."""

    def slow(node):
        rate, latency = node.nic_bytes_per_second / factor, node.latency_seconds * factor
        return replace(node, nic_bytes_per_second=rate, latency_seconds=latency)

    groups = tuple(tuple(slow(node) for node in group) for group in plan.groups)
    return replace(plan, groups=groups, servers=tuple(map(slow, plan.servers)))


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("nodes", [1, 2])
def test_doubling_every_cost_and_latency_doubles_every_time(nodes, cut):
    """All core times, latencies and wire times doubled: every end is exactly twice as late (no share ends between ns)."""
    plan = plan_of(nodes, nodes, 1, cut)
    once = simulate(plan, make_costs(MODEL), steps=6, variation=0.0)
    twice = simulate(slower(plan, 2.0), make_costs(MODEL, factor=2.0), steps=6, variation=0.0)
    assert twice.simulated_seconds == 2 * once.simulated_seconds
    for first, second in zip(once.timeline.workers, twice.timeline.workers, strict=True):
        assert np.array_equal(2 * first.ends, second.ends)
    assert twice.events == once.events


@settings(max_examples=15, deadline=None)
@given(plans)
def test_doubling_under_contention_doubles_within_rounding(plan):
    """Shared resources end jobs between nanoseconds; each event may be rounded by half of one, no more is lost."""
    once = simulate(plan, make_costs(MODEL), steps=4, variation=0.0, record=False)
    twice = simulate(slower(plan, 2.0), make_costs(MODEL, factor=2.0), steps=4, variation=0.0, record=False)
    assert abs(twice.simulated_seconds - 2 * once.simulated_seconds) <= 2e-9 * once.events


@settings(max_examples=25, deadline=None)
@given(plans, st.sampled_from([Sharing.NODE, Sharing.NONE]))
def test_no_faster_than_the_longest_path_and_the_busiest_resource(plan, sharing):
    """The run takes at least the work of any one worker, of any machine's cores, and the bytes of any NIC."""
    steps = 4
    result = simulate(plan, make_costs(MODEL), steps=steps, sharing=sharing, variation=0.0, record=False)
    scenario = stage(transform(plan), make_costs(MODEL), sharing, 0.0)
    nanoseconds = result.simulated_seconds * 1e9
    cores, sent = dict.fromkeys(range(len(scenario.machines)), 0), dict.fromkeys(range(len(scenario.machines)), 0)
    for runner in scenario.runners:
        work = sum(p.core_ns for p in runner.flat if isinstance(p, Work))
        assert nanoseconds >= steps * work * (1 - 1e-9)
        cores[runner.machine.index] += work
        for p in runner.flat:
            if isinstance(p, Emit) and p.source != p.target:
                sent[p.source] += p.bytes
    slack = result.events
    if sharing is Sharing.NODE:
        assert all(nanoseconds + slack >= steps * work / 2 for work in cores.values())
    assert all(nanoseconds + slack >= steps * size for size in sent.values())


@settings(max_examples=15, deadline=None)
@given(plans)
def test_the_timeline_is_consistent(plan):
    """Instructions follow each other without gap, steps follow each other, and no message arrives before it was sent."""
    result = simulate(plan, make_costs(MODEL), steps=4)
    ends: dict[tuple[str, str], np.ndarray] = {}
    for worker in result.timeline.workers:
        assert (worker.ends >= worker.starts).all()
        assert np.array_equal(worker.starts[:, 1:], worker.ends[:, :-1])
        assert np.array_equal(worker.starts[1:, 0], worker.ends[:-1, -1])
        assert (worker.busy <= worker.ends - worker.starts + 2e-9).all()
        for index, instruction in enumerate(worker.instructions):
            if isinstance(instruction, Send | Recv):
                session = worker.worker.replace("serves-", "").split("/")[-1].removeprefix("g0")
                session = "".join(worker.worker.split("/")[1:]) if worker.role == "rank" else session
                ends[type(instruction).__name__ + session, instruction.channel] = worker.ends[:, index]
    received = {key: value for key, value in ends.items() if key[0].startswith("Recv")}
    assert len(received) * 2 == len(ends)
    for (session, channel), times in received.items():
        assert (times >= ends["Send" + session.removeprefix("Recv"), channel]).all()


def test_the_time_split_adds_up():
    """The six parts of a rank's step are all of its time."""
    plan = plan_of(3, 2, 3, True)
    result = simulate(plan, make_costs(MODEL), steps=20)
    spans = [w.ends[-1, -1] - w.ends[result.warmup - 1, -1] for w in result.timeline.ranks()]
    assert sum(result.time_split.values()) == pytest.approx(np.mean(spans) / (20 - result.warmup))


def test_the_timeline_gives_the_same_throughput():
    """Throughput from the timeline, to the last step, is that of the result where no session runs on alone."""
    result = simulate(plan_of(2, 2, 2, False), make_costs(MODEL), steps=30, sharing=Sharing.NONE)
    assert result.timeline.samples_per_second(BATCH, result.warmup) == pytest.approx(
        result.samples_per_second, rel=1e-9
    )


SCRIPT = """
import json
from simulator.simulate import simulate
from tests.simulator.test_properties import MODEL, plan_of
from tests.simulator.instances import make_costs
found = simulate(plan_of(3, 2, 3, True), make_costs(MODEL), steps=20).to_json_dict()
del found["wall_seconds"]
print(json.dumps(found))
"""


def test_same_plan_same_result_in_every_process():
    """The same plan and seed give the same figures to the bit, whatever PYTHONHASHSEED."""
    root = Path(__file__).resolve().parents[2]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert json.loads(outputs.pop())["samples_per_second"] > 0


def test_another_seed_draws_other_variations():
    """The seed decides the variation from step to step, and the figures hardly depend on it."""
    plan = plan_of(3, 2, 4, True)
    first, second = (simulate(replace(plan, seed=seed), make_costs(MODEL), steps=60) for seed in (1, 2))
    assert first.samples_per_second != second.samples_per_second
    assert first.samples_per_second == pytest.approx(second.samples_per_second, rel=0.05)


def test_names_of_nodes_do_not_matter():
    """The same plan on machines of other names gives the same figures to the bit; only what is drawn goes by names."""
    one, other = (plan_of(3, 2, 3, True, prefix=prefix) for prefix in ("", "zz-"))
    first, second = (simulate(plan, make_costs(MODEL), variation=0.0) for plan in (one, other))
    assert first.samples_per_second == second.samples_per_second
    assert first.utilization == second.utilization
    assert first.events == second.events


def test_one_group_stands_for_all():
    """Three alike groups in step: one of them with a third of the servers takes exactly as long, unless sync queues."""
    plan = plan_of(2, 2, 3, True, groups=3, sync_servers=1, sync=Sync("background", gap=1000))
    rates = []
    for fold in (False, True):
        scenario = stage(transform(plan), make_costs(MODEL), Sharing.NODE, 0.0, Folding(3) if fold else UNFOLDED)
        observer = Observer(scenario, 30, 10, False)
        observer.run()
        rates.append(observer.rates()[0] * scenario.folding.copies)
    assert rates[1] == pytest.approx(rates[0], rel=1e-3)


@pytest.mark.parametrize("variation", [0.02, 0.3])
def test_variation_does_not_move_the_throughput_of_busy_cores(variation):
    """Where cores bind, throughput is their capacity, however much the steps vary."""
    plan = make_plan(chain_model(2), hogwild=6)
    result = simulate(plan, make_costs(chain_model(2)), steps=60, variation=variation, record=False)
    assert result.samples_per_second == pytest.approx(2 * BATCH / 72e-6, rel=0.02)
    assert result.utilization["trainer"]["cpu"] == pytest.approx(1.0, abs=1e-3)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.booleans(), st.sampled_from(["fifo", "fluid"]))
def test_a_network_of_half_the_speed_is_never_faster(nodes, cut, fidelity):
    """Half the rate and twice the latency, one rank and thread, so that nobody queues: later, as much crosses the network.

    With several threads on a core this is no law: work that arrives later can be served in a better order (Graham, 1969).
    """
    plan = plan_of(nodes, 1, 1, cut)
    once = simulate(plan, make_costs(MODEL), steps=4, variation=0.0, record=False, fidelity=fidelity)
    later = simulate(slower(plan, 2.0), make_costs(MODEL), steps=4, variation=0.0, record=False, fidelity=fidelity)
    assert later.simulated_seconds > once.simulated_seconds


def test_a_network_without_end_leaves_the_work_alone():
    """A rank, a cut and a server on a network a billion times as fast: the step is what its workers' cores take in turn."""
    plan, costs = plan_of(2, 1, 1, True), make_costs(MODEL)
    result = simulate(slower(plan, 1e-9), costs, steps=4, variation=0.0, sharing=Sharing.NONE)
    faster = simulate(slower(plan, 1e-12), costs, steps=4, variation=0.0, sharing=Sharing.NONE)
    assert faster.simulated_seconds == pytest.approx(result.simulated_seconds, rel=1e-6)
    assert result.time_split["transfer"] < 1e-6 * result.simulated_seconds
