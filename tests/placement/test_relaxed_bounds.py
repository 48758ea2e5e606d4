"""Relaxed group problems: their bound holds for every sharding and every placement of the shape, and of harder shapes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.costs import CostTable
from cost_models.roofline import roofline_costs
from placement.evaluation.evaluate import evaluate
from placement.evaluation.group import GroupProblem, server_links
from placement.plan import DP, Shard, Tag
from placement.search.bounds import Bounds
from placement.search.shapes import Shape
from placement.tables.shares import split_features
from placement.tagging.candidates import tags_of
from placement.tagging.limits import Limits
from placement.tagging.nets import Contracted
from placement.tagging.solve import solve_group
from problem.model import Model
from tests.instances import nodes
from tests.placement.test_search import _model

MODEL = _model(tables=3, rows=100, pooling=30.0)
MACHINES = nodes(6, latency_seconds=1e-5)
COSTS = roofline_costs(MODEL, MODEL.batch, MACHINES[0])


def _shape(size: int, servers: int) -> Shape:
    return Shape(size, (MACHINES[:size],), MACHINES[6 - servers :], (), size)


def _bounds(model: Model = MODEL, costs: CostTable = COSTS) -> Bounds:
    return Bounds(model, costs, model.batch, 2, {}, local=False)


def _drawn_shards(data: st.DataObject, servers: int) -> tuple[Shard, ...]:
    """Each table cut at drawn rows over drawn servers, every server in use."""
    shards: list[Shard] = []
    for table in MODEL.tables:
        used = data.draw(st.permutations(range(servers)))[: data.draw(st.integers(1, servers))]
        edges = [table.rows * i // len(used) for i in range(len(used) + 1)]
        shards += [Shard(table.name, server, edges[i], edges[i + 1]) for i, server in enumerate(used)]
    missing = set(range(servers)) - {shard.server for shard in shards}
    if missing:  # every server of a shape holds rows: cut the first table over all of them
        rows = MODEL.tables[0].rows
        shards = [shard for shard in shards if shard.table != "t0"]
        shards += [Shard("t0", p, rows * p // servers, rows * (p + 1) // servers) for p in range(servers)]
    return tuple(shards)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_relaxed_bound_holds_for_every_sharding_and_placement(data: st.DataObject) -> None:
    """Whatever shards and tags are drawn, the step is at least what was proven for the relaxed problem."""
    size, servers = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    shape, bounds = _shape(size, servers), _bounds()
    limits = Limits(deterministic_seconds=0.5, rounds=5)
    proven = solve_group(Contracted(bounds.relaxed(shape)), limits).bound_seconds
    shards = _drawn_shards(data, servers)
    links = server_links(MODEL, MODEL.batch, shape.servers, shards, COSTS)
    problem = GroupProblem(
        MODEL, COSTS, shape.groups[0], MODEL.batch, 2, size, servers=links, split_tables=split_features(MODEL, shards)
    )
    items = Contracted(problem).items
    choices: list[Tag] = [DP, *range(size)]
    chosen = {
        item.name: item.fixed if item.fixed is not None else data.draw(st.sampled_from(choices)) for item in items
    }
    assert evaluate(problem, tags_of(items, chosen)).seconds >= proven * (1 - 1e-9)


def test_what_was_proven_is_used_only_where_no_less_is_pulled() -> None:
    """A proof for two servers raises shapes with two and three, not with one, nor groups of another size."""
    bounds = _bounds()
    bounds.learn(_shape(2, 2), 7.0)
    assert bounds.raised(_shape(2, 2)).bound_seconds == 7.0
    assert bounds.raised(_shape(2, 3)).bound_seconds == 7.0
    assert bounds.raised(_shape(2, 1)).bound_seconds == 0.0
    assert bounds.raised(_shape(3, 2)).bound_seconds == 0.0
    assert bounds.knows(_shape(2, 1))


def test_buffers_count_when_the_fewest_shards_are_counted() -> None:
    """A table that fills two servers to the byte needs a third one for the buffers of the sessions."""
    rows = 2 * MACHINES[0].memory_bytes // MODEL.tables[0].bytes_per_row
    model = replace(MODEL, tables=(replace(MODEL.tables[0], rows=rows), *MODEL.tables[1:]))
    assert _bounds(model).fewest_shards(_shape(2, 3)) == 3 + 2
