"""Warm starts and re-planning: never worse than what was there, little moved, and what is moved is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.roofline import roofline_costs
from placement.plan import Plan, Shard
from placement.result import PlacementResult
from placement.search.job import solve
from placement.search.options import SolveOptions, sync_of
from placement.search.replan import Previous, moved_bytes
from placement.search.shapes import Shapes
from problem.cluster import Cluster, Node
from problem.errors import BadInput
from problem.model import Model
from tests.instances import node, nodes
from tests.placement.test_search import QUICK, _model


def _solve(model: Model, machines: tuple[Node, ...], options: SolveOptions = QUICK) -> PlacementResult:
    return solve(model, Cluster("c", machines), lambda batch, node: roofline_costs(model, batch, node), options)


def _plan(model: Model, machines: tuple[Node, ...], servers: int, shards: tuple[Shard, ...], **changes: object) -> Plan:
    """All data-parallel on the first machines, the last ones serve."""
    tags = dict.fromkeys((op.name for op in model.graph if op.kind != "lookup"), "dp")
    settings: dict[str, object] = {"hogwild": 2, "ranks": len(machines) - servers}
    return Plan(
        model,
        (machines[:-servers],),
        machines[-servers:],
        model.batch,
        tags,  # type: ignore[arg-type]
        shards,
        **(settings | changes),  # type: ignore[arg-type]
    )


def _whole(model: Model, servers: int) -> tuple[Shard, ...]:
    return tuple(Shard(table.name, i % servers, 0, table.rows) for i, table in enumerate(model.tables))


def test_moved_bytes_by_hand() -> None:
    """A table on another server moves its bytes; an operator moves its own to each rank that did not hold it."""
    model, machines = _model(tables=2), nodes(4)
    old = _plan(model, machines, 2, _whole(model, 2))
    assert moved_bytes(old, old) == 0
    swapped = replace(old, shards=(Shard("t0", 0, 0, model.tables[0].rows), Shard("t1", 0, 0, model.tables[1].rows)))
    assert moved_bytes(old, swapped) == model.tables[1].total_bytes
    dense = sum(op.parameters for op in model.graph) * 4
    other = replace(old, groups=((machines[0], node("new")),))
    assert moved_bytes(old, other) == dense
    assert moved_bytes(old, replace(old, tags={**old.tags, "top_0": 0})) == 0
    table, (rows, dim) = model.tables[1], (model.tables[1].rows, model.tables[1].dim)
    strips = (Shard("t1", 1, 0, rows, (0, 3)), Shard("t1", 0, 0, rows, (3, dim)))
    assert moved_bytes(old, replace(old, shards=(old.shards[0], *strips))) == rows * table.row_bytes(dim - 3)


def test_warm_start_is_never_worse_even_without_time() -> None:
    """With no time at all the earlier plan is returned, or a better one, and nothing is moved for nothing."""
    model, machines = _model(tables=4, pooling=20.0), nodes(9)
    best = _solve(model, machines)
    options = replace(QUICK, warm_start=best.plan, time_limit_seconds=0.0)
    again = _solve(model, machines, options)
    assert again.objective >= best.objective * (1 - 1e-9)
    assert again.moved_bytes == 0
    assert again.as_dict()["moved_bytes"] == 0


def test_bad_warm_start_is_improved() -> None:
    """A plan that leaves machines idle is only where the search starts."""
    model, machines = _model(), nodes(6)
    poor = _plan(model, machines[:3], 1, _whole(model, 1))
    result = _solve(model, machines, replace(QUICK, warm_start=poor))
    assert result.objective > evaluate_rate(poor, model) * 1.2
    assert result.objective == pytest.approx(_solve(model, machines, replace(QUICK, hogwild=2)).objective, rel=0.01)


def evaluate_rate(plan: Plan, model: Model) -> float:
    """Samples per second of a plan."""
    options = replace(QUICK, warm_start=plan, time_limit_seconds=0.0)
    return _solve(model, (*plan.groups[0], *plan.servers), options).objective


def test_lost_server_moves_only_what_it_held() -> None:
    """With a high price on movement, only the tables of the lost server are placed anew, and the rest stays."""
    model, machines = _model(tables=6, pooling=2.0), nodes(7)
    old = _plan(model, machines, 3, _whole(model, 3))
    held = sum(table.total_bytes for i, table in enumerate(model.tables) if i % 3 == 1)
    options = replace(QUICK, warm_start=old, movement_seconds_per_byte=1.0, group_size=4)
    result = _solve(model, tuple(n for n in machines if n.name != old.servers[1].name), options)
    assert result.moved_bytes == held == moved_bytes(old, result.plan)


def test_lost_trainer_moves_nothing_but_what_is_worth_it() -> None:
    """All data-parallel, a lost rank takes nothing with it: the others hold everything already."""
    model, machines = _model(tables=2, pooling=2.0), nodes(5)
    old = _plan(model, machines, 1, _whole(model, 1))
    options = replace(QUICK, warm_start=old, movement_seconds_per_byte=1.0)
    result = _solve(model, machines[1:], options)
    assert result.moved_bytes == 0
    assert len(result.plan.groups[0]) == 3


def test_price_of_movement_trades_throughput_for_bytes() -> None:
    """The higher the price of a byte, the fewer are moved after a node is added, and the less is gained."""
    model, machines = _model(tables=6, pooling=60.0), nodes(6)
    old = _plan(model, machines[:5], 2, _whole(model, 2))
    options = replace(QUICK, warm_start=old, max_replicas=1, gap=0.02)
    found = [_solve(model, machines, replace(options, movement_seconds_per_byte=price)) for price in (0.0, 1e-11, 1.0)]
    moved = [result.moved_bytes or 0 for result in found]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] == 0
    assert found[0].objective >= found[-1].objective


def test_plan_of_another_model_is_refused() -> None:
    """A warm start for other tables names the first one that differs."""
    old = _plan(_model(tables=2), nodes(4), 1, _whole(_model(tables=2), 1))
    with pytest.raises(BadInput, match="warm start: tables"):
        _solve(_model(tables=2, pooling=9.0), nodes(4), replace(QUICK, warm_start=old))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_aligned_shards_have_the_same_sizes(data: st.DataObject) -> None:
    """Whatever the sizes, aligned shards tile the table, and keep each server's number of rows."""
    model, machines = _model(tables=1), nodes(5)
    rows, machine = model.tables[0].rows, data.draw(st.permutations(range(4)))
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), min_size=2, max_size=2)))
    edges = [0, *cuts, rows]
    old = _plan(model, machines, 4, tuple(Shard("t0", machine[i], edges[i], edges[i + 1]) for i in range(3)))
    new = sorted(data.draw(st.lists(st.integers(0, rows), min_size=3, max_size=3)))
    sizes = [b - a for a, b in zip([0, *new], [*new, rows], strict=True)]
    begins = [sum(sizes[:p]) for p in range(4)]
    shards = [Shard("t0", p, begins[p], begins[p] + sizes[p]) for p in range(4) if sizes[p]]
    aligned = Previous(old).aligned(old.servers, shards)
    assert sorted((s.server, s.rows) for s in aligned) == sorted((s.server, s.rows) for s in shards)
    position = 0
    for shard in sorted(aligned, key=lambda s: s.row_begin):
        assert shard.row_begin == position
        position = shard.row_end
    assert position == rows


