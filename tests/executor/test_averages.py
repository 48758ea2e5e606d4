"""Groups that average among themselves: real runs against the same rule through a sync server, and against hand sums."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.checkpoint import Done, load, save
from executor.data import SyntheticStream
from executor.errors import WorkerFailed
from executor.run import RunOptions, RunResult, run
from executor.state import JobState, allocate_state, centre_of, velocity_of
from executor.transport import SharedMemory
from executor.wiring import wire
from experiments.launch import mpiexec, result_in
from placement.errors import InvalidPlan
from placement.plan import Plan, Sync
from programs.collectives import ring_rounds
from programs.transform import transform
from tests.executor.conftest import Traces
from tests.executor.reference import assert_same_bits, values
from tests.executor.test_faults import Assassin, slowly
from tests.executor.test_mpi import assert_equal, under_mpi
from tests.executor.tiny import dlrm, tables
from tests.programs import plans

pytestmark = pytest.mark.timeout(30)
MA = Sync("foreground", 2, 1.0, "ma")
BMUF = Sync("foreground", 2, 0.8, "bmuf", momentum=0.5)
#: Groups of one rank: few processes.
SMALL: dict[str, Any] = {"nodes": 1, "ranks": 1, "tags": {}}
#: Groups of two ranks, which pass on what they found.
RANKS: dict[str, Any] = {"nodes": 2, "ranks": 2, "tags": {}}
#: The same with an MP layer on one of them.
FEW: dict[str, Any] = RANKS | {"tags": {"top1": 1}}


def averaging(groups: int = 2, sync: Sync = MA, **settings: Any) -> Plan:
    """Groups of two ranks and an MP node, with an MP layer on a rank too: every kind of piece, and no table to share."""
    model = dlrm([3, 9, 4], [], [7, 6, 1], optimizer="adagrad")
    chosen: dict[str, Any] = {"nodes": 3, "ranks": 2, "tags": {"top0": 2, "top1": 1}, "batch": 16}
    return plans.plan(model, groups=groups, sync=sync, synchronous=True, **chosen | settings)


def through_server(plan: Plan) -> Plan:
    """The same with a sync server."""
    return replace(plan, sync_servers=(plans.machine("centre"),))


def trained(plan: Plan, steps: int = 6, **options: Any) -> RunResult:
    """The plan after some steps on the stream of seed 1."""
    return run(plan, RunOptions(steps=steps, **options), SyntheticStream(plan.model, 1))


@pytest.mark.parametrize(
    ("sync", "settings"), [(BMUF, FEW), pytest.param(MA, {}, marks=pytest.mark.slow)], ids=["bmuf", "ma"]
)
def test_two_groups_get_what_a_server_gives_them_to_the_bit(
    sync: Sync, settings: dict[str, Any], held: list[JobState]
) -> None:
    """a + b is b + a: losses, every copy of every parameter, the centre and block momentum equal those of a run through a
    sync server, two exchanges on."""
    plan = averaging(2, sync, **settings)
    ring, server = trained(plan, 4), trained(through_server(plan), 4)
    np.testing.assert_array_equal(ring.losses, server.losses)
    assert_same_bits(values(ring.dense, {}), values(server.dense, {}))
    for place, copy in held[1].dense.items():
        for name in copy.operators:
            np.testing.assert_array_equal(held[0].dense[place].flat(name), copy.flat(name))
    found, expected = velocity_of(plan, held[0]), held[1].velocity
    assert (found is None) == (expected is None) == (sync is MA)
    if found is not None and expected is not None:
        assert_same_bits(values(found, {}), values(expected, {}))


@pytest.mark.parametrize("groups", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_more_groups_differ_by_the_order_of_addition_only(groups: int, held: list[JobState]) -> None:
    """A ring adds each chunk in another order than a server: within float32 rounding after three exchanges, whose centre all
    groups have to the bit."""
    plan = averaging(groups, **(SMALL if groups == 3 else {}))
    ring, server = trained(plan), trained(through_server(plan))
    for name in ring.dense.operators:
        np.testing.assert_allclose(ring.dense.flat(name), server.dense.flat(name), rtol=2e-5, atol=2e-7)
    for (_, node), average in held[0].averages.items():
        np.testing.assert_array_equal(average.centre, held[0].averages[0, node].centre)
    for (_, node), copy in held[0].dense.items():
        for name in copy.operators:
            np.testing.assert_allclose(copy.flat(name), held[0].dense[0, node].flat(name), rtol=2e-5, atol=2e-8)


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 7])
def test_a_ring_sums_every_chunk_once(groups: int) -> None:
    """Played with sets: after the first rounds chunk g at g has come by all groups, each once and from g + 1 on; after the
    others everybody has every sum."""
    held = [[[me] for _ in range(groups)] for me in range(groups)]
    for turn in range(groups - 1):
        sent = [list(held[me][ring_rounds(me, groups)[0][turn].sends]) for me in range(groups)]
        for me in range(groups):
            held[me][ring_rounds(me, groups)[0][turn].takes] = [*sent[me - 1], me]
    assert [held[me][me] for me in range(groups)] == [
        [(me + k + 1) % groups for k in range(groups)] for me in range(groups)
    ]
    for turn in range(groups - 1):
        sent = [held[me][ring_rounds(me, groups)[1][turn].sends] for me in range(groups)]
        for me in range(groups):
            held[me][ring_rounds(me, groups)[1][turn].takes] = sent[me - 1]
    assert all(held[me][chunk] == held[chunk][chunk] for me in range(groups) for chunk in range(groups))


def test_messages_have_the_bytes_of_the_programs() -> None:
    """Every ring channel carries chunks, of which G make the node's parameters and at most an element a group more; what is
    passed on is the rank's part. Sent in an exchange: the closed form of the cost model, but for what fills up chunks."""
    plan = averaging(3)
    transport = SharedMemory()
    try:
        channels = wire(transform(plan), transport).channels
        for node, step in transform(plan).shadows.items():
            assert 0 <= 3 * step.chunk_bytes - step.bytes < 3 * 4
            for group in range(3):
                assert channels["ring", group, node].bytes == step.chunk_bytes
            for peer in step.peers:
                assert channels["average", 0, node, peer].bytes == step.shared_bytes
    finally:
        transport.close()
    assert sum(step.bytes for step in transform(plan).shadows.values()) == plan.model.graph.dense_parameters * 4


