"""Events that one process counts and another waits for, in shared memory, with a pipe for who sleeps meanwhile.

Knows nothing of messages. A process that ends closes its end of the pipe, which wakes who waits for it.
"""

from __future__ import annotations

import mmap
import os
import platform
import threading
from typing import Protocol

from executor.errors import PeerGone

#: Whether processors see each other's stores in the order in which they were made, and load in order (x86).
_ORDERED = platform.machine() in {"x86_64", "AMD64", "i686", "i386"}
#: Places in a counter's page, cache lines apart: each is written by one of the two processes.
_COUNT, _ASLEEP = 0, 16
#: What else lies in the count's cache line, for one line to bring both.
_NOTES = slice(1, 8)
#: Bytes that are taken out of a counter's pipe at a time.
TOKENS = 64


class Progress(Protocol):
    """Told when a worker starts and stops waiting, so that a supervisor can tell a hung worker from its victims."""

    def waiting(self, yes: bool) -> None:
        """Note whether the worker waits for a peer."""


class Counter:
    """Counts events one way between two processes, in shared memory; a pipe wakes who sleeps until the next.

    The one who counts looks whether the other sleeps, after it has counted; the other says that it will sleep before it
    looks at the count once more. A fence lies between the store and the load of each, so one of the two sees the other, and
    no event is slept through. Both ends are open until :func:`keep_only` closes what a process does not use.

    Attributes
    ----------
    notes : memoryview of float, seven
        What the one who counts writes before an event, for the other to read when it has been counted.
    """

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        page = memoryview(mmap.mmap(-1, mmap.PAGESIZE))
        self._shared, self.notes = page.cast("q"), page.cast("d")[_NOTES]
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """Events so far; what was stored before they were counted can be read."""
        found: int = self._shared[_COUNT]
        if not _ORDERED:
            self._fence()
        return found

    def _fence(self) -> None:
        """Let no load or store pass, either way: a locked instruction on x86, a release before an acquire on Arm."""
        lock = self._lock
        lock.acquire()
        lock.release()
        if not _ORDERED:
            lock.acquire()
            lock.release()

    def tell(self, count: int) -> None:
        """Set the count; wake who sleeps.

        Raises
        ------
        PeerGone
            Who slept has ended.
        """
        if not _ORDERED:
            self._fence()
        self._shared[_COUNT] = count
        self._fence()
        if self._shared[_ASLEEP]:
            try:
                os.write(self.write_end, b"!")
            except BrokenPipeError as error:
                raise PeerGone from error

    def wait(self, count: int, progress: Progress, looks: int = 0) -> None:
        """Wait until so many events have been counted: look so many times, then sleep.

        Raises
        ------
        PeerGone
            Nobody is left to count them.
        """
        shared = self._shared
        if shared[_COUNT] < count:
            for _ in range(looks):
                if shared[_COUNT] >= count:
                    break
            else:
                self._sleep(count, progress)
        if not _ORDERED:
            self._fence()

    def _sleep(self, count: int, progress: Progress) -> None:
        """Sleep until so many events have been counted; PeerGone if nobody is left to count them."""
        shared = self._shared
        progress.waiting(True)
        while not self.announced(count):
            self.take(count)
        shared[_ASLEEP] = 0
        progress.waiting(False)

    def announced(self, count: int) -> bool:
        """Say that the next event must wake this process, unless so many have been counted; returns whether they have."""
        self._shared[_ASLEEP] = 1
        self._fence()
        return self.count >= count

    def take(self, count: int) -> None:
        """Sleep until woken, which may be for an earlier event; PeerGone if nobody is left to count to that number."""
        if not os.read(self.read_end, TOKENS) and self.count < count:
            raise PeerGone
