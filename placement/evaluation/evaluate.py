"""The evaluator: recomputes everything about a placement from the plan's own data, without the solver.

Knows the objective: a group's ranks finish one batch each per step, and a step takes as long as the busiest resource or
as the critical path over the Hogwild threads, whichever is longer. Refuses to know how a placement was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from placement.deadline import Deadline, Phase
from placement.evaluation.group import GroupProblem
from placement.evaluation.latency import latency
from placement.evaluation.loads import PARTS, Tally, session_classes, tally
from placement.plan import Tag

RESOURCES = ("cores", "memory bandwidth", "NIC tx", "NIC rx")


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """What one step of every group loads a machine with.

    Parameters
    ----------
    node, role : str
        Machine, and ``group`` (a node of the group), ``server`` or ``sync``.
    core_seconds : Mapping of str to float
        Busy core-seconds by part (``loads.PARTS``), at the machine's own speed.
    cores_seconds, memory_seconds, tx_seconds, rx_seconds : float
        The time that each resource needs: cores (core-seconds over cores), memory bandwidth, NIC out, NIC in.
    messages : float
        Messages sent and received per step.
    memory_needed, memory_had : float
        Bytes.
    """

    node: str
    role: str
    core_seconds: Mapping[str, float]
    cores_seconds: float
    memory_seconds: float
    tx_seconds: float
    rx_seconds: float
    messages: float
    memory_needed: float
    memory_had: float

    @property
    def resources(self) -> tuple[float, float, float, float]:
        """Seconds per step of the resources, in the order of :data:`RESOURCES`."""
        return self.cores_seconds, self.memory_seconds, self.tx_seconds, self.rx_seconds

    @property
    def seconds(self) -> float:
        """Seconds per step of the busiest resource."""
        return max(self.resources)


@dataclass(frozen=True)
class Evaluation:
    """A placement, evaluated.

    Parameters
    ----------
    loads : tuple of NodeLoad
        Group nodes first, then servers, then sync servers.
    latency_seconds : float
        Critical path of the slowest session's step.
    hogwild : int
        Threads per rank, over which the critical path is hidden.
    samples_per_step : int
        Samples of all groups per step.
    """

    loads: tuple[NodeLoad, ...]
    latency_seconds: float
    hogwild: int
    samples_per_step: int

    @cached_property
    def busiest(self) -> NodeLoad:
        """The machine with the busiest resource; the first one on ties."""
        return max(self.loads, key=lambda load: load.seconds)

    @property
    def step_seconds(self) -> float:
        """T: seconds per step of the busiest resource of any machine."""
        return self.busiest.seconds

    @property
    def seconds(self) -> float:
        """What is minimised: the longer of T and critical path / H."""
        return max(self.step_seconds, self.latency_seconds / self.hogwild)

    @property
    def group_seconds(self) -> float:
        """What a step takes by itself: without waiting for servers that other groups use as well."""
        return max(self._own_seconds, self.latency_seconds / self.hogwild)

    @property
    def _own_seconds(self) -> float:
        """Seconds per step of the busiest resource of the group's nodes."""
        return max((load.seconds for load in self.loads if load.role == "group"), default=0.0)

    @property
    def waits(self) -> bool:
        """Whether threads hide less than the critical path of the group."""
        return self.latency_seconds / self.hogwild > self._own_seconds

    @property
    def shared_loads(self) -> tuple[float, ...]:
        """Seconds per step of each resource of each server that is no node of the group."""
        return tuple(seconds for load in self.loads if load.role != "group" for seconds in load.resources)

    @property
    def samples_per_second(self) -> float:
        """Samples per second of all groups, if all are like this one; infinite when nothing costs anything."""
        return self.samples_per_step / self.seconds if self.seconds else float("inf")

    @property
    def overflow(self) -> NodeLoad | None:
        """The machine that lacks most memory, or None if everything fits."""
        worst = max(self.loads, key=lambda load: load.memory_needed - load.memory_had)
        return worst if worst.memory_needed > worst.memory_had else None

    @property
    def fits(self) -> bool:
        """Whether the memory of every machine suffices."""
        return self.overflow is None

    @property
    def bottleneck(self) -> str:
        """What binds, in words."""
        if self.latency_seconds / self.hogwild > self.step_seconds:
            return f"critical path of one thread ({self.latency_seconds:.3g} s over {self.hogwild} threads)"
        load = self.busiest
        resource = RESOURCES[load.resources.index(load.seconds)]
        return f"{resource} of {load.role} node {load.node} ({load.seconds:.3g} s per step)"


def evaluate(problem: GroupProblem, tags: Mapping[str, Tag]) -> Evaluation:
    """Evaluate a placement.

    Parameters
    ----------
    problem : GroupProblem
        The group.
    tags : Mapping of str to Tag
        Tag of every operator but the LOOKUPs.

    Returns
    -------
    Evaluation
        Loads of every machine, critical path, throughput, and what binds. Whether it fits is told, not enforced.
    """
    total = tally(problem, tags)
    loads = tuple(_node_load(total, index) for index in range(len(problem.machines)))
    return Evaluation(loads, latency(problem, tags), problem.hogwild, problem.samples_per_step)


def evaluation_of(problem: GroupProblem, tags: Mapping[str, Tag] | None = None) -> Phase:
    """Return the evaluation of a placement as a phase of a search: each unlike session goes through all operators.

    One under codecs takes longer: what each message takes is worked out anew.

    Parameters
    ----------
    problem : GroupProblem
        The group.
    tags : Mapping of str to Tag, optional
        The placement; without, one whose sessions are all unlike.
    """
    sessions = problem.ranks if tags is None else sum(1 for _ in session_classes(problem, tags))
    name = "coded evaluation" if problem.codecs or problem.open_codecs else "evaluation"
    return name, sessions * len(problem.model.graph)


def evaluate_timed(problem: GroupProblem, tags: Mapping[str, Tag], deadline: Deadline) -> Evaluation:
    """Evaluate a placement, and let a deadline know how long that takes."""
    with deadline.phase(*evaluation_of(problem, tags)):
        return evaluate(problem, tags)


def _node_load(total: Tally, index: int) -> NodeLoad:
    problem, node = total.problem, total.problem.machines[index]
    slow = problem.costs.slowdown(node)
    core = {part: total.core[part][index] * slow for part in PARTS}
    is_server = any(link.node.name == node.name for link in problem.servers)
    return NodeLoad(
        node=node.name,
        role="group" if index < problem.size else "server" if is_server else "sync",
        core_seconds=core,
        cores_seconds=sum(core.values()) / node.cores,
        memory_seconds=total.traffic[index] / node.memory_bandwidth_bytes_per_second,
        tx_seconds=total.tx[index] / node.nic_bytes_per_second if total.tx[index] else 0.0,
        rx_seconds=total.rx[index] / node.nic_bytes_per_second if total.rx[index] else 0.0,
        messages=total.messages[index],
        memory_needed=total.memory[index],
        memory_had=node.memory_bytes,
    )
