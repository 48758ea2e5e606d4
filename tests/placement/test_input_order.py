"""Same input in another order, same plan."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from placement.result import PlacementResult
from placement.search.input_order import ordered_graph
from placement.search.job import solve
from placement.search.options import SolveOptions
from problem.cluster import Cluster
from problem.expand import expand_model
from problem.graph import Graph, Kind, Operator, Work
from problem.model import Model
from problem.presets import model_presets
from problem.readers import load_model
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


def _imported(draw: random.Random) -> tuple[list[Operator], SolveOptions]:
    """A random graph of measured operators with several ends, and demands on some of them."""
    ops: list[Operator] = []
    for number in range(draw.randint(5, 9)):
        inputs = draw.sample([op.name for op in ops], min(len(ops), draw.randint(0, 3)))
        work, size = Work(seconds_per_sample=10 ** draw.uniform(-5, -3)), draw.choice([0, 1000, 100_000])
        ops.append(Operator(f"v{number * 7 % 10}", Kind.FIXED, tuple(inputs), 64, size, forward=work, backward=work))
    first, second, third = draw.sample([op.name for op in ops], 3)
    demands = {"pins": {first: 0, second: "dp"}, "forbids": ((third, 1), (first, 1))}
    return ops, SolveOptions(
        max_replicas=2, hogwild=draw.choice([1, 4]), gap=0.0, time_limit_seconds=60, group_size=2, **demands
    )


def _listed(ops: list[Operator], options: SolveOptions, draw: random.Random | None) -> PlacementResult:
    """Plan with operators, links, machines and demands as they are, or in an order that is drawn."""
    machines = [node(f"n{i}", cores=8.0 if i % 3 else 16.0, nic_bytes_per_second=1e8) for i in range(5)]
    if draw:
        ops = [replace(op, inputs=tuple(draw.sample(op.inputs, len(op.inputs)))) for op in draw.sample(ops, len(ops))]
        draw.shuffle(machines)
        options = replace(options, pins=dict(reversed(options.pins.items())), forbids=options.forbids[::-1])
    return solve(Model("imported", Graph(tuple(ops)), batch=16), Cluster("c", tuple(machines)), None, options)


def _same_plans(seeds: range) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        ops, options = _imported(draw)
        mine, theirs = _listed(ops, options, None), _listed(ops, options, draw)
        assert theirs.plan == mine.plan, seed
        assert (theirs.objective, theirs.bound) == (mine.objective, mine.bound), seed


def test_the_order_of_operators_and_links_changes_nothing() -> None:
    """3 random imported graphs, operators, links, machines and demands listed in another order: the same plan and bound."""
    _same_plans(range(3))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_order_of_operators_and_links_changes_nothing_on_many() -> None:
    """The same on 100."""
    _same_plans(range(100))


@pytest.mark.parametrize("preset", sorted(model_presets()))
def test_models_of_presets_are_in_that_order(preset: str) -> None:
    """What a plan runs is the order of the preset; of the same operators in any other order it is the same."""
    graph = load_model(preset).graph
    assert ordered_graph(graph) == graph
    shuffled = random.Random(1).sample(graph.operators, len(graph))
    assert ordered_graph(Graph(tuple(shuffled))) == graph
