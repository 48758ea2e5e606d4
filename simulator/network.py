"""The network between machines: flows that share NICs max-min fairly, at flow level.

Each machine has a NIC with a transmit and a receive side (full duplex). A message is a flow that crosses the transmit
side of its sender, the uplinks of both racks if these differ, and the receive side of its receiver; it arrives
``latency`` (the sender's) after its last byte left.
Rates are max-min fair (``simulator.links``) and are worked out once per instant, after everything that ends or starts at
that instant.

A change touches the flows that it reaches through *full* links alone, links that are a bottleneck: of what is fixed at a
link that it does not reach, nothing changes. Links with room to spare are looked at afterwards; one that would be overloaded
is reached as well. What results is max-min fair for the whole network: every flow has a bottleneck. The cost of a change is
that of the classes that it reaches and of one event for each bottleneck, not of the flows nor of the network. Knows machines
by index and nothing of workers or plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.engine import NANOSECONDS, Engine, Order, to_ns
from simulator.links import NOWHERE, OVERLOADED, Flows, Link, fill

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
        self._links = [Link(index, rate) for index, rate in enumerate(self._capacity)]
        self._classes: dict[tuple[int, int], Flows] = {}
        self._touched: dict[Flows, None] = {}  # classes whose number of flows has changed since rates were worked out
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
            if flows.bottleneck is not None:
                flows.bottleneck.advance(self._engine.now)
                flows.count(flows.bottleneck)
            sent[flows.source] += flows.served
            received[flows.target] += flows.served
        return sent, received

    def under_way_bytes(self) -> int:
        """Bytes of messages that nobody waits for, whose arrival the end of a run need not see: there are none here."""
        return 0

    def rates(self) -> dict[tuple[int, int], tuple[int, float]]:
        """Active classes: (source, target) -> (flows, bytes per second of each). For probes."""
        every = ((key, flows, flows.bottleneck) for key, flows in self._classes.items() if flows.queue)
        return {key: (len(flows.queue), link.rate * NANOSECONDS if link else 0.0) for key, flows, link in every}

    def _start(self, source: int, target: int, size_bytes: int, delivery: Delivery) -> None:
        flows = self._classes.get((source, target))
        if flows is None:
            path = tuple(self._links[link] for link in self.path(source, target))
            flows = self._classes[source, target] = Flows(source, target, path)
        self._sequence += 1
        flows.add(size_bytes, self._sequence, delivery, self._engine.now)
        self._touch(flows)

    def _deliver(self, delivery: Delivery) -> None:
        then, argument, size_bytes = delivery
        self.arrived_bytes += size_bytes
        then(argument)

    def _touch(self, flows: Flows) -> None:
        """Let the rates be worked out once everything of this instant has happened."""
        if not self._touched:
            self._engine.at(self._engine.now, self._settle, None, Order.SETTLE)
        self._touched[flows] = None

    def _settle(self, _: None) -> None:
        """Work out the rates of the classes that the changes of this instant reach and arm the events of their ends."""
        touched, now = self._touched, self._engine.now
        self._touched = {}
        links = _full(touched)
        while links:
            reached = _reached(links)
            _fix(links, reached)
            loads = _loads(reached)
            over = [link for link, load in loads.items() if load > link.capacity * OVERLOADED and link not in links]
            if not over:
                self._set(links, reached, loads, now)
                return
            links.update(dict.fromkeys(over))

    def _set(self, links: Iterable[Link], reached: Iterable[Flows], loads: Mapping[Link, float], now: int) -> None:
        """Let the rates that were worked out hold from now on."""
        for link in links:
            link.advance(now)
        for flows in reached:
            link = flows.fixed
            flows.taken = link.share * len(flows.queue)
            if link is not flows.bottleneck:
                flows.move(link)
        for link, load in loads.items():
            link.load = load
        for link in links:
            if link.members and (link.stirred or link.rate != link.share or link.armed < 0):
                link.rate, link.stirred = link.share, False
                self._arm(link, now)

    def _arm(self, link: Link, now: int) -> None:
        """Foresee the next end; an event that comes before it stands and is put off when its time has come."""
        first = link.first()
        if first is None:
            return
        link.end = end = now + max(0, math.floor((first - link.clock) / link.rate + 0.5))
        if link.armed < 0 or end < link.armed:
            link.armed = end
            self._engine.at(end, self._end, (link, end))

    def _end(self, due: tuple[Link, int]) -> None:
        """End the first flow of a link and all others that are within half a nanosecond of their end."""
        link, time = due
        if link.armed != time:
            return
        if link.end > time:
            link.armed = link.end
            self._engine.at(link.end, self._end, (link, link.end))
            return
        link.advance(time)
        link.armed = -1
        first = link.first()
        if first is None:
            return
        reached = max(link.clock + link.rate * 0.5, first)
        ended: list[tuple[int, Delivery]] = []
        while first is not None and first <= reached:
            flows = link.heads[0][3]
            self._touch(flows)
            ended.append((flows.source, flows.end_first(link)))
            first = link.first()
        for source, delivery in ended:
            self._arrive_later(source, delivery)

    def _arrive_later(self, source: int, delivery: Delivery) -> None:
        latency = self._latency[source]
        if latency:
            self._engine.at(self._engine.now + latency, self._deliver, delivery)
        else:
            self._deliver(delivery)


def _full(touched: Iterable[Flows]) -> dict[Link, None]:
    """Full links of the paths of classes; of a path without any, the link with the least room."""
    links: dict[Link, None] = {}
    for flows in touched:
        full = [link for link in flows.path if link.members]
        if flows.queue and not full:
            full = [min(flows.path, key=lambda link: link.capacity - link.load)]
        links.update(dict.fromkeys(full))
    return links


def _reached(links: dict[Link, None]) -> list[Flows]:
    """Active classes that cross the links; full links that these cross are added to the links."""
    found: dict[Flows, None] = {}
    waiting = list(links)
    for link in waiting:
        for flows in link.crossing:
            if flows not in found:
                found[flows] = None
                for other in flows.path:
                    if other.members and other not in links:
                        links[other] = None
                        waiting.append(other)
    return list(found)


def _fix(links: Iterable[Link], reached: Iterable[Flows]) -> None:
    """Find the bottleneck of each class among the links."""
    for flows in reached:
        flows.fixed = NOWHERE
    fill(link for link in links if link.count)


def _loads(reached: Iterable[Flows]) -> dict[Link, float]:
    """Loads of the links of classes with the rates that were worked out."""
    loads: dict[Link, float] = {}
    for flows in reached:
        more = flows.fixed.share * len(flows.queue) - flows.taken
        for link in flows.path:
            loads[link] = loads.get(link, link.load) + more
    return loads
