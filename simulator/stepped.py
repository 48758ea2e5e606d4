"""Fans with fair shares, in time steps: what ``simulator.fan_network`` is for queues.

Each message of a fan crosses the NICs of rank and server, is worked on by the server's cores and memory, and its answer
crosses the NICs back; every one of these is an activity of :mod:`simulator.time_steps`. Messages between two workers are
activities as well. Messages of a fan leave one after the other, as the rank's core time for them is spent. Knows no workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from simulator.engine import NANOSECONDS, Engine
from simulator.fans import Deliver, Fan, Gather, Scatter, Times
from simulator.machines import Machine
from simulator.network import Delivery, Network, Nic
from simulator.shared import SharedResource
from simulator.time_steps import Floats, Numbers, TimeSteps


class _Stage(IntEnum):
    """What is under way for a message of a fan."""

    REQUEST = 0
    CORES = 1
    MEMORY = 2
    ANSWER = 3


class SteppedNetwork(Network):
    """Messages between machines, cores and memory of servers: fair shares that are worked out once a time step.

    Parameters
    ----------
    engine : Engine
        The clock.
    nics : sequence of Nic
        One per machine; racks are not known here.
    machines : sequence of Machine
        Those that ``servers`` names get pools of this network in the place of their cores and memory.
    servers : sequence of int
        Indices of the embedding servers.
    fans : sequence of Fan
        All that will be sent.
    step_ns : int
        Length of a time step.
    """

    def __init__(
        self,
        engine: Engine,
        nics: Sequence[Nic],
        machines: Sequence[Machine],
        servers: Sequence[int],
        fans: Sequence[Fan],
        step_ns: int,
    ) -> None:
        super().__init__(engine, nics)
        self.step_ns = step_ns
        self._stretch = {m.index: m.cores.stretch for m in machines if isinstance(m.cores, SharedResource)}
        count = len(machines)
        cores, memory = np.ones(count), np.ones(count)
        for index in servers:
            cores[index], memory[index] = machines[index].cores.capacity, machines[index].memory_bytes_per_ns
        self._fans = _Fans(self, fans, cores, memory, np.array(self._latency, dtype=np.int64))
        rates = [nic.bytes_per_second / NANOSECONDS for nic in nics]
        capacity = np.concatenate((rates, rates, cores, memory, [np.inf]))
        self.steps = TimeSteps(engine, capacity, step_ns, self._ended)
        self._calls: dict[int, tuple[int, Delivery]] = {}  # by number: latency, what to do
        for index in servers:
            machine, whole = machines[index], float(memory[index])
            machine.cores = _Pool(self, machine.cores.capacity, 1.0, 2 * count + index)
            machine.memory = _Pool(self, whole, whole, 3 * count + index)

    def receivable(self, gather: Gather, arrivals: Times, now: int, factor: float) -> int:
        """Nanoseconds from now until the answers of a gather can be received without a pause."""
        return gather.receivable(arrivals, now, factor)

    def scatter(self, scatter: Scatter, source: int, factor: float, deliver: Deliver) -> None:
        """Send a fan whose core time begins to be spent now, each nanosecond of it in ``factor`` nanoseconds."""
        self._fans.send(scatter, source, factor * self._stretch[source](), deliver, self._engine.now)

    def served_bytes(self) -> tuple[list[float], list[float]]:
        """Bytes that have left each machine, and that have reached each machine, through its NIC so far."""
        served, machines = self.steps.served().tolist(), len(self._nics)
        return served[:machines], served[machines : 2 * machines]

    def under_way_bytes(self) -> int:
        """Bytes of the messages of fans that have not arrived."""
        return self._fans.under_way_bytes()

    def rates(self) -> dict[tuple[int, int], tuple[int, float]]:
        """Nothing: rates are those of a time step."""
        return {}

    def call(self, link: int, other: int, work: float, most: float, latency: int, delivery: Delivery) -> None:
        """Add one activity, a latency after the end of which something is called."""
        self._sequence += 1
        self._calls[-self._sequence] = (latency, delivery)
        self.steps.add(link, other, work, most, self._engine.now, np.array([-self._sequence]))

    def _start(self, source: int, target: int, size_bytes: int, delivery: Delivery) -> None:
        out, into = self.path(source, target)
        self.call(out, into, size_bytes, np.inf, self._latency[source], delivery)

    def _ended(self, numbers: Numbers, ends: Numbers) -> None:
        single = numbers < 0
        for number, end in zip(numbers[single].tolist(), ends[single].tolist(), strict=True):
            latency, delivery = self._calls.pop(number)
            self._engine.at(end + latency, self._deliver, delivery)
        if not single.all():
            self._fans.ended(numbers[~single], ends[~single])


class _Pool:
    """Cores or memory of one server: the interface of ``simulator.machines.Resource``."""

    def __init__(self, network: SteppedNetwork, capacity: float, limit: float, link: int) -> None:
        self.capacity = capacity
        self._network, self._limit, self._link = network, limit, link

    def served(self) -> float:
        """Work done so far."""
        return float(self._network.steps.served()[self._link])

    def add(self, work: float, then: Callable[[Any], None], argument: Any) -> None:
        """Start a job; ``then(argument)`` is called when its work is done."""
        self._network.call(self._link, self._network.steps.nowhere, work, self._limit, 0, (then, argument, 0))


class _Fans:
    """Messages of fans under way.

    A message is known by (slot of its fan, index in the fan); what messages of a fan ask of the links is the same for all
    fans of one kind. Arrays over slots have the axes (slots,) or (slots, index); arrays over kinds likewise.
    """

    def __init__(
        self, network: SteppedNetwork, fans: Sequence[Fan], cores: Floats, memory: Floats, latency: Numbers
    ) -> None:
        self._network, self._cores, self._memory, self._latency = network, cores, memory, latency
        self._kinds = {fan: kind for kind, fan in enumerate(fans)}
        self._width = max(len(fan.servers) for fan in fans)
        self._of_kind = self._asked(fans)
        self._free: list[int] = []
        self._called: dict[int, tuple[Scatter, Deliver]] = {}
        self._kind, self._source, self._missing = (np.zeros(0, dtype=np.int64) for _ in range(3))
        self._halves, self._done = (np.zeros((0, 0), dtype=np.int64) for _ in range(2))

    def _asked(self, fans: Sequence[Fan]) -> dict[str, Any]:
        """What the messages of each kind of fan ask."""

        def rows(what: Callable[[Fan], Any], kind: type) -> Any:
            return np.array([np.pad(what(fan), (0, self._width - len(fan.servers))) for fan in fans], dtype=kind)

        return {
            "server": rows(lambda fan: fan.servers, np.int64),
            "sent": rows(lambda fan: fan.sent_bytes, float),
            "answer": rows(lambda fan: fan.answer_bytes, float),
            "serve": rows(lambda fan: fan.serve_ns, float),
            "traffic": rows(lambda fan: fan.traffic_bytes, float),
            "answered": np.array([fan.answered for fan in fans]),
            "binds": np.array([self._memory_binds(fan) for fan in fans]),
        }

    def _memory_binds(self, fan: Fan) -> bool:
        """Whether memory may hold a job up: not if as many as there are cores are through it while one uses a core."""
        through = fan.traffic_bytes * np.maximum(1.0, self._cores[fan.servers]) / self._memory[fan.servers]
        return bool((through > fan.serve_ns).any())

    def send(self, scatter: Scatter, source: int, factor: float, deliver: Deliver, now: int) -> None:
        """Begin the requests of a fan."""
        fan, network, slot = scatter.fan, self._network, self._slot()
        count, machines = len(fan.servers), len(self._latency)
        self._kind[slot], self._source[slot], self._missing[slot] = self._kinds[fan], source, count
        self._called[slot] = (scatter, deliver)
        network.sent_bytes += fan.total_bytes
        begin = now + np.rint(np.cumsum(fan.send_ns) * factor).astype(np.int64)
        numbers = self._number(slot, np.arange(count), _Stage.REQUEST)
        network.steps.add(source, machines + fan.servers, fan.sent_bytes, np.inf, begin, numbers)

    def under_way_bytes(self) -> int:
        """Bytes of requests and answers that have not arrived."""
        numbers = self._network.steps.under_way()
        stage, slot, index = self._split(numbers[numbers >= 0])
        total = 0.0
        for which, name in ((_Stage.REQUEST, "sent"), (_Stage.ANSWER, "answer")):
            total += self._of_kind[name][self._kind[slot[stage == which]], index[stage == which]].sum()
        return round(total)

    def ended(self, numbers: Numbers, ends: Numbers) -> None:
        """Let the messages whose activities end go on."""
        stage, slot, index = self._split(numbers)
        after = {
            _Stage.REQUEST: self._requested,
            _Stage.CORES: self._half_served,
            _Stage.MEMORY: self._half_served,
            _Stage.ANSWER: self._answered,
        }
        for which, then in after.items():
            chosen = np.flatnonzero(stage == which)
            if chosen.size:
                then(slot[chosen], index[chosen], ends[chosen])

    def _requested(self, slot: Numbers, index: Numbers, ends: Numbers) -> None:
        """Requests have left: the servers work on them a latency later."""
        kind, machines, steps = self._kind[slot], len(self._latency), self._network.steps
        data = self._of_kind
        self._network.arrived_bytes += round(float(data["sent"][kind, index].sum()))
        begin, server = ends + self._latency[self._source[slot]], data["server"][kind, index]
        binds = np.flatnonzero(data["binds"][kind])
        self._halves[slot, index] = 1
        self._done[slot, index] = 0
        numbers = self._number(slot, index, _Stage.CORES)
        steps.add(2 * machines + server, steps.nowhere, data["serve"][kind, index], 1.0, begin, numbers)
        if binds.size:
            self._halves[slot[binds], index[binds]] = 2
            traffic = data["traffic"][kind[binds], index[binds]]
            numbers = self._number(slot[binds], index[binds], _Stage.MEMORY)
            steps.add(3 * machines + server[binds], steps.nowhere, traffic, np.inf, begin[binds], numbers)

    def _half_served(self, slot: Numbers, index: Numbers, ends: Numbers) -> None:
        """Cores or memory are through with messages; answers leave when both are."""
        self._halves[slot, index] -= 1
        self._done[slot, index] = np.maximum(self._done[slot, index], ends)
        both = self._halves[slot, index] == 0
        answered = self._of_kind["answered"][self._kind[slot]]
        self._finish(slot[both & ~answered])
        chosen = np.flatnonzero(both & answered)
        if not chosen.size:
            return
        slot, index, network = slot[chosen], index[chosen], self._network
        kind, machines = self._kind[slot], len(self._latency)
        size, server = self._of_kind["answer"][kind, index], self._of_kind["server"][kind, index]
        network.sent_bytes += round(float(size.sum()))
        numbers = self._number(slot, index, _Stage.ANSWER)
        network.steps.add(server, machines + self._source[slot], size, np.inf, self._done[slot, index], numbers)

    def _answered(self, slot: Numbers, index: Numbers, ends: Numbers) -> None:
        """Answers have left."""
        kind = self._kind[slot]
        self._network.arrived_bytes += round(float(self._of_kind["answer"][kind, index].sum()))
        self._done[slot, index] = ends + self._latency[self._of_kind["server"][kind, index]]
        self._finish(slot)

    def _finish(self, slot: Numbers) -> None:
        """Messages need nothing more; hand over the answers of each fan of which nothing is under way."""
        if not slot.size:
            return
        slots, counts = np.unique(slot, return_counts=True)
        self._missing[slots] -= counts
        for number in slots[self._missing[slots] == 0].tolist():
            scatter, deliver = self._called.pop(number)
            self._free.append(number)
            if scatter.fan.answered:
                deliver((scatter.mailbox, self._done[number, : len(scatter.fan.servers)].copy()))

    # ---- slots

    def _slot(self) -> int:
        if not self._free:
            old, more = len(self._kind), max(64, len(self._kind))
            self._kind, self._source, self._missing = (
                np.concatenate((column, np.zeros(more, dtype=np.int64)))
                for column in (self._kind, self._source, self._missing)
            )
            block = np.zeros((more, self._width), dtype=np.int64)
            self._halves, self._done = (
                np.concatenate((column.reshape(old, self._width), block)) for column in (self._halves, self._done)
            )
            self._free = list(range(old + more - 1, old - 1, -1))
        return self._free.pop()

    def _number(self, slot: Any, index: Numbers, stage: _Stage) -> Numbers:
        numbers: Numbers = (slot * self._width + index) * len(_Stage) + int(stage)
        return numbers

    def _split(self, numbers: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        message, stage = np.divmod(numbers, len(_Stage))
        slot, index = np.divmod(message, self._width)
        return stage, slot, index
