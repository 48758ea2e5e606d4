"""Tiny placement instances: built by hand with the optimum worked out, or drawn at random. Nothing here is measured."""

from __future__ import annotations

import random
from itertools import product

from cost_models.costs import CostTable, MessageCost, OpCost, PhaseCost, TableCost
from placement.evaluation.evaluate import evaluate
from placement.evaluation.group import GroupProblem, server_links
from placement.plan import DP, Shard, Sync, Tag
from placement.tables.shares import split_features
from placement.tagging.candidates import tags_of
from placement.tagging.nets import Contracted
from problem.cluster import Node
from problem.graph import Graph, Kind, Operator
from problem.model import EmbeddingTable, Model

GIGA = 10**9


def node(name: str, **changes: float | str) -> Node:
    """A machine with 4 cores, 1 GB, a 1 GB/s NIC and no latency, unless told otherwise."""
    settings: dict[str, object] = {
        "host": name,
        "kind": "tiny",
        "cores": 4,
        "flops_per_core_second": 1e9,
        "memory_bandwidth_bytes_per_second": 1e10,
        "memory_bytes": GIGA,
        "nic_bytes_per_second": 1e9,
        "latency_seconds": 0.0,
    }
    return Node(name=name, **(settings | changes))  # type: ignore[arg-type]


def nodes(count: int, **changes: float | str) -> tuple[Node, ...]:
    """``count`` equal machines n0, n1, ..."""
    return tuple(node(f"n{i}", **changes) for i in range(count))


def linear(name: str, source: str, width: int, parameters: int, component: str = "") -> Operator:
    """A layer; its cost is in the cost table, not in its work."""
    return Operator(name, Kind.LINEAR, (source,), width, parameters, component=component)


def op_cost(seconds: float, traffic: float = 0.0) -> OpCost:
    """A quarter of the work forward, half backward, a quarter update."""
    return OpCost(
        PhaseCost(seconds / 4, traffic / 4), PhaseCost(seconds / 2, traffic / 2), PhaseCost(seconds / 4, traffic / 4)
    )


def two_layers() -> GroupProblem:
    """A small and a wide layer on two nodes with two ranks; by hand:

    One core a node, 8 threads, batch 1. ``wide`` has 1,000,000 parameters (4 MB) and costs 1 ms; ``small`` has none to
    speak of and costs 6 ms; tensors are 4 bytes. NIC 1 GB/s, messages cost no core time.

    * All DP: cores (1 + 6) = 7 ms; all-reduce moves 2 (R-1)/R 4 MB = 4 MB each way: 4 ms. T = 7 ms.
    * ``wide`` on node 0: node 0 does 6 + 2 * 1 = 8 ms, node 1 6 ms: T = 8 ms. (The best wrong answer when NICs are slow.)
    * ``wide`` on 0 and ``small`` on 1: node 1 does 2 * 6 = 12 ms.

    So all DP is best, 7 ms. With NICs of 0.4 GB/s the all-reduce takes 10 ms, and ``wide`` on a node is best: 8 ms (node
    indices are equal; the canonical answer is node 0).
    """
    graph = Graph(
        (
            Operator("x", Kind.DENSE_INPUT, (), 1),
            linear("wide", "x", 1, 1_000_000),
            linear("small", "wide", 1, 1),
            Operator("loss", Kind.LOSS, ("small",), 1),
        )
    )
    costs = CostTable(
        1,
        {"x": OpCost(), "wide": op_cost(1e-3), "small": op_cost(6e-3), "loss": OpCost()},
        kind="tiny",
        flops_per_core_second=1e9,
    )
    return GroupProblem(Model("two layers", graph), costs, nodes(2, cores=1), batch=1, hogwild=8, ranks=2)


def random_group(seed: int) -> GroupProblem:
    """A random group of up to 7 operators and 3 nodes.

    Among the draws: unlike nodes, one host or several, memory that binds, components, pins, one or more ranks, one or
    many threads, two groups with sync servers, embedding servers with a split table, costs over six orders of magnitude,
    forbidden tags.
    """
    draw = random.Random(seed)
    model = _random_model(draw)
    count = draw.randint(1, 3)
    machines = _random_nodes(draw, count)
    costs = _random_costs(draw, model)
    servers = (node("ps0", cores=8), node("ps1", cores=8, latency_seconds=1e-5))
    shards = tuple(_random_shards(draw, model))
    groups = draw.choice([1, 1, 2])
    return GroupProblem(
        model,
        costs,
        machines,
        batch=4,
        hogwild=draw.choice([1, 2, 16]),
        ranks=draw.choice([count, count, draw.randint(1, count)]),
        pins=_random_pins(draw, model, count),
        servers=server_links(model, 4, servers, shards, costs),
        split_tables=split_features(model, shards),
        groups=groups,
        sync=Sync("background", gap=draw.choice([1, 4])) if groups > 1 else None,
        sync_servers=(node("sync0"), node("sync1")) if groups > 1 else (),
        forbids=_random_forbids(draw, model, count),
    )


