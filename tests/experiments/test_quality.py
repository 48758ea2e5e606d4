"""The training studies: their harness computes what the executor does, and says what differs between pairs of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from executor.data import SyntheticStream
from executor.loopback import Loopback
from executor.oracle import Oracle
from executor.run import RunOptions, run
from executor.state import gather
from experiments.quality.conditions import TENTH, Task, tasks
from experiments.quality.length import LENGTHS, WINDOWS, mp_length, quality_at
from experiments.quality.published import GRADIENT_THRESHOLD, published_change
from experiments.quality.replicas import BETA, GAP, SCALINGS, Fleet, Replicas, fleets, steps_of
from experiments.quality.study import Effort, Trained, change, interval, run_cell
from experiments.quality.tables import CONTROL, ablation_points, dct_dp_points, dct_mp_points, rows_of
from experiments.quality.task import BOTTOM_CUT, TOP_CUT, Clicks, Planted, clicks, dlrm, shares
from experiments.quality.thresholds import cut_probe, gradient_probe, kept_probe, weibull_shape
from experiments.quality.trainer import Cell, Trainer
from placement.codecs import check_codec
from placement.plan import Plan, Sync
from problem.graph import Kind
from problem.model import Model
from tests.executor.reference import assert_same_bits, merged, of_oracle, values
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
    source, data = Planted(model, 64), Clicks(data.training, data.held_out[:1])
    found = run_cell(source, Cell("x", {BOTTOM_CUT: "dct-mp:0.1"}), data, 0)
    assert len(found.windows) == 8
    assert found.windows[-1] < found.windows[0]
    assert found.held_out != found.held_out_plain
    assert found.wire == pytest.approx((2 * 26 * 4 + 32) / (2 * 256 * 4), abs=2e-3)
    assert found == run_cell(source, Cell("x", {BOTTOM_CUT: "dct-mp:0.1"}), data, 0)


def test_a_warm_up_is_training_without_codecs() -> None:
    """Two steps without codecs and then with them: to the bit what a model trained for two steps becomes under them."""
    model, codecs = dlrm(64), {BOTTOM_CUT: "dct-mp:0.1", TOP_CUT: "dct-mp:0.1"}
    batches = clicks(model, 0, 4).training
    trainer, plain = Trainer(model, Cell("x", codecs, warm_up=2), 128, 0), Oracle(model, 0)
    coded = Trainer(model, Cell("x", codecs), 128, 0)
    for batch in batches[:2]:
        assert trainer.step([batch]) == plain.step(batch)
    later = Oracle(model, 0, trained=(plain.parameters, plain.tables), links=coded.loops[0])
    for batch in batches[2:]:
        assert trainer.step([batch]) == later.step(batch)
    assert_same_bits(of_oracle(trainer.oracle), of_oracle(later))
    assert trainer.wire_share < 0.2


def test_a_run_is_read_at_lengths_that_double() -> None:
    """128 windows whose number is their quality: a run's last quarter is 96 to 127, that of its half 48 to 63, that of the
    shortest length window 3; eight windows keep their last two."""
    run = Trained("x", 0, tuple(map(float, range(WINDOWS))), 0.5, 0.5, 1.0)
    assert [quality_at(run, halvings) for halvings in (0, 1, LENGTHS - 1)] == [111.5, 55.5, 3.0]
    assert quality_at(run, 0) == run.progressive
    assert trained("x", 0, 0.7).progressive == 0.7


def test_the_length_figure_reads_its_points_off_one_run() -> None:
    """Two seeds of 128 steps: six lengths of a cell in order; of one that warms up for 40, those whose last quarter is past
    it."""
    cells = (TENTH[1], replace(TENTH[1], name="warmed", warm_up=40))
    small = {"small": Task(dlrm(32), cells, steps=128)}
    rows = mp_length(lambda news: None, Effort(seeds=2, jobs=1), small)
    found = {cell.name: [row for row in rows if row["cell"] == cell.name] for cell in (CONTROL, *cells)}
    assert [row["steps"] for row in found[CONTROL.name]] == [4, 8, 16, 32, 64, 128]
    assert [row["steps"] for row in found["warmed"]] == [64, 128]
    assert all(row["low"] < row["change"] < row["high"] for row in rows)


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


def test_one_replica_is_plain_training() -> None:
    """One machine, and one group of four on the samples of four batches a step: parameters are the oracle's to the bit."""
    data = clicks(dlrm(), 0, 4)
    for size, steps in ((1, 4), (4, 1)):
        job, oracle = Replicas(dlrm(), 1, seed=0), Oracle(dlrm(), 0)
        fleet = Fleet(size, size, size, rate=0.4)
        for batches in steps_of(fleet, data.training):
            job.step(batches)
            oracle.step(merged(data.training) if size == 4 else batches[0])
        assert_same_bits(of_oracle(job.trained), of_oracle(oracle))
        assert job._steps == steps


