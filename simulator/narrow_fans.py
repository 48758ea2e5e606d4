"""Fans to few servers: what ``simulator.fan_network`` works out with arrays, worked out message by message.

A call of an array library costs as much as some ten turns of a plain loop, so up to :data:`NARROW` servers the loop is
faster. The queues, their order and every instant are the same to the nanosecond. Knows no workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapreplace

from simulator.engine import Engine
from simulator.fans import Deliver, Fan, Gather, Scatter
from simulator.fifo import FifoNetwork, FifoResource
from simulator.machines import Machine

#: Servers up to which fans are worked out here (docs/simulation.md, "Speed").
NARROW = 24


@dataclass(eq=False, slots=True)
class _Server:
    """One server of a fan: nanoseconds of service of its message at every queue, and the queues.

    ``leave``, ``back``: at the rank's NIC, of the message and of the answer; ``lead_ns``: core time of the rank between the
    message and the last of the fan; ``enter``, ``answer``: at the server's NIC, whose links are ``receive`` and ``send``;
    ``cores`` and ``memory``: when these are free, as heaps (no memory: it holds nobody up); ``latency``: of the answer.
    """

    lead_ns: float
    leave: int
    receive: int
    enter: int
    cores: list[int]
    serve: int
    memory: list[int] | None
    traffic: int
    send: int
    answer: int
    back: int
    latency: int

    def arrives(self) -> tuple[int, int, int, list[int], int, list[int] | None, int]:
        """What becomes of the message."""
        return self.leave, self.receive, self.enter, self.cores, self.serve, self.memory, self.traffic


class _Service:
    """What a fan asks of every queue, for ranks with one rate of NIC, as rows for each stage.

    ``served`` and ``replied`` count the fans whose messages and answers are not yet in the counters of links and servers.
    """

    __slots__ = ("answers", "arrivals", "backs", "fan", "replied", "replies", "sends", "served")

    def __init__(self, fan: Fan, servers: Sequence[_Server]) -> None:
        self.fan, self.served, self.replied = fan, 0, 0
        self.replies = round(float(fan.answer_bytes.sum()))
        self.sends = [(server.lead_ns, server.leave) for server in servers]
        self.arrivals = [server.arrives() for server in servers]
        self.answers = [(server.send, server.answer) for server in servers]
        self.backs = [(server.back, server.latency) for server in servers]


#: A fan under way: its scatter, service, sender, when each message has left the sender, what to call.
Fanned = tuple[Scatter, _Service, int, list[int], Deliver]
#: The same with when each answer begins to leave its server, and has left.
Answered = tuple[Scatter, _Service, int, list[int], list[int], Deliver]


class NarrowFanNetwork:
    """Works out fans on the queues of a network and of the servers' cores and memory; see :class:`FanNetwork`.

    Parameters
    ----------
    engine : Engine
        The clock.
    network : FifoNetwork
        Its links are shared with all other messages.
    machines : sequence of Machine
        The servers among them get a queue for their memory where it was left out.
    servers : sequence of int
        Indices of the embedding servers.
    """

    def __init__(
        self, engine: Engine, network: FifoNetwork, machines: Sequence[Machine], servers: Sequence[int]
    ) -> None:
        self._engine, self._network, self._count = engine, network, len(machines)
        self._free = network.when_free
        self._pools: dict[int, tuple[FifoResource, FifoResource]] = {}
        self._services: dict[tuple[Fan, float, float], _Service] = {}
        self._known: dict[Scatter, _Service] = {}
        self._latency = [network.latency_ns(index) for index in range(len(machines))]
        network.before_reading = self.count
        for index in servers:
            machine = machines[index]
            rate = machine.memory_bytes_per_ns
            cores, memory = FifoResource(engine, machine.cores.capacity, 1.0), FifoResource(engine, rate, rate)
            cores.before_reading = memory.before_reading = self.count
            machine.cores, machine.memory = self._pools[index] = cores, memory

    def count(self) -> None:
        """Bring the counters of links and servers up to date; a sum over fans is much cheaper than a sum at each."""
        for service in self._services.values():
            fan, served, replied = service.fan, service.served, service.replied
            self._network.taken[fan.servers + self._count] += fan.sent_bytes * served
            self._network.taken[fan.servers] += fan.answer_bytes * replied
            for index, core, traffic in zip(fan.servers.tolist(), fan.serve_ns, fan.traffic_bytes, strict=True):
                cores, memory = self._pools[index]
                cores.taken += float(core) * served
                memory.taken += float(traffic) * served
            service.served = service.replied = 0

    def receivable(self, gather: Gather, arrivals: list[int], now: int, factor: float) -> int:
        """Nanoseconds from now until the answers of a gather can be received without a pause."""
        latest = max([arrivals[which] - now + after * factor for which, after in gather.receipts])
        return round(latest - gather.receipts[0][1] * factor)

    def scatter(self, scatter: Scatter, source: int, factor: float, deliver: Deliver) -> None:
        """Send a fan whose last message leaves now."""
        fan, network, now = scatter.fan, self._network, self._engine.env._now
        service = self._known.get(scatter) or self._service(scatter, source)
        network.sent_bytes += fan.total_bytes
        network.bytes_taken[source] += fan.total_bytes
        end, ends = self._free[source], []
        for lead, leave in service.sends:
            ready = now - int(lead * factor)
            end = (ready if ready > end else end) + leave
            ends.append(end)
        self._free[source] = end
        first = ends[0] - service.sends[0][1]
        fanned = (scatter, service, source, ends, deliver)
        if first > now:
            self._engine.at(first, self._serve, fanned)
        else:
            self._serve(fanned)

    def _serve(self, fanned: Fanned) -> None:
        """Let the messages pass the servers."""
        scatter, service, source, ends, deliver = fanned
        fan, network, free = scatter.fan, self._network, self._free
        network.arrived_bytes += fan.total_bytes
        service.served += 1
        served = self._work(service, ends, self._latency[source])
        if not fan.answered:
            return
        network.sent_bytes += service.replies
        service.replied += 1
        begun, sent = [], []
        for done, (link, answer) in zip(served, service.answers, strict=True):
            before = free[link]
            start = done if done > before else before
            free[link] = end = start + answer
            begun.append(start)
            sent.append(end)
        first = max(self._engine.env._now, min(begun))
        self._engine.at(first, self._answer, (scatter, service, source, begun, sent, deliver))

    def _work(self, service: _Service, ends: list[int], latency: int) -> list[int]:
        """Let the messages pass the servers' NICs, the servers work; return when each is done."""
        free, served = self._free, []
        rows = zip(ends, service.arrivals, strict=True)
        for end, (leave, link, enter, cores, serve, memory, traffic) in rows:
            ready, before = end - leave, free[link]
            free[link] = entered = (ready if ready > before else before) + enter
            arrived = (entered if entered > end else end) + latency
            before = cores[0]
            done = (arrived if arrived > before else before) + serve
            heapreplace(cores, done)
            if memory is not None:
                before = memory[0]
                memory[0] = moved = (arrived if arrived > before else before) + traffic
                done = moved if moved > done else done
            served.append(done)
        return served

    def _answer(self, answered: Answered) -> None:
        """Let the answers pass the rank's NIC, in the order in which they come; hand over when each arrives."""
        scatter, service, source, begun, sent, deliver = answered
        network, link, arrived, backs = self._network, self._count + source, sent[:], service.backs
        end = self._free[link]
        for which in sorted(range(len(begun)), key=begun.__getitem__):
            ready, left = begun[which], sent[which]
            back, latency = backs[which]
            end = (ready if ready > end else end) + back
            arrived[which] = (end if end > left else left) + latency
        self._free[link] = end
        network.bytes_taken[link] += service.replies
        network.arrived_bytes += service.replies
        deliver((scatter.mailbox, arrived))

    def _service(self, scatter: Scatter, source: int) -> _Service:
        """Return what a fan asks of every queue, which all ranks with one rate of NIC share."""
        fan, rates = scatter.fan, (self._network.rate(source), self._network.rate(self._count + source))
        found = self._services.get((fan, *rates))
        if found is None:
            servers = [self._server(fan, place, *rates) for place in range(len(fan.servers))]
            # Where as many jobs as there are cores pass the memory while one passes a core, the memory is always free first.
            if all(server.traffic * len(server.cores) <= server.serve for server in servers):
                servers = [replace(server, memory=None) for server in servers]
            found = self._services[fan, *rates] = _Service(fan, servers)
        self._known[scatter] = found
        return found

    def _server(self, fan: Fan, place: int, out: float, back: float) -> _Server:
        """Return what the fan asks of the queues on the way to a server and back."""
        network, index = self._network, int(fan.servers[place])
        cores, memory = self._pools[index]
        serve, traffic = round(fan.serve_ns[place] / cores.rate), round(fan.traffic_bytes[place] / memory.rate)
        sent, answer = fan.sent_bytes[place], fan.answer_bytes[place]
        receive = self._count + index
        return _Server(
            lead_ns=float(fan.lead_ns[place]),
            leave=round(sent / out),
            receive=receive,
            enter=round(sent / network.rate(receive)),
            cores=cores.free,
            serve=serve,
            memory=memory.free,
            traffic=traffic,
            send=index,
            answer=round(answer / network.rate(index)),
            back=round(answer / back),
            latency=self._latency[index],
        )
