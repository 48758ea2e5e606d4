"""Sets the stage: machines, network and workers of a plan, ready to run; and whether one group may stand for all.

Folding: groups of like machines that only meet at the servers and through background sync stay in step when they start
together, so one of them tells everything. The servers' cores, memory bandwidth and NICs are divided by G for it, which
is exact for equal sharing among G groups in step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost_models.costs import CostTable
from placement.plan import Plan
from problem.cluster import Node
from programs.transform import JobPrograms
from programs.workers import workers
from simulator.engine import Engine
from simulator.lowering import Lowering, busy_ns
from simulator.machines import Machine, Sharing, build_machines, nodes_of
from simulator.network import Network, Nic
from simulator.primitives import Work
from simulator.runner import Runner, Shadow, SyncServer


@dataclass(frozen=True)
class Scenario:
    """Everything that takes part in a simulation.

    Parameters
    ----------
    plan : Plan
        What is run.
    engine, network, machines, lowering
        The parts of the simulator.
    runners : tuple of Runner
        Workers of sessions, in the order of ``programs.workers``.
    shadows, servers
        Background sync workers and sync servers.
    fold : int
        Groups that the simulated one stands for.
    sharing : Sharing
        Who shares cores and memory bandwidth.
    variation : float
        Coefficient of variation of core times from step to step.
    """

    plan: Plan
    engine: Engine
    network: Network
    machines: tuple[Machine, ...]
    lowering: Lowering
    runners: tuple[Runner, ...]
    shadows: tuple[Shadow, ...]
    servers: tuple[SyncServer, ...]
    fold: int
    sharing: Sharing
    variation: float

    def ranks(self) -> tuple[Runner, ...]:
        """Workers that read batches."""
        return tuple(runner for runner in self.runners if runner.worker.role == "rank")

    def starts(self) -> tuple[tuple[Runner, int], ...]:
        """Workers of sessions and when each begins, in nanoseconds.

        Where cores are shared, Hogwild threads begin spread evenly over the core time of a step, and so do ranks unless
        they meet in every step anyway (all-reduce, ordered updates). Begun at once they would all compute, then all send,
        and the warm-up would be long.
        """
        plan = self.plan
        meet = plan.ranks > 1 and (plan.synchronous or bool(plan.dp_ops))
        lanes = plan.hogwild if meet else plan.hogwild * plan.ranks
        found = []
        for runner in self.runners:
            worker, offset = runner.worker, 0
            if worker.role == "rank" and self.sharing is not Sharing.NONE:
                lane = worker.thread if meet else worker.thread * plan.ranks + worker.rank
                offset = sum(map(busy_ns, runner.code)) * lane // lanes
            found.append((runner, offset))
        return tuple(found)


def foldable(plan: Plan, sharing: Sharing) -> bool:
    """Whether one group can stand for all: like machines, and nothing shared with others but servers."""
    if len(plan.groups) == 1 or sharing is Sharing.HOST or plan.sync is None or plan.sync.mode != "background":
        return False

    def kinds(group: Sequence[Node]) -> list[Node]:
        return [replace(node, name="", host="") for node in group]

    names = [node.name for group in plan.groups for node in group]
    others = [node.name for node in (*plan.servers, *plan.sync_servers)]
    apart = len(set(names)) == len(names) and not set(names) & set(others)
    if sharing is Sharing.NODE:
        hosts = [{node.host for node in group} for group in plan.groups]
        hosts.append({node.host for node in (*plan.servers, *plan.sync_servers)})
        apart = apart and sum(map(len, hosts)) == len(set().union(*hosts))
    return apart and all(kinds(group) == kinds(plan.groups[0]) for group in plan.groups)


def stage(job: JobPrograms, costs: CostTable, sharing: Sharing, variation: float, fold: bool) -> Scenario:
    """Build machines, network and workers.

    Parameters
    ----------
    job : JobPrograms
        What every place does.
    costs : CostTable
        What everything costs.
    sharing : Sharing
        Who shares cores and memory bandwidth.
    variation : float
        Coefficient of variation of core times from step to step.
    fold : bool
        Let group 0 stand for all groups (:func:`foldable` must hold).
    """
    plan, engine = job.plan, Engine()
    groups = len(plan.groups) if fold else 1
    share = {node.name: 1.0 / groups for node in (*plan.servers, *plan.sync_servers)}
    every = workers(job)
    found = [worker for worker in every if worker.group <= 0] if fold else list(every)
    used = {worker.node.name for worker in found}
    machines = build_machines(engine, (node for node in nodes_of(plan) if node.name in used), sharing, share)
    network = Network(engine, [_nic(machine) for machine in machines])
    by_name = {machine.node.name: machine for machine in machines}
    lowering = Lowering(plan, costs, by_name)
    runners = [
        Runner(w, by_name[w.node.name], lowering.lower(w), variation, plan.seed) for w in found if w.role != "sync"
    ]
    for worker in found:
        by_name[worker.node.name].workers += 1
    _drop_slack_memory(machines, runners)
    servers = tuple(SyncServer(w, by_name[w.node.name], lowering.inbox(w.rank)) for w in found if w.role == "sync")
    return Scenario(
        plan,
        engine,
        network,
        tuple(machines),
        lowering,
        tuple(runner for runner in runners if runner.worker.role != "shadow"),
        _shadows(plan, runners),
        servers,
        groups,
        sharing,
        variation,
    )


def _nic(machine: Machine) -> Nic:
    node = machine.node
    return Nic(node.host, node.nic_bytes_per_second * machine.share, node.latency_seconds)


def _shadows(plan: Plan, runners: Sequence[Runner]) -> tuple[Shadow, ...]:
    """Pair each shadow worker with the worker that paces it: thread 0 of the first rank of its group."""
    firsts = [r for r in runners if r.worker.role == "rank" and r.worker.rank == r.worker.thread == 0]
    pace = {runner.worker.group: runner for runner in firsts}
    gap = plan.sync.gap if plan.sync else 1
    shadows = [runner for runner in runners if runner.worker.role == "shadow"]
    return tuple(Shadow(runner, pace[runner.worker.group], gap) for runner in shadows)


def _drop_slack_memory(machines: Sequence[Machine], runners: Sequence[Runner]) -> None:
    """Stop simulating memory bandwidth where it cannot bind.

    It cannot if no job needs longer for its traffic than for its core even when every worker that shares the bandwidth
    wants its part at once.
    """
    sharers: dict[int, int] = {}
    for machine in machines:
        if machine.memory is not None:
            sharers[id(machine.memory)] = sharers.get(id(machine.memory), 0) + machine.workers
    binds = {
        id(r.machine.memory)
        for r in runners
        for p in r.flat
        if r.machine.memory is not None and isinstance(p, Work)
        if p.traffic_bytes * sharers[id(r.machine.memory)] > p.core_ns * r.machine.memory.capacity
    }
    for machine in machines:
        if machine.memory is not None and id(machine.memory) not in binds:
            machine.memory = None
