"""Profiles: reading and writing, fits of what was measured, and the cost table that comes of it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cost_models.costs import PhaseCost
from cost_models.features import Subject, family, features
from cost_models.memory import step_bytes
from cost_models.profile import (
    BatchPoint,
    Measurement,
    MessagePoint,
    Profile,
    load_profile,
    save_profile,
    signature,
    table_signature,
)
from cost_models.profile_costs import profile_costs
from problem.errors import BadInput
from problem.expand import linear
from problem.graph import Graph, Kind, Operator, Work
from problem.model import EmbeddingTable, Model
from tests.cost_models.models import mixed, node, small

BATCHES = (64, 256, 1024)
HERE = node(kind="machine A")


def phases(subject: Subject) -> tuple[str, ...]:
    if isinstance(subject, EmbeddingTable):
        return ("lookup", "update", "shard_lookup", "shard_update")
    if subject.kind in {Kind.DENSE_INPUT, Kind.LOOKUP}:
        return ()
    return ("forward", "backward", *(("update",) if subject.parameters else ()))


def seconds(subject: Subject, phase: str, batch: int) -> float:
    """A planted truth: a nanosecond for each unit of each feature."""
    return 1e-9 * sum(features(subject, phase, batch).values())


def measured(subjects: list[Subject], batches: tuple[int, ...] = BATCHES) -> Profile:
    """A profile in which the planted truth was measured without noise."""
    entries = tuple(
        Measurement(signature(subject), phase, batch, seconds(subject, phase, batch))
        for subject in subjects
        for phase in phases(subject)
        for batch in batches
    )
    return Profile(
        machine="machine A",
        date="2026-01-02",
        version="0.1.0",
        batches=batches,
        measurements=entries,
        messages=tuple(
            MessagePoint(
                size,
                4e-6 + size * 5e-11 + n * 1e-6,
                2e-6 + size * 3e-11 + n * 5e-7,
                n,
                sum_seconds=size * 2e-10 + n * 3e-6,
            )
            for size, n in ((1e3, 1), (1e5, 1), (1e5, 16), (1e6, 4))
        ),
        next_batch=tuple(BatchPoint(size, 1e-6 + size * 1e-10) for size in (1e4, 1e5, 1e6)),
        metric_seconds=1e-6,
        exchange_seconds_per_byte=6e-10,
    )


def subjects_of(model: Model) -> list[Subject]:
    return [*model.graph, *model.tables]


def assorted() -> list[Subject]:
    """Shapes of every family, none of them in the small model."""
    found: list[Subject] = []
    rng = np.random.default_rng(3)
    for i in range(12):
        inputs, width, rows, dim, ids = (int(v) for v in rng.integers([3, 2, 100, 4, 1], [90, 90, 10**6, 64, 20]))
        source = Operator("source", Kind.DENSE_INPUT, width=inputs)
        found.append(linear(f"linear{i}", source, width, "relu"))
        found.append(EmbeddingTable(f"table{i}", rows, dim, ids))
        found.append(Operator(f"loss{i}", Kind.LOSS, ("x",) * (i + 1), width))
        fields = i % 5 + 3
        pairs = fields * (fields - 1) // 2
        found.append(Operator(f"interaction{i}", Kind.INTERACTION, ("x",) * fields, width + pairs))
    return found


def test_profiled_shapes_are_interpolated() -> None:
    """A model that was measured at 64, 256 and 1024 costs at 512 what a line between its neighbours says."""
    model = small()
    costs = profile_costs(measured(subjects_of(model)), model, 512, HERE)
    for op in model.graph:
        if op.kind is Kind.LOOKUP or not phases(op):
            continue
        assert costs.ops[op.name].forward.core_seconds == pytest.approx(seconds(op, "forward", 512))
        assert costs.ops[op.name].backward.core_seconds == pytest.approx(seconds(op, "backward", 512))
    assert costs.ops["bottom_0"].update.core_seconds == pytest.approx(seconds(model.graph["bottom_0"], "update", 512))
    assert costs.ops["loss"].update.core_seconds == 0
    for table in model.tables:
        between = np.interp(512, [256, 1024], [seconds(table, "lookup", batch) for batch in (256, 1024)])
        assert costs.tables[table.name].lookup.core_seconds == pytest.approx(between)
        assert costs.tables[table.name].update.traffic_bytes > 0
    assert costs.notes == ()


def test_what_every_shard_takes_is_no_more_than_the_table() -> None:
    """Shards without ids cost what was measured for them, at most the whole table; with all ids, pooled rows in traffic."""
    model, table = small(), small().tables[0]
    profile = measured(subjects_of(model))
    cheap = tuple(
        replace(m, seconds=m.seconds / (4 if m.phase == "shard_lookup" else 0.5)) if m.phase.startswith("shard") else m
        for m in profile.measurements
    )
    cost = profile_costs(replace(profile, measurements=cheap), model, 256, HERE).tables[table.name]
    assert cost.shard_lookup.core_seconds == pytest.approx(seconds(table, "lookup", 256) / 4)
    assert cost.shard_update.core_seconds == cost.update.core_seconds
    assert cost.shard_lookup.traffic_bytes == 256 * 4 * (table.request_elements + table.dim)
    assert cost.shard_update.traffic_bytes == 256 * 4 * table.request_elements


def test_a_profile_without_shards_says_so() -> None:
    """Where shards without ids were not measured, they are taken to cost nothing, and a note tells."""
    profile = measured(subjects_of(small()))
    old = tuple(m for m in profile.measurements if not m.phase.startswith("shard"))
    costs = profile_costs(replace(profile, measurements=old), small(), 256, HERE)
    assert {cost.each for cost in costs.tables.values()} == {PhaseCost()}
    (note,) = costs.notes
    assert "share" in note


def test_an_old_profile_has_no_part_per_tensor() -> None:
    """Points that do not say how many tensors they had are fitted to a fixed part and bytes, as they were."""
    profile = measured(subjects_of(small()))
    old = tuple(MessagePoint(size, 4e-6 + size * 5e-11, 2e-6 + size * 3e-11) for size in (1e3, 1e5, 1e6))
    message = replace(profile, messages=old).message(1e6)
    assert message.send(2e6, 100) == pytest.approx(4e-6 + 1e-4)
    assert (message.send_seconds_per_tensor, message.receive_seconds_per_tensor) == (0.0, 0.0)


def test_what_a_step_touches_decides_what_messages_and_sums_cost() -> None:
    """Between two measured amounts by a line, beyond them as there; what other sessions touch counts for bytes alone."""
    model = small()
    step = step_bytes(model, 256)
    points = tuple(
        MessagePoint(size, k * (4e-6 + size * 5e-11), k * 2e-6, 1, k * step, k * (size * 2e-10 + 3e-6))
        for k in (1, 3)
        for size in (1e3, 1e5, 1e6)
    )
    profile = replace(measured(subjects_of(model)), messages=points)
    for sessions, factor in ((1, 1), (2, 2), (3, 3), (9, 3)):
        costs = profile_costs(profile, model, 256, HERE, sessions=sessions)
        assert costs.message.send(2e6, 1) == pytest.approx(4e-6 + factor * 1e-4)
        assert costs.message.receive(2e6, 1) == pytest.approx(2e-6)
        assert costs.summing(1e5) == pytest.approx(3e-6 + factor * 2e-5)
    assert profile.message(2 * step).send(0, 1) == pytest.approx(8e-6)
    assert profile.message(step / 2) == profile.message(step)


def test_a_profile_that_has_sums_apart_from_messages() -> None:
    """A file with one number for sums is taken at its word, however much is touched."""
    old = replace(measured(subjects_of(small())), messages=(), sum_seconds_per_byte=3e-10)
    assert old.summing(1e5) == old.summing(1e9, 4) == (3e-10, 0.0)


def test_profiled_messages_and_batches_keep_their_fits() -> None:
    """Fixed part, bytes and tensors of messages, batches, sums, exchanges and metric pass into the table."""
    model = small()
    costs = profile_costs(measured(subjects_of(model)), model, 256, HERE)
    assert costs.message.send(2e6, 3) == pytest.approx(4e-6 + 1e-4 + 3e-6)
    assert costs.message.receive(2e6, 3) == pytest.approx(2e-6 + 6e-5 + 1.5e-6)
    assert costs.next_batch_seconds == pytest.approx(1e-6 + 256 * 76 * 1e-10)
    assert (costs.metric_seconds, costs.exchange_seconds_per_byte) == (1e-6, 6e-10)
    assert (costs.sum_seconds_per_byte, costs.sum_seconds) == (pytest.approx(2e-10), pytest.approx(3e-6))
    assert (costs.batch, costs.kind) == (256, "machine A")


def test_unseen_shapes_are_estimated_and_named() -> None:
    """Other shapes of the same kinds give the planted truth back, and the note lists every estimated operator."""
    model = small()
    others = assorted()
    profile = measured(others).fitted(others)
    costs = profile_costs(profile, model, 512, HERE)
    for name in ("bottom_0", "top_0", "interaction"):
        truth = seconds(model.graph[name], "forward", 512)
        assert costs.ops[name].forward.core_seconds == pytest.approx(truth, rel=0.02)
    assert costs.tables["t1"].update.core_seconds == pytest.approx(seconds(model.table["t1"], "update", 512), rel=0.02)
    (note,) = costs.notes
    assert note.startswith("never measured, estimated")
    for name in ("bottom_0", "interaction", "loss", "t0", "t1"):
        assert name in note


def test_a_batch_beyond_the_profile_is_noted() -> None:
    """Twice the largest measured batch is extrapolated, and said to be."""
    model = small()
    costs = profile_costs(measured(subjects_of(model)), model, 2048, HERE)
    truth = seconds(model.graph["top_0"], "forward", 2048)
    assert costs.ops["top_0"].forward.core_seconds == pytest.approx(truth)
    assert "batch 2048 is outside the profiled ones" in costs.notes[0]


def test_an_unknown_operator_is_named() -> None:
    """Neither measured nor of a fitted family: the operator's name, phase and batch stand in the message."""
    model = small()
    profile = measured([s for s in subjects_of(model) if s.name != "interaction"])
    with pytest.raises(BadInput, match=r"interaction/.* forward = 'not measured': operator 'interaction' needs it"):
        profile_costs(profile, model, 128, HERE)


