"""Tiny plans and cost tables by hand, so that the simulated times can be worked out on paper.

Costs are whole microseconds and sizes make whole microseconds on the wire (1 GB/s), so nothing is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cost_models.costs import CostTable, MessageCost, OpCost, PhaseCost, TableCost
from placement.plan import DP, Plan, Shard, Tag
from problem.cluster import Node
from problem.graph import Graph, Kind, Operator
from problem.model import EmbeddingTable, Model

US = 1e-6
BATCH = 125  # 4 bytes x 125 x 2 = 1000 bytes: 1 us at 1 GB/s for a tensor of width 2


def machine(name: str, **changes: Any) -> Node:
    """A machine of its own: 2 cores, 1 GB/s NIC, 5 us latency, memory that never binds."""
    settings: dict[str, Any] = {"cores": 2, "flops_per_core_second": 1e9, "memory_bandwidth_bytes_per_second": 1e15}
    settings |= {"memory_bytes": 1 << 30, "nic_bytes_per_second": 1e9, "latency_seconds": 5 * US}
    return Node(**{"name": name, "host": name, "kind": "test", **settings, **changes})


def chain_model(layers: int = 2, tables: Sequence[EmbeddingTable] = (), parameters: int = 500) -> Model:
    """dense -> layer 0 .. layer n-1 -> loss, all of width 2; lookups join before layer 0."""
    ops = [Operator("dense", Kind.DENSE_INPUT, width=2)]
    ops += [Operator(table.name, Kind.LOOKUP, width=table.dim, table=table.name) for table in tables]
    inputs = ("dense", *(table.name for table in tables))
    for index in range(layers):
        ops.append(Operator(f"layer{index}", Kind.LINEAR, inputs, 2, parameters))
        inputs = (f"layer{index}",)
    ops.append(Operator("loss", Kind.LOSS, inputs, 1))
    return Model("chain", Graph(tuple(ops)), tuple(tables))


def table(name: str = "table", rows: int = 100) -> EmbeddingTable:
    """A table of dim 2, two ids a sample: request, pooled rows and gradient are 1000 bytes each."""
    return EmbeddingTable(name, rows, 2, pooling_factor=2)


def make_plan(
    model: Model,
    *,
    nodes: int = 1,
    groups: int = 1,
    servers: int = 0,
    sync_servers: int = 0,
    tags: Mapping[str, Tag] | None = None,
    shards: Sequence[Shard] | None = None,
    prefix: str = "",
    changes: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Plan:
    """A plan on machines of their own, everything DP unless said, whole tables dealt to the servers in turn."""
    every: dict[str, Tag] = {op.name: DP for op in model.graph if op.kind is not Kind.LOOKUP}
    dealt = [Shard(found.name, index % servers, 0, found.rows) for index, found in enumerate(model.tables)]
    change = dict(changes or {})
    return Plan(
        model=model,
        groups=tuple(tuple(machine(f"{prefix}g{g}n{n}", **change) for n in range(nodes)) for g in range(groups)),
        servers=tuple(machine(f"{prefix}ps{s}", **change) for s in range(servers)),
        sync_servers=tuple(machine(f"{prefix}centre{s}", **change) for s in range(sync_servers)),
        batch=BATCH,
        tags=every | dict(tags or {}),
        shards=tuple(dealt if shards is None else shards),
        **settings,
    )


def make_costs(model: Model, *, factor: float = 1.0, message: MessageCost | None = None, **changes: Any) -> CostTable:
    """10 us forward, 20 us backward, 5 us update a layer; 1 us for the loss; 8 and 4 us a table; 2 and 3 us a message."""

    def us(value: float) -> PhaseCost:
        return PhaseCost(value * US * factor)

    layer, loss = OpCost(us(10), us(20), us(5)), OpCost(us(1), us(1))
    ops = {op.name: layer for op in model.graph if op.kind is Kind.LINEAR}
    ops |= {"dense": OpCost(), "loss": loss}
    tables = {found.name: TableCost(us(8), us(4)) for found in model.tables}
    if message is None:
        message = MessageCost(send_seconds=2 * US * factor, receive_seconds=3 * US * factor)
    return CostTable(BATCH, ops, tables, message, **{"kind": "test", **changes})


def exact_mva(demands: list[float], think: float, customers: int) -> float:
    """Throughput of a closed network of single servers (Reiser and Lavenberg 1980)."""
    queues = [0.0] * len(demands)
    throughput = 0.0
    for n in range(1, customers + 1):
        residence = [demand * (1 + queue) for demand, queue in zip(demands, queues, strict=True)]
        throughput = n / (think + sum(residence))
        queues = [throughput * spent for spent in residence]
    return throughput


def closed_plan(threads: int) -> tuple[Plan, CostTable]:
    """Threads that think for 62 us on cores of their own and ask one server of one core for 8 us; the rest is free."""
    model = chain_model(2, [table()])
    costs = replace(
        make_costs(model, message=MessageCost()), tables={"table": TableCost(PhaseCost(8 * US), PhaseCost())}
    )
    free = {"nic_bytes_per_second": math.inf, "latency_seconds": 0.0}
    plan = make_plan(model, servers=1, hogwild=threads, changes={"cores": 64, **free})
    return replace(plan, servers=(replace(plan.servers[0], cores=1),)), costs
