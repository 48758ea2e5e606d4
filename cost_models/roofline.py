"""Costs of machines that nobody has profiled: the roofline of a core.

A phase takes as long as the slower of its arithmetic and its memory traffic, plus the overhead of calling it::

    core_seconds = max(flops / flops_per_core_second, penalty * traffic / bandwidth) + dispatch

Bandwidth is what ONE core can draw (``constants.CORE_BANDWIDTH``), or the whole node's when that is less: that all
cores together overload the node is seen elsewhere, because the traffic is kept beside the core-seconds. Operators with
measured seconds of their own (imported graphs) keep them. Knows nothing of placement, of queues, or of the network
between hosts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.constants import (
    CORE_BANDWIDTH,
    DIM_PENALTIES,
    DISPATCH_SECONDS,
    EXCHANGE_TRAFFIC,
    FUSED_KERNEL_BANDWIDTH,
    ID_SECONDS,
    RING_MESSAGE_SECONDS,
    RING_RECEIVE_BANDWIDTH,
    RING_SEND_BANDWIDTH,
    SUM_TRAFFIC,
    TCP_MESSAGE_SECONDS,
    TCP_STREAM_BANDWIDTH,
)
from cost_models.costs import CostTable, MessageCost, OpCost, PhaseCost, TableCost
from cost_models.routing import is_routed
from cost_models.traffic import (
    batch_bytes_per_sample,
    lookup_traffic,
    shard_lookup_traffic,
    shard_update_traffic,
    update_traffic,
    work_traffic,
)
from problem.graph import Kind

if TYPE_CHECKING:
    from problem.cluster import Node
    from problem.graph import Operator, Work
    from problem.model import EmbeddingTable, Model


def roofline_costs(model: Model, batch: int, node: Node) -> CostTable:
    """Return the costs of a model on a machine from its data sheet alone.

    Parameters
    ----------
    model : Model
        What is trained.
    batch : int
        Samples per batch.
    node : Node
        The machine. A node whose host has another name shares that host with other nodes, so its messages are memory
        copies; otherwise they go through TCP.

    Returns
    -------
    CostTable
        For ``node.kind``; the notes say what was assumed.
    """
    bandwidth = core_bandwidth(node)
    return CostTable(
        batch=batch,
        ops={op.name: _op_cost(op, batch, node) for op in model.graph if op.kind is not Kind.LOOKUP},
        tables={name: _table_cost(feature, batch, node) for name, feature in model.feature.items()},
        message=message_cost(node),
        next_batch_seconds=2 * batch * batch_bytes_per_sample(model) / bandwidth + DISPATCH_SECONDS.value,
        metric_seconds=DISPATCH_SECONDS.value,
        sum_seconds_per_byte=SUM_TRAFFIC.value / bandwidth,
        exchange_seconds_per_byte=EXCHANGE_TRAFFIC.value / bandwidth,
        kind=node.kind,
        flops_per_core_second=node.flops_per_core_second,
        source=f"roofline of {node.kind}",
        notes=_notes(node),
    )


def core_bandwidth(node: Node) -> float:
    """Memory bandwidth in bytes per second that one core of a node can draw, the others being idle."""
    return min(CORE_BANDWIDTH.value, node.memory_bandwidth_bytes_per_second)


def message_cost(node: Node) -> MessageCost:
    """Core-seconds of a message: a ring in shared memory on a host with several nodes, otherwise TCP.

    The fixed part is one-way time of a small message, divided evenly between the two ends (assumption). There is no part
    per tensor: the sources timed messages of one buffer.
    """
    if node.host != node.name:
        fixed, send, receive = RING_MESSAGE_SECONDS, RING_SEND_BANDWIDTH, RING_RECEIVE_BANDWIDTH
    else:
        fixed, send, receive = TCP_MESSAGE_SECONDS, TCP_STREAM_BANDWIDTH, TCP_STREAM_BANDWIDTH
    return MessageCost(fixed.value / 2, 1 / send.value, fixed.value / 2, 1 / receive.value)


def dim_penalty(dim: int) -> float:
    """Factor on the memory time of a table with rows of ``dim`` elements: short rows waste part of each burst."""
    return next((penalty.value for below, penalty in DIM_PENALTIES if dim < below), 1.0)


def _op_cost(op: Operator, batch: int, node: Node) -> OpCost:
    return OpCost(*(_phase_cost(work, batch, node) for work in (op.forward, op.backward, op.update)))


def _phase_cost(work: Work, batch: int, node: Node) -> PhaseCost:
    """Cost of one phase; a phase without work costs nothing, not even the call."""
    flops, traffic = work.flops_per_sample * batch, work_traffic(work, batch)
    if work.seconds_per_sample:
        return PhaseCost(work.seconds_per_sample * batch, traffic)
    if not (flops or traffic):
        return PhaseCost()
    seconds = max(flops / node.flops_per_core_second, traffic / core_bandwidth(node))
    return PhaseCost(seconds + DISPATCH_SECONDS.value, traffic)


def _table_cost(table: EmbeddingTable, batch: int, node: Node) -> TableCost:
    """Cost of a table: memory traffic at the bandwidth of a fused kernel; the few additions never bind.

    A shard without rows in the batch: the slower of its traffic and of looking at the ids that it gets, never more than a
    whole table.
    """
    seconds_per_byte = dim_penalty(table.dim) / (core_bandwidth(node) * FUSED_KERNEL_BANDWIDTH.value)

    passed_over = 0.0 if is_routed(table, batch) else batch * table.mean_ids

    def cost(traffic: float) -> PhaseCost:
        return PhaseCost(traffic * seconds_per_byte + DISPATCH_SECONDS.value, traffic)

    def each(traffic: float, whole: PhaseCost) -> PhaseCost:
        seconds = max(cost(traffic).core_seconds, passed_over * ID_SECONDS.value + DISPATCH_SECONDS.value)
        return PhaseCost(min(seconds, whole.core_seconds), traffic)

    lookup, update = cost(lookup_traffic(table, batch)), cost(update_traffic(table, batch))
    lookup_each, update_each = shard_lookup_traffic(table, batch), shard_update_traffic(table, batch)
    return TableCost(lookup, update, each(lookup_each, lookup), each(update_each, update))


def _notes(node: Node) -> tuple[str, ...]:
    return (
        f"{node.kind} was not profiled: costs are a roofline at {node.flops_per_core_second / 1e9:g} Gflop/s and "
        f"{core_bandwidth(node) / 1e9:g} GB/s a core",
        "messages are "
        + ("copies in shared memory" if node.host != node.name else "TCP, at the cost measured over loopback"),
    )
