"""The network: how long a message is on the wire, and what an all-reduce moves and costs.

Closed forms only, for one session that has the network to itself; contention is the simulator's business. The module
knows messages and bytes and refuses to know operators, tags or plans.
"""

from __future__ import annotations

from dataclasses import dataclass
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


def all_reduce_bytes(size_bytes: float, ranks: int) -> float:
    """Bytes that each rank sends (and receives): 2 (R - 1) / R of the buffer.

    The lower bound of any all-reduce, reached by direct reduce-scatter and all-gather as by a ring (Patarasuk and Yuan,
    J. Parallel Distrib. Comput. 69 (2009) 117-124).
    """
    return 2.0 * (ranks - 1) / ranks * size_bytes


@dataclass(frozen=True, slots=True)
class Wire:
    """What travels in a message: bytes, core-seconds to encode and to decode them at the cost table's speed, tensors.

    The lengths that lead a coded message are not counted as a tensor.
    """

    bytes: float = 0.0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    tensors: float = 0.0

    def __add__(self, other: Wire) -> Wire:
        """Both in one message."""
        return Wire(
            self.bytes + other.bytes,
            self.encode_seconds + other.encode_seconds,
            self.decode_seconds + other.decode_seconds,
            self.tensors + other.tensors,
        )

    def sending(self, cost: MessageCost) -> float:
        """Core-seconds of the sender's thread: encoding and sending."""
        return self.encode_seconds + cost.send(self.bytes, self.tensors)

    def receiving(self, cost: MessageCost) -> float:
        """Core-seconds of the receiver's thread: receiving and decoding."""
        return cost.receive(self.bytes, self.tensors) + self.decode_seconds


@dataclass(frozen=True, slots=True)
class Reduction:
    """What a gradient takes of an all-reduce: in each round every rank sends every other one message.

    Parameters
    ----------
    rounds : tuple of Wire
        One message of each round.
    sent : float
        Bytes that each rank sends (and receives) in all rounds.
    adds : float
        Bytes of float32 that each rank adds or copies to their place, which takes as long: either way two are read for
        each that is written, because a core reads a line of memory before it writes to it.
    """

    rounds: tuple[Wire, ...]
    sent: float
    adds: float

    def __add__(self, other: Reduction) -> Reduction:
        """Both in one all-reduce, of as many rounds."""
        rounds = tuple(a + b for a, b in zip(self.rounds, other.rounds, strict=True))
        return Reduction(rounds, self.sent + other.sent, self.adds + other.adds)

    @property
    def nothing(self) -> Reduction:
        """What adds nothing to an all-reduce of as many rounds."""
        return Reduction((Wire(),) * len(self.rounds), 0.0, 0.0)

    def messages(self, ranks: int) -> int:
        """Messages that each rank sends (and receives)."""
        return len(self.rounds) * (ranks - 1)

    def core_seconds(self, costs: CostTable, ranks: int) -> float:
        """Core-seconds of one rank's thread without the fixed part of messages: bytes, tensors, coding, additions."""
        coding = sum(wire.encode_seconds + wire.decode_seconds for wire in self.rounds)
        tensors, message = (ranks - 1) * sum(wire.tensors for wire in self.rounds), costs.message
        moving = message.send_variable(self.sent, tensors) + message.receive_variable(self.sent, tensors)
        return moving + (ranks - 1) * coding + costs.sum_seconds_per_byte * self.adds

    def thread_seconds(self, costs: CostTable, ranks: int) -> float:
        """Core-seconds of one rank's thread, all messages whole."""
        ends = costs.message.send_seconds + costs.message.receive_seconds
        return self.messages(ranks) * ends + self.core_seconds(costs, ranks)


def no_slices() -> Reduction:
    """Return the all-reduce by slices of nothing: empty messages of one tensor, the slice."""
    return Reduction((Wire(tensors=1), Wire(tensors=1)), 0.0, 0.0)


def in_slices(size_bytes: float, ranks: int, sent: Wire | None = None) -> Reduction:
    """Return what a gradient adds to the all-reduce by slices: each rank sums one of R slices, and sends the sum to all.

    The sums of the others are copied to their place, unless they are decoded there. The slices themselves, one tensor a
    message, are counted by the all-reduce of nothing (:func:`no_slices`).

    Parameters
    ----------
    size_bytes : float
        Float32 bytes of the gradient.
    ranks : int
        R.
    sent : Wire, optional
        What travels for the whole gradient, if not float32. A sum is encoded once for all messages.
    """
    wire = sent or Wire(size_bytes)
    piece = Wire(wire.bytes / ranks, wire.encode_seconds / ranks, wire.decode_seconds / ranks)
    back = Wire(piece.bytes, piece.encode_seconds / max(1, ranks - 1), piece.decode_seconds)
    adds = (ranks - 1) / ranks * size_bytes * (1.0 if sent else 2.0)
    return Reduction((piece, back), all_reduce_bytes(wire.bytes, ranks), adds)


def at_once(size_bytes: float, ranks: int, sent: Wire) -> Reduction:
    """Return the all-reduce of one round: each rank sends all it keeps (``sent``), encoded once, to all others."""
    wire = Wire(sent.bytes, sent.encode_seconds / max(1, ranks - 1), sent.decode_seconds, sent.tensors)
    return Reduction((wire,), (ranks - 1) * sent.bytes, (ranks - 1) * size_bytes)


def round_forms(
    message: MessageCost, wire: Wire, peers: int, seconds_per_byte: float, latency: float
) -> tuple[float, ...]:
    """Return the linear forms whose largest is the time of one round of an all-reduce.

    In a round a thread sends a message to every peer, then receives one from every peer. Either its sends or the first
    arrival delay the receives, or the last arrival does: messages pass the NIC one after another, each after the slower of
    sending and ``seconds_per_byte`` times its bytes. Equal ranks that start together are assumed.
    """
    send, receive = wire.sending(message), wire.receiving(message)
    occupancy = seconds_per_byte * wire.bytes
    first = send + occupancy + latency
    last = first + receive
    return (
        peers * (send + receive),
        first + peers * receive,
        last + (peers - 1) * send,
        last + (peers - 1) * occupancy,
    )


def all_reduce_seconds(costs: CostTable, reduction: Reduction, nodes: tuple[Node, ...], slowdown: float = 1.0) -> float:
    """Return the duration of an all-reduce over two ``nodes`` or more that have the network to themselves."""
    per_byte = max(occupancy_seconds(nodes[0], node, 1.0) for node in nodes[1:]) / slowdown
    latency = max(latency_seconds(nodes[0], node) for node in nodes[1:]) / slowdown
    rounds = (max(round_forms(costs.message, w, len(nodes) - 1, per_byte, latency)) for w in reduction.rounds)
    return slowdown * (sum(rounds) + costs.sum_seconds_per_byte * reduction.adds)
