"""What one step takes on an idle cluster, and what it asks of every resource: the input of ``simulator.bound``.

Reads the primitives of a staged scenario; runs no events.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simulator.errors import Deadlock
from simulator.machines import Machine
from simulator.primitives import Await, Emit, EveryGap, Mailbox, Primitive, Read, Work
from simulator.runner import Runner
from simulator.scenario import Scenario

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Load:
    """What one step of one thread of each rank asks of each station (a resource of a machine, or an uplink).

    Parameters
    ----------
    work, waited : ndarray, shape (ranks, stations)
        Nanoseconds of service at the speed of one core or of the whole link; and the part of it that the rank waits for.
    capacity : ndarray, shape (stations,)
        Nanoseconds of service that the station gives the simulated sessions per nanosecond.
    cores, copies : ndarray, shape (stations,)
        Servers of the station; sessions that each simulated one stands for there.
    owners : tuple of int
        For each station the machine it belongs to if that is an embedding server, else -1.
    names : tuple of tuple of (str, str)
        For each station the nodes and resources whose utilisation it is.
    """

    work: Matrix
    waited: Matrix
    capacity: Matrix
    cores: Matrix
    copies: Matrix
    owners: tuple[int, ...]
    names: tuple[tuple[tuple[str, str], ...], ...]


def idle_paths(scenario: Scenario) -> list[int]:
    """Nanoseconds of a step of each rank with nothing to share: every program as far as it gets, until all have ended.

    A foreground exchange counts with its part of a step.

    Raises
    ------
    Deadlock
        The programs wait for each other.
    """
    walk = _Walk(scenario)
    while sum(walk.advance(runner) for runner in scenario.runners):
        pass
    stuck = [runner for runner in scenario.runners if walk.position[runner] < len(runner.flat)]
    if stuck:
        raise Deadlock(tuple(f"{runner.worker.name} waits for a message that is never sent" for runner in stuck))
    return [round(walk.time[rank]) for rank in scenario.ranks()]


class _Walk:
    """Times of one step, each worker's its own until a message sets it."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.time: dict[Runner, float] = dict.fromkeys(scenario.runners, 0.0)
        self.position = dict.fromkeys(scenario.runners, 0)
        self.arrived: dict[Mailbox, deque[float]] = defaultdict(deque)
        self.meetings = {meeting.inbox: (meeting, list[float]()) for meeting in scenario.lowering.meetings}

    def advance(self, runner: Runner) -> int:
        """Go on until a message is missing; return the primitives passed."""
        start = self.position[runner]
        while self.position[runner] < len(runner.flat) and self._passes(runner, runner.flat[self.position[runner]]):
            self.position[runner] += 1
        return self.position[runner] - start

    def _passes(self, runner: Runner, primitive: Primitive) -> bool:
        match primitive:
            case Work():
                self.time[runner] += runner.machine.ideal_ns(primitive.core_ns, primitive.traffic_bytes)
            case Emit():
                network = self.scenario.network
                ideal = network.ideal_ns(primitive.source, primitive.target, primitive.bytes)
                self._arrives(primitive.mailbox, self.time[runner] + ideal)
            case Await():
                if not self.arrived[primitive.mailbox]:
                    return False
                self.time[runner] = max(self.time[runner], self.arrived[primitive.mailbox].popleft())
            case EveryGap():
                self.time[runner] += _exchange_ns(runner, self.scenario) / primitive.gap
                self.position[runner] += primitive.skip
        return True

    def _arrives(self, mailbox: Mailbox, time: float) -> None:
        if mailbox not in self.meetings:
            self.arrived[mailbox].append(time)
            return
        meeting, times = self.meetings[mailbox]
        times.append(time)
        if len(times) == len(meeting.boxes):
            for box in meeting.boxes:
                self.arrived[box].append(max(times))


def _exchange_ns(runner: Runner, scenario: Scenario) -> float:
    """Nanoseconds of a foreground exchange alone: its work, its messages there and back, the servers' answers.

    Of messages that other groups send meanwhile, one waits as long as its own, sent to the next, are under way.
    """
    total, inside, under_way = 0.0, 0, 0
    for primitive in runner.flat:
        if isinstance(primitive, EveryGap):
            inside = primitive.skip
        elif inside:
            inside -= 1
            if isinstance(primitive, Work):
                total += primitive.core_ns
            elif isinstance(primitive, Await):
                total += under_way
                under_way = 0
            elif isinstance(primitive, Emit) and primitive.answer is None:
                wire = scenario.network.ideal_ns(primitive.source, primitive.target, primitive.bytes)
                under_way = max(under_way, wire)
            elif isinstance(primitive, Emit) and primitive.answer is not None:
                answer, network = primitive.answer, scenario.network
                wire = network.ideal_ns(primitive.source, primitive.target, primitive.bytes)
                back = network.ideal_ns(answer.reply.source, answer.reply.target, answer.reply.bytes)
                parties = next(s.parties for s in scenario.servers if s.inbox is primitive.mailbox)
                total += wire + back + parties * answer.work.core_ns
    return total