def _random_model(draw: random.Random) -> Model:
    operators = [Operator("x", Kind.DENSE_INPUT, (), draw.choice([1, 64]))]
    tables = []
    if draw.random() < 0.6:
        tables.append(EmbeddingTable("t", draw.randint(1, 1000), 8))
        operators.append(Operator("t", Kind.LOOKUP, (), 8, table="t"))
    for i in range(draw.randint(1, 5)):
        sources = draw.sample([op.name for op in operators], draw.randint(1, min(2, len(operators))))
        component = draw.choice(["", "", "", "c", "d"])
        parameters = draw.choice([0, 10, 1000, 100_000])
        width = draw.choice([1, 16, 256])
        operators.append(Operator(f"op{i}", Kind.CONCAT, tuple(sources), width, parameters, component=component))
    used = {name for op in operators for name in op.inputs}
    ends = tuple(op.name for op in operators if op.name not in used)
    operators.append(Operator("loss", Kind.LOSS, ends, 1))
    return Model("random", Graph(tuple(operators)), tuple(tables), optimizer=draw.choice(["sgd", "adam"]))


def _random_nodes(draw: random.Random, count: int) -> tuple[Node, ...]:
    memory = draw.choice([GIGA, GIGA, 1_000_000, 4_000_000])
    if draw.random() < 0.5:
        same = {"cores": draw.choice([1, 4]), "memory_bytes": memory, "nic_bytes_per_second": draw.choice([1e7, 1e9])}
        return nodes(count, latency_seconds=draw.choice([0.0, 1e-5]), **same)
    host = draw.choice(["", "", "shared"])
    return tuple(
        node(
            f"n{i}",
            host=host or f"n{i}",
            kind=draw.choice(["tiny", "other"]),
            cores=draw.choice([1, 2, 4]),
            flops_per_core_second=draw.choice([5e8, 1e9, 2e9]),
            memory_bytes=draw.choice([memory, GIGA]),
            nic_bytes_per_second=draw.choice([1e7, 1e8, 1e9]),
            latency_seconds=draw.choice([0.0, 1e-5]),
        )
        for i in range(count)
    )


def _random_costs(draw: random.Random, model: Model) -> CostTable:
    ops = {
        op.name: op_cost(10 ** draw.uniform(-8, -2), 10 ** draw.uniform(0, 6))
        for op in model.graph
        if op.kind != "lookup"
    }
    message = draw.choice([MessageCost(), MessageCost(1e-6, 1e-10, 2e-6, 2e-10, 3e-7, 5e-7)])
    tables = {table.name: TableCost(PhaseCost(1e-5, 1e3), PhaseCost(1e-5, 1e3)) for table in model.tables}
    return CostTable(4, ops, tables, message, 1e-6, 1e-6, draw.choice([0.0, 1e-9]), 1e-9, "tiny", 1e9, sum_seconds=3e-7)


def _random_shards(draw: random.Random, model: Model) -> list[Shard]:
    found = []
    for table in model.tables:
        middle = draw.choice([table.rows, table.rows // 2])
        found += [Shard(table.name, 0, 0, middle), Shard(table.name, 1, middle, table.rows)]
    return found


def _random_pins(draw: random.Random, model: Model, count: int) -> dict[str, Tag]:
    open_ = [op.name for op in model.graph if op.kind is Kind.CONCAT and not op.component]
    if not open_ or draw.random() < 0.6:
        return {}
    return {draw.choice(open_): draw.choice([DP, draw.randrange(count)])}


def _random_forbids(draw: random.Random, model: Model, count: int) -> dict[str, frozenset[Tag]]:
    """Tags that some operators may not have; now and then all of them."""
    found: dict[str, frozenset[Tag]] = {}
    for op in model.graph:
        if op.kind is Kind.CONCAT and draw.random() < 0.15:
            tags: list[Tag] = [DP, *range(count)]
            found[op.name] = frozenset(draw.sample(tags, draw.randint(1, draw.choice([count, count, count + 1]))))
    return found


def exhaustive(problem: GroupProblem) -> tuple[float, dict[str, Tag] | None]:
    """Try every placement; return the shortest step and its tags (infinite and None if nothing fits)."""
    contracted = Contracted(problem)
    fixed = {item.name: item.fixed for item in contracted.items if item.fixed is not None}
    free = [contracted.items[index].name for index in contracted.free]
    best: tuple[float, dict[str, Tag] | None] = (float("inf"), None)
    for choice in product((DP, *range(problem.size)), repeat=len(free)):
        tags = tags_of(contracted.items, fixed | dict(zip(free, choice, strict=True)))
        if any(tags[op] in forbidden for op, forbidden in problem.forbids.items()):
            continue
        value = evaluate(problem, tags)
        if value.fits and value.seconds < best[0]:
            best = (value.seconds, tags)
    return best