def test_exchanges_move_replicas_and_centre_towards_each_other() -> None:
    """Two replicas, four steps, one exchange: the sum of all copies stays (what one gives the other takes), every copy
    that had gone away from the centre is nearer to it, and the tables are one."""
    job, data = Replicas(dlrm(), 2, seed=0), clicks(dlrm(), 0, 6)
    for batches in list(steps_of(Fleet(2, 1, 1, 0.4), data.training)):
        job.step(batches)
    copies = [one.parameters.flat("top_1") for one in (*job.replicas, job.centre)]
    before, apart = sum(copy.astype(np.float64) for copy in copies), [np.abs(c - copies[2]).sum() for c in copies[:2]]
    job.exchange(0.45)
    np.testing.assert_allclose(sum(copy.astype(np.float64) for copy in copies), before, atol=1e-6)
    assert [np.abs(c - copies[2]).sum() for c in copies[:2]] < [0.8 * a for a in apart]
    assert job.replicas[0].tables["t0"] is job.centre.tables["t0"]


def test_groups_scale_their_rate_by_their_ranks() -> None:
    """Four ranks at rate 0.1: 0.1, 0.2 and 0.4; what computes the same as another fleet is trained once."""
    assert [Fleet(4, 4, 4, 0.1, scaling).scaled_rate for scaling in SCALINGS] == pytest.approx([0.1, 0.2, 0.4])
    assert Fleet(8, 4, 4, 0.1, "linear").training == Fleet(8, 4, 4, 0.4).training
    assert all(fleet.scaled_rate == fleet.rate for fleet in fleets() if fleet.ranks == 1)


def test_conditions_differ_from_the_reference_in_what_they_say() -> None:
    """Width, optimizer, activation of the cut layers, shape and length; two tasks that are the same would say nothing."""
    found = tasks()
    reference = found.pop("reference")
    assert reference.model.graph[BOTTOM_CUT].width == reference.model.graph[TOP_CUT].width == 256
    assert {reference.model.graph[cut].activation for cut in (BOTTOM_CUT, TOP_CUT)} == {"relu"}
    assert {found["cuts not rectified"].model.graph[cut].activation for cut in (BOTTOM_CUT, TOP_CUT)} == {"none"}
    assert found["cuts 32 wide"].model.graph[TOP_CUT].width == 32
    assert [op.width for op in found["paper's layers"].model.graph if op.kind is Kind.LINEAR] == [
        512, 256, 64, 16, 512, 256, 128, 1
    ]  # fmt: skip
    for task in (reference, *found.values()):
        for cell in task.cells:
            for edge, codec in cell.codecs.items():
                check_codec(edge, codec, task.model)


