"""Random models and plans: small operator graphs of every trainable kind, cut and sharded in any way that is allowed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import strategies as st

from placement.plan import DP, Plan, Shard, Sync
from problem.graph import Graph, Kind, Operator
from problem.model import EmbeddingTable, Model
from tests.executor.tiny import cross, linear
from tests.programs import plans


@st.composite
def models(draw: st.DrawFn) -> Model:
    """A graph of 1 to 6 layers over dense features and up to 3 tables, some shared, ended by one logit and the loss."""
    found = [_table(draw, f"t{i}") for i in range(draw(st.integers(0, 3)))]
    ops = [Operator("dense", Kind.DENSE_INPUT, width=3)]
    owners = [draw(st.sampled_from(found)) for _ in range(draw(st.integers(0, 2)) if found else 0)]
    shared = [replace(table, name=f"f{i}", shares=table.name) for i, table in enumerate(owners)]
    ops += [Operator(feature.name, Kind.LOOKUP, width=3, table=feature.storage) for feature in (*found, *shared)]
    for index in range(draw(st.integers(1, 6))):
        ops.append(_layer(draw, f"op{index}", ops))
    used = {name for op in ops for name in op.inputs}
    loose = [op for op in ops if op.name not in used]
    width = sum(op.width for op in loose)
    ops.append(Operator("joined", Kind.CONCAT, tuple(op.name for op in loose), width))
    ops.append(linear("logit", "joined", width, 1, "none"))
    ops.append(Operator("loss", Kind.LOSS, ("logit",), 1))
    return Model("random", Graph(tuple(ops)), tuple(found), shared=tuple(shared))


def _layer(draw: st.DrawFn, name: str, before: list[Operator]) -> Operator:
    """A layer over random earlier outputs; they may repeat."""
    kind = draw(st.sampled_from([Kind.LINEAR, Kind.LINEAR, Kind.CONCAT, Kind.CROSS]))
    source = draw(st.sampled_from(before))
    if kind is Kind.LINEAR:
        return linear(name, source.name, source.width, draw(st.integers(1, 4)))
    alike = [op for op in before if op.width == source.width]
    if kind is Kind.CROSS:
        return cross(name, (draw(st.sampled_from(alike)).name, source.name), source.width, 2)
    inputs = [source, *draw(st.lists(st.sampled_from(before), min_size=1, max_size=2))]
    return Operator(name, Kind.CONCAT, tuple(op.name for op in inputs), sum(op.width for op in inputs))


@st.composite
def random_plans(draw: st.DrawFn, *, max_ranks: int = 3, max_groups: int = 2) -> Plan:
    """A plan of a random model: up to 3 nodes and ranks, random tags, tables in strips and ranges on up to 2 servers."""
    model = draw(models())
    nodes = draw(st.integers(1, 3))
    movable = [op.name for op in model.graph if op.kind in {Kind.LINEAR, Kind.CONCAT, Kind.CROSS}]
    tags = {name: draw(st.sampled_from([DP, *range(nodes)])) for name in movable}
    servers, groups = draw(st.integers(1, 2)), draw(st.integers(1, max_groups))
    return plans.plan(
        model,
        nodes=nodes,
        groups=groups,
        servers=servers,
        sync_servers=groups - 1,
        ranks=draw(st.integers(1, min(nodes, max_ranks))),
        tags=tags,
        shards=[shard for table in model.tables for shard in _shards(draw, table, servers)],
        sync=Sync(draw(st.sampled_from(["background", "foreground"])), gap=2) if groups > 1 else None,
        synchronous=draw(st.booleans()),
    )


def _table(draw: st.DrawFn, name: str) -> EmbeddingTable:
    """A small table of rows 3 wide, pooled by any rule, with bags of one length or of any."""
    most, pooling = draw(st.integers(0, 3)), draw(st.sampled_from(["sum", "mean", "weighted"]))
    return EmbeddingTable(
        name, draw(st.integers(1, 12)), 3, pooling_factor=most / 2 or 1.0, pooling=pooling, max_ids=most
    )


def _shards(draw: st.DrawFn, table: EmbeddingTable, servers: int) -> list[Shard]:
    """Strips of a table, and ranges of each, empty ones among them, each on any server."""
    edges = [0, *sorted(draw(st.sets(st.integers(1, table.dim - 1), max_size=2))), table.dim]
    strips = list(pairwise(edges)) if len(edges) > 2 else [None]
    return [replace(shard, columns=strip) for strip in strips for shard in _ranges(draw, table, servers)]


def _ranges(draw: st.DrawFn, table: EmbeddingTable, servers: int) -> list[Shard]:
    cuts = sorted(draw(st.lists(st.integers(0, table.rows), max_size=2)))
    where = [draw(st.integers(0, servers - 1)) for _ in range(len(cuts) + 1)]
    return plans.row_split(table, cuts, where)
