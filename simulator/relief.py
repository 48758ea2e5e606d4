"""What removing the bottleneck would give: the job again, without what binds.

A resource that binds is given without limit to all machines of its role. Where no resource binds, the largest part of a
step is taken away: cores become twice as fast for work of its own, the network takes no time, servers answer at once, groups
do not exchange, readers are never late. Knows how to ask; the simulator answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from cost_models.costs import CostTable
from placement.plan import Plan
from problem.cluster import Node
from simulator.conditions import Conditions
from simulator.machines import Sharing
from simulator.report import BINDS
from simulator.result import SimulationResult
from simulator.usage import busiest

#: As good as no limit.
PLENTY = 10**6
_ROLES = {"groups": "trainers", "servers": "embedding servers", "sync_servers": "sync servers"}
_RESOURCES = {"cpu": "cores", "memory_bandwidth": "memory bandwidth", "nic_tx": "NICs", "nic_rx": "NICs"}


@dataclass(frozen=True)
class Relief:
    """The job without its bottleneck.

    Parameters
    ----------
    change : str
        What was taken away.
    samples_per_second, gain : float
        Throughput then, and relative to before.
    then : str
        What binds then.
    """

    change: str
    samples_per_second: float
    gain: float
    then: str


@dataclass(frozen=True)
class _Change:
    words: str
    plan: Plan
    conditions: Conditions


def relieve(
    plan: Plan,
    costs: CostTable,
    conditions: Conditions,
    result: SimulationResult,
    simulate: Callable[[Plan, Conditions], SimulationResult],
) -> Relief | None:
    """Simulate a job without its bottleneck.

    Parameters
    ----------
    plan, costs, conditions
        The job.
    result : SimulationResult
        Its prediction.
    simulate : callable
        Simulates a plan under conditions the way that gave the result.

    Returns
    -------
    Relief or None
        None where nothing takes time.
    """
    changes = _changes(plan, costs, conditions, result)
    if not changes or not result.samples_per_second:
        return None
    tried = [(change, simulate(change.plan, change.conditions)) for change in changes]
    best, found = max(tried, key=lambda pair: pair[1].samples_per_second)
    gain = found.samples_per_second / result.samples_per_second - 1.0
    return Relief(best.words, found.samples_per_second, gain, found.bottleneck)


def _changes(plan: Plan, costs: CostTable, conditions: Conditions, result: SimulationResult) -> list[_Change]:
    """Return what may be taken away: one thing, or several of which the best is said."""
    node, resource, fraction = busiest({name: dict(found) for name, found in result.node_utilization.items()})
    if result.sharing is not Sharing.NONE and fraction >= BINDS:
        role = _role(plan, node)
        words = f"{_RESOURCES[resource]} of the {_ROLES[role]} without limit"
        return [_Change(words, _with(plan, role, lambda one: _unlimited(one, resource)), conditions)]
    part = max(result.time_split, key=lambda name: result.time_split[name])
    if part == "peer":  # a node that has not sent yet: it works, or its own messages are under way
        return [_without_part(plan, costs, conditions, one) for one in ("compute", "transfer")]
    return [_without_part(plan, costs, conditions, part)] if result.time_split[part] else []


def _without_part(plan: Plan, costs: CostTable, conditions: Conditions, part: str) -> _Change:
    match part:
        case "compute":
            fast = _with(plan, "groups", lambda node: _faster(node, costs, 2.0))
            return _Change("cores of the trainers twice as fast", fast, conditions)
        case "ps_queue":
            quick = _with(plan, "servers", lambda node: _unlimited(_faster(node, costs, PLENTY), "cpu"))
            return _Change("embedding servers that answer at once", quick, conditions)
        case "sync" if plan.sync is not None:
            never = replace(plan, sync=replace(plan.sync, gap=PLENTY))
            return _Change("no exchange between groups", never, conditions)
        case "reader":
            return _Change("readers that are never late", plan, replace(conditions, reader_batches_per_second=math.inf))
        case "recovery":
            return _Change("no losses and checkpoints", plan, replace(conditions, losses=(), checkpoints=None))
        case _:
            free = plan
            for role in _ROLES:
                free = _with(free, role, lambda node: replace(_unlimited(node, "nic_tx"), latency_seconds=0.0))
            return _Change("a network that takes no time", free, conditions)


def _role(plan: Plan, name: str) -> str:
    if any(node.name == name for group in plan.groups for node in group):
        return "groups"
    return "servers" if any(node.name == name for node in plan.servers) else "sync_servers"


def _with(plan: Plan, role: str, change: Callable[[Node], Node]) -> Plan:
    """Change every machine of a role, wherever the plan names it."""
    nodes = [node for group in plan.groups for node in group] if role == "groups" else getattr(plan, role)
    names = {node.name for node in nodes}

    def changed(several: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(change(node) if node.name in names else node for node in several)

    return replace(
        plan,
        groups=tuple(changed(group) for group in plan.groups),
        servers=changed(plan.servers),
        sync_servers=changed(plan.sync_servers),
    )


def _unlimited(node: Node, resource: str) -> Node:
    match resource:
        case "cpu":
            return replace(node, cores=node.cores * PLENTY)
        case "memory_bandwidth":
            return replace(node, memory_bandwidth_bytes_per_second=node.memory_bandwidth_bytes_per_second * PLENTY)
        case _:
            return replace(node, nic_bytes_per_second=node.nic_bytes_per_second * PLENTY)


def _faster(node: Node, costs: CostTable, factor: float) -> Node:
    """Return a node on which all core-seconds are so many times fewer."""
    speed = factor * costs.flops_per_core_second / costs.slowdown(node)
    return replace(node, kind=f"{node.kind}, faster", flops_per_core_second=speed)
