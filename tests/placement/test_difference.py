"""The difference between two plans: what they say differently, what that is worth, and what must be moved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models.memory import resident_bytes
from cost_models.roofline import roofline_costs
from placement.difference import Change, difference
from placement.plan import DP, Plan, Shard
from placement.planfile import LoadedPlan
from problem.errors import BadInput
from problem.expand import ModelSpec, expand_model
from problem.graph import Kind
from tests.instances import node, nodes

SPEC = ModelSpec(
    name="small", dense_features=4, bottom_mlp=(8,), top_mlp=(16, 1), embedding_dim=8, interaction="concat", batch=8,
    tables=[{"name": "a", "rows": 100}, {"name": "b", "rows": 60}],
)  # fmt: skip
MODEL = expand_model(SPEC, "test")
TAGS = dict.fromkeys((op.name for op in MODEL.graph if op.kind is not Kind.LOOKUP), DP)
SHARDS = (Shard("a", 0, 0, 100), Shard("b", 1, 0, 60))
PLAN = Plan(MODEL, (nodes(2),), (node("ps0"), node("ps1")), 8, TAGS, SHARDS, ranks=2)


def _loaded(plan: Plan) -> LoadedPlan:
    return LoadedPlan(plan, roofline_costs(plan.model, plan.batch, plan.groups[0][0]), {})


def test_same_plan_has_no_difference() -> None:
    """Nothing changes, nothing moves, and both do the same."""
    found = difference(_loaded(PLAN), _loaded(PLAN))
    assert found.changes == ()
    assert found.moved_bytes == 0
    assert found.before == found.after


def test_each_decision_that_differs_is_a_row() -> None:
    """A layer on node 1, a table on another server, a codec and more threads are four rows; the table and the layer move."""
    tags, shards = {**TAGS, "top_0": 1}, (SHARDS[0], Shard("b", 0, 0, 60))
    found = difference(
        _loaded(PLAN), _loaded(replace(PLAN, tags=tags, shards=shards, hogwild=3, codecs={"allreduce": "bf16"}))
    )
    assert found.changes == (
        Change("threads a rank", "1", "3"),
        Change("operator top_0", "data-parallel", "node 1"),
        Change("table b", "ps1", "ps0"),
        Change("codec of allreduce", "fp32", "bf16"),
    )
    assert found.moved_bytes == MODEL.table["b"].total_bytes  # node 1 held the layer already
    assert resident_bytes(MODEL.graph["top_0"], MODEL) > 0
    assert found.before != found.after


def test_plans_of_unlike_models_are_refused() -> None:
    """Two models have no difference of plans."""
    other = expand_model(SPEC.model_copy(update={"top_mlp": (32, 1)}), "test")
    with pytest.raises(BadInput, match="same model"):
        difference(_loaded(PLAN), _loaded(replace(PLAN, model=other)))
