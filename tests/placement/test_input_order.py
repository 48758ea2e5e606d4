"""Same input in another order, same plan."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from placement.result import PlacementResult
from placement.search.job import solve
from placement.search.options import SolveOptions
from problem.cluster import Cluster
from problem.expand import expand_model
from problem.schema import ModelSpec
from tests.instances import node


def _solved(seed: int, *, unlike: bool) -> PlacementResult:
    """Plan a job whose tables and machines are listed in an order drawn from the seed; 0: by name."""
    draw = random.Random(seed)
    tables = [{"name": f"t{i}", "rows": 1000 * (1 + i % 3), "pooling_factor": 1.0 + i % 2} for i in range(12)]
    machines = [node(f"n{i}", cores=8.0 if unlike and i % 3 else 16.0) for i in range(12)]
    if seed:
        draw.shuffle(tables)
        draw.shuffle(machines)
    spec = ModelSpec(
        name="small",
        dense_features=13,
        bottom_mlp=(64, 16),
        top_mlp=(256, 128, 1),
        embedding_dim=16,
        interaction="dot",
        batch=64,
        tables=tables,
    )
    options = SolveOptions(max_replicas=2, hogwild=2, gap=0.02, time_limit_seconds=60)
    return solve(expand_model(spec, "test"), Cluster("c", tuple(machines)), None, options)


by_name = cache(_solved)


@pytest.mark.parametrize("unlike", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_tables_and_machines_changes_nothing(seed: int, unlike: bool) -> None:
    """Tables, and so features and look-ups, and machines in any order: same groups, tags, shards, value and bound."""
    mine, theirs = by_name(0, unlike=unlike), _solved(seed, unlike=unlike)
    assert theirs.plan.tags == mine.plan.tags
    assert theirs.plan.groups == mine.plan.groups
    assert theirs.plan.servers == mine.plan.servers
    assert theirs.plan.shards == mine.plan.shards
    assert (theirs.objective, theirs.bound) == (mine.objective, mine.bound)
    assert [table.name for table in theirs.plan.model.tables] != [table.name for table in mine.plan.model.tables]
    assert replace(theirs.plan, model=mine.plan.model) == mine.plan
