"""Pins, keep-together, keep-apart and what is forbidden of tables: kept in every plan, refused where they contradict."""

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
from placement.search.demands import broken
from placement.search.job import solve
from placement.search.options import SolveOptions
from placement.tables.sharding import ShardingOptions, ShardingResult, shard_tables
from placement.tables.table_rules import TableRules, resolve_rules
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
    what = st.sampled_from(["row", "column", *range(servers)])
    forbids = data.draw(st.lists(st.tuples(st.sampled_from(list(model.table)), what), max_size=4))
    memory = data.draw(st.sampled_from([10**9, 90_000, 200_000]))
    try:
        rules = resolve_rules(model, pins, together, apart, forbids)
        found = _shard(model, servers, rules, memory)
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
    for table, forbidden in forbids:
        shards = [shard for shard in found.shards if shard.table == table and shard.rows]
        assert all(shard.server != forbidden for shard in shards)
        assert forbidden != "row" or all(shard.rows == model.table[table].rows for shard in shards)
        assert forbidden != "column" or all(shard.columns is None for shard in shards)


@pytest.mark.parametrize("seed", range(8))
def test_exhaustive_search_with_rules(seed: int) -> None:
    """On small instances of whole tables the sharding with rules is the best of all assignments that keep them."""
    model, servers = _model(6), 3
    forbids = [("t2", (seed + 1) % 3), ("t4", seed % 2), ("t0", 2)] if seed % 2 else []
    rules = resolve_rules(model, {"t1": seed % 3}, [("t0", "t3")], [("t3", "t5")], forbids)
    work = {f"t{i}": float(1 + (seed * 5 + i * i * 3) % 11) for i in range(6)}
    costs = CostTable(1, {}, {t: TableCost(PhaseCost(c), PhaseCost()) for t, c in work.items()}, kind="tiny")
    best = min(
        max(sum(work[f"t{i}"] for i, at in enumerate(choice) if at == p) / 4 for p in range(servers))
        for choice in product(range(servers), repeat=6)
        if choice[1] == seed % 3
        and choice[0] == choice[3]
        and choice[3] != choice[5]
        and all(choice[int(table[1])] != server for table, server in forbids)
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


@pytest.mark.parametrize("rows_forbidden", [True, False])
def test_a_forbidden_kind_of_shard_leaves_the_other(rows_forbidden: bool) -> None:
    """Three tables of 64 columns, larger than a server: without row shards all are strips, without strips all are rows."""
    tables = tuple(EmbeddingTable(f"t{i}", 1000, 64) for i in range(3))
    model = Model("wide", Graph(tuple(lookup(table) for table in tables)), tables)
    rules = resolve_rules(model, forbids=[("t*", "row" if rows_forbidden else "column")])
    shards = [shard for shard in _shard(model, 8, rules, memory=200_000).shards if shard.rows]
    assert len(shards) > 3
    assert all((shard.columns is not None) == rows_forbidden for shard in shards)
    both = resolve_rules(model, forbids=[("t*", "row"), ("t*", "column")])
    with pytest.raises(DoesNotFit, match="uncut"):
        _shard(model, 8, both, memory=200_000)


def test_forbidden_kinds_of_machines_hold_no_rows() -> None:
    """Tables that are forbidden on a kind of machine are on the others; the bound knows that these do all the work."""
    model, machines = _model(6), (*nodes(2), *(replace(n, name=f"o{n.name}", kind="old") for n in nodes(4)))
    costs = CostTable(1, {}, {t: TableCost(PhaseCost(1.0), PhaseCost()) for t in model.table}, kind="tiny")
    costs = replace(costs, flops_per_core_second=1e9)
    rules = resolve_rules(model, forbids=[("t*", "o?d")], kinds=["tiny", "old"])
    found = shard_tables(model, 1, machines, costs, ShardingOptions(local=True, rules=rules, row_splits=False))
    assert {shard.server for shard in found.shards} == {0, 1}
    assert found.max_load_seconds == pytest.approx(3 / 4)
    assert found.bound_seconds == pytest.approx(3 / 4, rel=1e-3)


def test_unknown_tables_and_single_ones_are_bad_input() -> None:
    """A name that matches no table, a negative server and a set of one table are refused as input."""
    model = _model(3)
    with pytest.raises(BadInput, match="nothing"):
        resolve_rules(model, {"nothing": 0})
    with pytest.raises(BadInput, match="-1"):
        resolve_rules(model, {"t0": -1})
    with pytest.raises(BadInput, match=r"t0 = 'gpu': the number of an embedding server"):
        resolve_rules(model, forbids=[("t0", "gpu")], kinds=["tiny"])
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
    with pytest.raises(ConstraintsConflict, match="'t1' may be on none of 2 embedding servers"):
        _shard(model, 2, TableRules(forbidden={"t1": frozenset({0, 1, 3})}))
    with pytest.raises(ConstraintsConflict, match=r"'t0', 't1' may only be on servers 1; that has .*short"):
        _shard(model, 3, TableRules(forbidden={"t0": frozenset({0, 2}), "t1": frozenset({2, 0})}), memory=10**8)


def test_rules_reach_the_plan() -> None:
    """The search uses at least as many servers as the rules need, and its plan keeps them."""
    model = job(tables=4, pooling=20.0)
    options = SolveOptions(hogwild=2, time_limit_seconds=10, gap=0.02, table_pins={"t3": 1}, keep_apart=(("t0", "t1"),))
    options = replace(options, table_forbids=(("t0", 0), ("t[12]", "row")))
    plan = solve(model, Cluster("c", nodes(6)), lambda b, n: roofline_costs(model, b, n), options).plan
    assert _servers(plan.shards, "t3") == {1}
    assert not _servers(plan.shards, "t0") & _servers(plan.shards, "t1")
    assert 0 not in _servers(plan.shards, "t0")
    assert broken(plan, options, resolve_rules(model, {"t3": 1}, forbids=options.table_forbids)) == ""
    assert "t3" in broken(plan, options, resolve_rules(model, {"t3": 0}))
    assert "forbidden" in broken(plan, options, resolve_rules(model, forbids=[("t3", 1)]))


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
