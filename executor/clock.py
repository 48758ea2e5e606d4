"""The three clocks of a worker.

``wall``
    Time as everybody sees it.
``cpu``
    A virtual clock: an instruction advances it by the CPU time its thread used, a message carries it, and a receiver's
    clock is never behind the message it got. So a worker counts as having a core of its own even when workers outnumber
    cores and others load the machine. Waiting costs nothing but what the schedule makes it cost.
``paced``
    The same virtual clock, but an instruction advances it by a given duration and the worker sleeps until the wall clock
    has caught up. It tests the schedule alone: the durations are an input.
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
    """

    def __init__(self, kind: ClockKind, epoch: float) -> None:
        self.kind, self.epoch = kind, epoch
        self.now = 0.0
        self._mark = time.thread_time()

    def begin(self) -> None:
        """Start to measure an instruction."""
        self._mark = time.thread_time()
        if self.kind is ClockKind.WALL:
            self.now = time.perf_counter() - self.epoch

    def lap(self) -> float:
        """Book the CPU time since the last call; return it."""
        mark = time.thread_time()
        used, self._mark = mark - self._mark, mark
        if self.kind is ClockKind.CPU:
            self.now += used
        elif self.kind is ClockKind.WALL:
            self.now = time.perf_counter() - self.epoch
        return used

    def meet(self, other: float) -> None:
        """Take in a message: whoever receives it is not earlier than the message."""
        if self.kind is not ClockKind.WALL and other > self.now:
            self.now = other

    def pace(self, duration: float) -> None:
        """Paced clock only: advance by a modelled duration and sleep until the wall clock has caught up."""
        if self.kind is ClockKind.PACED:
            self.now += duration
            ahead = self.epoch + self.now - time.perf_counter()
            if ahead > 0:
                time.sleep(ahead)
