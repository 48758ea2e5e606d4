"""What a run returns: throughput and timeline on each clock, losses, notes; and what it refuses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from executor.arrays import UnsupportedModel
from executor.clock import ClockKind
from executor.data import SyntheticStream
from executor.job import latest_clock
from executor.loopback import Loopback
from executor.run import RunOptions, run
from executor.state import Record
from placement.errors import DoesNotFit
from placement.plan import Plan, Sync
from problem.errors import BadInput
from problem.graph import Graph, Kind, Operator
from programs.instructions import Recv, Send
from programs.transform import transform
from programs.workers import workers
from tests.executor.tiny import dlrm, linear, tables
from tests.programs import plans

pytestmark = pytest.mark.timeout(30)

STEPS = 10


def modelled_ends(plan: Plan, durations: dict[str, list[float]], steps: int) -> dict[str, np.ndarray]:
    """When each instruction ends if it takes its duration and a Recv waits for its Send: plan of one session."""
    found = {worker.name: np.zeros((steps, len(worker.program))) for worker in workers(transform(plan))}
    now, sent = dict.fromkeys(found, 0.0), {}
    for step in range(steps):
        todo = [(w.name, index, i) for w in workers(transform(plan)) for index, i in enumerate(w.program)]
        while todo:
            ready = {name: (index, i) for name, index, i in reversed(todo)}
            name = next(n for n, (_, i) in ready.items() if not isinstance(i, Recv) or (step, i.channel) in sent)
            index, i = ready[name]
            arrival = sent[step, i.channel] if isinstance(i, Recv) else 0.0
            now[name] = max(now[name], arrival) + durations[name][index]
            found[name][step, index] = now[name]
            if isinstance(i, Send):
                sent[step, i.channel] = now[name]
            todo.remove((name, index, i))
    return found


def test_paced_run_keeps_exactly_to_the_modelled_durations() -> None:
    """Random durations for every instruction of a plan with an MP cut and two servers: every end on the run's clock, and
    so the throughput, is what the durations and the messages give, to rounding; the wall is never ahead of it."""
    plan = plans.plan(
        dlrm([3, 8, 4], tables(2, 40, 4), [8, 1]), nodes=2, servers=2, tags={"top0": 1, "bottom1": 1}, batch=8
    )
    draw = np.random.default_rng(5)
    durations = {w.name: (draw.random(len(w.program)) * 4e-4).tolist() for w in workers(transform(plan))}
    result = run(plan, RunOptions(steps=STEPS, clock=ClockKind.PACED, durations=durations, warmup=2))
    ends = modelled_ends(plan, durations, STEPS)
    for worker in result.timeline.workers:
        np.testing.assert_allclose(worker.ends, ends[worker.worker], rtol=1e-9, err_msg=worker.worker)
    last = ends["g0/n0/t0"][:, -1]
    assert result.samples_per_second == pytest.approx(8 * (STEPS - 2) / (last[-1] - last[1]))
    assert result.clock is ClockKind.PACED


def test_emulated_network_is_on_the_clock() -> None:
    """A trainer and a server on two hosts, nothing else takes time: a step is three messages, of which two are waited for
    (ids, pooled) and the third is overtaken by the next step's; latency 5 ms and bytes / rate each."""
    model = dlrm([3, 4], tables(1, 9, 4), [1])
    plan = plans.plan(model, batch=10)
    far = dataclasses.replace(plan.servers[0], host="there", nic_bytes_per_second=1e5, latency_seconds=5e-3)
    plan = dataclasses.replace(plan, servers=(far,))
    options = RunOptions(steps=STEPS, clock=ClockKind.PACED, durations={}, warmup=1)
    result = run(plan, options)
    ids, pooled, grads = (5e-3 + size / 1e5 for size in (10 * 4, 10 * 16, 10 * 16))
    # the server takes the next ids only after it has got the gradients, both sent at the end of a step
    assert result.samples_per_second == pytest.approx(10 / (max(ids, grads) + pooled), rel=1e-6)
    assert any("emulated" in note for note in result.notes)


