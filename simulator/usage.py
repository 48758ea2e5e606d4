"""How busy every resource was between two instants, and the laws that any such account must obey.

Reads the counters of machines and network; changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.engine import NANOSECONDS, Engine
from simulator.errors import LawBroken
from simulator.machines import Machine
from simulator.network import Network

#: Resources of a machine, in the order in which they are printed.
RESOURCES = ("cpu", "memory_bandwidth", "nic_tx", "nic_rx")


@dataclass(frozen=True)
class Snapshot:
    """Counters of all machines at one instant: work served since the start, by resource and machine."""

    time_ns: int
    events: int
    served: tuple[tuple[float, ...], ...]


def snapshot(engine: Engine, machines: Sequence[Machine], network: Network) -> Snapshot:
    """Read all counters; cores in nanoseconds, the others in bytes."""
    sent, received = network.served_bytes()
    cores = tuple(machine.cores_served(engine.now) for machine in machines)
    memory = tuple(machine.memory_served(engine.now) for machine in machines)
    return Snapshot(engine.now, engine.events, (cores, memory, tuple(sent), tuple(received)))


def capacities(machine: Machine) -> tuple[float, ...]:
    """Return the work per nanosecond that each of :data:`RESOURCES` can do.

    Where every worker has a core of its own, the cores are as many as the workers.
    """
    cores = machine.cores.capacity
    nic = machine.share * machine.node.nic_bytes_per_second / NANOSECONDS
    memory = machine.memory.capacity if machine.memory else machine.memory_bytes_per_ns
    return (max(1, machine.workers) if math.isinf(cores) else cores, memory, nic, nic)


def utilization(first: Snapshot, last: Snapshot, machines: Sequence[Machine]) -> dict[str, dict[str, float]]:
    """Busy fraction of each resource between two snapshots, by node name and resource.

    Raises
    ------
    LawBroken
        A resource did more than it can.
    """
    elapsed, slack = last.time_ns - first.time_ns, last.events - first.events + 1
    found: dict[str, dict[str, float]] = {}
    for machine in machines:
        found[machine.node.name] = {}
        for resource, name in enumerate(RESOURCES):
            capacity = capacities(machine)[resource]
            served = last.served[resource][machine.index] - first.served[resource][machine.index]
            found[machine.node.name][name] = served / (capacity * elapsed) if elapsed else 0.0
            # each event may be up to a nanosecond from where it belongs; unshared memory is counted at the start of jobs
            if served > capacity * (elapsed + slack) * (1 + 1e-9) and not (resource == 1 and machine.memory is None):
                raise LawBroken(f"utilisation of {name} of {machine.node.name} is above 1")
    return found


def mean_by_role(
    by_node: dict[str, dict[str, float]], roles: dict[str, tuple[str, ...]]
) -> dict[str, dict[str, float]]:
    """Mean utilisation over the nodes of each role that has any."""
    return {
        role: {name: math.fsum(by_node[node][name] for node in nodes) / len(nodes) for name in RESOURCES}
        for role, nodes in roles.items()
        if nodes
    }


def busiest(by_node: dict[str, dict[str, float]]) -> tuple[str, str, float]:
    """Node, resource and utilisation of the busiest resource; the first of equals."""
    every = ((node, name, by_node[node][name]) for node in by_node for name in RESOURCES)
    return max(every, key=lambda found: found[2])
