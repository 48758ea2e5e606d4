"""When a search must have ended, and what still fits in before that.

A search is made of phases that nothing interrupts: a placement is evaluated, tables are sharded, a model is built. Each is
measured as it runs, in seconds of work for its size, so the next one starts only where it is expected to end in time; what
must come last, the evaluation of the plan that is returned, is reserved. Work is counted by the processor's clock and
becomes time by what the run had of the processor so far, so that a phase during which others had it misleads nobody.
Tests replace both clocks.

Knows names and sizes of phases; what they do is others' business, and so is what must run even if there is no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

#: Says the time in seconds, from any origin.
Clock = Callable[[], float]
#: A phase, and its size in any unit of its own.
Phase = tuple[str, float]


@dataclass
class Pace:
    """Seconds of work that phases of one name took, and the sum of their sizes."""

    seconds: float = 0.0
    size: float = 0.0

    @property
    def each(self) -> float:
        """Seconds of work for a size of one, on average."""
        return self.seconds / self.size


@dataclass
class Deadline:
    """The end of a search on some clock; parts of the search have ends of their own, which measure for all.

    Parameters
    ----------
    end : float
        Time of the clock, in seconds.
    clock : Clock
        Asked for the time.
    work : Clock
        Asked for the time that the processor worked.
    began : (float, float)
        Both times when the run began.
    paces : dict of str to Pace
        What phases took so far.
    reserved : list of Phase
        What must still be done after the last phase that is free to start.
    """

    end: float = float("inf")
    clock: Clock = time.monotonic
    work: Clock = time.process_time
    began: tuple[float, float] = (0.0, 0.0)
    paces: dict[str, Pace] = field(default_factory=dict)
    reserved: list[Phase] = field(default_factory=list)

    @classmethod
    def after(cls, seconds: float, clock: Clock = time.monotonic, work: Clock = time.process_time) -> Deadline:
        """Return the deadline that is some seconds from now."""
        return cls(clock() + seconds, clock, work, (clock(), work()))

    @property
    def left(self) -> float:
        """Seconds until the end, less what is reserved; below zero after it."""
        return self.end - self.clock() - self.expected(*self.reserved)

    @property
    def passed(self) -> bool:
        """Whether nothing more may start that need not be."""
        return self.left <= 0

    def expected(self, *phases: Phase) -> float:
        """Return the seconds that phases will take together; those never seen so far are expected to take none."""
        work = sum(size * self.paces[name].each for name, size in phases if name in self.paces)
        return work * self.slowdown if work else 0.0

    @property
    def slowdown(self) -> float:
        """Seconds that pass for a second of work, so far; at least one."""
        passed, worked = self.clock() - self.began[0], self.work() - self.began[1]
        return max(1.0, passed / worked) if worked > 0 and self.began != (0.0, 0.0) else 1.0

    def allows(self, *phases: Phase) -> bool:
        """Whether phases that start now are expected to end in time."""
        return self.left > self.expected(*phases)

    @contextmanager
    def phase(self, name: str, size: float = 1.0) -> Iterator[None]:
        """Measure what runs inside as a phase.

        Parameters
        ----------
        name : str
            What it is called.
        size : float
            How large it is: twice the size is expected to take twice as long.
        """
        began = self.work()
        yield
        pace = self.paces.setdefault(name, Pace())
        pace.seconds, pace.size = pace.seconds + self.work() - began, pace.size + size

    def reserve(self, *phases: Phase) -> None:
        """Keep time for phases that must come last, instead of those before."""
        self.reserved[:] = phases

    def before(self, *phases: Phase) -> Deadline:
        """Return the deadline at which phases that come next must start."""
        return replace(self, end=self.end - self.expected(*phases))

    def share(self, part: float, most: float = float("inf")) -> Deadline:
        """Return the end of a part of the time that is left, of at most so many seconds."""
        if self.end == float("inf") == most:
            return self
        return replace(self, end=min(self.end, self.clock() + min(most, part * max(0.0, self.left))))

    def no_sooner(self, seconds: float) -> Deadline:
        """Return the deadline, or the one that is some seconds from now if that is later."""
        return replace(self, end=max(self.end, self.clock() + seconds))

    def stop(self) -> None:
        """Let it have passed."""
        self.end = -float("inf")
