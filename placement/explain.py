"""Why a plan is as fast as it is: loads per machine and resource, what binds, and what would change it.

Returns rows of data; printing is the command line's business. A what-if keeps the plan's tags and changes one thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cost_models.costs import CostTable
from placement.codecs import ALL_REDUCE, POOLED, PUSH
from placement.evaluation.evaluate import RESOURCES, Evaluation, NodeLoad, evaluate
from placement.evaluation.group import GroupProblem, near_neighbours, server_links
from placement.plan import Plan
from placement.search.outcome import distinct, shared_rate
from placement.tables.shares import split_features
from problem.cluster import Node


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One resource of one machine: seconds per step, and the share of the step that it is busy."""

    node: str
    role: str
    resource: str
    seconds: float
    utilization: float


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A change, the samples per second after it, the ratio to now, and what binds then."""

    change: str
    samples_per_second: float
    ratio: float
    bottleneck: str


@dataclass(frozen=True)
class Explanation:
    """An explained plan.

    Parameters
    ----------
    samples_per_second : float
        Of all groups.
    evaluation : Evaluation
        Of the first group.
    loads : tuple of LoadRow
        Every resource of every machine, busiest first.
    parts : Mapping of str to float
        Core-seconds per step of the busiest group node, by part.
    what_if : tuple of WhatIf
        Changes, with the plan's tags kept, those that help most first.
    curve : tuple of Mapping
        The curve over group sizes, if the plan file has one.
    """

    samples_per_second: float
    evaluation: Evaluation
    loads: tuple[LoadRow, ...]
    parts: Mapping[str, float]
    what_if: tuple[WhatIf, ...]
    curve: tuple[Mapping[str, Any], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "samples_per_second": self.samples_per_second,
            "step_seconds": self.evaluation.step_seconds,
            "latency_seconds": self.evaluation.latency_seconds,
            "bottleneck": self.evaluation.bottleneck,
            "loads": [asdict(row) for row in self.loads],
            "parts": dict(self.parts),
            "what_if": [asdict(row) for row in self.what_if],
            "curve": [dict(point) for point in self.curve],
        }


def problem_of(plan: Plan, costs: CostTable, group: int = 0) -> GroupProblem:
    """Return the placement problem that a plan's tags answer, for one of its groups.

    Parameters
    ----------
    plan : Plan
        The plan.
    costs : CostTable
        Its costs.
    group : int
        Which group.
    """
    return GroupProblem(
        plan.model,
        costs,
        plan.groups[group],
        plan.batch,
        plan.hogwild,
        plan.ranks,
        servers=server_links(plan.model, plan.batch, plan.servers, plan.shards, costs),
        split_tables=split_features(plan.model, plan.shards),
        groups=len(plan.groups),
        sync=plan.sync,
        sync_servers=plan.sync_servers,
        codecs=plan.codecs,
        near=near_neighbours(plan.groups, group) if plan.ring else (),
    )


def rate_of(plan: Plan, costs: CostTable) -> float:
    """Return the samples per second of all groups of a plan, alike or not.

    Parameters
    ----------
    plan : Plan
        The plan.
    costs : CostTable
        Its costs.
    """
    first, ring = problem_of(plan, costs), plan.ring
    near = [near_neighbours(plan.groups, group) if ring else () for group in range(len(plan.groups))]
    kinds = distinct(tuple(replace(first, nodes=group, near=at) for group, at in zip(plan.groups, near, strict=True)))
    values = [evaluate(problem, plan.tags) for problem, _ in kinds]
    return shared_rate(values, [count for _, count in kinds]) if len(kinds) > 1 else values[0].samples_per_second


def explain(plan: Plan, costs: CostTable, result: Mapping[str, Any] | None = None) -> Explanation:
    """Explain a plan.

    Parameters
    ----------
    plan : Plan
        The plan.
    costs : CostTable
        Its costs.
    result : Mapping, optional
        The prediction of its plan file, for the curve.
    """
    now, rate = evaluate(problem_of(plan, costs), plan.tags), rate_of(plan, costs)
    rows = [row for load in now.loads for row in _rows(load, now.seconds)]
    curve = tuple((result or {}).get("curve", ()))
    busiest = max((load for load in now.loads if load.role == "group"), key=lambda load: load.cores_seconds)
    return Explanation(
        samples_per_second=rate,
        evaluation=now,
        loads=tuple(sorted(rows, key=lambda row: -row.seconds)),
        parts=busiest.core_seconds,
        what_if=tuple(_what_ifs(plan, costs, rate, curve)),
        curve=curve,
    )


def _rows(load: NodeLoad, step: float) -> list[LoadRow]:
    return [
        LoadRow(load.node, load.role, name, seconds, seconds / step if step else 0.0)
        for name, seconds in zip(RESOURCES, load.resources, strict=True)
    ]


def _what_ifs(plan: Plan, costs: CostTable, rate: float, curve: tuple[Mapping[str, Any], ...]) -> list[WhatIf]:
    """Twice the NICs, cores, memory bandwidth, threads, the servers; half the latency; fp16; other group sizes."""

    def everywhere(change: Callable[[Node], Node]) -> Plan:
        return replace(
            plan,
            groups=tuple(tuple(change(node) for node in group) for group in plan.groups),
            servers=tuple(change(node) for node in plan.servers),
            sync_servers=tuple(change(node) for node in plan.sync_servers),
        )

    def faster(node: Node) -> Node:
        return wider(replace(node, cores=2 * node.cores, nic_bytes_per_second=2 * node.nic_bytes_per_second))

    def wider(node: Node) -> Node:
        return replace(node, memory_bandwidth_bytes_per_second=2 * node.memory_bandwidth_bytes_per_second)

    changes = {
        "NIC x2": everywhere(lambda node: replace(node, nic_bytes_per_second=2 * node.nic_bytes_per_second)),
        "cores x2": everywhere(lambda node: replace(node, cores=2 * node.cores)),
        "memory bandwidth x2": everywhere(wider),
        "network latency / 2": everywhere(lambda node: replace(node, latency_seconds=node.latency_seconds / 2)),
        "embedding servers x2 as fast": replace(plan, servers=tuple(faster(node) for node in plan.servers)),
    }
    if not plan.synchronous:
        changes["Hogwild threads x2"] = replace(plan, hogwild=2 * plan.hogwild)
    half = _in_half(plan)
    if half.codecs != plan.codecs:
        changes["fp16 for all that is float32"] = half
    rows = [_what_if(name, changed, costs, rate) for name, changed in changes.items()]
    rows += _other_sizes(plan, rate, curve)
    return sorted(rows, key=lambda row: -row.ratio)


def _in_half(plan: Plan) -> Plan:
    """Return the plan with fp16 on every message that has no codec."""
    edges = (POOLED, PUSH, ALL_REDUCE, *plan.tags)
    return replace(plan, codecs={**dict.fromkeys(edges, "fp16"), **plan.codecs})


def _what_if(name: str, plan: Plan, costs: CostTable, rate: float) -> WhatIf:
    then = rate_of(plan, costs)
    return WhatIf(name, then, _ratio(then, rate), evaluate(problem_of(plan, costs), plan.tags).bottleneck)


def _other_sizes(plan: Plan, rate: float, curve: tuple[Mapping[str, Any], ...]) -> Iterator[WhatIf]:
    """Groups of a node less or more, as the search left them: the best plan of that size, or what none exceeds."""
    for point in curve:
        size, found = int(point["group_size"]), point["samples_per_second"]
        then = found or point["samples_per_second_bound"]
        if abs(size - plan.group_size) == 1 and then and point["status"] != "does not fit":
            what = "the best plan found for that size" if found else "a bound: no plan of that size was made"
            yield WhatIf(f"groups of {size}", then, _ratio(then, rate), what)


def _ratio(then: float, now: float) -> float:
    return then / now if 0 < now < float("inf") else 1.0