@pytest.mark.slow
def test_repeated_runs_are_equal_to_the_bit() -> None:
    """Foreground averages of four groups repeat, whoever comes first."""
    first, second = trained(averaging(4)), trained(averaging(4))
    np.testing.assert_array_equal(first.losses, second.losses)
    assert_same_bits(values(first.dense, {}), values(second.dense, {}))


def test_a_resumed_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    """Centre and block momentum are in the checkpoint, keyed by parameter: 4 steps round the ring, 2 through a sync server
    and 2 round the ring again are 8."""
    ring = averaging(2, BMUF, **SMALL)
    whole, steps = trained(ring, 8), ((ring, 4), (through_server(ring), 6), (ring, 8))
    results = [trained(plan, until, checkpoint=tmp_path, resume=until > 4) for plan, until in steps]
    assert_same_bits(values(whole.dense, {}), values(results[-1].dense, {}))


def test_a_checkpoint_of_another_number_of_groups_starts_from_the_centre(tmp_path: Path) -> None:
    """Three groups go on from the checkpoint of two: all replicas and all copies of the centre are the saved centre."""
    two, three = averaging(2), averaging(3)
    state, other = allocate_state(two), allocate_state(three)
    state.initialise(5)
    for average in state.averages.values():
        average.centre[...] += 1.0
    save(tmp_path / "file", two, state, Done(4, 8))
    load(tmp_path / "file", three, other)
    expected, found = centre_of(two, state), centre_of(three, other)
    assert expected is not None
    assert found is not None
    assert_same_bits(values(found, {}), values(expected, {}))
    for copy in other.dense.values():
        for name in copy.operators:
            np.testing.assert_array_equal(copy.flat(name), expected.flat(name))


