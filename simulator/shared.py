"""A resource shared equally by whoever uses it: cores of a machine, memory bandwidth of a machine.

Egalitarian processor sharing: each of n active jobs is served at rate min(limit, capacity / n). For cores the capacity
is their number, the limit 1 (a job is one thread) and work is in nanoseconds; for memory the capacity is the bandwidth,
the limit the same (one thread can use all of it) and work is in bytes.

All jobs have the same rate at any time, so one clock serves all of them: it counts the service that each active job
gets, and a job ends when the clock reaches (value at its arrival + its work). Hence one heap and one armed event per
resource, whatever the number of jobs. Ends fall on the nearest nanosecond; an event always ends at least one job, so
rounding cannot stall the clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from simulator.engine import Engine


class SharedResource:
    """Egalitarian processor sharing with a limit per job.

    Parameters
    ----------
    engine : Engine
        The clock.
    capacity : float
        Work per nanosecond that all jobs get together.
    limit : float
        Work per nanosecond that one job gets at most.
    """

    def __init__(self, engine: Engine, capacity: float, limit: float) -> None:
        self._engine, self.capacity, self._limit = engine, capacity, limit
        self._jobs: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._clock = 0.0  # service that each active job has got since the resource was last empty
        self._rate = 0.0
        self._since = 0  # time at which _clock and served were brought up to date
        self._served = 0.0
        self._sequence = 0
        self._due = 0  # when the first job ends, at the present rate
        self._armed = -1  # time of the valid event, not after that; -1 for none
        self._ending = False

    def served(self) -> float:
        """Work done so far by all jobs together."""
        self._advance()
        return self._served

    def stretch(self) -> float:
        """By how much work takes longer for one more job than for a job alone."""
        return max(1.0, self._limit * (len(self._jobs) + 1) / self.capacity)

    def add(self, work: float, then: Callable[[Any], None], argument: Any) -> None:
        """Start a job; ``then(argument)`` is called when its work is done."""
        self._advance()
        self._sequence += 1
        heappush(self._jobs, (self._clock + work, self._sequence, then, argument))
        if not self._ending:
            self._arm()

    def _advance(self) -> None:
        now = self._engine.now
        if now > self._since:
            step = self._rate * (now - self._since)
            self._clock += step
            self._served += step * len(self._jobs)
            self._since = now

    def _arm(self) -> None:
        """Set the rate for the present number of jobs; an event that comes before the end stands and is put off then."""
        count = len(self._jobs)
        if not count:
            self._clock, self._rate, self._armed = 0.0, 0.0, -1
            return
        rate = self.capacity / count
        self._rate = rate = min(rate, self._limit)
        now = self._engine.now
        self._due = due = now + max(0, math.floor((self._jobs[0][0] - self._clock) / rate + 0.5))
        if self._armed < 0 or due < self._armed:
            self._armed = due
            self._engine.at(due, self._end, due)

    def _end(self, time: int) -> None:
        if time != self._armed:
            return
        if self._due > time:
            self._armed = self._due
            self._engine.at(self._due, self._end, self._due)
            return
        self._advance()
        self._armed, self._ending = -1, True
        reached = max(self._clock + self._rate * 0.5, self._jobs[0][0])
        while self._jobs and self._jobs[0][0] <= reached:
            due, _, then, argument = heappop(self._jobs)
            self._served += due - self._clock  # what rounding to whole nanoseconds left over or took too much
            then(argument)
        self._ending = False
        self._arm()
