"""The clock: SimPy's, in integer nanoseconds, and the one rule for what happens at the same instant.

The rule (docs/simulation.md, "Simultaneous events"): events are taken in the order of (time, order, sequence). Order
``ENDS`` is for everything that ends and for what starts because of it; order ``SETTLE`` comes after all of these and is
for shares that are worked out once per instant from what is then active. Sequence is the order of scheduling.

One call per event, never a SimPy process per instruction: a process per message was 6 to 10 times slower. A call stands
in SimPy's own queue as a pair (function, argument) instead of an event object (1.2 against 0.7 million events per second).
The engine knows nothing of workers, networks or plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any

import simpy

NANOSECONDS = 1_000_000_000


def to_ns(seconds: float) -> int:
    """Return a cost in whole nanoseconds; every cost is rounded once, here, to the nearest (ties to even)."""
    return round(seconds * NANOSECONDS)


class Order(IntEnum):
    """What comes first at the same instant; also the priority in SimPy's queue."""

    ENDS = 0
    SETTLE = 1


class Clock(simpy.Environment):
    """A SimPy environment whose queue also holds calls: pairs (function, argument) in the place of an event."""

    _now: int

    def calls(self) -> tuple[list[Any], Iterator[int]]:
        """Return the queue of (time, order, sequence, call) and the sequence, for whoever puts calls into it."""
        return self._queue, self._eid

    def step(self) -> None:
        """Take the next event or call."""
        queue: list[Any] = self._queue
        if not queue or queue[0][3].__class__ is not tuple:
            super().step()
        else:
            self._now, _, _, (then, argument) = heappop(queue)
            then(argument)


class Engine:
    """A SimPy environment with calls at absolute integer times.

    Parameters
    ----------
    begin_ns : int
        What the clock shows at first. Nothing depends on it: times are integers, and all else is counted from some event.

    Attributes
    ----------
    begin_ns : int
        The same.
    env : simpy.Environment
        The clock. Processes of a user (probes, faults) may be added to it; they must wait whole nanoseconds.
    events : int
        Events scheduled so far.
    """

    def __init__(self, begin_ns: int = 0) -> None:
        self.begin_ns = begin_ns
        self.env = Clock(initial_time=begin_ns)
        self._queue, self._sequence = self.env.calls()
        self.events = 0
        self._stopped = False

    @property
    def now(self) -> int:
        """Present time in nanoseconds."""
        return self.env._now

    @property
    def idle(self) -> bool:
        """Whether nothing is left to happen after the present event."""
        return not self._queue

    def at(self, time_ns: int, then: Callable[[Any], None], argument: Any = None, order: int = 0) -> None:
        """Call ``then(argument)`` at a time that has not passed, in an :class:`Order`."""
        self.events += 1
        heappush(self._queue, (time_ns, order, next(self._sequence), (then, argument)))

    def stop(self) -> None:
        """End :meth:`run` after the present event."""
        self._stopped = True

    def run(self) -> bool:
        """Take events until :meth:`stop` is called or none is left; return whether it was stopped."""
        env, queue = self.env, self._queue
        while queue and not self._stopped:
            if queue[0][3].__class__ is tuple:  # what Clock.step does, without a call for each
                env._now, _, _, (then, argument) = heappop(queue)
                then(argument)
            else:
                env.step()
        return self._stopped
