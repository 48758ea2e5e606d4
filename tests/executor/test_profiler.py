"""The profiler: everything that a cost table needs is measured, whatever the numbers are on this machine."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.features import Subject
from cost_models.memory import step_bytes
from cost_models.profile import signature
from cost_models.profile_costs import profile_costs
from executor.profile_messages import measure_messages, trimmed_mean
from executor.profiler import in_context_plan, measure_model, variation, with_messages
from problem.errors import BadInput
from problem.graph import Kind
from problem.local import fingerprint, this_node
from problem.model import Model
from tests.executor.tiny import dlrm, tables
from tests.programs import plans

pytestmark = pytest.mark.timeout(60)

BATCHES = (8, 32)
MESSAGES = ((1 << 10, 1), (1 << 16, 32), (1 << 18, 1))


@pytest.fixture(scope="module", params=["tiny_dlrm", "tiny_dcn", "tiny_branches"])
def model(request: pytest.FixtureRequest) -> Model:
    """A model of each family."""
    found: Model = request.getfixturevalue(request.param)
    return found


def test_every_phase_of_every_operator_and_table_is_measured(model: Model) -> None:
    """Forward of all, backward of those that need a gradient, update of those with parameters, lookup and update of
    tables and what their shards take; at each batch, in seconds above zero that a cost table takes."""
    told: list[str] = []
    profile = measure_model(model, BATCHES, steps=3, watch=told.append)
    assert told == [f"{model.name}, batch {batch}" for batch in BATCHES]
    wanted: set[tuple[str, str, int]] = set()
    for batch in BATCHES:
        for op in (op for op in model.graph if op.kind is not Kind.LOOKUP):
            phases = ["forward"] + ["backward"] * model.graph.needs_gradient[op.name] + ["update"] * bool(op.parameters)
            wanted |= {(op.signature, phase, batch) for phase in phases}
        phases = ["lookup", "update", "shard_lookup", "shard_update"]
        wanted |= {(signature(table), phase, batch) for table in model.tables for phase in phases}
    assert {(m.signature, m.phase, m.batch) for m in profile.measurements} == wanted
    assert all(m.seconds > 0 for m in profile.measurements)
    assert profile.machine == fingerprint()
    costs = profile_costs(profile, model, 16, this_node())
    assert all(cost.forward.core_seconds > 0 for cost in costs.ops.values())
    assert all(cost.lookup.core_seconds > 0 and cost.update.core_seconds > 0 for cost in costs.tables.values())
    assert all(0 < cost.shard_lookup.core_seconds <= cost.lookup.core_seconds for cost in costs.tables.values())
    assert all(0 < cost.shard_update.core_seconds <= cost.update.core_seconds for cost in costs.tables.values())
    assert costs.next_batch_seconds > 0
    assert costs.metric_seconds > 0


def test_a_profile_of_this_machine_is_not_used_for_another(tiny_dlrm: Model) -> None:
    """Costs for a machine of another kind are refused unless they are asked for."""
    profile = measure_model(tiny_dlrm, (8,), steps=3)
    with pytest.raises(BadInput, match="machine"):
        profile_costs(profile, tiny_dlrm, 8, plans.machine("other"))


def test_messages_sums_and_elastic_updates_have_costs(tiny_dlrm: Model) -> None:
    """Two processes time messages; every end of every size costs something, and so does a byte added or exchanged."""
    points = measure_messages(MESSAGES, 1 << 16, repetitions=8)
    assert [(point.bytes, point.tensors) for point in points] == list(MESSAGES)
    assert all(point.send_seconds > 0 and point.receive_seconds > 0 and point.sum_seconds > 0 for point in points)


def test_a_whole_profile_is_fitted(tiny_dlrm: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """With messages, the fit gives costs to every part of a cost table."""
    monkeypatch.setattr("executor.profiler.MESSAGES", MESSAGES)
    steps = [step_bytes(tiny_dlrm, batch) for batch in BATCHES]
    profile = with_messages(measure_model(tiny_dlrm, BATCHES, steps=3), steps)
    touched = list(dict.fromkeys(point.touched_bytes for point in profile.messages))
    assert min(steps) == touched[0] < touched[1] < touched[2]
    subjects: list[Subject] = [*tiny_dlrm.graph, *tiny_dlrm.tables]
    costs = profile_costs(profile.fitted(subjects), tiny_dlrm, 16, this_node())
    assert costs.message.send(1 << 14, 1) > 0
    assert costs.message.receive(1 << 14, 1) > 0
    assert costs.sum_seconds_per_byte > 0
    assert costs.exchange_seconds_per_byte > 0


def test_a_table_is_measured_on_a_server_of_its_own(tiny_branches: Model) -> None:
    """The plan that is measured has one server a table, so that each lookup and each update is an instruction."""
    plan = in_context_plan(tiny_branches, 8, this_node())
    assert [shard.server for shard in plan.shards] == [0, 1, 2]
    assert set(plan.tags.values()) == {"dp"}


def test_variation_is_that_of_a_normal_distribution_whatever_the_outliers() -> None:
    """Steps of 10 ms with a standard deviation of 0.5 ms vary by 5 %, also if one of twenty takes ten times as long."""
    steps = np.random.default_rng(0).normal(10e-3, 0.5e-3, 20_000)
    assert variation(steps) == pytest.approx(0.05, rel=0.03)
    steps[::20] *= 10
    assert variation(steps) == pytest.approx(0.05, rel=0.15)


def test_a_machine_that_slows_down_for_a_while_is_no_variation() -> None:
    """A tenth of the steps twice as slow, in one stretch: what differs from one step to the next is as it was."""
    steps = np.random.default_rng(0).normal(10e-3, 0.5e-3, 20_000)
    steps[18_000:] += 10e-3
    assert variation(steps) == pytest.approx(0.05, rel=0.03)


def test_trimmed_mean_leaves_out_a_tenth_at_both_ends() -> None:
    """Of ten values the smallest and the largest, of fewer none."""
    assert trimmed_mean(np.array([1000.0, 2, 3, 4, 5, 6, 7, 8, 9, -1000.0])) == 5.5
    assert trimmed_mean(np.array([1.0, 2.0, 6.0])) == 3.0


def test_shapes_alike_are_measured_once_per_batch_each() -> None:
    """Two tables of one shape give two measurements under one signature; the cost table takes both into account."""
    model = dlrm([3, 4], tables(2, 9, 4), [1])
    profile = measure_model(model, (8,), steps=3)
    lookups = [m for m in profile.measurements if m.phase == "lookup"]
    assert len(lookups) == 2
    assert len({m.signature for m in lookups}) == 1
