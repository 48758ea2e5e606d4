"""The network between machines: flows that share NICs max-min fairly, at flow level.

Each machine has a NIC with a transmit and a receive side (full duplex). A message is a flow that crosses the transmit
side of its sender, the uplinks of both racks if these differ, and the receive side of its receiver; it arrives
``latency`` (the sender's) after its last byte left.
Rates are max-min fair (``simulator.links``) and are worked out once per instant, after everything that ends or starts at
that instant.

A change reaches the *full* links on its way, links that are a bottleneck. Rates are worked out for the flows whose
bottleneck they are; whoever else crosses them keeps the rate that its own bottleneck gives it. If another link would then be
overloaded, or another bottleneck's flows could be faster or would be slower, that link is reached as well. What results is
max-min fair for the whole network: every flow has a full link on which nobody is faster. The cost of a change is that of the
classes that it reaches and of one event for each bottleneck, not of the flows nor of the network. Knows machines by index
and nothing of workers or plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.engine import NANOSECONDS, Engine, Order, to_ns
from simulator.links import NOWHERE, OVERLOADED, SAME, Flows, Link, fill

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
        if len(links) == 1 and self._settle_alone(next(iter(links)), touched, now):
            return
        while links:
            free = _free(touched, links)
            fill(_asked(free, links))
            loads = _loads(free)
            more = _disturbed(links, free, loads)
            if not more:
                self._set(links, free, loads, now)
                return
            links.update(more)

    def _settle_alone(self, link: Link, touched: Mapping[Flows, None], now: int) -> bool:
        """Share one link out among all that cross it, if it is the bottleneck of each and nothing else is disturbed.

        What the loop of :meth:`_settle` comes to for most changes; without racks, for there no two of the classes have
        another link in common. Returns whether it did.
        """
        if self._racks:
            return False
        share = link.capacity / link.count
        for flows in link.crossing:
            other = flows.path[0] if flows.path[0] is not link else flows.path[1]
            load = other.load + (share * len(flows.queue) - flows.taken)
            mine = flows.bottleneck is link or flows in touched
            if not mine or other.members or load > other.capacity * OVERLOADED:
                return False
        link.advance(now)
        for flows in link.crossing:
            taken = share * len(flows.queue)
            more, flows.taken = taken - flows.taken, taken
            for crossed in flows.path:
                crossed.load += more
            if flows.bottleneck is not link:
                flows.move(link)
        if link.stirred or link.rate != share or link.armed < 0:
            link.rate, link.stirred = share, False
            self._arm(link, now)
        return True

    def _set(self, links: Iterable[Link], free: Iterable[Flows], loads: Mapping[Link, float], now: int) -> None:
        """Let the rates that were worked out hold from now on."""
        for link in links:
            link.advance(now)
        for flows in free:
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
            ended.append((flows.source, flows.end_first(link)))
            if flows.queue or flows.meets_full():
                self._touch(flows)
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


def _free(touched: Iterable[Flows], links: Iterable[Link]) -> dict[Flows, None]:
    """Classes whose rates are worked out: those that have changed, and those whose bottleneck is one of the links."""
    free = dict.fromkeys([flows for flows in touched if flows.queue])
    for link in links:
        free.update(link.members)
    return free


def _asked(free: Iterable[Flows], links: Mapping[Link, None]) -> dict[Link, list[Flows]]:
    """Those of the classes that cross each of the links; their bottlenecks are to be found."""
    asked: dict[Link, list[Flows]] = {}
    for flows in free:
        flows.fixed = NOWHERE
        for link in flows.path:
            if link in links:
                asked.setdefault(link, []).append(flows)
    return asked


def _loads(free: Iterable[Flows]) -> dict[Link, float]:
    """Loads of the links of classes with the rates that were worked out."""
    loads: dict[Link, float] = {}
    for flows in free:
        more = flows.fixed.share * len(flows.queue) - flows.taken
        for link in flows.path:
            loads[link] = loads.get(link, link.load) + more
    return loads


def _disturbed(links: Mapping[Link, None], free: Mapping[Flows, None], loads: Mapping[Link, float]) -> dict[Link, None]:
    """Further links whose classes the rates that were worked out do not leave as they are.

    Links that would be overloaded; links that are the bottleneck of others, where a class now goes at another rate; and the
    bottlenecks of classes that would be faster than what is fixed at one of the links that they cross.
    """
    found = {link: None for link, load in loads.items() if load > link.capacity * OVERLOADED and link not in links}
    for flows in free:
        share, before = flows.fixed.share, flows.bottleneck
        if before is None or abs(share - before.rate) > SAME * share:
            found.update(dict.fromkeys([link for link in flows.path if link.members and link not in links]))
    for link in {flows.fixed: None for flows in free}:
        if not link.members or link.share < link.rate * (1.0 - SAME):  # else nobody who crosses it was faster before
            others = [flows.bottleneck for flows in link.crossing if flows not in free]
            found.update(dict.fromkeys([other for other in others if other and other.rate > link.share * (1.0 + SAME)]))
    return found
