"""First come, first served: cores, memory bandwidth and NICs as queues that know when they are next free.

The level ``fifo`` of ``simulator.fidelity``: the same interface as ``simulator.shared`` and ``simulator.network``, with one
event per job and per message and no shares to work out. Each link of a message's path is free again after the message's
own service time; the message arrives with the last of them (cut-through), one latency later. It is optimistic where fair
sharing would slow short messages down; the difference is measured in docs/simulation.md. Knows no workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heapreplace
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.engine import Engine
from simulator.network import Delivery, Network, Nic

#: Links of a message, the sender's NIC first, and nanoseconds for which it keeps each.
Route = tuple[tuple[int, int], ...]


class FifoResource:
    """A pool of equal servers with one queue; jobs start in the order of arrival.

    Parameters
    ----------
    engine : Engine
        The clock.
    capacity : float
        Work per nanosecond of the whole pool; infinite: as many servers as jobs.
    limit : float
        Work per nanosecond that one job gets at most; the pool has ceil(capacity / limit) servers, equally fast.

    Attributes
    ----------
    rate : float
        Work per nanosecond of one server.
    free : list of int
        When each server is free again, as a heap.
    taken : float
        Work that it was given so far.
    before_reading : callable or None
        Brings ``taken`` up to date for whoever keeps part of it elsewhere.
    """

    def __init__(self, engine: Engine, capacity: float, limit: float) -> None:
        self._engine, self.capacity = engine, capacity
        servers = 0 if math.isinf(capacity) else max(1, math.ceil(capacity / limit - 1e-9))
        self.rate = capacity / servers if servers else limit
        self.free = [0] * servers
        self.taken = 0.0
        self.before_reading: Callable[[], None] | None = None

    def served(self) -> float:
        """Work done so far: what was taken less what is still to be done."""
        if self.before_reading is not None:
            self.before_reading()
        now = self._engine.now
        return self.taken - self.rate * sum(free - now for free in self.free if free > now)

    def add(self, work: float, then: Callable[[Any], None], argument: Any) -> None:
        """Queue a job; ``then(argument)`` is called when its work is done."""
        self._engine.at(self.reserve(self._engine.env._now, work), then, argument)

    def reserve(self, time_ns: int, work: float) -> int:
        """Queue a job that arrives at a time; return when it ends."""
        self.taken += work
        free, length = self.free, round(work / self.rate)
        if not free:
            return time_ns + length
        end = (free[0] if free[0] > time_ns else time_ns) + length
        heapreplace(free, end)
        return end


class FifoNetwork(Network):
    """Messages between machines; each link passes one after the other.

    Parameters
    ----------
    engine, nics, uplinks
        As for :class:`simulator.network.Network`.

    Attributes
    ----------
    free, taken : ndarray, shape (links,)
        When each link is free again, in whole nanoseconds; bytes that it was given so far.
    when_free, bytes_taken : memoryview
        The same two, one link at a time: numbers of Python's own, faster than elements of arrays.
    before_reading : callable or None
        Brings ``taken`` up to date for whoever keeps part of it elsewhere.
    foretell : callable or None
        A message that is sent with this is not delivered: as soon as its arrival is known, the pair of that instant and of
        the message's argument is handed over.
    """

    def __init__(self, engine: Engine, nics: Sequence[Nic], uplinks: Sequence[float] = ()) -> None:
        super().__init__(engine, nics, uplinks)
        self._rates = np.array(self._capacity)
        self.free = np.zeros(len(self._capacity), dtype=np.int64)
        self.taken = np.zeros(len(self._capacity))
        self.when_free, self.bytes_taken = self.free.data, self.taken.data
        self._routes: dict[tuple[int, int, int], Route] = {}
        self.before_reading: Callable[[], None] | None = None
        self.foretell: Callable[[Any], None] | None = None

    def served_bytes(self) -> tuple[list[float], list[float]]:
        """Bytes that have left each machine, and that have reached each machine, through its NIC so far."""
        if self.before_reading is not None:
            self.before_reading()
        now, machines = self._engine.now, len(self._nics)
        finite = np.where(np.isfinite(self._rates), self._rates, 0.0)
        left = (self.taken - finite * np.maximum(0, self.free - now)).tolist()
        return left[:machines], left[machines : 2 * machines]

    def rates_of(self, links: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
        """Bytes per nanosecond of several links."""
        found: npt.NDArray[np.float64] = self._rates[links]
        return found

    def latency_ns(self, machine: int) -> int:
        """Nanoseconds from the last byte's leaving a machine to its arrival."""
        return self._latency[machine]

    def rates(self) -> dict[tuple[int, int], tuple[int, float]]:
        """Nothing: no message has a rate of its own."""
        return {}

    def send(self, source: int, target: int, size_bytes: int, then: Callable[[Any], None], argument: Any) -> None:
        """Start a message; ``then(argument)`` is called when it has arrived (at once, within a host)."""
        key = source, target, size_bytes
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = self._route(*key)
        if route:
            self.sent_bytes += size_bytes
            self._queue(source, route, (then, argument, size_bytes))
        elif then is self.foretell:
            self.sent_bytes += size_bytes
            delay = 0 if self.is_local(source, target) else self._latency[source]
            self._arrive(self._engine.now + delay, (then, argument, size_bytes))
        else:
            super().send(source, target, size_bytes, then, argument)

    def _route(self, source: int, target: int, size_bytes: int) -> Route:
        """Return the links of a message and how long it keeps each; none where it takes no time on a wire."""
        rates = self._capacity[source], self._capacity[target]
        if not size_bytes or self.is_local(source, target) or math.isinf(min(rates)):
            return ()
        return tuple((link, round(size_bytes / self._capacity[link])) for link in self.path(source, target))

    def _queue(self, source: int, route: Route, delivery: Delivery) -> None:
        """Queue at the sender's NIC; the rest of the path is taken when that is free, not before."""
        now, free = self._engine.env._now, self.when_free[source]
        self.bytes_taken[source] += delivery[2]
        start = free if free > now else now
        self.when_free[source] = end = start + route[0][1]
        message = (source, route, end, delivery)
        if start > now:
            self._engine.at(start, self._cross, message)
        else:
            self._cross(message)

    def _cross(self, message: tuple[int, Route, int, Delivery]) -> None:
        """Take the links after the sender's NIC, one latency after the last of which the message arrives."""
        source, route, end, delivery = message
        now, size_bytes = self._engine.env._now, delivery[2]
        for link, keeps in route[1:]:
            free = self.when_free[link]
            ready = (free if free > now else now) + keeps
            self.bytes_taken[link] += size_bytes
            self.when_free[link] = ready
            end = ready if ready > end else end
        self._arrive(end + self._latency[source], delivery)

    def _arrive(self, arrival: int, delivery: Delivery) -> None:
        """Deliver a message at an instant, or tell now when that is."""
        if delivery[0] is self.foretell:
            self.arrived_bytes += delivery[2]
            self.foretell((arrival, delivery[1]))
        else:
            self._engine.at(arrival, self._deliver, delivery)
