"""The three clocks of a worker.

``wall``
    Time as everybody sees it.
``cpu``
    A virtual clock: an instruction advances it by the CPU time its thread used, a message carries it, and a receiver's
    clock is never behind the message it got. So a worker counts as having a core of its own even when workers outnumber
    cores and others load the machine. Waiting costs nothing but what the schedule makes it cost.
``paced``
    The same virtual clock, but an instruction advances it by a given duration and the worker sleeps until the wall
    clock has caught up. It tests the schedule alone: the durations are an input.
"""

from __future__ import annotations

import time
from enum import StrEnum


class ClockKind(StrEnum):
    """Which clock a run keeps."""

    WALL = "wall"
    CPU = "cpu"
    PACED = "paced"


class Clock:
    """Clock of one worker, in seconds since the epoch of the job.

    Parameters
    ----------
    kind : ClockKind
        Which clock.
    epoch : float
        Start of the job on ``time.perf_counter``.
    start : float
        What the clock shows at first.
    """

    def __init__(self, kind: ClockKind, epoch: float, start: float = 0.0) -> None:
        self.kind, self.epoch = kind, epoch
        self._virtual = kind is not ClockKind.WALL
        self.now = start
        self.used = 0.0
        self._duration = 0.0
        self._mark = time.thread_time()

    @property
    def wall(self) -> float:
        """Seconds on the wall since the epoch."""
        return time.perf_counter() - self.epoch

    def begin(self, duration: float = 0.0) -> None:
        """Start to measure an instruction; ``duration`` is what it shall take (paced clock only)."""
        self.used, self._duration = 0.0, duration
        self._mark = time.thread_time()
        if self.kind is ClockKind.WALL:
            self.now = self.wall

    def lap(self) -> None:
        """Bring the clock up to date: book the CPU time since the last call."""
        self.pause()
        if self.kind is ClockKind.WALL:
            self.now = self.wall
        elif self.kind is ClockKind.PACED:
            self._pace()

    def stamp(self) -> None:
        """Bring ``now`` up to date, for a message; on the wall no CPU time is booked, which takes a system call."""
        if not self._virtual:
            self.now = time.perf_counter() - self.epoch
        elif self.kind is ClockKind.CPU:
            self.pause()
        else:
            self._pace()

    def pause(self) -> None:
        """Book the CPU time since the last call: what comes now is waiting that may use CPU (:meth:`resume`)."""
        mark = time.thread_time()
        spent, self._mark = mark - self._mark, mark
        self.used += spent
        if self.kind is ClockKind.CPU:
            self.now += spent

    def resume(self) -> None:
        """Go on after a pause: CPU time since then is nobody's."""
        self._mark = time.thread_time()

    def meet(self, other: float) -> None:
        """Take in a message: whoever receives it is not earlier than the message."""
        if self._virtual and other > self.now:
            self.now = other

    def forget(self) -> None:
        """Take the time of the next message as it is: for a server of several clients.

        Messages of several clients arrive in the order of the wall, which is not that of the clocks they carry; a server
        that kept the later of two clocks would hold up the client whose message is the earlier.
        """
        if self.kind is not ClockKind.WALL:
            self.now = 0.0

    def _pace(self) -> None:
        """Advance by what is left of the given duration and sleep until the wall clock has caught up."""
        self.now += self._duration
        self._duration = 0.0
        ahead = self.now - self.wall
        if ahead > 0:
            time.sleep(ahead)
