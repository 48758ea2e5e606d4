"""The transport between hosts: MPI. The only module that imports mpi4py, and it does so when it is first asked to.

Every worker is a rank. A channel is a tag between two ranks: a message is copied once, into the sender's frame, and goes out
by a synchronous send; the next one waits until the receiver has asked for it, so never more than one is under way while
one is being read. A message without arrays, by its clock, ends a channel. Workers of one machine share an MPI window.

MPI libraries wait by spinning. Here a worker that waits soon gives its core away between two tests and then sleeps, since
ranks may outnumber cores; a large message may need a hand of its sender, which gives one between any two instructions.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.clock import Clock
from executor.counter import Progress
from executor.errors import PeerGone
from executor.transport import Array, Layout, Link, copy_into
from problem.errors import BadInput

#: Tests before a waiting worker gives its core away between two of them, tests before it sleeps, and how long it sleeps. The
#: time of the tests must be longer than a sleep: otherwise two workers that talk would make each other sleep for ever.
SPINS, YIELDS = 100, 1000
NAP_SECONDS = 50e-6
_ALIGNMENT = 8
_END = float("-inf")

Bytes = npt.NDArray[np.uint8]


def library() -> Any:
    """Return ``mpi4py.MPI``; the first call starts MPI in this process, for calls of one thread only.

    Raises
    ------
    BadInput
        mpi4py, or the MPI library that it looks for, is not there.
    """
    try:
        import mpi4py  # noqa: PLC0415 - optional, and importing MPI starts it

        mpi4py.rc.thread_level = "funneled"
        from mpi4py import MPI  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise BadInput("run", "backend", "mpi", f"needs mpi4py and an MPI library: {reason}") from None
    return MPI


@contextlib.contextmanager
def rank_pool() -> Iterator[tuple[Executor, int] | None]:
    """Yield a pool of all ranks but the first, and their number, on the first; None on the others, once they have served it.

    Starts MPI with support for threads, so not for use in a process that trains (:func:`library`).

    Raises
    ------
    BadInput
        mpi4py or an MPI library is not there, or there is only one rank.
    """
    try:
        from mpi4py import MPI  # noqa: PLC0415 - as in library()
        from mpi4py.futures import MPICommExecutor  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise BadInput("sweep", "mpi", True, f"needs mpi4py and an MPI library: {reason}") from None
    size = MPI.COMM_WORLD.size
    if size == 1:
        raise BadInput("mpiexec", "-n", size, "at least 2: the first rank hands out what the others do")
    with MPICommExecutor(MPI.COMM_WORLD, root=0) as pool:
        found: Any = pool  # an Executor in all but name
        yield None if found is None else (found, size - 1)


class Unwatched:
    """Progress of nobody: for waiting outside the instructions."""

    def waiting(self, yes: bool) -> None:
        """Take no notice."""


def meet(comm: Any) -> None:
    """Wait for all ranks of a communicator, without spinning."""
    await_(comm.Ibarrier().Test, Unwatched())


def finish() -> None:
    """Wait for all ranks and end MPI in this process, so that the launcher takes its end for a good one."""
    meet(library().COMM_WORLD)
    library().Finalize()


def await_(test: Callable[[], bool], progress: Progress, clock: Clock | None = None) -> None:
    """Wait until a test succeeds: by trying again, then giving the core away in between, then sleeping.

    What comes after the first tests is no CPU time of the clock's.
    """
    for _ in range(SPINS):
        if test():
            return
    progress.waiting(True)
    if clock is not None:
        clock.pause()
    for _ in range(YIELDS):
        if test():
            break
        os.sched_yield()
    else:
        while not test():
            time.sleep(NAP_SECONDS)
    if clock is not None:
        clock.resume()
    progress.waiting(False)


class Frame:
    """A message in memory: the clock, its arrival (in a throttled transport), the lengths of arrays, the arrays.

    Lengths are there only if some arrays are of bytes, which need not be full.

    Parameters
    ----------
    layout : Layout
        Arrays of the message.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.flexible = any(dtype is np.uint8 for _, dtype in layout)
        sizes = [int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for shape, dtype in layout]
        self._begin = _ALIGNMENT * (2 + (len(layout) if self.flexible else 0))
        self.full_bytes = sum(sizes)
        self.buffer: Bytes = np.zeros(self._begin + sum(map(_aligned, sizes)), np.uint8)
        #: Clock of the message, :data:`_END` in one that ends the channel, and its arrival.
        self.times = self.buffer.data[: 2 * _ALIGNMENT].cast("d")
        self._lengths = self.buffer[2 * _ALIGNMENT : self._begin].view(np.int64)
        self._views = self._cut(sizes)

    def _cut(self, sizes: Iterable[int]) -> list[Any]:
        views, at = [], self._begin
        for size, (shape, dtype) in zip(sizes, self._layout, strict=True):
            flat = self.buffer[at : at + size].view(dtype)
            views.append(flat if dtype is np.uint8 else flat.reshape(shape))
            at += _aligned(size)
        return views

    def pack(self, arrays: Iterable[Array]) -> tuple[int, int]:
        """Copy arrays in; returns the bytes to send and the bytes of arrays that the message is short of."""
        if not self.flexible:
            copy_into(self._views, arrays)
            return len(self.buffer), 0
        found = list(arrays)
        self._lengths[:] = [array.nbytes for array in found]
        for view, array in zip(self._cut(array.nbytes for array in found), found, strict=True):
            np.copyto(view, array)
        used = sum(array.nbytes for array in found)
        return self._begin + sum(_aligned(array.nbytes) for array in found), self.full_bytes - used

    def arrays(self) -> list[Any]:
        """Return the arrays of the message that is in the buffer, in place."""
        return self._cut(self._lengths.tolist()) if self.flexible else list(self._views)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class MpiChannel:
    """One-way channel between two ranks; what it needs is made at either end when it is first used.

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
        self._under_way: Any = None

    @cached_property
    def _frame(self) -> Frame:
        return Frame(self._layout)

    @cached_property
    def _sending(self) -> Any:
        return self.comm.Ssend_init([self._frame.buffer, library().BYTE], self.target, self.tag)

    @cached_property
    def _receiving(self) -> Any:
        return self.comm.Recv_init([self._frame.buffer, library().BYTE], self.source, self.tag)

    @property
    def bytes(self) -> int:
        """Bytes of the arrays of one full message."""
        return self._frame.full_bytes

    def send(self, arrays: Iterable[Array], clock: Clock, progress: Progress) -> None:
        """Copy arrays into a message and send it; waits until the one before has been received."""
        frame, link = self._frame, self._link
        self._finish_send(progress, clock)
        size, unused = frame.pack(arrays)
        clock.stamp()
        frame.times[0] = clock.now + link.seconds - unused * link.seconds_per_byte
        if link.throttle is not None:
            frame.times[1] = link.depart(unused)
        if frame.flexible:
            self._under_way = self.comm.Issend([frame.buffer[:size], library().BYTE], self.target, self.tag)
        else:
            self._under_way = self._sending
            self._under_way.Start()

    def _finish_send(self, progress: Progress, clock: Clock | None = None) -> None:
        request, self._under_way = self._under_way, None
        if request is not None:
            await_(request.Test, progress, clock)

    def receive(self, clock: Clock, progress: Progress) -> list[Any]:
        """Wait for the next message and return its arrays, valid until the next call.

        Raises
        ------
        PeerGone
            The sender has ended the channel.
        """
        request, frame = self._receiving, self._frame
        request.Start()
        await_(request.Test, progress, clock)
        if frame.times[0] == _END:
            raise PeerGone
        clock.meet(frame.times[0])
        if self._link.throttle is not None:
            self._link.arrive(frame.times[1], progress)
        return frame.arrays()

    def has_news(self) -> bool:
        """Whether a message, or the end of the channel, has arrived."""
        return bool(self.comm.Iprobe(self.source, self.tag))

    def end(self, progress: Progress) -> None:
        """Sender: tell the receiver that no message follows."""
        self._finish_send(progress)
        self._frame.times[0] = _END
        self._under_way = self.comm.Issend(
            [self._frame.buffer[: 2 * _ALIGNMENT], library().BYTE], self.target, self.tag
        )

    def close(self, progress: Progress) -> None:
        """Wait for what is under way and give back what MPI holds for this end."""
        self._finish_send(progress)
        for name in ("_sending", "_receiving"):
            if name in self.__dict__:
                self.__dict__.pop(name).Free()


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
        found = MpiChannel(self._comm, *self._ends(source, target), layout, link)
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


def share(comm: Any, size: int) -> Bytes:
    """Return so many bytes of zeroed memory that the ranks of a communicator, all on one host, see alike."""
    if comm.size == 1 or not size:
        return np.zeros(size, np.uint8)
    window = library().Win.Allocate_shared(size if comm.rank == 0 else 0, 1, comm=comm)
    memory: Bytes = np.frombuffer(window.Shared_query(0)[0], np.uint8, count=size)
    if comm.rank == 0:
        memory[:] = 0
    comm.Barrier()
    return memory


def leave_no_names(comm: Any) -> None:
    """Take the names of MPI's own shared memory away, once all ranks have it open: a killed job then leaves none."""
    host = comm.Split_type(library().COMM_TYPE_SHARED)
    comm.Barrier()
    maps = Path("/proc/self/maps")
    if host.rank == 0 and maps.exists():
        lines = (line.split(maxsplit=5) for line in maps.read_text().splitlines() if "/dev/shm/" in line)
        for path in {fields[5] for fields in lines}:
            if not path.endswith("(deleted)"):
                Path(path).unlink(missing_ok=True)
    comm.Barrier()
    host.Free()
