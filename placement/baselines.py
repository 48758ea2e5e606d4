"""Baselines: placements that a person would try first. They warm-start the solver, and no plan is worse than the best.

Each respects pins, components and what stays with the rank; where its tag is forbidden, an item takes the next one. They
know the work of items and nothing of the solver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from placement.candidates import tags_of
from placement.evaluate import Evaluation, evaluate
from placement.group import GroupProblem
from placement.nets import Contracted
from placement.plan import DP, Tag

#: Seconds that baselines may take when there is no time left.
GRACE = 0.25


@dataclass(frozen=True)
class Baseline:
    """A simple placement and what it is worth.

    Parameters
    ----------
    name : str
        What it is called in tables.
    tags : dict of str to Tag
        Tag of every operator but the LOOKUPs.
    evaluation : Evaluation
        What it is worth; it may not fit.
    """

    name: str
    tags: dict[str, Tag]
    evaluation: Evaluation

    @property
    def reason(self) -> str:
        """Why it is no plan; empty if it fits."""
        load = self.evaluation.overflow
        if load is None:
            return ""
        return f"does not fit: {load.node} needs {load.memory_needed:,.0f} bytes, has {load.memory_had:,.0f}"


def baselines(contracted: Contracted, deadline: float = float("inf")) -> tuple[Baseline, ...]:
    """Return all baselines of a group, evaluated; none where an item may have no tag.

    Parameters
    ----------
    contracted : Contracted
        The group problem.
    deadline : float
        ``time.monotonic()`` after which those up to the first that fits will do, if all take longer than :data:`GRACE`.
    """
    rules: dict[str, Callable[[Contracted], dict[int, Tag]]] = {
        "all data-parallel": all_dp,
        "all on one node": one_node,
        "round robin": round_robin,
        "greedy by cost": greedy,
        "contiguous cut": contiguous,
    }
    found: list[Baseline] = []
    until = max(deadline, time.monotonic() + GRACE)
    for name, rule in rules.items() if not contracted.barred else ():
        if time.monotonic() > until and any(not baseline.reason for baseline in found):
            break
        found.append(_baseline(contracted, name, rule(contracted)))
    return tuple(found)


def data_parallel(contracted: Contracted) -> Baseline:
    """Return the first baseline alone."""
    return _baseline(contracted, "all data-parallel", all_dp(contracted))


def _baseline(contracted: Contracted, name: str, choice: dict[int, Tag]) -> Baseline:
    items = contracted.items
    fixed = {item.name: item.fixed for item in items if item.fixed is not None}
    tags = tags_of(items, fixed | {items[index].name: contracted.nearest(index, tag) for index, tag in choice.items()})
    tags = contracted.canonical(tags)
    return Baseline(name, tags, evaluate(contracted.problem, tags))


def all_dp(contracted: Contracted) -> dict[int, Tag]:
    """Every open item data-parallel."""
    return dict.fromkeys(contracted.free, DP)


def one_node(contracted: Contracted) -> dict[int, Tag]:
    """Every open item on the last node."""
    return dict.fromkeys(contracted.free, contracted.problem.size - 1)


def round_robin(contracted: Contracted) -> dict[int, Tag]:
    """Open items on the nodes in turn."""
    return {index: turn % contracted.problem.size for turn, index in enumerate(contracted.free)}


def greedy(contracted: Contracted) -> dict[int, Tag]:
    """Items by falling work, each to the node that is done first (LPT; Graham 1969: at most 4/3 of the best makespan).

    Memory that an item needs is respected where some node still has it.
    """
    problem, work = contracted.problem, contracted.work
    busy, held = [0.0] * problem.size, [0.0] * problem.size
    choice: dict[int, Tag] = {}
    for index in sorted(contracted.free, key=lambda i: (-work[i].work.core_seconds, -work[i].resident_bytes, i)):
        cost, size = work[index].work.core_seconds, _mp_bytes(problem, contracted, index)
        may = [tag for tag in contracted.allowed[index] if tag != DP] or range(problem.size)
        done = [busy[n] + problem.slowdown[n] * cost / problem.nodes[n].cores for n in range(problem.size)]
        room = [n for n in may if held[n] + size <= problem.nodes[n].memory_bytes]
        node = min(room or may, key=lambda n: (done[n], held[n], n))
        busy[node], held[node] = done[node], held[node] + size
        choice[index] = node
    return choice


def _mp_bytes(problem: GroupProblem, contracted: Contracted, index: int) -> int:
    return contracted.work[index].resident_bytes + problem.sessions * contracted.work[index].session_bytes


def contiguous(contracted: Contracted) -> dict[int, Tag]:
    """Cut the items, in topological order, into consecutive runs, one a node: the dynamic program of PipeDream.

    Minimises the longest run, core-seconds over cores plus the tensors that cross its first cut over the NIC
    (Narayanan et al., SOSP 2019, section 3.1, without replication).
    """
    problem, order, work = contracted.problem, contracted.free, contracted.work
    prefix = [0.0]
    for index in order:
        prefix.append(prefix[-1] + work[index].work.core_seconds)
    crossing = _crossing_bytes(contracted)

    @cache
    def best(end: int, nodes: int) -> tuple[float, int]:
        """Longest run of the first ``end`` items on ``nodes`` nodes, and where its last run begins."""
        if nodes == 1:
            return _run(0, end, 0), 0
        cuts = ((max(best(begin, nodes - 1)[0], _run(begin, end, nodes - 1)), begin) for begin in range(end + 1))
        return min(cuts)

    def _run(begin: int, end: int, node: int) -> float:
        machine = problem.nodes[node]
        seconds = problem.slowdown[node] * (prefix[end] - prefix[begin]) / machine.cores
        if begin == end or problem.one_host:
            return seconds
        return seconds + crossing[begin] / machine.nic_bytes_per_second

    return dict(_runs(best, order, min(problem.size, max(1, len(order)))))


def _runs(
    best: Callable[[int, int], tuple[float, int]], order: tuple[int, ...], nodes: int
) -> Iterator[tuple[int, Tag]]:
    end = len(order)
    for node in reversed(range(nodes)):
        begin = best(end, node + 1)[1]
        yield from ((index, node) for index in order[begin:end])
        end = begin


def _crossing_bytes(contracted: Contracted) -> list[int]:
    """Bytes, forward and backward, of the nets that cross the cut before each position of the topological order."""
    position = {index: place for place, index in enumerate(contracted.free)}
    crossing = [0] * (len(position) + 1)
    for net in contracted.nets:
        ends = [position.get(item, -1) for item in (net.producer, *(item for item, _ in net.consumers))]
        for place in range(min(ends) + 1, max(ends) + 1):
            crossing[place] += net.bytes * (1 + net.gradient)
    return crossing
