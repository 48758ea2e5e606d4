"""The network between machines: flows that share NICs max-min fairly, at flow level.

Each machine has a NIC with a transmit and a receive side (full duplex). A message is a flow that crosses the transmit
side of its sender, the uplinks of both racks if these differ, and the receive side of its receiver; it arrives
``latency`` (the sender's) after its last byte left.
Rates are max-min fair (progressive filling: Bertsekas and Gallager, Data Networks, 1992, section 6.5.2) and are worked
out once per instant, after everything that ends or starts at that instant.

Flows between the same two machines always have the same rate, so they form one class with one clock (bytes that each of
its flows got), like the jobs of :class:`simulator.shared.SharedResource`. The cost of a change is that of the classes,
not of the flows. The network knows machines by index and nothing of workers or plans.
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
    rate: float = 0.0  # bytes per nanosecond and flow
    clock: float = 0.0  # bytes that each active flow got since the class was last empty
    served: float = 0.0  # bytes that all flows got, ever
    flows: list[tuple[float, int, Delivery]] = field(default_factory=list)  # heap: clock at the end, sequence


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
        self._active: dict[tuple[int, int], _Class] = {}
        self._ideal: dict[tuple[int, int], tuple[int, float]] = {}  # latency, rate of the slowest link
        self._since = 0  # time at which the clocks of the classes were brought up to date
        self._sequence = 0
        self._token = 0  # an end event with another token is stale
        self._settling = False
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
        self._advance()
        sent, received = [0.0] * len(self._nics), [0.0] * len(self._nics)
        for flows in self._classes.values():
            sent[flows.source] += flows.served
            received[flows.target] += flows.served
        return sent, received

    def rates(self) -> dict[tuple[int, int], tuple[int, float]]:
        """Active classes: (source, target) -> (flows, bytes per second of each). For probes."""
        return {key: (len(c.flows), c.rate * NANOSECONDS) for key, c in self._active.items()}

    def _start(self, source: int, target: int, size_bytes: int, delivery: Delivery) -> None:
        self._advance()
        key = (source, target)
        flows = self._active.get(key)
        if flows is None:
            flows = self._classes.get(key)
            if flows is None:
                flows = self._classes[key] = _Class(source, target, self.path(source, target))
            self._active[key] = flows
        self._sequence += 1
        heappush(flows.flows, (flows.clock + size_bytes, self._sequence, delivery))
        self._settle_later()

    def _deliver(self, delivery: Delivery) -> None:
        then, argument, size_bytes = delivery
        self.arrived_bytes += size_bytes
        then(argument)

    def _advance(self) -> None:
        now = self._engine.now
        if now > self._since:
            elapsed, self._since = now - self._since, now
            for flows in self._active.values():
                step = flows.rate * elapsed
                flows.clock += step
                flows.served += step * len(flows.flows)

    def _settle_later(self) -> None:
        if not self._settling:
            self._settling = True
            self._engine.at(self._engine.now, self._settle, None, Order.SETTLE)

    def _settle(self, _: None) -> None:
        """Work out the rates for the flows that are active now and arm the event of the next end."""
        self._settling = False
        self._token += 1
        if not self._active:
            return
        active = list(self._active.values())
        links = [(*c.path, len(c.flows)) for c in active]
        soonest, first = math.inf, active[0]
        for flows, rate in zip(active, max_min_rates(links, self._capacity), strict=True):
            flows.rate = rate
            left = (flows.flows[0][0] - flows.clock) / rate
            if left < soonest:
                soonest, first = left, flows
        end = self._engine.now + max(0, math.floor(soonest + 0.5))
        self._engine.at(end, self._end, (self._token, first))

    def _end(self, armed: tuple[int, _Class]) -> None:
        """End the flow for which the event was armed and all others that are within half a nanosecond of their end."""
        token, first = armed
        if token != self._token:
            return
        self._advance()
        ended: list[tuple[int, int, Delivery]] = []
        for key, flows in list(self._active.items()):
            reached = flows.clock + flows.rate * 0.5
            if flows is first:
                reached = max(reached, flows.flows[0][0])
            while flows.flows and flows.flows[0][0] <= reached:
                due, sequence, delivery = heappop(flows.flows)
                flows.served += due - flows.clock  # what rounding to whole nanoseconds left over or took too much
                ended.append((sequence, flows.source, delivery))
            if not flows.flows:
                flows.clock, flows.rate = 0.0, 0.0
                del self._active[key]
        self._settle_later()
        for _, source, delivery in sorted(ended, key=lambda end: end[0]):
            self._arrive_later(source, delivery)

    def _arrive_later(self, source: int, delivery: Delivery) -> None:
        latency = self._latency[source]
        if latency:
            self._engine.at(self._engine.now + latency, self._deliver, delivery)
        else:
            self._deliver(delivery)
