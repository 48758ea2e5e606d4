"""Messages between the workers of one host: shared memory for the bytes, pipes for the news.

What every transport offers is said here too (:class:`Transport`); the one between hosts is ``executor.mpi_transport``.

A :class:`Channel` goes one way between two processes. It is a ring of two slots in an anonymous shared mapping made before
the fork: it has no name, so nothing can be left behind. Messages and slots that come back are counted in shared memory,
with the clocks they carry beside the count; who waits for the next looks for a moment, then sleeps in a pipe and is woken
through it (``executor.counter``). A dead peer shows as the end of the pipe, provided that every other process has closed its
copies of the ends: see :func:`keep_only`.

A received message is read where it lies. Its slot is given back when the next message of the channel is received, so the
arrays of a step stay valid for the step. A slot that has come back is used again at once, before the other: it is in the
caches still, where two in turn would take twice the room.
"""

from __future__ import annotations

import itertools
import mmap
import os
import resource
import select
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from executor.clock import Clock
from executor.counter import TOKENS, Counter, Progress
from executor.errors import PeerGone
from executor.frame import Array, Layout, copier
from problem.local import usable_cores

SLOTS = 2
#: How often a worker with a core of its own looks for what it waits for before it sleeps: for some 25 us, about twice what
#: sleeping and being woken takes, so that not much is lost when it sleeps all the same.
LOOKS = 1000
_CLOCK = struct.Struct("d")


class Line(Protocol):
    """A one-way channel: what a worker does with it, whatever the transport."""

    def send(self, arrays: Sequence[Array], clock: Clock, progress: Progress) -> None:
        """Copy arrays into a message and send it."""

    def receive(self, clock: Clock, progress: Progress) -> list[Any]:
        """Wait for the next message and return its arrays, valid until the next call."""


class Bell(Protocol):
    """Carries clocks one way, to wake a worker; the sender never waits."""

    def put(self, clock: float) -> None:
        """Send a clock."""

    def get(self, progress: Progress) -> float:
        """Wait for a clock."""


class Inbox(Protocol):
    """Several channels that one worker receives from, in the order of arrival."""

    def wait(self, progress: Progress) -> list[int]:
        """Wait until some channels have a message or have ended; returns their positions."""

    def drop(self, position: int) -> None:
        """Take no more notice of a channel."""


class Transport(Protocol):
    """Makes the channels of a job. Every process of the job asks for all of them, in the same order."""

    def channel(self, source: str, target: str, layout: Layout, link: Link) -> Line:
        """Return a one-way channel between two workers."""

    def bell(self, source: str, target: str) -> Bell:
        """Return a bell that one worker rings at another."""

    def inbox(self, channels: Sequence[Any]) -> Inbox:
        """Return an inbox for channels of this transport."""

    def poke(self) -> None:
        """Called between two instructions: lets messages move that need a hand."""

    def leave(self, channels: Iterable[Any]) -> None:
        """Called when a worker has ended: ends its channels to inboxes, and waits for all that is under way."""


class Throttle(Protocol):
    """Holds messages back on the wall clock (``executor.throttle``)."""

    def send(self, size: int) -> float:
        """Send bytes now; returns when they arrive, on ``time.perf_counter``."""

    def receive(self, arrival: float, progress: Progress) -> None:
        """Wait until a message has arrived."""


@dataclass(frozen=True)
class Link:
    """The network that a channel pretends to cross.

    Parameters
    ----------
    seconds : float
        Time that it adds between the sender's clock and the arrival of a full message.
    seconds_per_byte : float
        How much less it adds for each byte that a message is shorter: arrays of bytes may be, up to the layout's size.
    bytes : int
        Bytes of a full message that count.
    throttle : Throttle, optional
        Holds messages back on the wall clock.
    """

    seconds: float = 0.0
    seconds_per_byte: float = 0.0
    bytes: int = 0
    throttle: Throttle | None = None

    def depart(self, unused: int) -> float:
        """Send a message, so many bytes short of a full one, into the throttle; returns when it arrives on the wall."""
        return self.throttle.send(self.bytes - unused) if self.throttle is not None else 0.0

    def arrive(self, arrival: float, progress: Progress) -> None:
        """Wait until a message has come through the throttle."""
        if self.throttle is not None:
            self.throttle.receive(arrival, progress)


