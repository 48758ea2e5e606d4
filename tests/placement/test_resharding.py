"""Which server holds which table where the critical path binds, against every way to deal tables to servers."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

from cost_models.costs import CostTable, MessageCost, OpCost, PhaseCost, TableCost
from placement.evaluation.evaluate import evaluate
from placement.evaluation.group import GroupProblem, server_links
from placement.plan import DP, Shard
from placement.result import PlacementResult
from placement.search.job import solve
from placement.search.options import SolveOptions
from problem.cluster import Cluster
from problem.expand import lookup
from problem.graph import Graph, Kind, Operator
from problem.model import EmbeddingTable, Model
from tests.instances import linear, nodes, op_cost


def _dealt(seed: int, **demands: object) -> tuple[PlacementResult, dict[tuple[int, ...], float]]:
    """A plan for three unlike tables on two servers, each read by a layer of its own; and the rate of every dealing."""
    draw = random.Random(seed)
    tables = tuple(EmbeddingTable(f"t{i}", 1000, draw.choice([8, 64, 256]), draw.choice([1.0, 4.0])) for i in range(3))
    layers = [linear(f"l{i}", f"t{i}", 16, 100) for i in range(3)]
    ends = (Operator("all", Kind.CONCAT, ("l0", "l1", "l2"), 48), Operator("loss", Kind.LOSS, ("all",), 1))
    model = Model("three tables", Graph((*map(lookup, tables), *layers, *ends)), tables, batch=4)
    ops = {op.name: op_cost(draw.choice([1e-4, 1e-3, 3e-3])) for op in layers} | {"all": OpCost(), "loss": OpCost()}
    served = {t.name: TableCost(PhaseCost(draw.choice([1e-4, 1e-3, 2e-3])), PhaseCost(1e-5)) for t in tables}
    message = MessageCost(1e-5, 1e-5, 1e-10, 1e-10)
    costs = CostTable(4, ops, served, message, kind="tiny", flops_per_core_second=1e9)
    machines = nodes(3, cores=8, latency_seconds=1e-5, nic_bytes_per_second=1e8)
    options = SolveOptions(group_size=1, max_replicas=1, hogwild=draw.choice([1, 1, 2]), servers=2, gap=0.0)
    found = solve(model, Cluster("three", machines), lambda *_: costs, replace(options, **demands))
    rates = {}
    for servers in product(range(2), repeat=3):
        shards = tuple(Shard(table.name, server, 0, 1000) for table, server in zip(tables, servers, strict=True))
        links = server_links(model, 4, machines[1:], shards, costs)
        group = GroupProblem(model, costs, machines[:1], 4, options.hogwild or 1, 1, servers=links)
        rates[servers] = evaluate(group, dict.fromkeys([op.name for op in layers + list(ends)], DP)).samples_per_second
    return found, rates


def test_tables_are_where_the_path_is_shortest() -> None:
    """On 15 jobs the plan is as good as the best dealing (it was up to 5 % worse, and called optimal), no bound is below."""
    for seed in range(15):
        found, rates = _dealt(seed)
        assert found.objective >= max(rates.values()) * (1 - 1e-6), seed
        assert found.bound >= max(rates.values()) * (1 - 1e-6), seed


def test_what_is_pinned_stays() -> None:
    """A table that is pinned to the server that is asked second stays there; the plan is as good as any with it there."""
    for seed in (0, 3, 4):
        found, rates = _dealt(seed, table_pins={"t0": 1})
        at = {shard.table: shard.server for shard in found.plan.shards}
        assert at["t0"] == 1
        assert found.objective >= max(rate for servers, rate in rates.items() if servers[0] == 1) * (1 - 1e-6)