@pytest.mark.parametrize("clock", list(ClockKind))
def test_timeline_of_each_clock_is_in_order(clock: ClockKind, cut_plan: Plan) -> None:
    """Instructions of a worker end in order and not before they started; a Recv ends after its Send; work was booked."""
    durations = {worker.name: [1e-5] * len(worker.program) for worker in workers(transform(cut_plan))}
    result = run(cut_plan, RunOptions(steps=STEPS, clock=clock, durations=durations))
    assert result.samples_per_second > 0
    assert result.wall_samples_per_second > 0
    sends, receives = {}, {}
    for worker in result.timeline.workers:
        assert worker.ends.shape == worker.starts.shape == worker.busy.shape == (STEPS, len(worker.instructions))
        assert (worker.ends >= worker.starts).all()
        assert (np.diff(worker.ends.ravel()) >= 0).all()
        assert (worker.busy >= 0).all()
        assert worker.busy.any()
        for index, i in enumerate(worker.instructions):
            if isinstance(i, Send | Recv):
                (sends if isinstance(i, Send) else receives)[i.channel] = worker.ends[:, index]
    for channel, ends in receives.items():
        # on the wall a message may be taken before its sender has come back from ringing the bell
        assert (ends >= sends[channel] - (1.0 if clock is ClockKind.WALL else 1e-3)).all()


def test_result_tells_workers_losses_and_parameters() -> None:
    """Two groups of two ranks with two threads: a row of losses for each of the eight sessions, every worker named, the
    un-cut parameters finite."""
    plan = plans.easgd_plan("background", hogwild=2)
    seen: list[int] = []
    result = run(plan, RunOptions(steps=STEPS, watch=seen.append))
    assert result.losses.shape == (8, STEPS)
    assert (result.losses > 0).all()
    assert result.workers == tuple(worker.name for worker in workers(transform(plan)))
    assert {w.worker for w in result.timeline.workers} == set(result.workers) - {"sync0", "sync1"}
    assert result.dense.operators == tuple(op.name for op in plan.model.graph if op.parameters)
    assert all(np.isfinite(result.dense.flat(name)).all() for name in result.dense.operators)
    assert {name: held.rows.shape for name, held in result.tables.items()} == {"t0": (40, 4), "t1": (40, 4)}
    assert seen
    assert sorted(seen) == seen


def test_sessions_read_different_batches() -> None:
    """Session s of S reads batches s, S + s, ...: the first losses are those of the first S batches at the start values."""
    plan = plans.plan(dlrm([3, 8, 4], tables(2, 40, 4), [8, 1]), nodes=2, ranks=2, synchronous=True)
    result = run(plan, RunOptions(steps=2))
    single = plans.plan(plan.model)
    firsts = []
    for index in range(2):
        loop = Loopback(single, _From(SyntheticStream(plan.model, 0), index), 1)
        firsts.append(loop.run_step(0))
    assert result.losses[:, 0].tolist() == firsts


class _From:
    """A stream that starts at another batch."""

    def __init__(self, stream: SyntheticStream, start: int) -> None:
        self._stream, self._start = stream, start

    def batch(self, index: int, size: int) -> object:
        """Return a batch."""
        return self._stream.batch(self._start + index, size)


@pytest.mark.parametrize(
    ("steps", "warmup", "left_out"), [(100, None, 20), (10, None, 2), (4, None, 0), (1, None, 0), (10, 5, 5), (3, 9, 2)]
)
def test_warmup_leaves_at_least_one_step(steps: int, warmup: int | None, left_out: int) -> None:
    """A fifth of the steps, at most 20, is left out of the throughput unless the user says otherwise."""
    assert RunOptions(steps=steps, warmup=warmup).warmup_steps == left_out