def test_rounded_exchanges_are_those_of_the_executor() -> None:
    """Two groups without tables, an exchange every four steps in four bits: parameters of the centre to the bit."""
    model = plans.dlrm([3, 64, 8], [], [8, 1])
    sync = Sync("foreground", GAP, BETA / 2)
    plan = plans.plan(model, groups=2, sync_servers=1, batch=BATCH, sync=sync, codecs={"exchange": "rowwise4"})
    plan = replace(plan, synchronous=True, seed=3)
    result = run(plan, RunOptions(steps=8), stream(model))
    job = Replicas(model, 2, 3, "rowwise4")
    for step in range(8):
        job.step([stream(model).batch(2 * step + group, BATCH) for group in range(2)])
    assert_same_bits(values(job.centre.parameters, {}), values(result.dense, result.tables))


def test_fleets_use_the_same_samples() -> None:
    """Every fleet trains on all batches of a study, whatever its machines and groups."""
    batches = tuple(clicks(dlrm(), 0, 32).training)
    for fleet in fleets():
        seen = [len(batch) for step in steps_of(fleet, batches) for batch in step]
        assert sum(seen) == 32 * 128
        assert len(seen) * fleet.ranks == 32


def test_the_printed_thresholds_have_the_weibull_shape_that_was_fitted_to_them() -> None:
    """Figure 2's six quantiles give a shape of 0.45, and exact quantiles of a law give its own."""
    assert weibull_shape(GRADIENT_THRESHOLD) == pytest.approx(0.452, abs=0.01)
    exact = {share: 1.75e-4 * (-np.log(1 - share)) ** (1 / 0.452) for share in GRADIENT_THRESHOLD}
    assert weibull_shape(exact) == pytest.approx(0.452)


def test_bug_a_threshold_of_zero_ended_the_figure() -> None:
    """Where rectifiers leave half of a gradient at zero its median is no point of the law; it was a domain error."""
    exact = {share: 1.75e-4 * (-np.log(1 - share)) ** (1 / 0.452) for share in GRADIENT_THRESHOLD}
    assert weibull_shape(exact | {0.5: 0.0}) == pytest.approx(0.452)


def test_printed_changes_are_those_of_the_tables() -> None:
    """0.4546 and 0.4547 against 0.4538: the paper's own +0.18 % and +0.20 %; nothing where nothing was printed."""
    assert published_change("DCT-MP, two cuts", 0.95) == pytest.approx(0.18, abs=0.005)
    assert published_change("DCT-DP", 0.995) == pytest.approx(0.20, abs=0.005)
    assert published_change("DCT-DP", 0.5) is None


def test_every_cell_can_be_in_a_plan() -> None:
    """Names differ, and every codec is one that its edge can have."""
    points = [*dct_mp_points(), *dct_dp_points(), *ablation_points()]
    assert len({point.cell.name for point in points}) == len(points)
    for point in points:
        for edge, codec in point.cell.codecs.items():
            check_codec(edge, codec, dlrm())


def test_rows_hold_changes_beside_printed_ones() -> None:
    """Two seeds of 16 steps of one point: its row has the change, its interval, bytes, and what the paper printed."""
    (control, row) = rows_of(dct_mp_points()[:1], lambda news: None, Effort(seeds=2), Planted(dlrm(), 16))
    assert control["family"] == "control"
    assert row["low"] < row["change"] < row["high"]
    assert row["published"] == pytest.approx(-0.132, abs=0.001)
    assert row["wire"] == pytest.approx(0.266, abs=0.001)


def test_thresholds_are_read_off_a_run() -> None:
    """Gradient thresholds rise with the share dropped, activations are no longer than they were, and a Laplace threshold
    keeps some."""
    model, batch = dlrm(), clicks(dlrm(), 0, 1).training[0]
    trainer = Trainer(model, Cell("x", {BOTTOM_CUT: "dct-mp:0.1:laplace_one_sided"}), 128, 0)
    trainer.step([batch])
    gradient, cut_values = gradient_probe(trainer), cut_probe(trainer)
    assert gradient["0.5"] < gradient["0.95"] < gradient["0.99"]
    assert 0 < cut_values["0.75"] < cut_values["0.95"]
    assert 0.02 < kept_probe(trainer)["kept"] < 0.3
