"""Small plans on pretended machines: what the tests of programs and of the executor's runtime are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from placement.plan import DP, Plan, Shard, Sync, Tag
from problem.cluster import Node
from problem.graph import Graph, Kind, Operator
from problem.model import EmbeddingTable, Model
from tests.executor.tiny import dlrm, linear, tables


def machine(name: str, **changes: Any) -> Node:
    """A node of this host with more memory than any test needs."""
    settings = {"cores": 1, "flops_per_core_second": 1e9, "memory_bandwidth_bytes_per_second": 1e10}
    settings |= {"memory_bytes": 1 << 30, "nic_bytes_per_second": 1e9, "latency_seconds": 1e-5, "host": "here"}
    return Node(**{"name": name, "kind": "test", **settings, **changes})


def plan(
    model: Model,
    *,
    nodes: int = 1,
    groups: int = 1,
    servers: int = 1,
    sync_servers: int = 0,
    tags: Mapping[str, Tag] | None = None,
    shards: Sequence[Shard] | None = None,
    batch: int = 4,
    **settings: Any,
) -> Plan:
    """A plan in which everything that is not said is DP and tables are whole, dealt to the servers in turn."""
    chosen: dict[str, Tag] = {op.name: DP for op in model.graph if op.kind is not Kind.LOOKUP}
    dealt = [Shard(table.name, i % servers, 0, table.rows) for i, table in enumerate(model.tables)]
    return Plan(
        model=model,
        groups=tuple(tuple(machine(f"g{g}n{n}") for n in range(nodes)) for g in range(groups)),
        servers=tuple(machine(f"server{s}") for s in range(servers)),
        sync_servers=tuple(machine(f"centre{s}") for s in range(sync_servers)),
        batch=batch,
        tags=chosen | dict(tags or {}),
        shards=tuple(dealt if shards is None else shards),
        **settings,
    )


def row_split(table: EmbeddingTable, cuts: Sequence[int], servers: Sequence[int]) -> list[Shard]:
    """A table cut at some rows, its ranges on the given servers."""
    ends = [0, *cuts, table.rows]
    return [Shard(table.name, server, ends[i], ends[i + 1]) for i, server in enumerate(servers)]


def branches(count: int, found: Sequence[EmbeddingTable], width: int = 6, **settings: Any) -> Model:
    """Branches of two layers, each over the dense features and a table of its own, joined before the top layer."""
    ops = [Operator("dense", Kind.DENSE_INPUT, width=3)]
    for index, table in zip(range(count), found, strict=True):
        ops.append(Operator(table.name, Kind.LOOKUP, width=table.dim, table=table.name))
        ops.append(Operator(f"in{index}", Kind.CONCAT, ("dense", table.name), 3 + table.dim))
        ops.append(linear(f"b{index}a", f"in{index}", 3 + table.dim, width))
        ops.append(linear(f"b{index}b", f"b{index}a", width, width))
    joined = tuple(f"b{index}b" for index in range(count))
    ops.append(Operator("joined", Kind.CONCAT, joined, width * count))
    ops.append(linear("top", "joined", width * count, 5))
    ops.append(linear("logit", "top", 5, 1, "none"))
    ops.append(Operator("loss", Kind.LOSS, ("logit",), 1))
    return Model("tiny-branches", Graph(tuple(ops)), tuple(found), **settings)


def branch_tags(count: int, nodes: Sequence[int]) -> dict[str, Tag]:
    """Each branch of :func:`branches` on a node, in turn."""
    return {f"b{i}{layer}": nodes[i % len(nodes)] for i in range(count) for layer in "ab"}


def fan(**tags: int) -> Plan:
    """One layer whose output has seven consumers, so that the order of three additions and more counts."""
    ends = [linear(f"c{i}", "x", 24, 8) for i in range(7)]
    ops = (
        Operator("dense", Kind.DENSE_INPUT, width=13),
        linear("x", "dense", 13, 24),
        *ends,
        Operator("joined", Kind.CONCAT, tuple(op.name for op in ends), 56),
        linear("logit", "joined", 56, 1, "none"),
        Operator("loss", Kind.LOSS, ("logit",), 1),
    )
    return plan(Model("fan", Graph(ops)), nodes=1 + max(tags.values()), tags=tags, batch=64)


def easgd_plan(mode: Any = "foreground", **settings: Any) -> Plan:
    """Two groups of three nodes, two ranks each; MP layers on a rank and on the third node; two sync servers.

    With tables over two servers, one cut by rows, it has every instruction there is.
    """
    found = tables(2, 40, 4)
    model = dlrm([3, 8, 4], found, [8, 6, 1])
    return plan(
        model,
        nodes=3,
        groups=2,
        servers=2,
        sync_servers=2,
        ranks=2,
        tags={"top0": 2, "top1": 1},
        shards=[*row_split(found[0], [25], [0, 1]), Shard("t1", 1, 0, 40)],
        sync=Sync(mode, gap=2, alpha=0.45),
        **settings,
    )
