"""Compressed messages in real runs: the numbers, the bytes, and that training goes on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.checkpoint import load
from executor.clock import ClockKind
from executor.codecs.dense import from_bf16, to_bf16
from executor.data import SyntheticStream
from executor.errors import WorkerFailed
from executor.loopback import Loopback
from executor.run import RunOptions, run
from executor.state import allocate_state
from placement.codecs import EVERY_ELEMENT
from placement.plan import Plan
from problem.model import Model
from programs.instructions import Recv, Send
from programs.transform import transform
from programs.workers import workers
from tests.executor.reference import assert_same_bits, oracle_of, values
from tests.executor.test_faults import Poisoned
from tests.executor.tiny import dlrm, tables
from tests.programs import plans

pytestmark = pytest.mark.timeout(60)

STEPS = 8
CODED = [name for name in EVERY_ELEMENT if name != "fp32"]
CUT_CODECS = [
    *CODED,
    "dct-mp:0.25",
    "dct-mp:0.25:laplace_one_sided",
    "top-k:0.25",
    "top-k:0.25:feedback",
    "top-k:0.03",
    "sketch:0.25",
]


def model(**settings: Any) -> Model:
    """A DLRM whose first top layer, 32 wide and rectified, is worth a cut; tables with rows that nobody looks up."""
    return dlrm([13, 32, 16], tables(2, 2000, 16, pooling_factor=2), [32, 16, 1], **settings)


def cut_plan(codecs: dict[str, str], **settings: Any) -> Plan:
    """Cut behind ``top0``: the layers above it are on node 1; batches of 64."""
    return plans.plan(model(), nodes=2, tags={"top1": 1, "top2": 1}, batch=64, codecs=codecs, **settings)


def everything(codec: str, server: str) -> dict[str, str]:
    """The cut and both messages of the server coded."""
    return {"top0": codec, "top2": server, "pooled": server, "push": server}


def stream(plan: Plan) -> SyntheticStream:
    """Clicks."""
    return SyntheticStream(plan.model, 1)


def loop(plan: Plan, steps: int = STEPS) -> tuple[Loopback, list[float]]:
    """A loop-back run and its losses."""
    found = Loopback(plan, stream(plan), steps)
    return found, [found.run_step(step) for step in range(steps)]


@pytest.mark.parametrize("codec", CUT_CODECS)
def test_processes_compute_what_loop_back_does(codec: str) -> None:
    """Coded messages through shared memory between processes: losses to the bit those of one process, random rounding
    included, since it is keyed by session, channel and step."""
    plan = cut_plan(everything(codec, codec if codec in CODED else "rowwise4"))
    result = run(plan, RunOptions(steps=STEPS), stream(plan))
    assert result.losses[0].tolist() == loop(plan)[1]
    assert result.losses[0].tolist() != loop(cut_plan({}))[1]


@pytest.mark.parametrize("codec", CUT_CODECS)
def test_bytes_on_the_wire_are_those_of_the_program(codec: str) -> None:
    """The lengths that every coded message carries are the bytes that its Send promises, which are the cost model's; a cut
    that keeps a quarter of rectified activations may find fewer that are not 0, never more but for ties."""
    plan = cut_plan(everything(codec, codec if codec in CODED else "bf16"))
    found, _ = loop(plan)
    for worker in found.workers:
        for send in (i for i in worker.program if isinstance(i, Send) and i.codec):
            carried = int(found._channels["session", 0, 0, 0, send.channel]._arrays[0].sum())
            exact = "laplace" not in send.codec
            assert (
                (carried == send.bytes)
                if send.codec in (*CODED, "sketch:0.25")
                else (0 < carried <= send.bytes or not exact)
            )


def test_a_cut_that_keeps_everything_changes_nothing() -> None:
    """DCT-MP with a share of 1 at a rectified cut leaves out zeros only, whose gradient the rectifier drops anyway: losses
    and parameters are those without a codec, to the bit."""
    plain, kept = cut_plan({}), cut_plan({"top0": "dct-mp:1"})
    results = [run(plan, RunOptions(steps=STEPS), stream(plan)) for plan in (plain, kept)]
    np.testing.assert_array_equal(results[0].losses, results[1].losses)
    assert_same_bits(*(values(result.dense, result.tables) for result in results))


def test_a_consumer_gets_what_the_codec_leaves() -> None:
    """bf16: what node 1 computes with is the rank's tensor, rounded; the gradient that comes back is rounded likewise."""
    found, _ = loop(cut_plan({"top0": "bf16"}), 1)
    rank, node = (interpreter.tensors for interpreter in found._interpreters[:2])
    for source, target, name in ((rank, node, "top0"), (node, rank, "d.top0")):
        rounded = np.empty_like(source[name])
        from_bf16(to_bf16(source[name]), rounded)
        np.testing.assert_array_equal(target[name], rounded)
        assert not np.array_equal(target[name], source[name])


def test_only_selected_activations_get_a_gradient() -> None:
    """DCT-MP: each sample's quarter of the largest arrives, and the gradient is 0 where nothing was sent."""
    found, _ = loop(cut_plan({"top0": "dct-mp:0.25"}), 1)
    rank, node = (interpreter.tensors for interpreter in found._interpreters[:2])
    sent = node["top0"] != 0
    assert sent.sum(axis=1).max() == 8
    np.testing.assert_array_equal(node["top0"], np.where(sent, rank["top0"], 0))
    np.testing.assert_array_equal(rank["d.top0"], np.where(sent, node["d.top0"], 0))