def test_one_measured_batch_does_not_pass_for_another() -> None:
    """Measured at 64 only, batch 64 works and batch 128 is refused, naming the operator."""
    model = small()
    profile = measured(subjects_of(model), batches=(64,))
    assert profile_costs(profile, model, 64, HERE).batch == 64
    with pytest.raises(BadInput, match=r"measured at batch 64 only.*'bottom_0' needs it at batch 128"):
        profile_costs(profile, model, 128, HERE)


def test_a_profile_of_another_machine_is_refused() -> None:
    """Both machines are named; nothing passes silently."""
    model = small()
    with pytest.raises(BadInput, match=r"machine = 'machine A': costs are wanted for 'machine B'"):
        profile_costs(measured(subjects_of(model)), model, 64, node(kind="machine B"))


def test_a_foreign_profile_that_is_asked_for_says_so() -> None:
    """The table stays the profiled machine's, its slowdown is the ratio of core speeds, and a note tells both."""
    model, other = small(), node(kind="machine B", flops=1e9)
    subjects = subjects_of(model)
    profile = replace(measured(subjects), flops_per_core_second=4e9)
    costs = profile_costs(profile, model, 64, other, foreign_ok=True)
    assert costs.kind == "machine A"
    assert costs.slowdown(other) == 4
    assert costs.slowdown(HERE) == 1
    assert "machine A" in costs.notes[0]
    assert "machine B" in costs.notes[0]
    assert "scaled by 4" in costs.notes[0]


