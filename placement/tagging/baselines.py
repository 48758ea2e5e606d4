"""Baselines: placements that a person would try first. They warm-start the solver, and no plan is worse than the best.

Each respects pins, components and what stays with the rank; where its tag is forbidden, an item takes the next one. They
know the work of items and nothing of the solver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.deadline import Deadline
from placement.evaluation.evaluate import Evaluation, evaluate_timed, evaluation_of
from placement.evaluation.group import GroupProblem
from placement.plan import DP, Tag
from placement.tagging.candidates import tags_of
from placement.tagging.nets import Contracted

#: Seconds that baselines may take when there is no time left.
GRACE = 0.25

Floats = npt.NDArray[np.float64]


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


def baselines(contracted: Contracted, deadline: Deadline | None = None) -> tuple[Baseline, ...]:
    """Return all baselines of a group, evaluated; none where an item may have no tag.

    Parameters
    ----------
    contracted : Contracted
        The group problem.
    deadline : Deadline, optional
        After which those up to the first that fits will do, if all take longer than :data:`GRACE`.
    """
    rules: dict[str, Callable[[Contracted], dict[int, Tag]]] = {
        "all data-parallel": all_dp,
        "all on one node": one_node,
        "round robin": round_robin,
        "greedy by cost": greedy,
        "contiguous cut": contiguous,
    }
    found: list[Baseline] = []
    deadline = deadline or Deadline()
    until = deadline.no_sooner(GRACE)
    for name, rule in rules.items() if not contracted.barred else ():
        needed = all(baseline.reason for baseline in found)
        if not needed and not until.allows((name, contracted.problem.size)):
            continue
        with deadline.phase(name, contracted.problem.size):
            tags = _tags(contracted, rule(contracted))
        if needed or until.allows(evaluation_of(contracted.problem, tags)):
            found.append(Baseline(name, tags, evaluate_timed(contracted.problem, tags, deadline)))
    return tuple(found)


def data_parallel(contracted: Contracted, deadline: Deadline) -> Baseline:
    """Return the first baseline alone."""
    tags = _tags(contracted, all_dp(contracted))
    return Baseline("all data-parallel", tags, evaluate_timed(contracted.problem, tags, deadline))


def by_cost(contracted: Contracted, deadline: Deadline) -> Baseline:
    """Return the greedy baseline alone."""
    tags = _tags(contracted, greedy(contracted))
    return Baseline("greedy by cost", tags, evaluate_timed(contracted.problem, tags, deadline))


def _tags(contracted: Contracted, choice: dict[int, Tag]) -> dict[str, Tag]:
    """Tags of all operators, of equal nodes the first ones being used."""
    items = contracted.items
    fixed = {item.name: item.fixed for item in items if item.fixed is not None}
    tags = tags_of(items, fixed | {items[index].name: contracted.nearest(index, tag) for index, tag in choice.items()})
    return contracted.canonical(tags)


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
    order, work = contracted.free, contracted.work
    prefix = np.cumsum([0.0, *(work[index].work.core_seconds for index in order)])
    crossing, best, cuts = np.array(_crossing_bytes(contracted), float), np.zeros(0), []
    for node in range(min(contracted.problem.size, max(1, len(order)))):
        runs = _runs(contracted.problem, node, prefix, crossing)
        value = np.maximum(best[:, None], runs) if node else runs[:1]
        cuts.append(value.argmin(axis=0))
        best = value.min(axis=0)
    choice, end = dict[int, Tag](), len(order)
    for node in reversed(range(len(cuts))):
        begin = int(cuts[node][end])
        choice |= dict.fromkeys(order[begin:end], node)
        end = begin
    return choice


def _runs(problem: GroupProblem, node: int, prefix: Floats, crossing: Floats) -> Floats:
    """(begin, end) Seconds of the run from one item to another on a node; infinite where it ends before it begins."""
    machine = problem.nodes[node]
    seconds = problem.slowdown[node] * (prefix[None, :] - prefix[:, None]) / machine.cores
    if not problem.one_host:
        seconds += (crossing / machine.nic_bytes_per_second)[:, None]
    np.fill_diagonal(seconds, 0.0)
    seconds[np.tril_indices(len(prefix), -1)] = np.inf
    return seconds


def _crossing_bytes(contracted: Contracted) -> list[int]:
    """Bytes, forward and backward, of the nets that cross the cut before each position of the topological order."""
    position = {index: place for place, index in enumerate(contracted.free)}
    crossing = [0] * (len(position) + 1)
    for net in contracted.nets:
        ends = [position.get(item, -1) for item in (net.producer, *(item for item, _ in net.consumers))]
        for place in range(min(ends) + 1, max(ends) + 1):
            crossing[place] += net.bytes * (1 + net.gradient)
    return crossing
