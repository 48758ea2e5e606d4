"""What a group exchanges at least, whatever its tags: a minimum cut between data-parallel and model-parallel operators.

A data-parallel item's gradients are all-reduced: its R ranks send 2 (R - 1) times its parameters. A net with a
data-parallel and a model-parallel end is sent, and its gradient sent back, for all ranks but at most one. Both grow with
R - 1, so one minimum cut (Ford, Fulkerson 1956) bounds groups of all sizes. Model-parallel items are taken to be on one
node, which no placement is worse than; how the load is spread over the nodes is not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

from ortools.graph.python import max_flow  # type: ignore[import-untyped]

from cost_models.costs import CostTable
from placement.nets import RANK, Contracted, Net
from placement.plan import DP

#: Capacities are integers; the sum of all of them is this much, rounded down, so the bound stays one.
SCALE = 10**15


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the nodes of a group exchange at least for each rank but one, per step.

    Parameters
    ----------
    sent_bytes : float
        That leave NICs, and arrive, if every node has a host of its own.
    core_seconds : float
        For sending and receiving, at the speed of the cost table.
    """

    sent_bytes: float
    core_seconds: float


def least_exchange(contracted: Contracted) -> Exchange:
    """Return what a group exchanges at least for each rank but one.

    Parameters
    ----------
    contracted : Contracted
        A group problem of the job; its machines do not count.
    """
    costs, nets = contracted.problem.costs, contracted.nets
    sizes = [float(work.parameter_bytes) for work in contracted.work]
    moved = least_cut(contracted, [2 * size for size in sizes], [(1 + net.gradient) * net.bytes for net in nets])
    reduced = [_reduce_seconds(costs) * size for size in sizes]
    return Exchange(moved, least_cut(contracted, reduced, [_message_seconds(costs, net) for net in nets]))


def _reduce_seconds(costs: CostTable) -> float:
    """Core-seconds of all ranks for each byte that is all-reduced, and each rank but one (``all_reduce_core_seconds``)."""
    message = costs.message
    return 2 * (message.send_seconds_per_byte + message.receive_seconds_per_byte) + costs.sum_seconds_per_byte


def _message_seconds(costs: CostTable, net: Net) -> float:
    """Core-seconds of both ends of a net's messages, there and back."""
    size = net.bytes / net.messages
    return net.messages * (1 + net.gradient) * (costs.message.send(size) + costs.message.receive(size))


def least_cut(contracted: Contracted, items: list[float], nets: list[float]) -> float:
    """Return the least sum of what data-parallel items and cut nets cost.

    Parameters
    ----------
    contracted : Contracted
        Items and nets.
    items : list of float
        What each item costs if it is data-parallel.
    nets : list of float
        What each net costs if not all of its ends are data-parallel, or all model-parallel.
    """
    total = sum(items) + sum(nets)
    if total <= 0:
        return 0.0
    count, flow = len(items), max_flow.SimpleMaxFlow()
    source, sink, never = count, count + 1, 2 * SCALE
    for index, item in enumerate(contracted.items):
        if item.fixed is None:
            flow.add_arc_with_capacity(index, sink, int(items[index] / total * SCALE))
        else:
            flow.add_arc_with_capacity(*((source, index) if item.fixed == DP else (index, sink)), never)
    for number, (net, cost) in enumerate(zip(contracted.nets, nets, strict=True)):
        entry = count + 2 + 2 * number
        flow.add_arc_with_capacity(entry, entry + 1, int(cost / total * SCALE))
        for end in (net.producer, *(item for item, _ in net.consumers)):
            at = source if end == RANK else end
            flow.add_arc_with_capacity(at, entry, never)
            flow.add_arc_with_capacity(entry + 1, at, never)
    flow.solve(source, sink)
    return int(flow.optimal_flow()) / SCALE * total
