"""The machines of a plan: cores and memory bandwidth, and who shares them.

Knows which nodes a plan uses and how their capacity is divided; knows nothing of programs. A job on a machine takes
max(core time, traffic at its fair share of the memory bandwidth): both run side by side and the job ends with the later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from placement.plan import Plan
from problem.cluster import Node
from simulator.engine import NANOSECONDS, Engine
from simulator.shared import SharedResource


class Sharing(StrEnum):
    """Who shares cores and memory bandwidth."""

    NODE = "node"  # a cluster: the workers of a node share that node's
    HOST = "host"  # wall clock of nodes on one host: all their workers share that host's
    NONE = "none"  # cpu clock: every worker has a core of its own, core-seconds are all that counts


class Resource(Protocol):
    """What jobs share: ``simulator.shared`` and ``simulator.fifo`` say how."""

    capacity: float

    def __init__(self, engine: Engine, capacity: float, limit: float) -> None:
        """Work per nanosecond of all jobs together, and of one job at most."""

    def served(self) -> float:
        """Work done so far."""

    def add(self, work: float, then: Callable[[Any], None], argument: Any) -> None:
        """Start a job; ``then(argument)`` is called when its work is done."""


def default_sharing(plan: Plan) -> Sharing:
    """Return ``NONE`` for nodes that are parts of one host (``local:4``), ``NODE`` for machines of their own."""
    nodes = nodes_of(plan)
    one_host = len({node.host for node in nodes}) == 1
    return Sharing.NONE if one_host and (len(nodes) > 1 or nodes[0].host != nodes[0].name) else Sharing.NODE


def nodes_of(plan: Plan) -> tuple[Node, ...]:
    """Nodes of a plan, each once: groups in order, embedding servers, sync servers."""
    every = [node for group in plan.groups for node in group] + [*plan.servers, *plan.sync_servers]
    return tuple({node.name: node for node in every}.values())


class _Join:
    """Calls on when both halves of a job have ended."""

    __slots__ = ("argument", "missing", "then")

    def __init__(self, then: Callable[[Any], None], argument: Any) -> None:
        self.then, self.argument, self.missing = then, argument, 2

    def half(self, _: None) -> None:
        self.missing -= 1
        if not self.missing:
            self.then(self.argument)


#: What a worker with a core of its own did since the clock last caught up with it: begin and end of each work, its traffic.
OwnCore = list[tuple[int, int, float]]


@dataclass(eq=False)
class Machine:
    """One node while it is simulated.

    Parameters
    ----------
    index : int
        Its number, also in the network.
    node : Node
        What it is.
    cores : Resource
        Work in nanoseconds of one core.
    memory : Resource or None
        Work in bytes; None where the memory bandwidth cannot bind or is not shared.
    slowness : float
        What core times are multiplied by here.
    share : float
        Part of the machine that the simulated groups may use (1/G where one group stands for G).
    workers : int
        Workers that run here.
    traffic_bytes : float
        Memory traffic of the jobs started so far, by workers ahead of the clock too.
    own_ns : int
        Core time of workers with cores of their own, ahead of the clock too (:mod:`simulator.ahead`).
    """

    index: int
    node: Node
    cores: Resource
    memory: Resource | None
    share: float = 1.0
    slowness: float = 1.0
    workers: int = 0
    traffic_bytes: float = field(default=0.0)
    own_ns: int = field(default=0)
    _own_cores: list[OwnCore] = field(default_factory=list)

    @property
    def memory_bytes_per_ns(self) -> float:
        """Memory bandwidth that the simulated groups may use."""
        return self.share * self.node.memory_bandwidth_bytes_per_second / NANOSECONDS

    def ideal_ns(self, core_ns: int, traffic_bytes: float) -> int:
        """Nanoseconds that a job takes alone."""
        if self.memory is None:
            return core_ns
        return max(core_ns, math.floor(traffic_bytes / self.memory.capacity + 0.5))

    def run(self, core_ns: int, traffic_bytes: float, then: Callable[[Any], None], argument: Any) -> None:
        """Start a job; ``then(argument)`` is called at its end."""
        self.traffic_bytes += traffic_bytes
        if self.memory is None or not traffic_bytes:
            self.cores.add(core_ns, then, argument)
        elif not core_ns:
            self.memory.add(traffic_bytes, then, argument)
        else:
            join = _Join(then, argument)
            self.cores.add(core_ns, join.half, None)
            self.memory.add(traffic_bytes, join.half, None)

    def own_core(self) -> OwnCore:
        """Return a new core that one worker has to itself."""
        self._own_cores.append([])
        return self._own_cores[-1]

    def cores_served(self, now: int) -> float:
        """Core-nanoseconds served until now."""
        later = sum(end - max(begin, now) for core in self._own_cores for begin, end, _ in core if end > now)
        return self.cores.served() + (self.own_ns - later)

    def memory_served(self, now: int) -> float:
        """Bytes of memory traffic served until now; unshared memory is counted at the start of jobs."""
        if self.memory is not None:
            return self.memory.served()
        return self.traffic_bytes - sum(t for core in self._own_cores for begin, _, t in core if begin > now)


def build_machines(
    engine: Engine,
    nodes: Iterable[Node],
    sharing: Sharing,
    share: dict[str, float],
    resource: type[Resource] = SharedResource,
) -> list[Machine]:
    """Build the machines of the nodes.

    Parameters
    ----------
    engine : Engine
        The clock.
    nodes : iterable of Node
        In the order of their numbers.
    sharing : Sharing
        Who shares what. Nodes of one host are alike; with ``HOST`` its cores and bandwidth are those of its largest.
    share : dict of str to float
        By node name, the part of it that may be used; 1 where missing.
    resource : type
        How jobs share a capacity.
    """
    pools: dict[str, tuple[Resource, Resource | None]] = {}
    machines = []
    every = tuple(nodes)
    for index, node in enumerate(every):
        key = node.host if sharing is Sharing.HOST else node.name
        part = share.get(node.name, 1.0)
        if key not in pools:
            alike = [n for n in every if n.host == node.host] if sharing is Sharing.HOST else [node]
            pools[key] = _pool(engine, alike, sharing, part, resource)
        machines.append(Machine(index, node, *pools[key], part))
    return machines


def _pool(
    engine: Engine, nodes: list[Node], sharing: Sharing, part: float, resource: type[Resource]
) -> tuple[Resource, Resource | None]:
    if sharing is Sharing.NONE:
        return resource(engine, math.inf, 1.0), None
    cores = part * max(node.cores for node in nodes)
    memory = part * max(node.memory_bandwidth_bytes_per_second for node in nodes) / NANOSECONDS
    bandwidth = None if math.isinf(memory) else resource(engine, memory, memory)
    return resource(engine, cores, 1.0), bandwidth