def test_bug_the_number_of_groups_of_a_warm_start_was_cut_to_the_default() -> None:
    """A plan of 17 groups, which somebody allowed, was followed by one of 15: the default, which nobody asked for."""
    model, machines = _model(), nodes(20)
    best = _solve(model, machines, replace(QUICK, max_replicas=17, hogwild=1, group_size=1, servers=1, gap=0.5))
    assert len(best.plan.groups) == 17
    options = SolveOptions(warm_start=best.plan, time_limit_seconds=0.0)
    again = _solve(model, machines, options)
    assert again.objective >= best.objective * (1 - 1e-9)
    fewer = _solve(model, machines, replace(options, max_replicas=4))
    assert len(fewer.plan.groups) <= 4


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("mode", ["background", "foreground"])
def test_no_result_is_worse_than_its_warm_start(size: int, ranks: int, mode: str) -> None:
    """Plans with fewer ranks, groups and servers than a search would choose, whatever the sync mode: time or not."""
    model, machines = _model(), nodes(9)
    plan = replace(
        _plan(model, machines[-size - 1 :], 1, _whole(model, 1), ranks=ranks),
        groups=(machines[:size], machines[size : 2 * size]),
        sync_servers=machines[-2:-1],
        sync=sync_of(SolveOptions(), 2),
    )
    options = replace(QUICK, warm_start=plan, sync_mode=mode, max_replicas=None, gap=0.9)  # type: ignore[arg-type]
    start = _solve(model, machines, replace(options, time_limit_seconds=0.0))
    assert _solve(model, machines, options).objective >= start.objective * (1 - 1e-9)
    assert (start.plan.group_size, start.plan.ranks, len(start.plan.groups)) == (size, ranks, 2)


def test_ranks_and_groups_of_a_warm_start_are_tried_where_they_are_left_open() -> None:
    """Without a machine of the plan its groups of three with two ranks are still among the shapes, as many as before."""
    model, machines = _model(), nodes(12)
    plan = _plan(model, machines[:4], 1, _whole(model, 1), ranks=2)
    costs = roofline_costs(model, model.batch, machines[0])
    for order in (None, Previous(plan)):
        shapes = Shapes(model, Cluster("c", machines[1:]), costs, SolveOptions(), model.batch, 2, order=order).all()
        forms = {(s.group_size, s.ranks, len(s.groups)) for s in shapes}
        assert ((3, 2, len(plan.groups)) in forms) == (order is not None)
        assert (3, 3, 3) in forms
