"""The network between machines: flows that share NICs max-min fairly, at flow level.

Each machine has a NIC with a transmit and a receive side (full duplex). A message is a flow that crosses the transmit
side of its sender, the uplinks of both racks if these differ, and the receive side of its receiver; it arrives
``latency`` (the sender's) after its last byte left.
Rates are max-min fair (progressive filling: Bertsekas and Gallager, Data Networks, 1992, section 6.5.2) and are worked
out once per instant, after everything that ends or starts at that instant.

Flows between the same two machines always have the same rate, so they form one class with one clock (bytes that each of
its flows got), like the jobs of :class:`simulator.shared.SharedResource`. A change touches the classes that it reaches
through *tight* links alone: a link is tight if the active classes that cross it could together fill it, each as fast as the
slowest other link of its path allows; the others cannot bind, whatever the rates. The cost of a change is that of the
classes that it reaches, not of the flows nor of the network. Knows machines by index and nothing of workers or plans.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from simulator.engine import NANOSECONDS, Engine, Order, to_ns

Delivery = tuple[Callable[[Any], None], Any, int]  # what to call on arrival, with what; bytes


@dataclass(frozen=True, slots=True)
class Nic:
    """A NIC: rate of each direction and one-way latency; machines with the same ``host`` do not use it among them.

    ``twins``: the machine stands for several alike; what it sends to itself goes to a twin, through the NIC. ``rack``: index
    of its rack, -1 for a place at the core of the network.
    """

    host: str
    bytes_per_second: float
    latency_seconds: float
    twins: bool = False
    rack: int = -1


@dataclass(slots=True, eq=False)
class _Class:
    """Flows from one machine to another, which all have the same rate."""

    source: int
    target: int
    path: tuple[int, ...]
    most: tuple[float, ...]  # for each link of the path, the rate of the slowest of the others
    rate: float = 0.0  # bytes per nanosecond and flow
    clock: float = 0.0  # bytes that each active flow got since the class was last empty
    since: int = 0  # time at which the clock was brought up to date
    served: float = 0.0  # bytes that all flows got, ever
    end: int = 0  # when the first of them ends, at the present rate
    armed: int = -1  # time of the valid event, not after the end; -1 for none
    flows: list[tuple[float, int, Delivery]] = field(default_factory=list)  # heap: clock at the end, sequence

    def advance(self, now: int) -> None:
        """Bring the clock up to date."""
        if now > self.since:
            step = self.rate * (now - self.since)
            self.clock += step
            self.served += step * len(self.flows)
            self.since = now


def max_min_rates(flows: Sequence[tuple[int, ...]], capacity: Sequence[float]) -> list[float]:
    """Max-min fair rates of classes of flows.

    Progressive filling: the link with the smallest fair share fixes the flows that cross it; the rest share what is
    left. Of equal shares the link with the smaller index goes first (the rates do not depend on it).

    Parameters
    ----------
    flows : sequence of tuple of int
        For each class: the links that it crosses, each once, then the number of flows (at least 1).
    capacity : sequence of float
        Rate of each link.

    Returns
    -------
    list of float
        Rate of one flow of each class, in the unit of ``capacity``.
    """
    rates = [-1.0] * len(flows)
    crossing: dict[int, list[int]] = defaultdict(list)
    weight: dict[int, int] = defaultdict(int)
    for index, (*links, count) in enumerate(flows):
        for link in links:
            crossing[link].append(index)
            weight[link] += count
    shares = {link: capacity[link] / count for link, count in weight.items()}
    queue = [(share, link) for link, share in shares.items()]
    heapify(queue)
    while queue:
        share, link = heappop(queue)
        if not weight[link]:
            continue
        if share != shares[link]:  # it has grown since: shares never fall
            heappush(queue, (shares[link], link))
            continue
        weight[link] = 0
        for index in crossing[link]:
            if rates[index] < 0.0:
                rates[index] = share
                *links, count = flows[index]
                for other in links:
                    if other != link:
                        _take(other, share, count, shares, weight)
    return rates


def _take(link: int, share: float, count: int, shares: dict[int, float], weight: dict[int, int]) -> None:
    """Take flows whose rate is fixed off a link; what is left never falls below ``share``: no rate rounds to zero."""
    rest = weight[link] - count
    if rest > 0:
        left = (shares[link] * weight[link] - share * count) / rest
        shares[link] = left if left > share else share
    weight[link] = rest


class Network:
    """Flows between machines.

    Parameters
    ----------
    engine : Engine
        The clock.
    nics : sequence of Nic
        One per machine; machines are known by their index.
    uplinks : sequence of float
        Bytes per second of each rack's uplink, in each direction.

    Attributes
    ----------
    sent_bytes, arrived_bytes : int
        Bytes of all messages handed over and delivered so far, those within a host included.
    """

    def __init__(self, engine: Engine, nics: Sequence[Nic], uplinks: Sequence[float] = ()) -> None:
        self._engine, self._nics = engine, tuple(nics)
        rates = [nic.bytes_per_second / NANOSECONDS for nic in nics]
        racks = [rate / NANOSECONDS for rate in uplinks]
        self._racks = len(racks)
        self._capacity = rates * 2 + racks * 2  # links: transmit sides, receive sides, uplinks up, uplinks down
        self._latency = [to_ns(nic.latency_seconds) for nic in nics]
        self._classes: dict[tuple[int, int], _Class] = {}
        self._crossing: list[dict[_Class, None]] = [{} for _ in self._capacity]  # active classes of each link
        self._potential = [0.0] * len(self._capacity)  # what they could fill of it, see above
        self._tight = [False] * len(self._capacity)  # as it was when rates were last worked out
        self._touched: dict[_Class, None] = {}  # classes whose number of flows has changed since then
        self._ideal: dict[tuple[int, int], tuple[int, float]] = {}  # latency, rate of the slowest link
        self._sequence = 0
        self.sent_bytes = 0
        self.arrived_bytes = 0

    def is_local(self, source: int, target: int) -> bool:
        """Whether two machines are on one host, so that a message between them is a memory copy."""
        if source == target:
            return not self._nics[source].twins
        return self._nics[source].host == self._nics[target].host

    def path(self, source: int, target: int) -> tuple[int, ...]:
        """Links that a message between two machines crosses."""
        machines, here, there = len(self._nics), self._nics[source].rack, self._nics[target].rack
        up = (2 * machines + here,) if here >= 0 and here != there else ()
        down = (2 * machines + self._racks + there,) if there >= 0 and here != there else ()
        return (source, *up, *down, machines + target)

    def rate(self, link: int) -> float:
        """Bytes per nanosecond of a link of a :meth:`path`."""
        return self._capacity[link]

    def ideal_ns(self, source: int, target: int, size_bytes: int) -> int:
        """Nanoseconds that a message takes on an idle network: latency + bytes / the slowest link."""
        key = (source, target)
        ideal = self._ideal.get(key)
        if ideal is None:
            slowest = min(self._capacity[link] for link in self.path(source, target))
            ideal = (0, math.inf) if self.is_local(source, target) else (self._latency[source], slowest)
            self._ideal[key] = ideal
        return ideal[0] + round(size_bytes / ideal[1])

    def send(self, source: int, target: int, size_bytes: int, then: Callable[[Any], None], argument: Any) -> None:
        """Start a message; ``then(argument)`` is called when it has arrived (at once, within a host)."""
        self.sent_bytes += size_bytes
        delivery = (then, argument, size_bytes)
        if self.is_local(source, target):
            self._deliver(delivery)
        elif size_bytes == 0 or math.isinf(min(self._capacity[source], self._capacity[target])):
            self._engine.at(self._engine.now + self._latency[source], self._deliver, delivery)
        else:
            self._start(source, target, size_bytes, delivery)

    def served_bytes(self) -> tuple[list[float], list[float]]:
        """Bytes that have left each machine, and that have reached each machine, through its NIC so far."""
        sent, received = [0.0] * len(self._nics), [0.0] * len(self._nics)
        for flows in self._classes.values():
            flows.advance(self._engine.now)
            sent[flows.source] += flows.served
            received[flows.target] += flows.served
        return sent, received

    def rates(self) -> dict[tuple[int, int], tuple[int, float]]:
        """Active classes: (source, target) -> (flows, bytes per second of each). For probes."""
        return {key: (len(c.flows), c.rate * NANOSECONDS) for key, c in self._classes.items() if c.flows}

    def _start(self, source: int, target: int, size_bytes: int, delivery: Delivery) -> None:
        flows = self._classes.get((source, target))
        if flows is None:
            path = self.path(source, target)
            most = tuple(min(self._capacity[other] for other in path if other != link) for link in path)
            flows = self._classes[source, target] = _Class(source, target, path, most)
        flows.advance(self._engine.now)
        if not flows.flows:
            self._join(flows)
        self._sequence += 1
        heappush(flows.flows, (flows.clock + size_bytes, self._sequence, delivery))
        self._touch(flows)

    def _join(self, flows: _Class) -> None:
        """Note that a class has become active."""
        for link, most in zip(flows.path, flows.most, strict=True):
            self._crossing[link][flows] = None
            self._potential[link] += most

    def _leave(self, flows: _Class) -> None:
        """Note that a class has ended."""
        flows.clock, flows.rate, flows.armed = 0.0, 0.0, -1
        for link, most in zip(flows.path, flows.most, strict=True):
            crossing = self._crossing[link]
            del crossing[flows]
            self._potential[link] = self._potential[link] - most if crossing else 0.0

    def _deliver(self, delivery: Delivery) -> None:
        then, argument, size_bytes = delivery
        self.arrived_bytes += size_bytes
        then(argument)

    def _touch(self, flows: _Class) -> None:
        """Let the rates be worked out once everything of this instant has happened."""
        if not self._touched:
            self._engine.at(self._engine.now, self._settle, None, Order.SETTLE)
        self._touched[flows] = None

    def _settle(self, _: None) -> None:
        """Work out the rates of the classes that the changes of this instant reach and arm the events of their ends."""
        touched, now = self._touched, self._engine.now
        self._touched = {}
        reached = self._reached(touched)
        if len(reached) == 1:
            (lone,) = reached
            self._pace(lone, min(self._capacity[link] for link in lone.path) / len(lone.flows), now)
            return
        links = [(*flows.path, len(flows.flows)) for flows in reached]
        for flows, rate in zip(reached, max_min_rates(links, self._capacity), strict=True):
            if rate != flows.rate or flows in touched:
                self._pace(flows, rate, now)

    def _reached(self, touched: dict[_Class, None]) -> list[_Class]:
        """Active classes whose rates the touched ones may change, themselves among them."""
        capacity, potential, tight, crossing = self._capacity, self._potential, self._tight, self._crossing
        found = {flows: None for flows in touched if flows.flows}
        links: dict[int, None] = {}
        for flows in touched:
            for link in flows.path:
                before, tight[link] = tight[link], potential[link] > capacity[link]
                if before or tight[link]:
                    links[link] = None
        waiting = list(links)
        while waiting:
            for flows in crossing[waiting.pop()]:
                if flows not in found:
                    found[flows] = None
                for link in flows.path:
                    if tight[link] and link not in links:
                        links[link] = None
                        waiting.append(link)
        return list(found)

    def _pace(self, flows: _Class, rate: float, now: int) -> None:
        """Set the rate of a class; an event that comes before the new end stands and is put off when its time has come."""
        flows.advance(now)
        flows.rate = rate
        flows.end = now + max(0, math.floor((flows.flows[0][0] - flows.clock) / rate + 0.5))
        if flows.armed < 0 or flows.end < flows.armed:
            flows.armed = flows.end
            self._engine.at(flows.end, self._end, (flows, flows.end))

    def _end(self, due: tuple[_Class, int]) -> None:
        """End the first flow of a class and all others that are within half a nanosecond of their end."""
        flows, time = due
        if flows.armed != time:
            return
        if flows.end > time:
            flows.armed = flows.end
            self._engine.at(flows.end, self._end, (flows, flows.end))
            return
        flows.advance(time)
        flows.armed = -1
        reached = max(flows.clock + flows.rate * 0.5, flows.flows[0][0])
        ended: list[Delivery] = []
        while flows.flows and flows.flows[0][0] <= reached:
            clock, _, delivery = heappop(flows.flows)
            flows.served += clock - flows.clock  # what rounding to whole nanoseconds left over or took too much
            ended.append(delivery)
        if not flows.flows:
            self._leave(flows)
        self._touch(flows)
        for delivery in ended:
            self._arrive_later(flows.source, delivery)

    def _arrive_later(self, source: int, delivery: Delivery) -> None:
        latency = self._latency[source]
        if latency:
            self._engine.at(self._engine.now + latency, self._deliver, delivery)
        else:
            self._deliver(delivery)