def test_one_step_is_a_run(all_dp_plan: Plan) -> None:
    """The shortest run has a loss and a throughput."""
    result = run(all_dp_plan, RunOptions(steps=1))
    assert result.losses.shape == (1, 1)
    assert result.samples_per_second > 0


def test_fewer_steps_than_the_gap_make_no_exchange() -> None:
    """A run shorter than the gap ends well; the centre is still the start values."""
    model = dlrm([3, 8, 4], tables(2, 40, 4), [8, 1])
    for mode in ("background", "foreground"):
        plan = plans.plan(model, groups=2, sync_servers=1, sync=Sync(mode, gap=5))  # type: ignore[arg-type]
        result = run(plan, RunOptions(steps=3))
        start = Loopback(plans.plan(model), SyntheticStream(model, 0), 1).state.dense[0, 0]
        assert all((result.dense.flat(name) == start.flat(name)).all() for name in start.operators)


def test_a_model_without_kernels_is_refused_before_anything_starts() -> None:
    """An imported graph that is known by its costs only can be planned and simulated, not run."""
    model = dlrm([3, 4], tables(1, 9, 4), [1])
    graph = Graph((*model.graph.operators, Operator("imported", Kind.FIXED, ("dense",), 2)))
    plan = plans.plan(dataclasses.replace(model, graph=graph))
    with pytest.raises(UnsupportedModel, match="'imported' is known by its costs only"):
        run(plan, RunOptions(steps=1))


@pytest.mark.parametrize(
    "loose",
    [linear("loose", "dense", 3, 2), Operator("loose", Kind.LOOKUP, width=4, table="t1")],
    ids=["layer", "lookup"],
)
def test_bug_an_operator_that_leads_to_no_loss_is_refused(loose: Operator) -> None:
    """A layer or table whose output nobody consumes has no gradient: it failed with a KeyError in a worker."""
    model = dlrm([3, 4], tables(2, 9, 4)[:1], [1])
    plan = plans.plan(
        dataclasses.replace(model, graph=Graph((*model.graph.operators, loose)), tables=tuple(tables(2, 9, 4)))
    )
    with pytest.raises(UnsupportedModel, match="'loose' leads to no loss: nothing consumes its output"):
        run(plan, RunOptions(steps=1))


def test_paced_clock_without_durations_is_refused(all_dp_plan: Plan) -> None:
    """Nothing would take any time."""
    with pytest.raises(BadInput, match="durations = None: the paced clock needs"):
        run(all_dp_plan, RunOptions(steps=1, clock=ClockKind.PACED))


def test_a_plan_that_does_not_fit_is_refused_before_anything_starts(all_dp_plan: Plan) -> None:
    """The verifier runs before the first allocation."""
    small = plans.machine("small", memory_bytes=100)
    with pytest.raises(DoesNotFit):
        run(dataclasses.replace(all_dp_plan, servers=(small,)), RunOptions(steps=1))


def test_bug_a_job_larger_than_this_machine_ended_with_an_errno(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of 400 TB is on no machine that runs this test: refused before it is asked for, with needed and available."""
    model = dlrm([3, 8, 4], tables(1, 25 * 10**12, 4), [8, 1])
    monkeypatch.setattr("executor.run.verify", lambda job: job)
    with pytest.raises(DoesNotFit, match="this machine: needs 400,000") as caught:
        run(plans.plan(model), RunOptions(steps=1))
    assert caught.value.exit_code == 3


def test_bug_clocks_of_steps_to_come_were_read() -> None:
    """The latest time of a record is looked for in the steps that have ended; a million others stay untouched."""
    plan = plans.plan(dlrm([3, 8, 4], tables(2, 40, 4), [8, 1]))
    worker = workers(transform(plan))[0]
    record = Record(worker, range(10, 1_000_010))
    assert latest_clock([record]) == 0.0
    record.note(10, len(worker.program) - 1, (1.0, 2.5, 0.5))
    record.step_done(10, 3.0)
    assert record.done_times.shape[0] == 1
    assert latest_clock([record]) == 2.5
