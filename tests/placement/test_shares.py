"""What a shard takes of its table's cost: the parts of the formula, the evaluator against the simulator, the search."""

from __future__ import annotations

from itertools import pairwise

import pytest

from cost_models.costs import CostTable, PhaseCost, TableCost
from cost_models.roofline import roofline_costs
from placement.evaluation.group import server_links
from placement.plan import DP, Plan, Shard
from placement.tables.sharding import ShardingOptions, shard_tables
from placement.tables.shares import row_share, shard_cost
from problem.expand import lookup
from problem.graph import Graph, Kind, Operator
from problem.model import EmbeddingTable, Model
from programs.instructions import Lookup, Update
from programs.transform import transform
from programs.workers import workers
from simulator.engine import Engine
from simulator.lowering import Lowering
from simulator.machines import Sharing, build_machines, nodes_of
from simulator.primitives import busy_ns
from tests.instances import linear, nodes

TABLE = EmbeddingTable("t", 1000, 128, 4.0, skew=1.1, ranked=True)
COST = TableCost(PhaseCost(10.0, 1000.0), PhaseCost(30.0, 4000.0), PhaseCost(2.0, 200.0), PhaseCost(5.0, 80.0))


def test_a_whole_table_costs_what_it_costs() -> None:
    """A shard that is the table takes all of it."""
    assert shard_cost(COST, TABLE, Shard("t", 0, 0, 1000)) == COST


@pytest.mark.parametrize("cuts", [(0, 1, 1000), (0, 200, 500, 1000), (0, 10, 20, 30, 1000)])
def test_row_shards_add_up_to_the_table_and_what_each_takes(cuts: tuple[int, ...]) -> None:
    """N ranges of rows cost n - 1 times what every shard takes more than the table, in seconds and in traffic."""
    parts = [shard_cost(COST, TABLE, Shard("t", 0, begin, end)) for begin, end in pairwise(cuts)]
    for name in ("lookup", "update"):
        whole, each = getattr(COST, name), getattr(COST, f"shard_{name}")
        more = len(parts) - 1
        found = sum((getattr(part, name) for part in parts), PhaseCost())
        assert found.core_seconds == pytest.approx(whole.core_seconds + more * each.core_seconds)
        assert found.traffic_bytes == pytest.approx(whole.traffic_bytes + more * each.traffic_bytes)
        assert all(getattr(part, f"shard_{name}") == each for part in parts)


def test_a_range_takes_its_share_of_the_rest() -> None:
    """A range of rows takes what every shard takes and, of the rest, the share of lookups that fall on it."""
    share = row_share(TABLE, 0, 100)
    assert 0.1 < share < 1
    found = shard_cost(COST, TABLE, Shard("t", 0, 0, 100))
    assert found.lookup.core_seconds == pytest.approx(2 + share * 8)
    assert found.update.core_seconds == pytest.approx(5 + share * 25)
    assert found.total.core_seconds - found.each.core_seconds == pytest.approx(share * 33)


def test_strips_look_at_all_ids_and_share_traffic_out() -> None:
    """Halves of the columns each take what every shard takes in seconds; narrow rows are slower; traffic is shared."""
    left, right = (shard_cost(COST, TABLE, Shard("t", 0, 0, 1000, span)) for span in ((0, 64), (64, 128)))
    assert left == right
    assert left.lookup.core_seconds == pytest.approx(2 + 1.15 * 4)
    assert left.lookup.traffic_bytes == pytest.approx(500)
    assert left.each.traffic_bytes == pytest.approx(140)


def _split() -> tuple[Plan, CostTable]:
    """Two tables, one cut by rows and one by columns and rows, over two servers."""
    tables = (EmbeddingTable("a", 100, 32, 3.0), EmbeddingTable("b", 50, 32, 2.0))
    graph = Graph(
        (
            Operator("x", Kind.DENSE_INPUT, (), 8),
            *(lookup(table) for table in tables),
            Operator("all", Kind.CONCAT, ("x", "a", "b"), 72),
            linear("logit", "all", 1, 73),
            Operator("loss", Kind.LOSS, ("logit",), 1),
        )
    )
    model = Model("split", graph, tables, batch=64)
    shards = (
        *(Shard("a", 0, 0, 30), Shard("a", 1, 30, 100)),
        *(Shard("b", 0, 0, 50, (0, 16)), Shard("b", 0, 0, 20, (16, 32)), Shard("b", 1, 20, 50, (16, 32))),
    )
    machines = nodes(3)
    tags = {op.name: DP for op in graph if op.kind is not Kind.LOOKUP}
    plan = Plan(model, (machines[:1],), machines[1:], 64, tags, shards)
    return plan, roofline_costs(model, 64, machines[0])


def test_evaluator_and_simulator_charge_servers_alike() -> None:
    """Lookups and updates of servers with cut tables last as long in the simulator as the evaluator counts, to the ns."""
    plan, costs = _split()
    machines = build_machines(Engine(), nodes_of(plan), Sharing.NODE, {})
    lower = Lowering(plan, costs, {machine.node.name: machine for machine in machines})
    servers = [worker for worker in workers(transform(plan)) if worker.role == "server"]
    links = server_links(plan.model, plan.batch, plan.servers, plan.shards, costs)
    assert len(servers) == len(links) == 2
    for worker, link in zip(servers, links, strict=True):
        assert worker.node == link.node
        for kind, counted in ((Lookup, link.lookup), (Update, link.update)):
            found = sum(busy_ns(lower.lower_one(worker, i)) for i in worker.program if isinstance(i, kind))
            assert found == pytest.approx(counted.core_seconds * 1e9, abs=1)
            assert found > 0


def test_a_table_is_cut_only_where_that_pays() -> None:
    """Tables of 10 and 6 ms on two servers: cut, each server has 8; where a shard takes half of them in any case, both
    stay whole, as a cut would leave 10.5 on one."""
    tables = (EmbeddingTable("a", 1000, 64), EmbeddingTable("b", 1000, 64))
    model = Model("tables", Graph(tuple(lookup(table) for table in tables)), tables)
    loads, counts = [], []
    for part in (0.0, 0.5):
        costs = {
            name: TableCost(PhaseCost(seconds), PhaseCost(), PhaseCost(part * seconds))
            for name, seconds in (("a", 10e-3), ("b", 6e-3))
        }
        machines = nodes(2, cores=1)
        found = shard_tables(
            model, 1, machines, CostTable(1, {}, costs, kind="tiny"), ShardingOptions(column_splits=False)
        )
        loads.append(found.max_load_seconds)
        counts.append(len(found.shards))
        assert found.bound_seconds <= found.max_load_seconds
    assert loads == pytest.approx([8e-3, 10e-3], rel=2e-3)
    assert counts == [3, 2]
