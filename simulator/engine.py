"""The clock: SimPy's, in integer nanoseconds, and the one rule for what happens at the same instant.

The rule (docs/simulation.md, "Simultaneous events"): events are taken in the order of (time, order, sequence). Order
``ENDS`` is for everything that ends and for what starts because of it; order ``SETTLE`` comes after all of these and is
for shares that are worked out once per instant from what is then active. Sequence is the order of scheduling.

One small event per call, never a SimPy process per instruction: a process per message was 6 to 10 times slower.
The engine knows nothing of workers, networks or plans.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import simpy
from simpy.core import EmptySchedule
from simpy.events import EventPriority

NANOSECONDS = 1_000_000_000


def to_ns(seconds: float) -> int:
    """Return a cost in whole nanoseconds; every cost is rounded once, here, to the nearest (ties to even)."""
    return round(seconds * NANOSECONDS)


class Order(IntEnum):
    """What comes first at the same instant."""

    ENDS = 0
    SETTLE = 1


_PRIORITY = {order: EventPriority(int(order)) for order in Order}


class _Call(simpy.Event):
    """An event that is born triggered, like ``simpy.Timeout``, and makes one call."""

    def __init__(self, env: simpy.Environment, then: Callable[[Any], None], argument: Any) -> None:
        self.env = env
        self.callbacks = [_fire]
        self.then = then
        self._value = argument
        self._ok = True


def _fire(event: Any) -> None:
    event.then(event._value)


class Engine:
    """A SimPy environment with calls at absolute integer times.

    Attributes
    ----------
    env : simpy.Environment
        The clock. Processes of a user (probes, faults) may be added to it; they must wait whole nanoseconds.
    events : int
        Events scheduled so far.
    """

    def __init__(self) -> None:
        self.env = simpy.Environment(initial_time=0)
        self.events = 0
        self._stopped = False

    @property
    def now(self) -> int:
        """Present time in nanoseconds."""
        return self.env.now  # type: ignore[return-value]

    def at(self, time_ns: int, then: Callable[[Any], None], argument: Any = None, order: Order = Order.ENDS) -> None:
        """Call ``then(argument)`` at a time that has not passed."""
        self.events += 1
        env = self.env
        env.schedule(_Call(env, then, argument), _PRIORITY[order], time_ns - env.now)

    def stop(self) -> None:
        """End :meth:`run` after the present event."""
        self._stopped = True

    def run(self) -> bool:
        """Take events until :meth:`stop` is called or none is left; return whether it was stopped."""
        step = self.env.step
        try:
            while not self._stopped:
                step()
        except EmptySchedule:
            return self._stopped
        return True