def shared_array(shape: tuple[int, ...], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Return a zeroed array in anonymous memory that forked processes share."""
    count = int(np.prod(shape, dtype=np.int64))
    size = max(1, count) * np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(-1, size), dtype=dtype, count=count).reshape(shape)


class Pipe:
    """A pipe that carries clocks; both ends open until :func:`keep_only` closes what a process does not use."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()

    def put(self, clock: float) -> None:
        """Write a clock; raises PeerGone when nobody can read it."""
        try:
            os.write(self.write_end, _CLOCK.pack(clock))
        except BrokenPipeError as error:
            raise PeerGone from error

    def get(self, progress: Progress) -> float:
        """Wait for a clock; raises PeerGone when nobody is left to write one."""
        progress.waiting(True)
        data = os.read(self.read_end, _CLOCK.size)
        progress.waiting(False)
        if len(data) < _CLOCK.size:
            raise PeerGone
        return float(_CLOCK.unpack(data)[0])


class Channel:
    """One-way channel between two forked processes.

    Parameters
    ----------
    source, target : str
        Names of the workers.
    layout : Layout
        Arrays of every message of the channel.
    link : Link
        The network that it pretends to cross.
    looks : int
        How often either end looks for what it waits for before it sleeps (:func:`looks_of`).
    """

    def __init__(self, source: str, target: str, layout: Layout, link: Link = Link(), looks: int = 0) -> None:
        self.source, self.target, self.link, self._looks = source, target, link, looks
        self._news, self._returned = Counter(), Counter()
        self._slots = [[shared_array(shape, dtype) for shape, dtype in layout] for _ in range(SLOTS)]
        self._copy = copier(layout)
        # of the last messages, by number: clock, time when it comes through the throttle, slot; clock of who gave it back
        notes = self._news.notes
        self._clocks, self._arrivals, self._places = (notes[SLOTS * i : SLOTS * (i + 1)] for i in range(3))
        self._clocks_back = self._returned.notes[:SLOTS]
        self._sent = self._received = 0
        self._slot = 0  # that of the last message sent

    @property
    def bytes(self) -> int:
        """Bytes of one full message."""
        return sum(array.nbytes for array in self._slots[0])

    def send(self, arrays: Sequence[Array], clock: Clock, progress: Progress) -> None:
        """Copy arrays into a slot and tell; waits while both slots are in use.

        Raises
        ------
        PeerGone
            The receiver has ended, and both slots are in use or it had gone to sleep.
        """
        sent, link = self._sent, self.link
        at = sent % SLOTS
        if sent >= SLOTS:
            self._returned.wait(sent - SLOTS + 1, progress, self._looks)
            clock.meet(self._clocks_back[at])
        if self._returned.count < sent:  # the last message's slot has not come back, so the other has
            self._slot = 1 - self._slot
        unused = self._copy(self._slots[self._slot], arrays)
        clock.stamp()
        self._clocks[at] = clock.now + link.seconds - unused * link.seconds_per_byte
        self._places[at] = self._slot
        if link.throttle is not None:
            self._arrivals[at] = link.depart(unused)
        self._sent = sent + 1
        self._news.tell(sent + 1)

    def receive(self, clock: Clock, progress: Progress) -> list[Array]:
        """Wait for the next message and return its arrays, valid until the next call.

        Raises
        ------
        PeerGone
            The sender has ended without sending it.
        """
        received = self._received
        at = received % SLOTS
        if received:
            self._give_back(clock.now)
        self._news.wait(received + 1, progress, self._looks)
        clock.meet(self._clocks[at])
        if self.link.throttle is not None:
            self.link.arrive(self._arrivals[at], progress)
        self._received = received + 1
        return self._slots[int(self._places[at])]

    def _give_back(self, now: float) -> None:
        self._clocks_back[(self._received - 1) % SLOTS] = now
        try:  # contextlib.suppress takes as long as all the rest
            self._returned.tell(self._received)
        except PeerGone:  # the sender has sent all it had to
            return

    @property
    def news(self) -> Counter:
        """Counts the messages that have been sent."""
        return self._news

    @property
    def next_message(self) -> int:
        """Number, from 1, of the message that is received next."""
        return self._received + 1

    def ends(self, worker: str) -> tuple[set[int], set[int]]:
        """File descriptors that a worker needs, and all of the channel's."""
        used = set[int]()
        if worker == self.source:
            used |= {self._news.write_end, self._returned.read_end}
        if worker == self.target:
            used |= {self._news.read_end, self._returned.write_end}
        counters = (self._news, self._returned)
        return used, {end for counter in counters for end in (counter.read_end, counter.write_end)}


def looks_of(processes: int) -> int:
    """Return how often each of so many processes should look before it sleeps: not at all where they outnumber the cores."""
    return LOOKS if processes <= usable_cores() else 0


class PipeInbox:
    """Inbox of channels of one host.

    Parameters
    ----------
    channels : sequence of Channel
        What to receive from.
    """

    def __init__(self, channels: Sequence[Channel]) -> None:
        self._open = {channel.news.read_end: (position, channel) for position, channel in enumerate(channels)}
        self._poll = select.poll()
        for descriptor in self._open:
            self._poll.register(descriptor, select.POLLIN)

    def wait(self, progress: Progress) -> list[int]:
        """Wait until some channels have a message or have ended; returns their positions."""
        ended: set[int] = set()
        while True:
            found = [position for position, one in self._open.values() if one.news.announced(one.next_message)]
            if found or ended:
                return sorted({*found, *ended})
            progress.waiting(True)
            woken = [descriptor for descriptor, _ in self._poll.poll()]
            progress.waiting(False)
            ended = {self._open[descriptor][0] for descriptor in woken if not os.read(descriptor, TOKENS)}

    def drop(self, position: int) -> None:
        """Take no more notice of a channel."""
        descriptor = next(number for number, (at, _) in self._open.items() if at == position)
        self._poll.unregister(descriptor)
        del self._open[descriptor]


class SharedMemory:
    """The transport of one host: everything is made before the fork, each process closes what is not its own.

    Parameters
    ----------
    looks : int
        How often a worker looks for what it waits for before it sleeps.
    """

    def __init__(self, looks: int = 0) -> None:
        raise_file_limit()
        self._looks = looks
        self._channels: list[Channel] = []
        self._bells: list[tuple[str, str, Pipe]] = []

    def channel(self, source: str, target: str, layout: Layout, link: Link) -> Channel:
        """Return a one-way channel between two workers."""
        self._channels.append(Channel(source, target, layout, link, self._looks))
        return self._channels[-1]

    def bell(self, source: str, target: str) -> Pipe:
        """Return a pipe that one worker wakes another with."""
        self._bells.append((source, target, Pipe()))
        return self._bells[-1][2]

    def inbox(self, channels: Sequence[Channel]) -> PipeInbox:
        """Return an inbox for some channels."""
        return PipeInbox(channels)

    def poke(self) -> None:
        """Nothing needs a hand: the kernel moves what is in a pipe."""

    def leave(self, channels: Iterable[Channel]) -> None:
        """Nothing to do: the end of a process closes its pipes."""

    def descriptors(self, worker: str) -> tuple[set[int], set[int]]:
        """File descriptors that a worker uses, and all there are."""
        used, everything = set[int](), set[int]()
        for channel in self._channels:
            mine, both = channel.ends(worker)
            used |= mine
            everything |= both
        for source, target, pipe in self._bells:
            everything |= {pipe.read_end, pipe.write_end}
            used |= {pipe.write_end} if worker == source else set()
            used |= {pipe.read_end} if worker == target else set()
        return used, everything

    def memory(self, worker: str) -> Iterator[Array]:
        """Yield the slots of the channels that a worker sends or receives by."""
        for channel in self._channels:
            if worker in {channel.source, channel.target}:
                yield from itertools.chain.from_iterable(channel._slots)

    def close(self) -> None:
        """Close every end in this process; the supervisor does so once the workers run."""
        keep_only(set(), self.descriptors("")[1])


def raise_file_limit() -> None:
    """Let this process open as many files as the system allows: a job of many workers needs two pipes a channel."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def keep_only(used: set[int], everything: set[int]) -> None:
    """Close all file descriptors but the used ones, so that the death of a peer ends its pipes."""
    for descriptor in sorted(everything - used):
        os.close(descriptor)
