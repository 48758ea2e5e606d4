"""The training studies: their harness computes what the executor does, and says what differs between pairs of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from executor.data import SyntheticStream
from executor.loopback import Loopback
from executor.run import RunOptions, run
from executor.state import gather
from experiments.quality.study import Trained, change, interval, run_cell
from experiments.quality.task import BOTTOM_CUT, TOP_CUT, Clicks, clicks, dlrm, shares
from experiments.quality.trainer import Cell, Trainer
from placement.plan import Plan
from problem.model import Model
from tests.executor.reference import assert_same_bits, of_oracle, values
from tests.programs import plans

pytestmark = pytest.mark.timeout(60)

STEPS, BATCH = 5, 32
#: The layers between the two cuts of a plan with two nodes are on the other one.
TAGS = {"bottom_2": 1, "bottom_3": 1, "top_2": 1, "top_3": 1}


def cut(codecs: Mapping[str, str], tags: Mapping[str, int] = TAGS, **settings: object) -> Plan:
    """The studies' model cut behind the second layer of each MLP."""
    model = replace(dlrm(64), learning_rate=0.3)
    return plans.plan(model, nodes=2, tags=dict(tags), batch=BATCH, codecs=dict(codecs), seed=3, **settings)


def stream(model: Model) -> SyntheticStream:
    """Clicks of another seed than the parameters'."""
    return SyntheticStream(model, 1)


@pytest.mark.parametrize(
    "codecs",
    [
        {BOTTOM_CUT: "dct-mp:0.1", TOP_CUT: "dct-mp:0.25"},
        {BOTTOM_CUT: "dct-mp:0.1:laplace_one_sided", TOP_CUT: "dct-mp:0.1:laplace"},
        {BOTTOM_CUT: "top-k:0.25:feedback", TOP_CUT: "top-k:0.02"},
        {BOTTOM_CUT: "sketch:0.5", TOP_CUT: "bf16"},
        {"pooled": "bf16", "push": "fp16", TOP_CUT: "fp16"},
    ],
    ids=str,
)
def test_a_study_computes_what_the_cut_programs_do(codecs: dict[str, str]) -> None:
    """Losses and parameters after a few steps are those of the executor's programs with these codecs, to the bit."""
    plan = cut(codecs)
    programs = Loopback(plan, stream(plan.model), STEPS)
    trainer = Trainer(plan.model, Cell("x", codecs), BATCH, plan.seed)
    for step in range(STEPS):
        assert trainer.step([stream(plan.model).batch(step, BATCH)]) == programs.run_step(step)
    assert_same_bits(of_oracle(trainer.oracle), values(*gather(plan, programs.state)))


@pytest.mark.parametrize("codec", ["fp32", "bf16", "dct-dp:0.05:3"])
def test_ranks_of_a_study_compute_what_the_ranks_of_a_group_do(codec: str) -> None:
    """Two ranks in processes, all operators data-parallel, updates in rank order: the same parameters to the bit."""
    codecs = {"allreduce": codec}
    plan = cut(codecs, {}, ranks=2, synchronous=True)
    result = run(plan, RunOptions(steps=STEPS), stream(plan.model))
    trainer = Trainer(plan.model, Cell("x", codecs, ranks=2), BATCH, plan.seed)
    for step in range(STEPS):
        trainer.step([stream(plan.model).batch(2 * step + rank, BATCH) for rank in (0, 1)])
    assert_same_bits(of_oracle(trainer.oracle), values(result.dense, result.tables))


def test_a_cell_reports_windows_quality_and_bytes() -> None:
    """A short run: eight windows that fall, quality with and without the codec, and the share of bytes of DCT-MP's formats:
    26 values of 256 and a bit for each there, 26 values back, of 2 times 256."""
    model = dlrm()
    data = clicks(model, 0, 64)
    found = run_cell(model, Cell("x", {BOTTOM_CUT: "dct-mp:0.1"}), Clicks(data.training, data.held_out[:1]), 0)
    assert len(found.windows) == 8
    assert found.windows[-1] < found.windows[0]
    assert found.held_out != found.held_out_plain
    assert found.wire == pytest.approx((2 * 26 * 4 + 32) / (2 * 256 * 4), abs=2e-3)
    assert found == run_cell(model, Cell("x", {BOTTOM_CUT: "dct-mp:0.1"}), Clicks(data.training, data.held_out[:1]), 0)


def test_samples_are_dealt_to_ranks_without_loss() -> None:
    """Two ranks get every sample once, dense features, ids and labels together."""
    batch = clicks(dlrm(), 0, 1).training[0]
    even, odd = shares(batch, 2)
    np.testing.assert_array_equal(even.dense, batch.dense[::2])
    np.testing.assert_array_equal(odd.ids["t3"], batch.ids["t3"][1::2])
    assert len(even) + len(odd) == len(batch)


def trained(cell: str, seed: int, quality: float) -> Trained:
    """A run that came to some quality."""
    return Trained(cell, seed, (1.0,) * 6 + (quality,) * 2, quality, quality, 1.0)


def test_changes_are_taken_seed_by_seed() -> None:
    """Seeds differ by 20 %, the cell by exactly 1 %: pairing leaves no noise, and the interval is a point."""
    runs = [trained(cell, s, (0.8 + 0.1 * s) * factor) for cell, factor in (("a", 1), ("b", 1.01)) for s in range(3)]
    found = change(runs, "b", "a", lambda one: one.progressive)
    assert (found.mean, found.low, found.high) == pytest.approx((1.0, 1.0, 1.0))


def test_intervals_are_students() -> None:
    """Values 1, 2, 3: mean 2, standard error 1 / sqrt(3), t(0.975, 2) = 4.3027 (table of Student's t)."""
    found = interval([1.0, 2.0, 3.0])
    assert found.high - found.mean == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    assert np.isnan(interval([1.0]).low)
