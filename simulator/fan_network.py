"""Works out fans: the messages of a session to all embedding servers, on next-free-time queues, in three events.

1. *scatter*: the messages pass the rank's NIC one after the other;
2. when the first of them leaves: they pass the servers' NICs, cores and memory; the answers pass the servers' NICs;
3. when the first answer leaves: the answers pass the rank's NIC, in the order in which they come.

The queues are those of ``simulator.fifo``, as arrays. Each is taken when its turn has come, not before; only within one fan
are later messages worked out with the first. Knows no workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.engine import Engine
from simulator.fans import Deliver, Fan, Scatter, Times
from simulator.fifo import FifoNetwork
from simulator.machines import Machine


@dataclass(eq=False)
class _Service:
    """Nanoseconds of service of a fan at every queue, for ranks with one rate of NIC; ``of_*``: running sums.

    ``memory`` is None where the servers' memory cannot hold anybody up. ``served`` and ``replied`` count the fans whose
    messages and answers are not yet in the counters of links and servers.
    """

    fan: Fan

    where: Any  # the servers as an index of arrays over machines: a slice if they are numbered in a row
    receive: Any  # their receive sides as an index of arrays over links
    leave: Times
    of_leave: Times
    enter: Times
    serve: Times
    memory: Times | None
    answer: Times
    back: Times
    sent_bytes: int
    answer_bytes: int
    served: int = 0
    replied: int = 0


class FanNetwork:
    """Works out fans on the queues of a network and of the servers' cores and memory.

    Parameters
    ----------
    engine : Engine
        The clock.
    network : FifoNetwork
        Its links are shared with all other messages.
    machines : sequence of Machine
        The servers among them get a :class:`ServerPool` in the place of their cores and memory.
    servers : sequence of int
        Indices of the embedding servers.

    Attributes
    ----------
    engine : Engine
        The clock.
    """

    def __init__(
        self, engine: Engine, network: FifoNetwork, machines: Sequence[Machine], servers: Sequence[int]
    ) -> None:
        self.engine, self._network, self._count = engine, network, len(machines)
        cores = [math.ceil(machines[index].cores.capacity - 1e-9) for index in servers]
        self._core_free = np.full((len(machines), max(cores)), math.inf)
        self._memory_free = np.zeros((len(machines), 1))
        self._core_taken, self._memory_taken = np.zeros(len(machines)), np.zeros(len(machines))
        self._core_rate, self._memory_rate = np.ones(len(machines)), np.ones(len(machines))
        self._latency = np.array([network.latency_ns(index) for index in range(len(machines))], dtype=np.float64)
        self._services: dict[tuple[Fan, float, float], _Service] = {}
        network.before_reading = self.count
        for index, count in zip(servers, cores, strict=True):
            machine = machines[index]
            self._core_free[index, :count] = 0.0
            self._core_rate[index] = machine.cores.capacity / count
            self._memory_rate[index] = machine.memory_bytes_per_ns
            free, taken = (self._core_free, self._memory_free), (self._core_taken, self._memory_taken)
            machine.cores = ServerPool(self, machine.cores.capacity, free[0][index], taken[0][index:])
            machine.memory = ServerPool(self, machine.memory_bytes_per_ns, free[1][index], taken[1][index:])

    def count(self) -> None:
        """Bring the counters of links and servers up to date; a sum over fans is much cheaper than a sum at each."""
        for service in self._services.values():
            fan, served, replied = service.fan, service.served, service.replied
            self._network.taken[service.receive] += fan.sent_bytes * served
            self._network.taken[service.where] += fan.answer_bytes * replied
            self._core_taken[service.where] += fan.serve_ns * served
            self._memory_taken[service.where] += fan.traffic_bytes * served
            service.served = service.replied = 0

    def scatter(self, scatter: Scatter, source: int, factor: float, deliver: Deliver) -> None:
        """Send a fan whose last message leaves now."""
        fan, network, now = scatter.fan, self._network, self.engine.now
        service = self._service(fan, source)
        network.sent_bytes += service.sent_bytes
        network.taken[source] += service.sent_bytes
        ready = now - fan.lead_ns * factor
        ends = _pass(ready, service.leave, service.of_leave, network.free.item(source))
        network.free[source] = ends[-1]
        first = round(ends.item(0) - service.leave.item(0))
        fanned = (scatter, service, source, ends, deliver)
        if first > now:
            self.engine.at(first, self._serve, fanned)
        else:
            self._serve(fanned)

    def _serve(self, fanned: tuple[Scatter, _Service, int, Times, Deliver]) -> None:
        """Let the messages pass the servers."""
        scatter, service, source, ends, deliver = fanned
        fan, network, where, receive = scatter.fan, self._network, service.where, service.receive
        entered = np.maximum(ends - service.leave, network.free[receive]) + service.enter
        network.free[receive] = entered
        network.arrived_bytes += service.sent_bytes
        service.served += 1
        served = self._work(service, np.maximum(entered, ends) + self._latency.item(source))
        if not fan.answered:
            return
        network.sent_bytes += service.answer_bytes
        begun = np.maximum(served, network.free[where])
        sent = begun + service.answer
        network.free[where] = sent
        service.replied += 1
        first = max(self.engine.now, round(begun.min().item()))
        self.engine.at(first, self._answer, (scatter, service, source, begun, sent, deliver))

    def _work(self, service: _Service, arrived: Times) -> Times:
        """Let the servers work; return when each is done."""
        where = service.where
        rows = self._core_free[where]
        chosen = (_ROWS[: len(rows)], rows.argmin(axis=1))
        ends: Times = np.maximum(arrived, rows[chosen]) + service.serve
        rows[chosen] = ends
        if not isinstance(where, slice):  # then the rows are a copy
            self._core_free[where] = rows
        if service.memory is None:
            return ends
        memory = np.maximum(arrived, self._memory_free[where, 0]) + service.memory
        self._memory_free[where, 0] = memory
        done: Times = np.maximum(ends, memory)
        return done

    def _answer(self, fanned: tuple[Scatter, _Service, int, Times, Times, Deliver]) -> None:
        """Let the answers pass the rank's NIC; hand over when each arrives."""
        scatter, service, source, begun, sent, deliver = fanned
        network, link = self._network, self._count + source
        order = begun.argsort(kind="stable")
        back = service.back[order]
        ends = _pass(begun[order], back, back.cumsum(), network.free.item(link))
        network.free[link] = ends[-1]
        network.taken[link] += service.answer_bytes
        network.arrived_bytes += service.answer_bytes
        arrived = np.empty_like(ends)
        arrived[order] = ends
        deliver((scatter.mailbox, np.maximum(arrived, sent) + self._latency[service.where]))

    def _service(self, fan: Fan, source: int) -> _Service:
        """Return what a fan asks of every queue."""
        network = self._network
        leave, back = network.rate(source), network.rate(self._count + source)
        key = (fan, leave, back)
        if key not in self._services:
            servers, receive = fan.servers, fan.servers + self._count
            out = fan.sent_bytes / leave
            serve, memory = fan.serve_ns / self._core_rate[servers], fan.traffic_bytes / self._memory_rate[servers]
            # If as many jobs as there are cores pass the memory one after the other while one passes a core, memory is
            # always free before a core is.
            slack = np.all(memory * np.isfinite(self._core_free[servers]).sum(axis=1) <= serve)
            self._services[key] = _Service(
                fan,
                _index(servers),
                _index(receive),
                out,
                out.cumsum(),
                fan.sent_bytes / network.rates_of(receive),
                serve,
                None if slack else memory,
                fan.answer_bytes / network.rates_of(servers),
                fan.answer_bytes / back,
                round(float(fan.sent_bytes.sum())),
                round(float(fan.answer_bytes.sum())),
            )
        return self._services[key]


