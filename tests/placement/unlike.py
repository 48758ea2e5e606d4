"""Tiny clusters of unlike machines, and every way to put them together, for tests to compare with. Nothing is measured."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import permutations, product

from cost_models.costs import CostTable, PhaseCost, TableCost
from placement.evaluation.evaluate import evaluate
from placement.evaluation.group import GroupProblem, server_links
from placement.plan import DP, Shard
from placement.search.bounds import Bounds
from placement.search.compositions import Compositions
from placement.search.options import SolveOptions, sync_of
from placement.search.outcome import distinct, job_value
from placement.search.shapes import Shape, Shapes
from problem.cluster import Cluster, Node
from problem.graph import Graph, Kind, Operator
from problem.model import EmbeddingTable, Model
from tests.instances import GIGA, linear, node, op_cost


def instance(seed: int) -> tuple[Model, CostTable, tuple[Node, ...], SolveOptions]:
    """Up to five machines of two or three kinds, up to four operators, perhaps a table; limits of all sorts."""
    draw = random.Random(seed)
    graph = [Operator("x", Kind.DENSE_INPUT, (), draw.choice([1, 64]))]
    tables: tuple[EmbeddingTable, ...] = ()
    if draw.random() < 0.4:
        tables = (EmbeddingTable("t", 1000, 8),)
        graph.append(Operator("t", Kind.LOOKUP, (), 8, table="t"))
    count = draw.randint(1, 3 if tables else 4)
    for i in range(count):
        source = draw.choice(graph).name if i else graph[-1].name
        graph.append(linear(f"op{i}", source, draw.choice([1, 64, 1024]), draw.choice([0, 1000, 100_000])))
    used = {name for op in graph for name in op.inputs}
    graph.append(Operator("loss", Kind.LOSS, tuple(op.name for op in graph if op.name not in used), 1))
    ops = {op.name: op_cost(10 ** draw.uniform(-5, -2)) for op in graph if op.kind is Kind.LINEAR}
    ops |= {"x": op_cost(0.0), "loss": op_cost(0.0)}
    served = {"t": TableCost(PhaseCost(10 ** draw.uniform(-5, -3), 1e3), PhaseCost(1e-5, 1e3))} if tables else {}
    costs = CostTable(4, ops, served, kind="tiny", flops_per_core_second=1e9)
    kinds = [
        {
            "cores": draw.choice([1, 2, 4, 8]),
            "memory_bytes": draw.choice([GIGA, GIGA, 1_500_000]),
            "nic_bytes_per_second": draw.choice([1e7, 1e8, 1e9]),
        }
        for _ in range(draw.randint(2, 3))
    ]
    machines = tuple(node(f"n{i}", **draw.choice(kinds)) for i in range(draw.randint(3, 5)))
    options = SolveOptions(
        batch=4,
        hogwild=draw.choice([1, 4, 16]),
        max_replicas=draw.choice([1, 2]),
        ranks=draw.choice([None, None, 1, 2]),
        servers=1 if tables else None,
        sync_servers=1,
        gap=0.0,
        time_limit_seconds=300,
    )
    return Model("random", Graph(tuple(graph)), tables, batch=4), costs, machines, options


def forbidding(seed: int) -> tuple[Model, CostTable, tuple[Node, ...], SolveOptions]:
    """The same, with two things forbidden: DP, any node, a node, or a kind of machine, of which there are two by name."""
    model, costs, machines, options = instance(seed)
    draw, strong = random.Random(seed), max(node.cores for node in machines)
    machines = tuple(replace(node, kind="tiny" if node.cores == strong else "weak") for node in machines)
    ops = [op.name for op in model.graph if op.kind is Kind.LINEAR]
    kinds = sorted({node.kind for node in machines})
    forbids = tuple((draw.choice(ops), draw.choice([DP, "mp", 0, 1, *kinds])) for _ in range(2))
    return model, costs, machines, replace(options, forbids=forbids)


def every_way(model: Model, machines: tuple[Node, ...], options: SolveOptions) -> Iterator[Shape]:
    """Every way to use machines as servers, sync server and groups; of ways that differ in names only, one."""
    seen = set()
    served = 1 if model.tables else 0
    for count, size in product(range(1, options.max_replicas + 1), range(1, len(machines) + 1)):
        syncs = 1 if count > 1 else 0
        used = served + syncs + count * size
        for order in permutations(machines, used) if used <= len(machines) and (options.ranks or 1) <= size else ():
            key = tuple(replace(n, name="", host="") for n in order)
            if (count, size, key) in seen:
                continue
            seen.add((count, size, key))
            rest = order[served + syncs :]
            groups = tuple(rest[g * size : (g + 1) * size] for g in range(count))
            ranks = min(size, options.ranks or size)
            if all(node.may_train for node in rest) and all(node.may_serve for node in order[: served + syncs]):
                yield Shape(size, groups, order[:served], order[served : served + syncs], ranks)


def best_of_ways(
    model: Model,
    costs: CostTable,
    machines: tuple[Node, ...],
    options: SolveOptions,
    shapes: Iterable[Shape] | None = None,
) -> float:
    """Samples per second of the best of all compositions, or of some, and tags."""
    best, placed = 0.0, [op.name for op in model.graph if op.kind is Kind.LINEAR]
    shards = tuple(Shard(table.name, 0, 0, table.rows) for table in model.tables)
    for shape in every_way(model, machines, options) if shapes is None else shapes:
        links = server_links(model, 4, shape.servers, shards, costs)
        count = len(shape.groups)
        kinds = distinct(
            tuple(
                GroupProblem(
                    model,
                    costs,
                    group,
                    4,
                    options.hogwild or 1,
                    shape.ranks,
                    servers=links,
                    groups=count,
                    sync=sync_of(options, count),
                    sync_servers=shape.sync_servers,
                )
                for group in shape.groups
            )
        )
        for tags in _tags(shape, placed, options):
            best = max(best, value_of(kinds, tags))
    return best


def _tags(shape: Shape, placed: list[str], options: SolveOptions) -> Iterator[dict]:
    for choice in product((DP, *range(shape.group_size)), repeat=len(placed)):
        tags = dict(zip(placed, choice, strict=True))
        if not any(_is(shape, tags[op], what) for op, what in options.forbids):
            yield tags


def _is(shape: Shape, tag: object, what: object) -> bool:
    """Whether an operator with a tag is where it is forbidden to be."""
    if what in ("tiny", "weak"):
        held = [node for group in shape.groups for node in (group[: shape.ranks] if tag == DP else (group[tag],))]
        return any(node.kind == what for node in held)
    return tag != DP if what == "mp" else tag == what


def value_of(kinds: list, tags: dict) -> float:
    whole = {"x": DP, "loss": DP} | tags
    value, _ = job_value(kinds, whole, evaluate(kinds[0][0], whole))
    return value or 0.0


def compositions_of(machines: tuple[Node, ...], **settings: object) -> tuple[Compositions, list[Shape]]:
    """A layer of 1 ms on some machines; the ways that are made, and the shapes they are made from."""
    graph = Graph(
        (Operator("x", Kind.DENSE_INPUT, (), 1), linear("a", "x", 1, 10), Operator("loss", Kind.LOSS, ("a",), 1))
    )
    costs = CostTable(1, {"x": op_cost(0.0), "a": op_cost(1e-3), "loss": op_cost(0.0)}, kind="tiny")
    model, options = Model("one", graph, batch=1), SolveOptions(sync_servers=1, **settings)
    shapes = Shapes(model, Cluster("unlike", machines), costs, options, 1, 4)
    bounds = Bounds(model, costs, 1, 4, {}, local=False)
    return Compositions(bounds, shapes.trainers, shapes.hosts), shapes.all()


def counts_of(shape: Shape) -> tuple[int, ...]:
    """Numbers of groups, nodes and ranks of each, embedding servers and sync servers."""
    return len(shape.groups), shape.group_size, shape.ranks, len(shape.servers), len(shape.sync_servers)
