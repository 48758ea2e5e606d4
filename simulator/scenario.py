"""Sets the stage: machines, network and workers of a plan, ready to run, folded as ``simulator.folding`` allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cost_models.costs import CostTable
from placement.plan import Plan
from programs.transform import JobPrograms
from programs.workers import Worker, workers
from simulator.engine import Engine
from simulator.folding import UNFOLDED, Folding
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
    folding : Folding
        What was simulated once for many.
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
    folding: Folding
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


def stage(
    job: JobPrograms,
    costs: CostTable,
    sharing: Sharing,
    variation: float,
    folding: Folding = UNFOLDED,
    merge: bool = False,
) -> Scenario:
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
    folding : Folding
        What is simulated once for many (``simulator.folding.strongest`` says what may be).
    merge : bool
        Let successive work of a worker be one job; ends of instructions are then not known.
    """
    plan, engine = job.plan, Engine()
    share = {node.name: 1.0 / folding.copies for node in (*plan.servers, *plan.sync_servers)}
    found = [worker for worker in workers(job) if _is_simulated(worker, folding)]
    used = {worker.node.name for worker in found}
    machines = build_machines(engine, (node for node in nodes_of(plan) if node.name in used), sharing, share)
    network = Network(engine, [_nic(machine, twins=folding.ranks > 1) for machine in machines])
    by_name = {machine.node.name: machine for machine in machines}
    lowering = Lowering(plan, costs, by_name, folding)
    runners = [
        Runner(w, by_name[w.node.name], lowering.lower(w), variation, plan.seed) for w in found if w.role != "sync"
    ]
    for worker in found:
        by_name[worker.node.name].workers += 1
    _drop_slack_memory(machines, runners)
    if merge:
        for runner in runners:
            runner.merge()
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
        folding,
        sharing,
        variation,
    )


def _is_simulated(worker: Worker, folding: Folding) -> bool:
    """Whether a worker is the one that stands for its like."""
    first_rank = worker.role in {"shadow", "sync"} or worker.rank % folding.ranks == 0
    return first_rank and (folding.groups == 1 or worker.group <= 0)


def _nic(machine: Machine, twins: bool) -> Nic:
    node = machine.node
    return Nic(node.host, node.nic_bytes_per_second * machine.share, node.latency_seconds, twins)


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
