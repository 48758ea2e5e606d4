"""A result in the words of fleet reports: how busy trainers and parameter servers are, and where a step's time goes.

Acun et al. (HPCA 2021, figure 5) show CPU, memory bandwidth, network in both directions and memory footprint of trainers and
of parameter servers, as distributions over machines: here mean, least and most. Pure functions of results and plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from placement.plan import Plan
from programs.transform import transform
from programs.verify import memory_needed
from simulator.result import SimulationResult

#: Resources in the order of that figure; ``memory`` is the footprint.
FLEET = ("cpu", "memory_bandwidth", "nic_rx", "nic_tx", "memory")
#: Parts of a step in fewer words: what each is made of (``simulator.result.SPLIT``).
PARTS: Mapping[str, tuple[str, ...]] = {
    "compute": ("compute",),
    "exposed communication": ("transfer", "contention", "peer"),
    "waiting for PS": ("ps_queue",),
    "synchronisation": ("sync",),
    "waiting for readers": ("reader",),
    "recovery": ("recovery",),
}


@dataclass(frozen=True, slots=True)
class Spread:
    """A fraction over the machines of a role: mean, least, most."""

    mean: float
    least: float
    most: float


def fleet(plan: Plan, result: SimulationResult) -> dict[str, dict[str, Spread]]:
    """Return busy fractions and memory footprint by role (``trainer``, ``ps``: servers of both kinds) and resource."""
    trainers = {node.name for group in plan.groups for node in group}
    servers = {node.name for node in (*plan.servers, *plan.sync_servers)} - trainers
    footprint = {name: needed / had for name, (needed, had) in memory_needed(transform(plan)).items()}
    found: dict[str, dict[str, Spread]] = {}
    for role, names in (("trainer", trainers), ("ps", servers)):
        nodes = [name for name in result.node_utilization if name in names]
        if nodes:
            busy = [dict(result.node_utilization[name]) | {"memory": footprint.get(name, 0.0)} for name in nodes]
            found[role] = {resource: _spread([one[resource] for one in busy]) for resource in FLEET}
    return found


def _spread(values: list[float]) -> Spread:
    return Spread(sum(values) / len(values), min(values), max(values))


def shares(result: SimulationResult) -> dict[str, float]:
    """Return the parts of :data:`PARTS` as fractions of a rank's step; they add up to 1."""
    total = sum(result.time_split.values())
    if not total:
        return dict.fromkeys(PARTS, 0.0)
    return {name: sum(result.time_split[part] for part in parts) / total for name, parts in PARTS.items()}
