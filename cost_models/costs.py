"""The cost table: what everything costs, in parts that stay apart until somebody has to add them.

One :class:`CostTable` says what each operator, table, message and exchange costs for ONE batch size on ONE kind of
machine. It does not say where its numbers come from (``source`` names it: a profile or the roofline) and knows nothing
of placement.

Core-seconds are seconds that one core is busy. Memory traffic is kept in bytes, because the bandwidth it loads belongs
to a node. A node of another speed scales core-seconds by :meth:`CostTable.slowdown`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from problem.cluster import Node


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """Cost of one phase of one operator for one batch: busy core-seconds and bytes of memory traffic."""

    core_seconds: float = 0.0
    traffic_bytes: float = 0.0

    def __add__(self, other: PhaseCost) -> PhaseCost:
        return PhaseCost(self.core_seconds + other.core_seconds, self.traffic_bytes + other.traffic_bytes)

    def scaled(self, factor: float) -> PhaseCost:
        """Return the cost multiplied by a factor (a shard's share of a table, for example)."""
        return PhaseCost(self.core_seconds * factor, self.traffic_bytes * factor)


@dataclass(frozen=True, slots=True)
class OpCost:
    """Cost of the three phases of an operator for one batch."""

    forward: PhaseCost = PhaseCost()
    backward: PhaseCost = PhaseCost()
    update: PhaseCost = PhaseCost()

    @property
    def total(self) -> PhaseCost:
        """All three phases together."""
        return self.forward + self.backward + self.update


@dataclass(frozen=True, slots=True)
class TableCost:
    """Cost of pooling (forward) and of the sparse update of one feature for one batch, on a core.

    Parameters
    ----------
    lookup, update : PhaseCost
        Of the WHOLE table.
    shard_lookup, shard_update : PhaseCost
        The part of these that every shard takes, however few rows it holds: it is called, looks at all ids to find its
        own, waits for fewer rows at once, and writes the pooled tensor. What is more than this is shared out
        (``placement.tables.shares.shard_cost``).
    """

    lookup: PhaseCost = PhaseCost()
    update: PhaseCost = PhaseCost()
    shard_lookup: PhaseCost = PhaseCost()
    shard_update: PhaseCost = PhaseCost()

    @property
    def total(self) -> PhaseCost:
        """Lookup and update of the whole table."""
        return self.lookup + self.update

    @property
    def each(self) -> PhaseCost:
        """What every shard takes of lookup and update."""
        return self.shard_lookup + self.shard_update


@dataclass(frozen=True, slots=True)
class MessageCost:
    """Core-seconds that a message takes from the sender's and from the receiver's thread.

    A fixed part, a part for each tensor that it carries, a part for each byte. A message without tensors, which only
    wakes its receiver, takes the fixed part.
    """

    send_seconds: float = 0.0
    send_seconds_per_byte: float = 0.0
    receive_seconds: float = 0.0
    receive_seconds_per_byte: float = 0.0
    send_seconds_per_tensor: float = 0.0
    receive_seconds_per_tensor: float = 0.0

    def send(self, size_bytes: float, tensors: float) -> float:
        """Core-seconds to send ``size_bytes`` in so many tensors."""
        return self.send_seconds + self.send_variable(size_bytes, tensors)

    def receive(self, size_bytes: float, tensors: float) -> float:
        """Core-seconds to receive ``size_bytes`` in so many tensors."""
        return self.receive_seconds + self.receive_variable(size_bytes, tensors)

    def send_variable(self, size_bytes: float, tensors: float) -> float:
        """Core-seconds to send, without the fixed part."""
        return self.send_seconds_per_byte * size_bytes + self.send_seconds_per_tensor * tensors

    def receive_variable(self, size_bytes: float, tensors: float) -> float:
        """Core-seconds to receive, without the fixed part."""
        return self.receive_seconds_per_byte * size_bytes + self.receive_seconds_per_tensor * tensors

    @property
    def unfixed(self) -> MessageCost:
        """The same without the fixed parts: what another tensor adds to a message that is sent anyway."""
        return replace(self, send_seconds=0.0, receive_seconds=0.0)

    def scaled(self, factor: float) -> MessageCost:
        """Return the cost multiplied by a factor."""
        return MessageCost(*(factor * getattr(self, part.name) for part in fields(self)))


@dataclass(frozen=True)
class CostTable:
    """All costs for one model, one batch size and one kind of machine.

    Parameters
    ----------
    batch : int
        Samples per batch that the costs are for.
    ops : Mapping
        Cost of each operator that is not a LOOKUP, by name.
    tables : Mapping
        Cost of each embedding feature, by name; a table that is not shared has one, of its own name.
    message : MessageCost
        Core-seconds of sending and receiving.
    next_batch_seconds, metric_seconds : float
        Core-seconds of taking a batch and of recording the loss.
    sum_seconds_per_byte : float
        Core-seconds per byte of adding one float32 buffer to another (all-reduce, partial sums), or of copying one.
    exchange_seconds_per_byte : float
        Core-seconds per byte of the elastic update (EASGD), at the trainer and at the sync server alike.
    kind : str
        Kind of machine that the costs are for (``Node.kind``).
    flops_per_core_second : float
        Core speed of that machine, the reference of :meth:`slowdown`.
    source : str
        Where the numbers come from, for printing.
    sum_seconds : float
        Core-seconds of a sum of partial tensors or gradients beside its bytes; those of an all-reduce are in its messages.
    notes : tuple of str
        What the reader of a prediction must know about them.
    """

    batch: int
    ops: Mapping[str, OpCost]
    tables: Mapping[str, TableCost] = field(default_factory=dict)
    message: MessageCost = MessageCost()
    next_batch_seconds: float = 0.0
    metric_seconds: float = 0.0
    sum_seconds_per_byte: float = 0.0
    exchange_seconds_per_byte: float = 0.0
    kind: str = "any"
    flops_per_core_second: float = 1.0
    source: str = "given"
    notes: tuple[str, ...] = ()
    sum_seconds: float = 0.0

    def summing(self, size_bytes: float) -> float:
        """Core-seconds of adding one partial tensor or gradient of ``size_bytes`` to another."""
        return self.sum_seconds + self.sum_seconds_per_byte * size_bytes

    def slowdown(self, node: Node) -> float:
        """Return by how much a core of ``node`` is slower than the machine that the costs are for (1 = as fast)."""
        return 1.0 if node.kind == self.kind else self.flops_per_core_second / node.flops_per_core_second
