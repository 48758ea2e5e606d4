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
from cost_models.network import Reduction
from placement.plan import DP
from placement.tagging.candidates import Item
from placement.tagging.net_loads import message_seconds
from placement.tagging.nets import RANK, Contracted, Net

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
    reduced = [_pair(contracted, item) for item in contracted.items]
    bytes_ = least_cut(
        contracted, [one.sent for one in reduced], [n.there.bytes + n.gradient * n.back.bytes for n in nets]
    )
    seconds = [_reduce_seconds(costs, one) for one in reduced]
    return Exchange(bytes_, least_cut(contracted, seconds, [_message_seconds(costs, net) for net in nets]))


def _pair(contracted: Contracted, item: Item) -> Reduction:
    """Both sides of the all-reduce of an item's gradients between two ranks: of more, each but one takes no less."""
    wires, graph = contracted.problem.wires, contracted.problem.model.graph
    one = sum((wires.reduced(graph[op], 2) for op in item.ops), wires.empty_reduction().nothing)
    return one + one


def _reduce_seconds(costs: CostTable, reduction: Reduction) -> float:
    """Core-seconds of an all-reduce for bytes and additions; encoding, which is less for each of more ranks, is left out."""
    message = costs.message
    per_byte = message.send_seconds_per_byte + message.receive_seconds_per_byte
    return per_byte * reduction.sent + costs.sum_seconds_per_byte * reduction.adds


def _message_seconds(costs: CostTable, net: Net) -> float:
    """Core-seconds of both ends of a net's messages, there and back."""
    there, back = (sum(message_seconds(costs.message, net.messages, wire)) for wire in (net.there, net.back))
    return there + net.gradient * back


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
        if item.fixed is None and DP in item.forbidden:
            flow.add_arc_with_capacity(index, sink, never)
        elif item.fixed is None:
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