@pytest.mark.parametrize("codec", CODED)
def test_rows_that_nobody_looks_up_stay_as_they_are(codec: str) -> None:
    """Compressed gradients of pooled rows touch the rows of the batch and no others: the rest keep their start values to
    the bit."""
    plan = cut_plan({"pooled": codec, "push": codec})
    result, start = run(plan, RunOptions(steps=3), stream(plan)), oracle_of(plan)
    for name, held in result.tables.items():
        ids = np.concatenate([stream(plan).batch(i, 64).ids[name].ravel() for i in range(3)])
        untouched = np.setdiff1d(np.arange(len(held.rows)), ids)
        assert len(untouched)
        np.testing.assert_array_equal(held.rows[untouched], start.tables[name].rows[untouched])
        assert not np.array_equal(held.rows, start.tables[name].rows)


@pytest.mark.parametrize("codec", ["bf16", "rowwise8", "rowwise4", "dct-mp:0.5"])
def test_compressed_runs_learn(codec: str) -> None:
    """Two ranks with two threads each, every message coded: losses fall as they do without."""
    server = codec if codec in CODED else "bf16"
    plan = cut_plan(everything(codec, server), ranks=2, hogwild=2)
    losses = run(plan, RunOptions(steps=120), stream(plan)).losses
    assert losses[:, -30:].mean() < losses[:, :30].mean() - 0.02


def test_a_compressed_run_resumes_to_the_bit(tmp_path: Path) -> None:
    """Codecs of a cut remember nothing from step to step, and random rounding is keyed by the step: a run in two parts
    ends where one in one does."""
    plan = cut_plan(everything("rowwise2", "rowwise1"))
    for name, parts in (("one", [STEPS]), ("two", [3, STEPS])):
        for steps in parts:
            run(plan, RunOptions(steps=steps, checkpoint=tmp_path / name, resume=True), stream(plan))
    one, two = ((tmp_path / name / "checkpoint.npz").read_bytes() for name in ("one", "two"))
    assert one == two


def test_what_top_k_has_not_sent_is_in_checkpoints(tmp_path: Path) -> None:
    """Gradients of a cut under top-k with feedback: a run in two parts is the unbroken one to the bit; without what was left
    out it is not."""
    plan = cut_plan({"top0": "top-k:0.1:feedback"})
    for name, parts in (("one", [STEPS]), ("two", [3, STEPS])):
        for steps in parts:
            run(plan, RunOptions(steps=steps, checkpoint=tmp_path / name, resume=True), stream(plan))
    one, two = (np.load(tmp_path / name / "checkpoint.npz") for name in ("one", "two"))
    assert np.count_nonzero(one["left/0/0/0/1/top0"]) > 64
    for name in one.files:
        if name != "manifest.json":
            np.testing.assert_array_equal(one[name], two[name])
    plain = cut_plan({"top0": "top-k:0.1"})
    assert loop(plan)[1][:2] == loop(plain)[1][:2]
    assert loop(plan)[1] != loop(plain)[1]


def test_another_batch_starts_with_nothing_left_out(tmp_path: Path) -> None:
    """What was left out belongs to places of the batch; halving it drops that and keeps the parameters."""
    plan = cut_plan({"top0": "top-k:0.1:feedback"})
    run(plan, RunOptions(steps=2, checkpoint=tmp_path, resume=True), stream(plan))
    smaller = dataclasses.replace(plan, batch=32)
    state = allocate_state(smaller)
    assert load(tmp_path / "checkpoint.npz", smaller, state).step == 2
    assert [memory.any() for memory in state.left_out.values()] == [False]


def test_fewer_bytes_take_less_time_on_an_emulated_network() -> None:
    """Trainer and node on two hosts, nothing else takes time: a step waits for the cut tensor and its gradient, 32 floats a
    sample each, and for the logit and its gradient. bf16 sends half of the cut, DCT-MP what it keeps; the lengths that
    lead a coded message are not charged."""
    found = {}
    for codec in ("fp32", "bf16", "dct-mp:0.25"):
        plan = cut_plan({"top0": codec})
        here, there = plan.groups[0]
        far = dataclasses.replace(there, host="there", nic_bytes_per_second=1e6, latency_seconds=1e-3)
        plan = dataclasses.replace(plan, groups=((here, far),))
        options = RunOptions(steps=4, clock=ClockKind.PACED, durations={}, warmup=1)
        result = run(plan, options, stream(plan))
        rank = next(worker for worker in result.timeline.workers if worker.role == "rank")
        waits = [i for i, x in enumerate(rank.instructions) if isinstance(x, Recv) and "d.top0" in x.tensors]
        found[codec] = float(np.median(np.diff(rank.ends[:, waits[0]])))
    full, others = 64 * 32 * 4, 2 * (1e-3 + 64 * 4 / 1e6)
    assert found["fp32"] == pytest.approx(others + 2 * (1e-3 + full / 1e6), rel=1e-6)
    assert found["bf16"] == pytest.approx(others + 2 * (1e-3 + full / 2 / 1e6), rel=1e-6)
    most = others + 2e-3 + 64 * (2 * 8 * 4 + 4) / 1e6
    assert 0.5 * most < found["dct-mp:0.25"] <= most * (1 + 1e-6)


@pytest.mark.parametrize("codec", ["rowwise8", "dct-mp:0.25"])
def test_values_that_are_not_numbers_end_the_run(codec: str) -> None:
    """A batch of NaN at step 2: the worker that would compress it is named, with what it would compress."""
    plan = cut_plan({"top0": codec})
    with pytest.raises(WorkerFailed, match=r"^worker g0/n0/t0: .*a value to be compressed is not finite$"):
        run(plan, RunOptions(steps=5), Poisoned(plan, 2))


def test_workers_are_the_same_with_and_without_codecs() -> None:
    """Compression changes messages, not who there is."""
    assert [w.name for w in workers(transform(cut_plan({"top0": "bf16"})))] == [
        w.name for w in workers(transform(cut_plan({})))
    ]
