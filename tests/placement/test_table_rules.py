"""Pins, keep-together and keep-apart of tables: kept in every plan, refused by name where they contradict."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cost_models.costs import CostTable, PhaseCost, TableCost
from cost_models.roofline import roofline_costs
from placement.errors import ConstraintsConflict, DoesNotFit
from placement.plan import Shard
from placement.search import solve
from placement.shapes import SolveOptions
from placement.sharding import ShardingOptions, ShardingResult, shard_tables
from placement.table_rules import TableRules, resolve_rules
from problem.cluster import Cluster
from problem.errors import BadInput
from problem.expand import lookup
from problem.graph import Graph
from problem.model import EmbeddingTable, Model
from tests.instances import nodes
from tests.placement.test_search import _model as job


def _model(count: int, rows: int = 1000) -> Model:
    tables = tuple(EmbeddingTable(f"t{i}", rows, 16, 1.0 + i) for i in range(count))
    return Model("tables", Graph(tuple(lookup(table) for table in tables)), tables)


def _shard(model: Model, servers: int, rules: TableRules, memory: int = 10**9, **options: bool) -> ShardingResult:
    machines = nodes(servers, memory_bytes=memory)
    chosen = ShardingOptions(rules=rules, deterministic_seconds=0.2, **options)
    return shard_tables(model, 128, machines, roofline_costs(model, 128, machines[0]), chosen)


def _servers(shards: tuple[Shard, ...], table: str) -> set[int]:
    return {shard.server for shard in shards if shard.table == table and shard.rows}


def test_rules_are_kept() -> None:
    """A pinned table is whole on its server, tables together are whole on one, tables apart share none."""
    model = _model(8)
    rules = resolve_rules(model, {"t7": 2}, [("t0", "t6")], [("t6", "t7", "t5")])
    shards = _shard(model, 3, rules).shards
    assert _servers(shards, "t7") == {2}
    assert _servers(shards, "t0") == _servers(shards, "t6")
    assert len(_servers(shards, "t0")) == 1
    assert not _servers(shards, "t5") & (_servers(shards, "t6") | {2})


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_drawn_rules_are_kept(data: st.DataObject) -> None:
    """Whatever rules are drawn, a sharding that is returned keeps them and its load is at least its bound."""
    model, servers = _model(data.draw(st.integers(2, 7))), data.draw(st.integers(1, 4))
    names = st.lists(st.sampled_from(list(model.table)), min_size=2, max_size=3, unique=True)
    pins = data.draw(st.dictionaries(st.sampled_from(list(model.table)), st.integers(0, servers - 1), max_size=2))
    together, apart = data.draw(st.lists(names, max_size=2)), data.draw(st.lists(names, max_size=1))
    try:
        rules = resolve_rules(model, pins, together, apart)
        found = _shard(model, servers, rules)
    except (ConstraintsConflict, DoesNotFit):
        assume(False)
        return
    assert found.bound_seconds <= found.max_load_seconds * (1 + 1e-9)
    assert all(_servers(found.shards, table) == {server} for table, server in pins.items())
    for tables in together:
        assert len(set().union(*(_servers(found.shards, table) for table in tables))) == 1
    for tables in apart:
        held = [server for table in tables for server in sorted(_servers(found.shards, table))]
        assert len(held) == len(set(held))


@pytest.mark.parametrize("seed", range(4))
def test_exhaustive_search_with_rules(seed: int) -> None:
    """On small instances of whole tables the sharding with rules is the best of all assignments that keep them."""
    model, servers = _model(6), 3
    rules = resolve_rules(model, {"t1": seed % 3}, [("t0", "t3")], [("t3", "t5")])
    work = {f"t{i}": float(1 + (seed * 5 + i * i * 3) % 11) for i in range(6)}
    costs = CostTable(1, {}, {t: TableCost(PhaseCost(c), PhaseCost()) for t, c in work.items()}, kind="tiny")
    best = min(
        max(sum(work[f"t{i}"] for i, at in enumerate(choice) if at == p) / 4 for p in range(servers))
        for choice in product(range(servers), repeat=6)
        if choice[1] == seed % 3 and choice[0] == choice[3] and choice[3] != choice[5]
    )
    options = ShardingOptions(local=True, rules=rules, row_splits=False)
    result = shard_tables(model, 1, nodes(servers), costs, options)
    assert result.max_load_seconds == pytest.approx(best, rel=2e-3)
    assert result.bound_seconds <= best * (1 + 1e-9)


@pytest.mark.parametrize(
    ("pins", "together", "apart", "named"),
    [
        ({"t0": 0, "t*": 1}, [], [], ("t0",)),
        ({"t0": 0, "t1": 1}, [("t0", "t1")], [], ("t0", "t1")),
        ({}, [("t0", "t1"), ("t1", "t2")], [("t0", "t2")], ("t0", "t2")),
        ({"t0": 1, "t1": 1}, [], [("t0", "t1")], ("t0", "t1")),
    ],
)
def test_contradictions_name_the_tables(
    pins: dict[str, int], together: list[tuple[str, ...]], apart: list[tuple[str, ...]], named: tuple[str, ...]
) -> None:
    """Two pins for one table, together but pinned apart, together and apart, apart but pinned together: refused."""
    with pytest.raises(ConstraintsConflict) as caught:
        resolve_rules(_model(4), pins, together, apart)
    assert caught.value.names == named
    assert all(name in str(caught.value) for name in named)


def test_unknown_tables_and_single_ones_are_bad_input() -> None:
    """A name that matches no table, a negative server and a set of one table are refused as input."""
    model = _model(3)
    with pytest.raises(BadInput, match="nothing"):
        resolve_rules(model, {"nothing": 0})
    with pytest.raises(BadInput, match="-1"):
        resolve_rules(model, {"t0": -1})
    with pytest.raises(BadInput, match="at least two"):
        resolve_rules(model, {}, [("t0",)])


def test_rules_that_exceed_memory_or_servers_name_the_tables() -> None:
    """Tables together or pinned that no server holds, more tables apart than servers: refused with bytes or counts."""
    model = _model(4, rows=10**6)  # 64 MB each
    for rules in (TableRules(together=(("t0", "t1"),)), TableRules(pins={"t0": 0, "t1": 0})):
        with pytest.raises(ConstraintsConflict, match=r"'t0', 't1'.*short") as caught:
            _shard(model, 4, rules, memory=10**8)
        assert caught.value.names == ("t0", "t1")
    with pytest.raises(ConstraintsConflict, match="they need 3 embedding servers, there are 2"):
        _shard(model, 2, TableRules(apart=(("t0", "t1", "t2"),)))
    with pytest.raises(ConstraintsConflict, match="pinned to server 5"):
        _shard(model, 2, TableRules(pins={"t0": 5}))


def test_rules_reach_the_plan() -> None:
    """The search uses at least as many servers as the rules need, and its plan keeps them."""
    model = job(tables=4, pooling=20.0)
    options = SolveOptions(hogwild=2, time_limit_seconds=10, gap=0.02, table_pins={"t3": 1}, keep_apart=(("t0", "t1"),))
    plan = solve(model, Cluster("c", nodes(6)), lambda b, n: roofline_costs(model, b, n), options).plan
    assert _servers(plan.shards, "t3") == {1}
    assert not _servers(plan.shards, "t0") & _servers(plan.shards, "t1")


def test_search_refuses_rules_that_no_shape_can_keep() -> None:
    """More tables apart than machines, or together than a machine holds: the search says so, with their names."""
    model = job(tables=4)
    with pytest.raises(ConstraintsConflict, match="kept apart"):
        solve(
            model,
            Cluster("c", nodes(3)),
            lambda b, n: roofline_costs(model, b, n),
            SolveOptions(keep_apart=(("t*",),)),
        )
    heavy = replace(model, tables=tuple(replace(table, rows=10**7) for table in model.tables))
    with pytest.raises(ConstraintsConflict, match=r"'t0', 't1'.* kept together"):
        solve(
            heavy,
            Cluster("c", nodes(5, memory_bytes=10**9)),
            lambda b, n: roofline_costs(heavy, b, n),
            SolveOptions(hogwild=1, keep_together=(("t0", "t1"),)),
        )
