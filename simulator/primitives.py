"""The three things that a simulated worker can do, and where its time is booked.

Work on its machine, hand a message to the network, wait for a message; :class:`EveryGap` decides which of them a step
skips. Pure data: ``simulator.lowering`` makes them from
instructions, ``simulator.interpreter`` carries them out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any


class Part(IntEnum):
    """What a worker's time is spent on; index into a time split."""

    COMPUTE = 0  # work at the speed of an idle machine
    TRANSFER = 1  # a message on the wire, at the speed of an idle network
    CONTENTION = 2  # what sharing cores, memory bandwidth and NICs adds to both
    PEER = 3  # waiting for a node of the group that has not sent yet
    PS_QUEUE = 4  # waiting for an embedding server that has not answered yet
    SYNC = 5  # exchanging parameters between groups in the foreground
    READER = 6  # waiting for the next batch
    RECOVERY = 7  # standing still after a loss, or while a checkpoint is written


@dataclass(slots=True, eq=False)
class Message:
    """A message under way: when it was handed to the network, how long it takes alone, what a sync server does then."""

    sent_ns: int
    ideal_ns: int
    answer: Answer | None = None


@dataclass(slots=True, eq=False)
class Mailbox:
    """Where the messages of one channel arrive.

    ``label`` is for people; ``waiting`` is the worker that stands at it; ``serve`` takes the messages of a sync server.
    """

    label: str
    arrived: deque[Message] = field(default_factory=deque)
    waiting: Any = None
    serve: Callable[[Message], None] | None = None


@dataclass(slots=True, eq=False)
class Meeting:
    """Where the ranks of a group meet: when the messages of all ``missing`` have arrived, each of ``boxes`` gets the last.

    ``missing`` counts down and starts again from the number of boxes. Where arrivals are known beforehand, ``last`` is the
    latest so far, with its message.
    """

    inbox: Mailbox
    boxes: tuple[Mailbox, ...]
    missing: int
    last: tuple[int, Message | None] = (-1, None)


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """A step of a worker that the simulator times. ``last``: with it the instruction ends. ``part``: where booked."""

    last: bool = field(default=False, kw_only=True)
    part: Part = field(default=Part.COMPUTE, kw_only=True)


@dataclass(frozen=True, slots=True, eq=False)
class Work(Primitive):
    """Use a core, and memory bandwidth beside it."""

    core_ns: int
    traffic_bytes: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Emit(Primitive):
    """Hand a message to the network; takes no time of its own."""

    mailbox: Mailbox
    source: int
    target: int
    bytes: int
    answer: Answer | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a sync server does for a request: work, then a message back. ``node`` of every group belongs to one round."""

    work: Work
    reply: Emit
    node: int


@dataclass(frozen=True, slots=True, eq=False)
class Await(Primitive):
    """Wait for the next message of a mailbox."""

    mailbox: Mailbox


@dataclass(frozen=True, slots=True, eq=False)
class EveryGap(Primitive):
    """Pass over the next ``skip`` primitives unless the number of the step (from 1) is divisible by ``gap``."""

    gap: int
    skip: int


@dataclass(slots=True, eq=False)
class Reader:
    """The readers of one node: a batch every ``interval_ns``, at most ``depth`` of them read ahead."""

    interval_ns: int
    depth: int
    latest_ns: int = 0  # when the batch that was taken last was ready

    def take(self, now: int) -> int:
        """Take the next batch; return when it is there."""
        self.latest_ns = max(self.latest_ns, now - self.depth * self.interval_ns) + self.interval_ns
        return max(now, self.latest_ns)


@dataclass(frozen=True, slots=True, eq=False)
class Read(Primitive):
    """Wait for the next batch of the node's readers."""

    reader: Reader


@dataclass(frozen=True, slots=True, eq=False)
class Lag(Primitive):
    """Wait for the slowest of ``ranks`` alike, of which only this one is simulated; the others vary as it does."""

    ranks: int


def busy_ns(primitives: Iterable[Primitive]) -> int:
    """Core-nanoseconds of primitives."""
    return sum([primitive.core_ns for primitive in primitives if isinstance(primitive, Work)])