def test_updates_of_another_optimizer_are_refused() -> None:
    """Adam's update moves three times the bytes of SGD's; a profile of one is no profile of the other."""
    model = replace(small(), optimizer="adam")
    with pytest.raises(BadInput, match="optimizer = 'sgd': updates are wanted with 'adam'"):
        profile_costs(measured(subjects_of(model)), model, 64, HERE)


def test_imported_operators_keep_their_seconds() -> None:
    """A FIXED operator needs no measurement: its own seconds per sample times the batch."""
    op = Operator("x", Kind.FIXED, forward=Work(seconds_per_sample=1e-5), backward=Work(seconds_per_sample=2e-5))
    costs = profile_costs(measured([]), Model("fixed", Graph((op,))), 100, HERE)
    assert costs.ops["x"].total.core_seconds == pytest.approx(3e-3)


def test_backward_is_not_asked_of_operators_that_need_no_gradient() -> None:
    """A concatenation of dense features never runs backward, so it need not have been measured."""
    entry = Operator("dense", Kind.DENSE_INPUT, width=4)
    both = Operator("both", Kind.CONCAT, ("dense", "dense"), 8, backward=Work(bytes_per_sample=9))
    model = Model("m", Graph((entry, both)))
    profile = replace(measured([]), measurements=(Measurement(both.signature, "forward", 64, 1e-6),))
    costs = profile_costs(profile, model, 64, HERE)
    assert costs.ops["both"].forward.core_seconds == 1e-6
    assert costs.ops["both"].backward.core_seconds == 0