#: Numbers of rows, for indexing; more servers than anybody has.
_ROWS = np.arange(1 << 16)


def _index(numbers: npt.NDArray[np.intp]) -> Any:
    """Return a slice for numbers in a row, which makes views of arrays and not copies, else the numbers."""
    first = int(numbers[0])
    in_a_row = np.array_equal(numbers, np.arange(first, first + len(numbers)))
    return slice(first, first + len(numbers)) if in_a_row else numbers


class ServerPool:
    """Cores or memory of one server as a row of a matrix: the interface of ``simulator.machines.Resource``.

    Parameters
    ----------
    fans : FanNetwork
        Whose queues they are.
    capacity : float
        Work per nanosecond.
    row : ndarray, shape (most servers of a pool,)
        When each is free; infinite where there is none.
    taken : ndarray
        Its first element counts the work.
    """

    def __init__(self, fans: FanNetwork, capacity: float, row: Times, taken: Times) -> None:
        self.capacity = capacity
        self._fans, self._row, self._taken = fans, row, taken
        self._rate = capacity / int(np.isfinite(row).sum())

    def served(self) -> float:
        """Work done so far."""
        self._fans.count()
        left = self._row[np.isfinite(self._row)] - self._fans.engine.now
        return float(self._taken[0] - self._rate * left[left > 0.0].sum())

    def add(self, work: float, then: Callable[[Any], None], argument: Any) -> None:
        """Queue a job; ``then(argument)`` is called when its work is done."""
        core = int(self._row.argmin())
        end = max(float(self._row[core]), self._fans.engine.now) + work / self._rate
        self._row[core] = end
        self._taken[0] += work
        self._fans.engine.at(round(end), then, argument)


def _pass(ready: Times, service: Times, total: Times, free: float) -> Times:
    """Ends of jobs that pass one server in the given order (Lindley's recursion as a running maximum).

    ``total``: running sum of ``service``.
    """
    ends: Times = np.maximum(np.maximum.accumulate(ready - total + service), free) + total
    return ends
