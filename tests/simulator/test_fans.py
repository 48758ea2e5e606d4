"""Fans: the messages of a session to all servers in three events give what one event for each gives."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from cost_models.costs import PhaseCost, TableCost
from placement.plan import Shard
from programs.transform import transform
from simulator import scenario as staging
from simulator.engine import Engine
from simulator.fan_network import FanNetwork, _pass
from simulator.fans import Gather, Scatter, fans_apply
from simulator.fidelity import Fidelity
from simulator.fifo import FifoResource
from simulator.folding import Folding
from simulator.machines import Sharing
from simulator.narrow_fans import NarrowFanNetwork
from simulator.observer import Observer
from simulator.report import check_laws
from simulator.scenario import stage
from simulator.usage import utilization
from tests.simulator.instances import BATCH, US, chain_model, make_costs, make_plan, table
from tests.simulator.operational import operational_bounds

TABLES = ("a", "b", "c")
MODEL = chain_model(2, [table(name) for name in TABLES])
SPLIT = [Shard("a", 0, 0, 50), Shard("a", 1, 50, 100), Shard("b", 1, 0, 100), Shard("c", 2, 0, 100)]


def run(plan, merge: bool, variation: float = 0.0, costs=None) -> Observer:
    """Run a plan at level fifo; with ``merge`` messages to servers are fans."""
    scenario = stage(
        transform(plan),
        costs or make_costs(MODEL),
        Sharing.NODE,
        variation,
        Folding(merged=True),
        merge=merge,
        fidelity=Fidelity.FIFO,
    )
    assert (scenario.fans is not None) is merge
    observer = Observer(scenario, 40, 10, False)
    observer.run()
    check_laws(observer)
    return observer


@pytest.mark.parametrize("shards", [None, SPLIT], ids=["whole", "split"])
def test_a_fan_alone_takes_as_long_as_its_messages(shards):
    """Nothing queues for another session: the same to 0.01 %, tables cut or not, with fewer events."""
    plan = make_plan(MODEL, servers=3, shards=shards)
    fanned, single = (run(plan, merge) for merge in (True, False))
    assert fanned.rates()[0] == pytest.approx(single.rates()[0], rel=1e-4)
    assert fanned.scenario.engine.events < 0.6 * single.scenario.engine.events


@pytest.mark.parametrize("shards", [None, SPLIT], ids=["whole", "split"])
@pytest.mark.parametrize(("ranks", "hogwild"), [(1, 3), (3, 2)], ids=["threads", "ranks"])
def test_fans_take_their_turn_within_one_fan(ranks, hogwild, shards):
    """A fan takes its place in all queues when its first message comes: it may overtake others by as much as its messages
    are apart, and wait as much for those that did.

    So a step is off by no more than the spread of the other sessions' fans, at each of the three fans of a step: S messages,
    each 2 us of core time or 1 us on the wire after the one before. That is a part of what sessions may wait for each other
    at all, and fanned or not they lie within the operational bounds.
    """
    plan = make_plan(MODEL, nodes=ranks, ranks=ranks, hogwild=hogwild, servers=3, shards=shards)
    sessions, least, most = ranks * hogwild, *operational_bounds(plan, make_costs(MODEL), Sharing.NODE, "fifo")
    fanned, single = (run(plan, merge).rates()[0] for merge in (True, False))
    assert all(least <= rate <= most for rate in (fanned, single))
    assert abs(sessions * BATCH / fanned - sessions * BATCH / single) <= 3 * (sessions - 1) * 3 * 2 * US


def test_fans_load_every_resource_as_messages_do():
    """Bytes and core time of servers and trainers are the same, so utilisations are too, within 10 %."""
    plan = make_plan(MODEL, nodes=2, ranks=2, hogwild=2, servers=3, shards=SPLIT)
    fanned, single = (
        utilization(*observer.window(), observer.scenario.machines) for observer in (run(plan, True), run(plan, False))
    )
    for node, found in single.items():
        assert fanned[node] == pytest.approx(found, rel=0.1, abs=0.01)


@pytest.mark.parametrize("shards", [None, SPLIT], ids=["whole", "split"])
def test_narrow_fans_and_arrays_agree_to_the_nanosecond(shards, monkeypatch):
    """Servers, one of them with memory that holds up, worked out in loops or in arrays: same steps, counters and splits."""
    plan = make_plan(MODEL, nodes=3, ranks=3, hogwild=3, servers=3, shards=shards)
    servers = (replace(plan.servers[0], memory_bandwidth_bytes_per_second=1e9), *plan.servers[1:])
    busy = TableCost(PhaseCost(8 * US, 20_000), PhaseCost(8 * US, 20_000))  # 20 us at 1e9
    costs, found = replace(make_costs(MODEL), tables=dict.fromkeys(TABLES, busy)), []
    for most, carrier in ((24, NarrowFanNetwork), (0, FanNetwork)):
        monkeypatch.setattr(staging, "NARROW", most)
        observer = run(replace(plan, servers=servers), True, 0.02, costs)
        assert type(observer.scenario.fans) is carrier
        runners = [(runner.done, runner.split, runner.factors) for runner in observer.scenario.runners]
        found.append((runners, observer.window()))
    assert found[0] == found[1]


def test_a_fan_is_two_primitives():
    """Three requests become one scatter, three answers one gather, three gradients one scatter; servers have no workers."""
    plan = make_plan(MODEL, servers=3)
    scenario = run(plan, True).scenario
    (rank,) = scenario.runners
    assert [type(p) for p in rank.flat if isinstance(p, Scatter | Gather)] == [Scatter, Gather, Scatter]


def test_where_fans_apply():
    """Servers that share a host, or order their updates, are served message by message."""
    plan = make_plan(MODEL, nodes=2, ranks=2, servers=2)
    assert fans_apply(transform(plan), Sharing.NODE)
    assert not fans_apply(transform(plan), Sharing.NONE)
    assert not fans_apply(transform(replace(plan, synchronous=True)), Sharing.NODE)
    together = tuple(replace(node, host="one") for node in plan.servers)
    assert not fans_apply(transform(replace(plan, servers=together)), Sharing.NODE)


def test_passing_a_queue_is_lindleys_recursion():
    """The running maximum ends every job when next-free-time says, job by job."""
    rng = Random(1)
    ready = np.array(sorted(rng.randrange(1000) for _ in range(50)))
    service = np.array([rng.randrange(50) for _ in range(50)])
    free, ends = 120, []
    for start, length in zip(ready, service, strict=True):
        free = max(start, free) + length
        ends.append(free)
    assert _pass(ready, service.cumsum() - service, service.cumsum(), 120).tolist() == ends


def test_reserving_is_what_adding_does():
    """A pool that is asked when a job would end answers when it does end."""
    engine = Engine()
    asked, added = FifoResource(engine, 2, 1), FifoResource(engine, 2, 1)
    ends: list[int] = []
    for work in (100, 50, 70):
        added.add(work, lambda _: ends.append(engine.now), None)
    promised = [asked.reserve(0, work) for work in (100, 50, 70)]
    engine.run()
    assert sorted(promised) == ends