def test_dense_features_cost_what_was_measured_or_nothing() -> None:
    """Passing dense features on counts when it was measured, and costs nothing when it was not."""
    model = small()
    profile = measured(subjects_of(model))
    assert profile_costs(profile, model, 64, HERE).ops["dense"].forward.core_seconds == 0
    entry = Measurement(model.graph["dense"].signature, "forward", 64, 2e-6)
    more = replace(profile, measurements=(*profile.measurements, entry)).fitted(subjects_of(model))
    assert profile_costs(more, model, 64, HERE).ops["dense"].forward.core_seconds == 2e-6


def test_imported_operators_are_not_fitted() -> None:
    """Operators known by their costs only have no features; measuring them by accident does no harm."""
    ops = [Operator(f"x{i}", Kind.FIXED, width=i + 1) for i in range(4)]
    entries = tuple(Measurement(op.signature, "forward", 64, 1e-6) for op in ops)
    assert replace(measured([]), measurements=entries).fitted(ops).coefficients == {}


def test_first_layer_and_inner_layer_of_one_shape_are_told_apart() -> None:
    """A layer behind dense features computes no input gradient: half the backward work, so another signature."""
    source = Operator("x", Kind.DENSE_INPUT, width=64)
    first, inner = linear("a", source, 64, input_gradient=False), linear("b", source, 64)
    assert first.signature != inner.signature


def test_repeated_shapes_count_with_their_median() -> None:
    """Three operators of one shape, three measurements: the middle one is used."""
    entries = tuple(Measurement("linear/1", "forward", 64, s) for s in (3e-6, 1e-6, 2e-6))
    assert replace(measured([]), measurements=entries).knots("linear/1", "forward") == ([64], [2e-6])


def test_fitted_finds_core_speed_and_errors() -> None:
    """Core speed is the best rate of a LINEAR forward phase; exact data give held-out errors of nearly nothing."""
    others = assorted()
    profile = measured(others).fitted(others)
    rates = [s.forward.flops_per_sample * 1024 / seconds(s, "forward", 1024) for s in others if is_linear(s)]
    assert profile.flops_per_core_second == pytest.approx(max(rates))
    assert set(profile.coefficients) >= {"linear.forward", "table.lookup", "table.update", "update", "loss.forward"}
    assert profile.batch_residuals["linear.forward"].p95 < 1e-9
    assert profile.shape_residuals["linear.forward"].p95 < 1e-3
    assert profile.shape_residuals["linear.forward"].count == 36


def is_linear(subject: Subject) -> bool:
    return isinstance(subject, Operator) and subject.kind is Kind.LINEAR


def test_fitted_judges_messages_by_sizes_left_out() -> None:
    """Affine points predict a size that was left out exactly; one that is twice as slow shows as a 50 % error."""
    profile = measured([])
    exact = profile.fitted([]).shape_residuals
    assert set(exact) == {"message.send", "message.receive", "next_batch"}
    assert max(error.p95 for error in exact.values()) < 1e-9
    slow = replace(profile.messages[1], send_seconds=2 * profile.messages[1].send_seconds)
    bent = replace(profile, messages=(profile.messages[0], slow, profile.messages[2])).fitted([])
    assert bent.shape_residuals["message.send"].p95 > 0.3
    assert replace(profile, messages=(), next_batch=()).fitted([]).shape_residuals == {}


def test_too_few_shapes_are_not_fitted() -> None:
    """Two tables say nothing about a third."""
    model = small()
    profile = measured(subjects_of(model)).fitted(subjects_of(model))
    assert "table.lookup" not in profile.coefficients
    assert "table.lookup" in profile.batch_residuals


def test_zeros_are_counted_and_do_not_spoil_a_fit() -> None:
    """A measurement of zero seconds is kept, counted and told, and left out of fits on relative error."""
    others = assorted()
    profile = measured(others)
    zero = replace(profile.measurements[0], seconds=0.0)
    spoilt = replace(profile, measurements=(zero, *profile.measurements[1:])).fitted(others)
    assert spoilt.zeros == 1
    assert spoilt.coefficients["linear.forward"] == pytest.approx(
        profile.fitted(others).coefficients["linear.forward"], rel=1e-3
    )
    assert "1 measurements of the profile are zero" in profile_costs(spoilt, small(), 64, HERE).notes


def test_touched_rows_by_hand() -> None:
    """A batch of 1000 ids meets 632 of 1000 rows (1 - 1/e) and nearly 1000 of ten million."""
    small_table, large_table = EmbeddingTable("t", 1000, 4), EmbeddingTable("t", 10**7, 4)
    assert features(small_table, "lookup", 1000)["touched"] == pytest.approx(632.1, abs=0.1)
    assert features(large_table, "lookup", 1000)["touched"] == pytest.approx(1000, rel=1e-3)


