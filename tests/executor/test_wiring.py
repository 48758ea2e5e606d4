"""The channels of a job: they follow from the programs alone, carry their bytes, and every end has one owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings

from executor.transport import SharedMemory
from executor.wiring import Wiring, link_seconds, tensor_layout, wire
from placement.plan import Plan
from programs.collectives import slices
from programs.instructions import AllReduce, Send, SyncStep
from programs.transform import transform
from tests.executor.tiny import dlrm, tables
from tests.programs import plans
from tests.programs.strategies import random_plans

pytestmark = pytest.mark.timeout(30)


@contextmanager
def wired(plan: Plan) -> Iterator[Wiring]:
    """The channels of a plan, closed afterwards."""
    transport = SharedMemory()
    wiring = wire(transform(plan), transport)
    try:
        yield wiring
    finally:
        transport.close()


def count(wiring: Wiring, kind: str) -> int:
    """Number of channels of a kind."""
    return sum(label[0] == kind for label in wiring.channels)


@settings(max_examples=25, deadline=None)
@given(plan=random_plans())
def test_every_send_has_a_channel_of_its_bytes(plan: Plan) -> None:
    """Between the workers that the Send and its peer name, in every group, rank and thread; and there is no other."""
    with wired(plan) as wiring:
        expected = 0
        for worker in wiring.workers:
            for send in (i for i in worker.program if isinstance(i, Send)):
                expected += 1
                channel = wiring.channels["session", worker.group, worker.rank, worker.thread, send.channel]
                assert channel.bytes == send.bytes
                assert channel.source == worker.name
                target = next(w for w in wiring.workers if w.name == channel.target)
                assert target.place == send.peer
                assert (target.group, target.rank, target.thread) == (worker.group, worker.rank, worker.thread)
        assert count(wiring, "session") == expected


@settings(max_examples=25, deadline=None)
@given(plan=random_plans())
def test_every_end_has_one_owner(plan: Plan) -> None:
    """No file descriptor is used by two workers, and none by nobody: so a dead worker ends all its pipes, and only those."""
    with wired(plan) as wiring:
        owners: Counter[int] = Counter()
        for worker in wiring.workers:
            used, everything = wiring.transport.descriptors(worker.name)
            owners.update(used)
        assert set(owners) == everything
        assert set(owners.values()) <= {1}


def test_all_reduce_channels_carry_the_slices() -> None:
    """Three ranks with two threads: each thread scatters slice j to rank j and gathers its own sum, to every other rank."""
    plan = plans.plan(dlrm([3, 8, 4], tables(1, 9, 4), [8, 1]), nodes=3, ranks=3, hogwild=2)
    with wired(plan) as wiring:
        (reduce,) = {i for worker in wiring.workers for i in worker.program if isinstance(i, AllReduce)}
        sizes = slices(reduce.bytes, 3)
        assert sum(sizes) == reduce.bytes
        assert count(wiring, "scatter") == count(wiring, "gather") == 2 * 3 * 2
        for label, channel in wiring.channels.items():
            if label[0] in {"scatter", "gather"}:
                kind, _, thread, source, target = label
                assert channel.bytes == sizes[int(target if kind == "scatter" else source)]
                assert (channel.source, channel.target) == (f"g0/n{source}/t{thread}", f"g0/n{target}/t{thread}")


@pytest.mark.parametrize("codec", ["fp32", "bf16", "rowwise8", "rowwise2"])
def test_exchange_channels_carry_the_parameters(codec: str) -> None:
    """Each node's push and pull have the bytes of its SyncStep, rounded or not, the follower's those of the DP operators."""
    with wired(replace(plans.easgd_plan("background"), codecs={"exchange": codec})) as wiring:
        for worker in wiring.workers:
            for step in (i for i in worker.program if isinstance(i, SyncStep)):
                for server, names in enumerate(step.exchange):
                    sizes = (step.request_bytes(server), step.answer_bytes(server)) if names else (0, 0)
                    for kind, size in zip(("push", "pull"), sizes, strict=True):
                        channel = wiring.channels.get((kind, worker.name, server))
                        assert (channel.bytes if channel is not None else 0) == size
                for follower in step.followers:
                    assert wiring.channels["follow", worker.group, follower].bytes == step.forward_bytes
        assert count(wiring, "push") == count(wiring, "pull") == 2 * 4  # of a group: node 0 to both, 1 and 2 to one
        assert sorted(wiring.triggers) == [f"g{g}/n{n}/shadow" for g in range(2) for n in range(3)]


def test_ordered_updates_have_turns() -> None:
    """Three synchronous ranks, one MP operator and one server: per place two arrivals, two turns, two go-aheads."""
    plan = plans.plan(dlrm([3, 4], tables(1, 9, 4), [1]), nodes=3, ranks=3, tags={"bottom0": 1}, synchronous=True)
    with wired(plan) as wiring:
        assert [count(wiring, kind) for kind in ("arrive", "turn", "go")] == [2 * 2, 2 * 2, 2 * 2]


def test_network_is_emulated_between_hosts_only() -> None:
    """Latency plus bytes over the slower NIC; nothing between nodes of one host."""
    here, also_here = plans.machine("a"), plans.machine("b")
    far = plans.machine("c", host="there", nic_bytes_per_second=1e6, latency_seconds=2e-3)
    assert link_seconds(here, also_here, 1000) == 0.0
    assert link_seconds(here, far, 1000) == link_seconds(far, here, 1000) == pytest.approx(2e-3 + 1e-3)


def test_layouts_of_ids_are_integers(cut_plan: Plan) -> None:
    """Ids travel as int32, (B, ids per sample); everything else as float32, (B, width)."""
    job = transform(cut_plan)
    assert [tensor_layout(job, name)[0] for name in ("ids.t0", "d.t0", "interaction")] == [(4, 2), (4, 4), (4, 7)]
    assert [tensor_layout(job, name)[1].__name__ for name in ("ids.t0", "d.t0")] == ["int32", "float32"]
