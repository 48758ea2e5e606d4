"""The transport between hosts: a channel is a tag between two ranks of MPI.

A message is copied once, into a frame of the sender's (``executor.frame``), and goes out by a synchronous send; the frame
is free again when the receiver has asked for the message. A small message of fixed length has two frames in turn, as a
channel of shared memory has two slots; a large one, and one that is coded, has one. A large message travels in parts, each
by a send of its own: the receiver takes in the first while the next is copied. A message ends a channel by its clock.

A large message may need a hand of its sender, which gives one between any two instructions (:meth:`MpiTransport.poke`).
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.clock import Clock
from executor.counter import Progress
from executor.errors import PeerGone
from executor.frame import Array, Bytes, CodedFrame, Frame, Layout, Part, is_coded
from executor.mpi import await_, library
from executor.transport import Link

#: Clock of a message that ends its channel.
_END = float("-inf")


class MpiChannel(ABC):
    """One-way channel between two ranks; what it needs is made at either end when it is first used (:func:`mpi_channel`).

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The ranks of the job.
    source, target, tag : int
        Ranks of sender and receiver, tag of the channel's messages.
    layout : Layout
        Arrays of every message.
    link : Link
        The network that it pretends to cross.
    """

    def __init__(self, comm: Any, source: int, target: int, tag: int, layout: Layout, link: Link) -> None:
        self.comm, self.source, self.target, self.tag = comm, source, target, tag
        self._layout, self._link = layout, link

    @property
    @abstractmethod
    def _frame(self) -> Frame | CodedFrame:
        """Where this end has its message."""

    @cached_property
    def _receiving(self) -> list[Any]:
        byte, ends = library().BYTE, (self.source, self.tag)
        return [self.comm.Recv_init([part.memory, byte], *ends) for part in self._frame.parts]

    @abstractmethod
    def send(self, arrays: Sequence[Array], clock: Clock, progress: Progress) -> None:
        """Copy arrays into a message and send it; waits where the one before has not been received."""

    @abstractmethod
    def end(self, progress: Progress) -> None:
        """Sender: tell the receiver that no message follows."""

    @abstractmethod
    def close(self, progress: Progress) -> None:
        """Wait for what is under way and give back what MPI holds for this end."""

    def _stamp(self, times: memoryview[float], clock: Clock, unused: int = 0) -> None:
        """Write the times of a message, so many bytes short of a full one, that goes out now."""
        link = self._link
        clock.stamp()
        times[0] = clock.now + link.seconds - unused * link.seconds_per_byte
        if link.throttle is not None:
            times[1] = link.depart(unused)

    def receive(self, clock: Clock, progress: Progress) -> list[Any]:
        """Wait for the next message and return its arrays, valid until the next call.

        Raises
        ------
        PeerGone
            The sender has ended the channel.
        """
        frame, requests = self._frame, self._receiving
        for request in requests:
            request.Start()
        for request in requests:
            await_(request.Test, progress, clock)
        now = frame.times[0]
        if now == _END:
            raise PeerGone
        clock.meet(now)
        if self._link.throttle is not None:
            self._link.arrive(frame.times[1], progress)
        return frame.arrays()

    def has_news(self) -> bool:
        """Whether a message, or the end of the channel, has arrived."""
        return bool(self.comm.Iprobe(self.source, self.tag))


class FixedMpiChannel(MpiChannel):
    """A channel of messages of one length."""

    @cached_property
    def _frame(self) -> Frame:
        return Frame(self._layout)

    @cached_property
    def _outgoing(self) -> list[tuple[Frame, list[tuple[Part, Any]]]]:
        """Frames to send from, their parts with what sends each."""
        first, byte, ends = Frame(self._layout), library().BYTE, (self.target, self.tag)
        frames = [first] if len(first.parts) > 1 else [first, Frame(self._layout)]
        return [
            (frame, [(part, self.comm.Ssend_init([part.memory, byte], *ends)) for part in frame.parts])
            for frame in frames
        ]

    @cached_property
    def _turns(self) -> Iterator[tuple[Frame, list[tuple[Part, Any]]]]:
        return itertools.cycle(self._outgoing)

    def send(self, arrays: Sequence[Array], clock: Clock, progress: Progress) -> None:
        """Copy arrays into a message and send it; each part waits until what the frame had there has been received."""
        frame, parts = next(self._turns)
        last = frame.parts[-1]
        for part, request in parts:
            if not request.Test():  # true of what was never started
                await_(request.Test, progress, clock)
            part.fill(arrays)
            if part is last:
                self._stamp(frame.times, clock)
            request.Start()

    def end(self, progress: Progress) -> None:
        """Sender: send a message of no meaning but its clock."""
        self._finish_send(progress)
        frame, parts = next(self._turns)
        frame.times[0] = _END
        for _, request in parts:
            request.Start()

    def _sends(self) -> list[Any]:
        """What has been made to send parts."""
        return [request for _, parts in self.__dict__.get("_outgoing", ()) for _, request in parts]

    def _finish_send(self, progress: Progress) -> None:
        for request in self._sends():
            await_(request.Test, progress)

    def close(self, progress: Progress) -> None:
        """Wait for what is under way and give back what MPI holds for this end."""
        self._finish_send(progress)
        for request in (*self._sends(), *self.__dict__.get("_receiving", ())):
            request.Free()
        for made in ("_outgoing", "_turns", "_receiving"):
            self.__dict__.pop(made, None)


class CodedMpiChannel(MpiChannel):
    """A channel of coded messages, each as long as its arrays, in one piece."""

    _under_way: Any = None

    @cached_property
    def _frame(self) -> CodedFrame:
        return CodedFrame(self._layout)

    def send(self, arrays: Sequence[Array], clock: Clock, progress: Progress) -> None:
        """Copy arrays into a message and send it; waits until the one before has been received."""
        self._finish_send(progress, clock)
        message, unused = self._frame.pack(arrays)
        self._stamp(self._frame.times, clock, unused)
        self._start(message)

    def end(self, progress: Progress) -> None:
        """Sender: send a message without arrays."""
        self._finish_send(progress)
        self._frame.times[0] = _END
        self._start(self._frame.empty)

    def _start(self, message: Bytes) -> None:
        self._under_way = self.comm.Issend([message, library().BYTE], self.target, self.tag)

    def _finish_send(self, progress: Progress, clock: Clock | None = None) -> None:
        request, self._under_way = self._under_way, None
        if request is not None:
            await_(request.Test, progress, clock)

    def close(self, progress: Progress) -> None:
        """Wait for what is under way and give back what MPI holds for this end."""
        self._finish_send(progress)
        for request in self.__dict__.pop("_receiving", ()):
            request.Free()


def mpi_channel(comm: Any, source: int, target: int, tag: int, layout: Layout, link: Link) -> MpiChannel:
    """Return a channel for messages of a layout (parameters: :class:`MpiChannel`)."""
    kind = CodedMpiChannel if is_coded(layout) else FixedMpiChannel
    return kind(comm, source, target, tag, layout, link)


class MpiBell:
    """Carries clocks from one rank to another; the sender never waits, and keeps what has not gone yet."""

    def __init__(self, comm: Any, source: int, target: int, tag: int) -> None:
        self._comm, self._source, self._target, self._tag = comm, source, target, tag
        self._under_way: list[tuple[Any, npt.NDArray[np.float64]]] = []

    def put(self, clock: float) -> None:
        """Send a clock."""
        self._under_way = [(request, value) for request, value in self._under_way if not request.Test()]
        value = np.array([clock])
        self._under_way.append((self._comm.Isend(value, self._target, self._tag), value))

    def get(self, progress: Progress) -> float:
        """Wait for a clock."""
        value = np.zeros(1)
        await_(self._comm.Irecv(value, self._source, self._tag).Test, progress)
        return float(value[0])

    def close(self, progress: Progress) -> None:
        """Wait for what is under way."""
        for request, _ in self._under_way:
            await_(request.Test, progress)
        self._under_way.clear()


class MpiInbox:
    """Several channels that one rank receives from, in the order of arrival."""

    def __init__(self, channels: Sequence[MpiChannel]) -> None:
        self._open = dict(enumerate(channels))

    def wait(self, progress: Progress) -> list[int]:
        """Wait until some channels have a message or have ended; returns their positions."""
        found: list[int] = []

        def look() -> bool:
            found.extend(position for position, channel in self._open.items() if channel.has_news())
            return bool(found)

        await_(look, progress)
        return found

    def drop(self, position: int) -> None:
        """Take no more notice of a channel."""
        del self._open[position]


class MpiTransport:
    """The channels of one rank.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The ranks of the job.
    ranks : Mapping of worker name to int
        Who is which rank.
    progress : Progress
        Told when the worker waits.
    """

    def __init__(self, comm: Any, ranks: Mapping[str, int], progress: Progress) -> None:
        self._comm, self._ranks, self._progress = comm, ranks, progress
        self._tags: Counter[tuple[int, int]] = Counter()
        self._mine: list[MpiChannel | MpiBell] = []

    def _ends(self, source: str, target: str) -> tuple[int, int, int]:
        ends = self._ranks[source], self._ranks[target]
        self._tags[ends] += 1
        return *ends, self._tags[ends]

    def channel(self, source: str, target: str, layout: Layout, link: Link) -> MpiChannel:
        """Return a one-way channel between two workers."""
        found = mpi_channel(self._comm, *self._ends(source, target), layout, link)
        if self._comm.rank in {found.source, found.target}:
            self._mine.append(found)
        return found

    def bell(self, source: str, target: str) -> MpiBell:
        """Return a bell that one worker rings at another."""
        found = MpiBell(self._comm, *self._ends(source, target))
        self._mine.append(found)
        return found

    def inbox(self, channels: Sequence[MpiChannel]) -> MpiInbox:
        """Return an inbox for some channels."""
        return MpiInbox(channels)

    def poke(self) -> None:
        """Let MPI move what is under way."""
        self._comm.Iprobe()

    def leave(self, channels: Iterable[MpiChannel]) -> None:
        """End channels to inboxes, and wait for all that is under way."""
        for channel in channels:
            channel.end(self._progress)
        for found in self._mine:
            found.close(self._progress)