@pytest.mark.parametrize("model", [small(), mixed()], ids=["small", "mixed"])
def test_features_have_the_same_names_for_all_of_a_family(model: Model) -> None:
    """Names and order of features depend on the family alone, and no feature is negative."""
    names: dict[str, list[str]] = {}
    for subject in [*subjects_of(model), *assorted()]:
        for phase in phases(subject):
            found = features(subject, phase, 128)
            assert names.setdefault(family(subject, phase), list(found)) == list(found)
            assert min(found.values()) >= 0


def test_table_signature_holds_what_costs_depend_on() -> None:
    """Rows, dimension, ids, optimizer, storage and skew; the name does not matter."""
    table = EmbeddingTable("t", 100, 8, 2.6, optimizer="adagrad")
    assert table_signature(table) == "table/100/8/3/adagrad/fp32/1.05"
    assert table_signature(replace(table, name="u")) == table_signature(table)
    assert table_signature(replace(table, skew=0.0)) != table_signature(table)


def test_saved_profile_comes_back_equal(tmp_path: Path) -> None:
    """Every field through the file and back, fits and residuals too; nothing else is left in the folder."""
    others = assorted()
    profile = measured(others).fitted(others)
    path = tmp_path / "costs.json"
    save_profile(profile, path)
    again = load_profile(path)
    assert again == profile
    assert again.source == str(path)
    assert [file.name for file in tmp_path.iterdir()] == ["costs.json"]
    assert profile_costs(again, small(), 100, HERE).ops == profile_costs(profile, small(), 100, HERE).ops


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk fails while writing, the old profile is still whole and no half file lies beside it."""
    path = tmp_path / "costs.json"
    save_profile(measured(assorted()), path)
    before = path.read_text()

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save_profile(measured([]), path)
    assert path.read_text() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_bad_duration_is_not_saved(tmp_path: Path) -> None:
    """A negative duration is refused before the file is touched."""
    profile = replace(measured([]), measurements=(Measurement("linear/1", "forward", 64, -1.0),))
    with pytest.raises(BadInput, match="linear/1 forward"):
        save_profile(profile, tmp_path / "costs.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("measurements", 1, "seconds"), -1e-6, r"measurements\[1\] \(linear/.* forward\)\.seconds = -1e-06"),
        (("measurements", 1, "seconds"), float("nan"), r"measurements\[1\] \(linear/.* forward\)\.seconds = nan"),
        (("measurements", 1, "spread"), float("inf"), r"\.spread = inf"),
        (("measurements", 0, "seconds"), "fast", r"\.seconds = 'fast'"),
        (("measurements", 0, "phase"), "sideways", r"\.phase = 'sideways'"),
        (("measurements", 0, "batch"), 0, r"\.batch = 0"),
        (("measurements", 0, "colour"), 1, r"\.colour = 1"),
        (("messages", 0, "send_seconds"), -1, r"messages\[0\]\.send_seconds = -1"),
        (("machine",), "", "machine = ''"),
        (("flops_per_core_second",), 0, "flops_per_core_second = 0"),
        (("format_version",), 2, "format_version = 2: 1"),
        (("format",), "other", "format = 'other': 'hiertrain-profile'"),
        (("surprise",), 1, "surprise = 1"),
    ],
)
def test_bad_values_are_refused_by_name(tmp_path: Path, path: tuple[Any, ...], value: Any, named: str) -> None:
    """One line names the file, the operator and phase where there is one, and the field."""
    file = tmp_path / "costs.json"
    save_profile(measured(subjects_of(small())), file)
    doc = json.loads(file.read_text())
    inner = doc
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    file.write_text(json.dumps(doc))
    with pytest.raises(BadInput, match=named) as caught:
        load_profile(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1, "format": 2}'])
def test_files_that_are_no_profile_are_refused(tmp_path: Path, text: str) -> None:
    """Empty files, lists, broken JSON and keys given twice are bad input, not tracebacks."""
    file = tmp_path / "costs.json"
    file.write_text(text)
    with pytest.raises(BadInput):
        load_profile(file)


def test_a_missing_file_is_bad_input(tmp_path: Path) -> None:
    """A path without a file gives one line."""
    with pytest.raises(BadInput, match=r"none\.json"):
        load_profile(tmp_path / "none.json")
