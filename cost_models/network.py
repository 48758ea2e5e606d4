"""The network: how long a message is on the wire, and what an all-reduce moves and costs.

Closed forms only, for one session that has the network to itself; contention is the simulator's business. The module
knows messages and bytes and refuses to know operators, tags or plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cost_models.costs import CostTable, MessageCost
    from problem.cluster import Node


def on_one_host(sender: Node, receiver: Node) -> bool:
    """Whether a message between two nodes is a memory copy on one host, which loads no NIC."""
    return sender.host == receiver.host


def rate_bytes_per_second(sender: Node, receiver: Node) -> float:
    """Return the rate of the slower of the two NICs."""
    return min(sender.nic_bytes_per_second, receiver.nic_bytes_per_second)


def latency_seconds(sender: Node, receiver: Node) -> float:
    """Return the one-way latency between two nodes: 0 on one host, else the larger of their latencies."""
    return 0.0 if on_one_host(sender, receiver) else max(sender.latency_seconds, receiver.latency_seconds)


def occupancy_seconds(sender: Node, receiver: Node, size_bytes: float) -> float:
    """Return how long a message occupies the NICs: bytes / rate of the slower one; 0 on one host."""
    return 0.0 if on_one_host(sender, receiver) else size_bytes / rate_bytes_per_second(sender, receiver)


def wire_seconds(sender: Node, receiver: Node, size_bytes: float) -> float:
    """Return the time from the end of the send call to the arrival: latency + bytes / rate (Hockney's model)."""
    return latency_seconds(sender, receiver) + occupancy_seconds(sender, receiver, size_bytes)


def all_reduce_messages(ranks: int) -> int:
    """Messages that each rank sends (and receives): (R - 1) to scatter slices and (R - 1) to gather the sums."""
    return 2 * (ranks - 1)


def all_reduce_bytes(size_bytes: float, ranks: int) -> float:
    """Bytes that each rank sends (and receives): 2 (R - 1) / R of the buffer.

    The lower bound of any all-reduce, reached by direct reduce-scatter and all-gather as by a ring (Patarasuk and Yuan,
    J. Parallel Distrib. Comput. 69 (2009) 117-124).
    """
    return 2.0 * (ranks - 1) / ranks * size_bytes


def all_reduce_core_seconds(costs: CostTable, size_bytes: float, ranks: int) -> float:
    """Core-seconds of one rank's thread: its sends and receives, and adding (R - 1) slices of bytes / R."""
    if ranks == 1 or size_bytes == 0:
        return 0.0
    piece = size_bytes / ranks
    handled = all_reduce_messages(ranks) * (costs.message.send(piece) + costs.message.receive(piece))
    return handled + costs.sum_seconds_per_byte * (ranks - 1) * piece


def round_forms(message: MessageCost, piece: float, peers: int, occupancy: float, latency: float) -> tuple[float, ...]:
    """Return the linear forms whose largest is the time of one round of an all-reduce.

    In a round a thread sends a piece of ``piece`` bytes to every peer, then receives one from every peer. Either its
    sends or the first arrival delay the receives, or the last arrival does: pieces pass the NIC one after another, each
    after the slower of sending and ``occupancy``. Equal ranks that start together are assumed.
    """
    send, receive = message.send(piece), message.receive(piece)
    first = send + occupancy + latency
    last = first + receive
    return (
        peers * (send + receive),
        first + peers * receive,
        last + (peers - 1) * send,
        last + (peers - 1) * occupancy,
    )


def all_reduce_seconds(costs: CostTable, size_bytes: float, nodes: tuple[Node, ...], slowdown: float = 1.0) -> float:
    """Return the duration of an all-reduce over ``nodes`` that have the network to themselves."""
    ranks = len(nodes)
    if ranks == 1 or size_bytes == 0:
        return 0.0
    piece = size_bytes / ranks
    occupancy = max(occupancy_seconds(nodes[0], node, piece) for node in nodes[1:])
    latency = max(latency_seconds(nodes[0], node) for node in nodes[1:])
    one = max(round_forms(costs.message, piece, ranks - 1, occupancy / slowdown, latency / slowdown))
    return slowdown * (2 * one + costs.sum_seconds_per_byte * (ranks - 1) * piece)
