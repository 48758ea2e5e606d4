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
from simulator.fans import Amounts, Deliver, Fan, Gather, Scatter, Times
from simulator.fifo import FifoNetwork
from simulator.machines import Machine


@dataclass(eq=False)
class _Service:
    """Nanoseconds of service of a fan at every queue, for ranks with one rate of NIC.

    ``to_leave`` and ``of_leave``: running sums before and with each; ``pools``: where the row of each server's cores begins
    among those of the fan; ``alike``: all answers take as long at the rank's NIC. ``memory`` is None where the servers'
    memory cannot hold anybody up. ``served`` and ``replied`` count the fans whose messages and answers are not yet in the
    counters of links and servers.
    """

    fan: Fan

    where: Any  # the servers as an index of arrays over machines: a slice if they are numbered in a row
    receive: Any  # their receive sides as an index of arrays over links
    pools: Times
    leave: Times
    to_leave: Times
    of_leave: Times
    enter: Times
    serve: Times
    memory: Times | None
    answer: Times
    back: Times
    of_back: Times
    alike: bool
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
        self._core_free = np.full((len(machines), max(cores)), NEVER)
        self._memory_free = np.zeros((len(machines), 1), dtype=np.int64)
        self._core_taken, self._memory_taken = np.zeros(len(machines)), np.zeros(len(machines))
        self._core_rate, self._memory_rate = np.ones(len(machines)), np.ones(len(machines))
        self._latency = np.array([network.latency_ns(index) for index in range(len(machines))], dtype=np.int64)
        self._services: dict[tuple[Fan, float, float], _Service] = {}
        network.before_reading = self.count
        for index, count in zip(servers, cores, strict=True):
            machine = machines[index]
            self._core_free[index, :count] = 0
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

    def receivable(self, gather: Gather, arrivals: Times, now: int, factor: float) -> int:
        """Nanoseconds from now until the answers of a gather can be received without a pause."""
        return gather.receivable(arrivals, now, factor)

    def scatter(self, scatter: Scatter, source: int, factor: float, deliver: Deliver) -> None:
        """Send a fan whose last message leaves now."""
        fan, network, now = scatter.fan, self._network, self.engine.now
        service = self._service(fan, source)
        network.sent_bytes += service.sent_bytes
        network.taken[source] += service.sent_bytes
        lead: Times = (fan.lead_ns * factor).astype(np.int64)
        ends = _pass(now - lead, service.to_leave, service.of_leave, network.free.item(source))
        network.free[source] = ends[-1]
        first = ends.item(0) - service.leave.item(0)
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
        first = max(self.engine.now, begun.min().item())
        self.engine.at(first, self._answer, (scatter, service, source, begun, sent, deliver))

    def _work(self, service: _Service, arrived: Times) -> Times:
        """Let the servers work; return when each is done."""
        where = service.where
        rows = self._core_free[where]
        cores, chosen = rows.reshape(-1), service.pools + rows.argmin(axis=1)
        ends: Times = np.maximum(arrived, cores[chosen]) + service.serve
        cores[chosen] = ends
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
        back, total = service.back, service.of_back
        if not service.alike:
            back = back[order]
            total = back.cumsum()
        ends = _pass(begun[order], total - back, total, network.free.item(link))
        network.free[link] = ends[-1]
        network.taken[link] += service.answer_bytes
        network.arrived_bytes += service.answer_bytes
        arrived = np.empty_like(ends)
        arrived[order] = ends
        deliver((scatter.mailbox, np.maximum(arrived, sent) + self._latency[service.where]))

    def _service(self, fan: Fan, source: int) -> _Service:
        """Return what a fan asks of every queue."""
        network = self._network
        rates = network.rate(source), network.rate(self._count + source)
        key = (fan, *rates)
        if key not in self._services:
            servers, receive = fan.servers, fan.servers + self._count
            out, back = (_ns(size / rate) for size, rate in zip((fan.sent_bytes, fan.answer_bytes), rates, strict=True))
            serve = _ns(fan.serve_ns / self._core_rate[servers])
            memory = _ns(fan.traffic_bytes / self._memory_rate[servers])
            # If as many jobs as there are cores pass the memory one after the other while one passes a core, memory is
            # always free before a core is.
            slack = np.all(memory * (self._core_free[servers] < NEVER).sum(axis=1) <= serve)
            self._services[key] = _Service(
                fan,
                _index(servers),
                _index(receive),
                np.arange(len(servers)) * self._core_free.shape[1],
                out,
                out.cumsum() - out,
                out.cumsum(),
                _ns(fan.sent_bytes / network.rates_of(receive)),
                serve,
                None if slack else memory,
                _ns(fan.answer_bytes / network.rates_of(servers)),
                back,
                back.cumsum(),
                bool((back == back[0]).all()),
                fan.total_bytes,
                round(float(fan.answer_bytes.sum())),
            )
        return self._services[key]


#: When a core is free that a server does not have.
NEVER = np.iinfo(np.int64).max


def _ns(times: Amounts) -> Times:
    """Whole nanoseconds, as every cost."""
    return np.rint(times).astype(np.int64)


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
        When each is free; :data:`NEVER` where there is none.
    taken : ndarray
        Its first element counts the work.
    """

    def __init__(self, fans: FanNetwork, capacity: float, row: Times, taken: Amounts) -> None:
        self.capacity = capacity
        self._fans, self._row, self._taken = fans, row, taken
        self._rate = capacity / int((row < NEVER).sum())

    def served(self) -> float:
        """Work done so far."""
        self._fans.count()
        left = self._row[self._row < NEVER] - self._fans.engine.now
        return float(self._taken[0] - self._rate * left[left > 0].sum())

    def add(self, work: float, then: Callable[[Any], None], argument: Any) -> None:
        """Queue a job; ``then(argument)`` is called when its work is done."""
        core = int(self._row.argmin())
        end = max(self._row.item(core), self._fans.engine.now) + round(work / self._rate)
        self._row[core] = end
        self._taken[0] += work
        self._fans.engine.at(end, then, argument)


def _pass(ready: Times, before: Times, total: Times, free: int) -> Times:
    """Ends of jobs that pass one server in the given order (Lindley's recursion as a running maximum).

    ``before`` and ``total``: running sums of their service, before and with each.
    """
    ends: Times = np.maximum(np.maximum.accumulate(ready - before), free) + total
    return ends