@dataclass
class _Stations:
    """Collects work by station."""

    scenario: Scenario
    work: dict[tuple[int, int], float] = field(default_factory=lambda: defaultdict(float))
    waited: dict[tuple[int, int], float] = field(default_factory=lambda: defaultdict(float))
    index: dict[tuple[str, int], int] = field(default_factory=dict)
    rows: list[tuple[float, float, float, int, tuple[tuple[str, str], ...]]] = field(default_factory=list)

    def add(self, rank: int, key: tuple[str, int], machine: Machine | None, size: float, waits: bool) -> None:
        """Book work of a rank's step at a station: in nanoseconds of a core, or of the whole link or memory."""
        kind, number = key
        if key not in self.index:
            row = self._row(kind, number, machine)
            if row is None:
                return
            self.index[key] = len(self.rows)
            self.rows.append(row)
        station = self.index[key]
        self.work[rank, station] += size
        self.waited[rank, station] += size if waits else 0.0

    def _row(
        self, kind: str, number: int, machine: Machine | None
    ) -> tuple[float, float, float, int, tuple[tuple[str, str], ...]] | None:
        if machine and math.isinf(machine.cores.capacity) and kind in {"cpu", "memory_bandwidth"}:
            return None
        share = machine.share if machine else 1.0
        servers = {node.name for node in self.scenario.plan.servers}
        owner = machine.index if machine and machine.node.name in servers else -1
        if kind == "cpu" and machine:
            alike = tuple((m.node.name, "cpu") for m in self.scenario.machines if m.cores is machine.cores)
            return machine.cores.capacity, max(1.0, machine.cores.capacity / share), 1.0 / share, owner, alike
        names = ((machine.node.name, kind),) if machine else ()
        return share, 1.0, 1.0 / share, owner, names


def loads(scenario: Scenario, threads: int) -> Load:
    """Add up what one step of one thread of each rank asks of each station, exchanges between groups included."""
    stations = _Stations(scenario)
    number = {(rank.worker.group, rank.worker.rank): index for index, rank in enumerate(scenario.ranks())}
    for runner in scenario.runners:
        rank = number[runner.worker.group, runner.worker.rank]
        for primitive, weight, waits in _weighted(runner, threads):
            _book(stations, rank, runner, primitive, weight, waits)
    for shadow in scenario.shadows:
        rank = number[shadow.pace.worker.group, shadow.pace.worker.rank]
        for primitive in shadow.runner.flat:
            _book(stations, rank, shadow.runner, primitive, 1.0 / (shadow.gap * threads), False)
    shape = (len(number), len(stations.rows))
    work, waited = np.zeros(shape), np.zeros(shape)
    for place, size in stations.work.items():
        work[place] = size
    for place, size in stations.waited.items():
        waited[place] = size
    capacity, cores, copies, owners, names = zip(*stations.rows, strict=True) if stations.rows else ((),) * 5
    return Load(work, waited, np.array(capacity), np.array(cores), np.array(copies), tuple(owners), tuple(names))


def _weighted(runner: Runner, threads: int) -> Iterator[tuple[Primitive, float, bool]]:
    """Primitives of a worker, how often each happens per step and thread, and whether the rank waits for it.

    It does not wait for what a server does after its last answer.
    """
    emits = [index for index, primitive in enumerate(runner.flat) if isinstance(primitive, Emit)]
    last = emits[-1] if emits and runner.worker.role == "server" else len(runner.flat)
    inside, gap = 0, 1
    for index, primitive in enumerate(runner.flat):
        if isinstance(primitive, EveryGap):
            inside, gap = primitive.skip, primitive.gap
            continue
        weight = 1.0 / (gap * threads) if inside else 1.0
        inside = max(0, inside - 1)
        yield primitive, weight, index < last


def _book(stations: _Stations, rank: int, runner: Runner, primitive: Primitive, weight: float, waits: bool) -> None:
    machine = runner.machine
    if isinstance(primitive, Work):
        stations.add(rank, ("cpu", id(machine.cores)), machine, primitive.core_ns * weight, waits)
        if primitive.traffic_bytes:
            whole = primitive.traffic_bytes * machine.share / machine.memory_bytes_per_ns
            stations.add(rank, ("memory_bandwidth", machine.index), machine, whole * weight, waits)
    elif isinstance(primitive, Emit):
        _book_message(stations, rank, primitive, weight, waits)
        if primitive.answer is not None:
            server = next(s for s in stations.scenario.servers if s.inbox is primitive.mailbox)
            answer = primitive.answer.work.core_ns * server.machine.share
            stations.add(rank, ("cpu", id(server.machine.cores)), server.machine, answer * weight, False)
            _book_message(stations, rank, primitive.answer.reply, weight, False)
    elif isinstance(primitive, Read):
        stations.add(rank, ("reader", id(primitive.reader)), None, primitive.reader.interval_ns * weight, waits)


def _book_message(stations: _Stations, rank: int, emit: Emit, weight: float, waits: bool) -> None:
    network, machines = stations.scenario.network, stations.scenario.machines
    if network.is_local(emit.source, emit.target):
        return
    for link in network.path(emit.source, emit.target):
        side, number = divmod(link, len(machines))
        machine = machines[number] if side < 2 else None
        kind = ("nic_tx", "nic_rx")[side] if machine else "uplink"
        share = machine.share if machine else 1.0
        size = emit.bytes * share / network.rate(link)
        stations.add(rank, (kind, link), machine, size * weight, waits)
