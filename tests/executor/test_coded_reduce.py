"""Compressed all-reduces: copies stay equal, nothing is lost, and what is remembered is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.checkpoint import Done, load, save
from executor.codecs.dct import GradientCodec, GradientSettings
from executor.data import SyntheticStream
from executor.run import RunOptions, RunResult, run
from executor.state import JobState, allocate_state
from placement.codecs import parse_codec
from placement.plan import Plan
from tests.executor.reference import assert_same_bits, values
from tests.executor.tiny import dlrm, tables
from tests.programs import plans

pytestmark = pytest.mark.timeout(60)

STEPS, BATCH = 10, 32


def reduced(codec: str, ranks: int = 2, **settings: Any) -> Plan:
    """A DLRM with operators above and below 256 parameters, all DP on some ranks."""
    model = dlrm([13, 32, 16], tables(2, 300, 16), [32, 1], learning_rate=0.1)
    return plans.plan(
        model, nodes=ranks, ranks=ranks, batch=BATCH, codecs={"allreduce": codec}, **{"synchronous": True} | settings
    )


def trained(plan: Plan, steps: int = STEPS, **settings: Any) -> RunResult:
    """The plan after some steps on the stream of seed 1."""
    return run(plan, RunOptions(steps=steps, **settings), SyntheticStream(plan.model, 1))


@pytest.mark.parametrize("ranks", [2, 3])
def test_keeping_everything_is_the_plain_all_reduce(ranks: int) -> None:
    """DCT-DP with a share of 1 adds the same gradients in the same order: losses and parameters to the bit."""
    plain, kept = (trained(reduced(codec, ranks)) for codec in ("fp32", "dct-dp:1:1"))
    np.testing.assert_array_equal(plain.losses, kept.losses)
    assert_same_bits(values(kept.dense, kept.tables), values(plain.dense, plain.tables))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("codec", ["bf16", "fp16", "dct-dp:0.05:4"])
def test_copies_of_all_ranks_stay_equal(codec: str, ranks: int, held: list[JobState]) -> None:
    """Every rank decodes the same bytes and adds in the same order: copies are equal to the bit, and are not those of an
    all-reduce without a codec; a second run gives the same."""
    plan = reduced(codec, ranks)
    first, second, plain = trained(plan), trained(plan), trained(reduced("fp32", ranks))
    for name in plan.dp_ops:
        for rank in range(1, ranks):
            np.testing.assert_array_equal(held[0].dense[0, rank].flat(name), held[0].dense[0, 0].flat(name))
    np.testing.assert_array_equal(first.losses, second.losses)
    assert not np.array_equal(first.losses, plain.losses)
    np.testing.assert_allclose(first.losses, plain.losses, atol=0.1)


def test_half_precision_rounds_each_slice_twice() -> None:
    """After one step of bf16 the change of every parameter is that of float32 within two roundings to 8 bits."""
    plain, half = (trained(reduced(codec), 1) for codec in ("fp32", "bf16"))
    start = trained(reduced("fp32"), 1).dense
    start.initialise(0)
    for name in plain.dense.operators:
        change = plain.dense.flat(name) - start.flat(name)
        error = half.dense.flat(name) - plain.dense.flat(name)
        assert np.abs(error).max() <= 2 * 2**-8 * np.abs(change).max() * 2
        assert error.any()


def test_what_is_not_sent_is_remembered(held: list[JobState]) -> None:
    """After one step of DCT-DP keeping 5 %, the parameters lag those of the plain all-reduce by the learning rate times the
    errors of both ranks, and by nothing else; operators of fewer than 256 parameters lag by nothing."""
    plan = reduced("dct-dp:0.05")
    found, plain = trained(plan, 1).dense, trained(reduced("fp32"), 1).dense
    for name in plan.dp_ops:
        errors = sum(held[0].feedback[0, rank][name][:-1] for rank in range(2))
        small = plan.model.graph[name].parameters < 256
        assert np.any(errors) != small
        np.testing.assert_allclose(found.flat(name) - plain.flat(name), 0.1 * errors, atol=1e-7)
        for rank in range(2):
            threshold = held[0].feedback[0, rank][name][-1]
            assert np.isnan(threshold) if small else threshold > 0


def test_compressed_gradients_learn() -> None:
    """Two ranks, two threads each, that share errors: losses fall with 5 % of the gradients sent."""
    losses = trained(reduced("dct-dp:0.05:10", hogwild=2, synchronous=False), 150).losses
    assert losses[:, -40:].mean() < losses[:, :40].mean() - 0.02


def test_errors_and_thresholds_are_in_checkpoints(tmp_path: Path) -> None:
    """Four steps, then the rest in a new run, between two thresholds: the final checkpoint, errors included, is that of an
    unbroken run to the byte."""
    plan = reduced("dct-dp:0.05:7")
    for name, parts in (("one", [STEPS]), ("two", [4, STEPS])):
        for steps in parts:
            trained(plan, steps, checkpoint=tmp_path / name, resume=True)
    one, two = ((tmp_path / name / "checkpoint.npz").read_bytes() for name in ("one", "two"))
    assert one == two
    with np.load(tmp_path / "one" / "checkpoint.npz") as file:
        assert file["group0/rank1/bottom0"].shape == (14 * 32 + 1,)


def remembering(plan: Plan, seed: int) -> JobState:
    """A state in which every rank remembers something of its own."""
    draw, state = np.random.default_rng(seed), allocate_state(plan)
    state.initialise(0)
    for memories in state.feedback.values():
        for memory in memories.values():
            memory[...] = draw.random(memory.shape)
    return state


def test_another_number_of_ranks_loses_no_gradient(tmp_path: Path) -> None:
    """From three ranks to two: the first takes the errors of all three, the second starts with none; from a run without
    DCT-DP to one with it: nothing is remembered; the other way round what was is left out."""
    three, two, plain = reduced("dct-dp:0.05", 3), reduced("dct-dp:0.05", 2), reduced("fp32", 2)
    path, old, new = tmp_path / "checkpoint.npz", remembering(three, 1), remembering(two, 2)
    save(path, three, old, Done(1, 1))
    load(path, two, new)
    for name in two.dp_ops:
        whole = sum(old.feedback[0, rank][name][:-1] for rank in range(3))
        np.testing.assert_allclose(new.feedback[0, 0][name][:-1], whole, rtol=1e-6)
        assert not new.feedback[0, 1][name][:-1].any()
        assert np.isnan(new.feedback[0, 1][name][-1])
    load(path, plain, allocate_state(plain))
    save(path, plain, remembering(plain, 3), Done(1, 1))
    load(path, two, new)
    assert not any(memory[:-1].any() for memories in new.feedback.values() for memory in memories.values())


def test_messages_have_the_bytes_of_the_cost_model() -> None:
    """A first step without ties sends of each operator exactly what the cost model counts for the format chosen."""
    chosen, draw = parse_codec("dct-dp:0.05"), np.random.default_rng(0)
    for elements in (200, 448, 5000, 100_000):
        message = chosen.gradient_message(elements)
        codec = GradientCodec(GradientSettings(0.05, message.codec), elements)
        gradient = (1.0 + draw.permutation(elements)).astype(np.float32)
        assert len(codec.encode(gradient, 0, draw)) == message.bytes
