"""What may be simulated once for many: identical groups, identical ranks, the messages of a collective.

Groups of like machines that only meet at the servers and through background sync stay in step when they start together,
so one of them tells everything. Ranks of one group that do the same on like machines meet in every all-reduce, so one of
them tells everything too. The servers' cores, memory bandwidth and NICs are divided by their number, which is exact for
equal sharing among all that are in step. Knows plans and programs; nothing of the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from placement.plan import DP, Plan
from problem.cluster import Node
from problem.graph import Kind
from programs.instructions import AllReduce, Average, Instruction, Recv, Send, SyncStep
from programs.transform import JobPrograms
from simulator.conditions import UNDISTURBED, Conditions
from simulator.machines import Sharing


@dataclass(frozen=True)
class Folding:
    """What is simulated once for many.

    Parameters
    ----------
    groups : float
        Groups that each simulated one stands for; a fraction where the number of those simulated does not divide theirs.
    ranks : int
        Ranks of each group that the simulated one stands for.
    merged : bool
        Whether each rank sends one message per phase of an all-reduce, and successive work of a worker is one job.
    """

    groups: float = 1
    ranks: int = 1
    merged: bool = False

    @property
    def copies(self) -> float:
        """Sessions that each simulated one stands for."""
        return self.groups * self.ranks

    def simulated_groups(self, plan: Plan) -> int:
        """Groups that are simulated."""
        return round(len(plan.groups) / self.groups)

    def with_groups(self, plan: Plan, count: int) -> Folding:
        """Let at least so many groups be simulated, if there are as many."""
        groups = len(plan.groups)
        return replace(self, groups=min(self.groups, groups / min(count, groups)))


#: Everything is simulated by itself.
UNFOLDED = Folding()


def strongest(plan: Plan, sharing: Sharing, conditions: Conditions = UNDISTURBED) -> Folding:
    """Return all the folding that the plan and what disturbs it allow.

    Nodes that differ forbid all of it; workers that differ forbid that one rank stands for others, or one group for those
    that it averages with, which wait for the slowest.
    """
    alike = not conditions.nodes_differ and not conditions.workers_differ
    together = alike if plan.ring else not conditions.nodes_differ
    groups = len(plan.groups) if groups_fold(plan, sharing) and together else 1
    ranks = plan.ranks if alike and ranks_fold(plan, sharing) else 1
    return Folding(groups, ranks, merged=True)


def groups_fold(plan: Plan, sharing: Sharing) -> bool:
    """Whether one group can stand for all: like machines, and nothing shared with others but servers.

    A group that averages with the others sends to its next what the one before sends to it: to itself, through its NIC.
    """
    if len(plan.groups) == 1 or sharing is Sharing.HOST or plan.sync is None or plan.sync.mode != "background":
        return False
    names = [node.name for group in plan.groups for node in group]
    others = [node.name for node in (*plan.servers, *plan.sync_servers)]
    apart = len(set(names)) == len(names) and not set(names) & set(others)
    if plan.ring and plan.synchronous:  # a node's copies tell each other whose turn it is, without its NIC
        return False
    if sharing is Sharing.NODE or plan.ring:
        hosts = [{node.host for node in group} for group in plan.groups]
        hosts.append({node.host for node in (*plan.servers, *plan.sync_servers)})
        apart = apart and sum(map(len, hosts)) == len(set().union(*hosts))
    return apart and all(_kinds(group) == _kinds(plan.groups[0]) for group in plan.groups)


def ranks_fold(plan: Plan, sharing: Sharing) -> bool:
    """Whether one rank can stand for all of its group.

    All nodes are ranks, on hosts of their own, alike; all operators are data-parallel and meet in an all-reduce; there is
    one group, or one stands for all. With several groups rank 0, which leads the exchange with sync servers, is the one:
    the others wait for it in every all-reduce, and what they receive from it is booked on it.
    """
    if plan.ranks == 1 or plan.ranks < plan.group_size or plan.synchronous or not plan.dp_ops:
        return False
    if sharing is not Sharing.NODE or (len(plan.groups) > 1 and not groups_fold(plan, sharing)):
        return False
    hosts = [node.host for node in (*plan.groups[0], *{n.name: n for n in plan.servers}.values())]
    same = len(set(_kinds(plan.groups[0]))) == 1 and not {n.name for n in plan.servers} & {
        n.name for n in plan.sync_servers
    }
    replicated = all(plan.tags[op.name] == DP for op in plan.model.graph if op.kind is not Kind.LOOKUP)
    return same and replicated and len(set(hosts)) == len(hosts)


def _kinds(group: Sequence[Node]) -> list[Node]:
    return [replace(node, name="", host="") for node in group]


def primitives_per_step(job: JobPrograms) -> int:
    """Primitives that one step of all sessions becomes, unfolded (``simulator.lowering``; exchanges left out)."""
    ranks = job.plan.ranks
    programs = [program for session in job.sessions for program in session.programs]
    count = sum(_primitives(instruction, ranks) for program in programs for instruction in program.instructions)
    return count * job.plan.hogwild * len(job.plan.groups)


def _primitives(instruction: Instruction, ranks: int) -> int:
    match instruction:
        case Send() | Recv():
            return 2
        case AllReduce():
            return 9 * (ranks - 1)
        case SyncStep() | Average():
            return 0
        case _:
            return 1