@pytest.mark.parametrize("algorithm", ["bmuf", pytest.param("ma", marks=pytest.mark.slow)])
def test_background_averages_learn(algorithm: Any) -> None:
    """A rank, an MP layer, tables on a server, no sync server: shadow workers average beside the threads, the loss falls."""
    sync = Sync("background", 2, 1.0, algorithm, momentum=0.3 if algorithm == "bmuf" else 0.0)
    model = dlrm([3, 8, 4], tables(2, 40, 4), [8, 1])
    result = trained(plans.plan(model, nodes=2, groups=2, tags={"top0": 1}, batch=64, sync=sync), 60)
    assert np.isfinite(result.losses).all()
    assert result.losses[:, -15:].mean() < result.losses[:, :15].mean()
    shadows = [worker for worker in result.timeline.workers if worker.role == "shadow"]
    assert [len(worker.ends) for worker in shadows] == [30] * 4


@pytest.mark.parametrize("victim", ["g1/n0/shadow", pytest.param("g2/n0/t0", marks=pytest.mark.slow)])
def test_a_group_that_dies_is_named(victim: str, traces: Traces) -> None:
    """The others wait for it in the ring; the run ends with the name of the worker that was killed, and nothing is left."""
    plan = plans.plan(dlrm([3, 8, 4], [], [8, 1]), groups=3, sync=replace(MA, mode="background"))
    with pytest.raises(WorkerFailed, match=rf"worker {victim}: was killed by SIGKILL"):
        run(plan, slowly(plan, Assassin(victim, signal.SIGKILL, traces)))
    traces.assert_gone(within_seconds=2.0)


@pytest.mark.skipif(not mpiexec(), reason="needs mpiexec")
@pytest.mark.parametrize(("groups", "settings"), [(2, RANKS), pytest.param(3, {}, marks=pytest.mark.slow)])
def test_mpi_gives_what_processes_give(groups: int, settings: dict[str, Any], tmp_path: Path) -> None:
    """Groups of two ranks under MPI, saved on the way: losses and parameters equal those of processes to the bit."""
    pytest.importorskip("mpi4py", reason="needs mpi4py")
    plan = averaging(groups, BMUF, **settings)
    assert under_mpi(tmp_path, plan, RunOptions(steps=4, checkpoint=tmp_path / "saved", checkpoint_every=2)) == (0, "")
    assert_equal(result_in(tmp_path), run(plan, RunOptions(steps=4)))


def test_what_cannot_be_averaged_is_refused() -> None:
    """Rules that need a server name it; what groups average among themselves is not compressed."""
    with pytest.raises(
        InvalidPlan, match=r"2 groups: need sync settings and at least one sync server \(but for averages"
    ):
        averaging(2, Sync("foreground", 2))
    with pytest.raises(InvalidPlan, match="codec 'bf16': groups that average without sync servers send float32"):
        averaging(codecs={"exchange": "bf16"})


@pytest.mark.slow
def test_more_ranks_than_parameters() -> None:
    """A rank without a part of the DP operators has nothing to send round, and takes what the others found."""
    plan = plans.plan(dlrm([1, 1], [], [1]), nodes=5, ranks=5, groups=2, sync=MA, synchronous=True, batch=4)
    steps = transform(plan).shadows
    assert [step.bytes for step in steps.values()] == [4, 4, 4, 4, 0]
    ring, server = trained(plan, 2), trained(through_server(plan), 2)
    assert_same_bits(values(ring.dense, {}), values(server.dense, {}))
