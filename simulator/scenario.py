"""Sets the stage: machines, network and workers of a plan, ready to run, folded as ``simulator.folding`` allows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cost_models.costs import CostTable
from placement.plan import Plan
from problem.cluster import Node
from programs.instructions import Role
from programs.transform import JobPrograms
from programs.workers import Worker, workers
from simulator.ahead import give_cores
from simulator.conditions import UNDISTURBED, Conditions
from simulator.draws import Draws, identity, meets
from simulator.engine import Engine, to_ns
from simulator.fan_network import FanNetwork
from simulator.fans import Carrier, FanLowering, fans_apply, without_servers
from simulator.fidelity import Fidelity
from simulator.fifo import FifoNetwork, FifoResource
from simulator.folding import UNFOLDED, Folding
from simulator.lowering import Lowering
from simulator.machines import Machine, Resource, Sharing, build_machines, nodes_of
from simulator.narrow_fans import NARROW, NarrowFanNetwork
from simulator.network import Network, Nic
from simulator.outages import Outages
from simulator.primitives import Reader, Work
from simulator.runner import Runner, Shadow, SyncServer
from simulator.shared import SharedResource
from simulator.stepped import SteppedNetwork

#: With fair sharing sessions keep the phases in which they start for some 1 / variation^2 steps, and the throughput
#: depends on these; the product form (Baskett, Chandy, Muntz and Palacios 1975) says that in the long run it depends on
#: the means alone. The thread's steps therefore vary by so much that a start is forgotten after some ten steps
#: (docs/simulation.md, "Variation").
MIXING = 0.3


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
    variation, mixing : float
        Coefficients of variation of core times from step to step, of each worker and of each thread's step
        (:mod:`simulator.draws`).
    fidelity : Fidelity
        ``fifo`` or ``fluid``.
    conditions : Conditions
        What disturbs the run.
    fans : Carrier or None
        Carries the messages to embedding servers where they are fanned.
    outages : Outages or None
        Stops workers where nodes are lost or checkpoints written.
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
    mixing: float = 0.0
    fidelity: Fidelity = Fidelity.FLUID
    conditions: Conditions = UNDISTURBED
    fans: Carrier | None = None
    outages: Outages | None = None

    def ranks(self) -> tuple[Runner, ...]:
        """Workers that read batches."""
        return tuple(runner for runner in self.runners if runner.worker.role == "rank")

    def starts(self) -> tuple[tuple[Runner, int], ...]:
        """Workers of sessions and when each begins, in nanoseconds; in the order of names, which decides between them.

        Where cores are shared, Hogwild threads begin spread evenly over the core time of a step, and so do ranks unless
        they meet in every step anyway (all-reduce, ordered updates). Begun at once they would all compute, then all send,
        and the warm-up would be long.
        """
        plan = self.plan
        meet = meets(plan)
        lanes = plan.hogwild if meet else plan.hogwild * plan.ranks
        found = []
        for runner in self.runners:
            worker, offset = runner.worker, 0
            if worker.role == "rank" and self.sharing is not Sharing.NONE:
                lane = worker.thread if meet else worker.thread * plan.ranks + worker.rank
                offset = runner.busy_ns * lane // lanes
            found.append((runner, self.engine.begin_ns + offset))
        return tuple(sorted(found, key=lambda start: identity(start[0].worker, plan)))


def stage(
    job: JobPrograms,
    costs: CostTable,
    sharing: Sharing,
    variation: float,
    folding: Folding = UNFOLDED,
    *,
    merge: bool = False,
    fidelity: Fidelity = Fidelity.FLUID,
    conditions: Conditions = UNDISTURBED,
    time_steps: int = 0,
    begin_ns: int = 0,
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
        Coefficient of variation of core times from step to step of each worker; unless it is 0, the threads' steps vary
        by :data:`MIXING` as well where shares are fair.
    folding : Folding
        What is simulated once for many (``simulator.folding.strongest`` says what may be).
    merge : bool
        Let successive work of a worker be one job; ends of instructions are then not known.
    fidelity : Fidelity
        ``fifo`` or ``fluid``.
    conditions : Conditions
        What disturbs the run.
    time_steps : int
        At level ``fluid``, if there can be fans: work shares of messages out so many times in the core time of a step
        (:mod:`simulator.stepped`); 0: whenever a message starts or ends.
    begin_ns : int
        What the clock shows at first.
    """
    plan, engine, fifo = job.plan, Engine(begin_ns), fidelity is Fidelity.FIFO
    fanned = merge and (fifo or time_steps > 0) and fans_may(job, sharing, conditions)
    share = {node.name: 1.0 / folding.groups for node in plan.sync_servers}
    share |= {node.name: 1.0 / folding.copies for node in plan.servers}
    found = workers(without_servers(job) if fanned else job, _simulated(plan, folding))
    machines = _machines(job, found, engine, sharing, share, FifoResource if fifo else SharedResource, conditions)
    for machine in machines:
        machine.slowness = conditions.node_factor(machine.node.name, plan.seed)
    by_name = {machine.node.name: machine for machine in machines}
    lowering = Lowering(plan, costs, by_name, folding, _readers(plan, conditions, begin_ns))
    fans = FanLowering(job, lowering, by_name, early=not fifo) if fanned else None
    lower = fans.lower if fans else lowering.lower
    mixing = MIXING if variation and not fifo and _lanes(plan, folding) > 1 else 0.0
    runners = [
        Runner(w, by_name[w.node.name], lower(w), _draws(w, plan, variation, mixing, conditions))
        for w in found
        if w.role != "sync"
    ]
    for worker in found:
        by_name[worker.node.name].workers += 1
    if merge:
        for runner in runners:
            runner.merge()
    _drop_slack_memory(machines, runners)
    if merge:
        give_cores(machines, runners)
    longest = max(runner.busy_ns for runner in runners)
    wires = _nics(plan, machines, folding, conditions)
    network, carrier = _carriers(job, engine, machines, wires, fans, None if fifo else longest // max(1, time_steps))
    parties = folding.simulated_groups(plan) if plan.rounds else 1
    syncs = [w for w in found if w.role == "sync"]
    servers = tuple(SyncServer(w, by_name[w.node.name], lowering.inbox(w.rank), parties) for w in syncs)
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
        mixing,
        fidelity,
        conditions,
        carrier,
        Outages(engine, plan, conditions) if conditions.eventful else None,
    )


def _lanes(plan: Plan, folding: Folding) -> int:
    """Sessions that go at their own pace; ranks that meet in every step are one."""
    ranks = 1 if meets(plan) else plan.ranks
    return plan.hogwild * ranks * folding.simulated_groups(plan)


def _draws(worker: Worker, plan: Plan, variation: float, mixing: float, conditions: Conditions) -> Draws:
    return Draws(worker, plan, variation, mixing if worker.thread >= 0 else 0.0, conditions, meets(plan))


def _machines(
    job: JobPrograms,
    found: Sequence[Worker],
    engine: Engine,
    sharing: Sharing,
    share: dict[str, float],
    resource: type[Resource],
    conditions: Conditions,
) -> list[Machine]:
    """Build the machines that do anything."""
    used = {worker.node.name for worker in found} | {node.name for node in _embedding_servers(job)}
    nodes = [conditions.at_work(node) for node in nodes_of(job.plan) if node.name in used]
    return build_machines(engine, nodes, sharing, share, resource)


def _embedding_servers(job: JobPrograms) -> list[Node]:
    places = [program.place for session in job.sessions for program in session.programs]
    indices = sorted({place.index for place in places if place.role is Role.SERVER})
    return [job.plan.servers[index] for index in indices]


def fans_may(job: JobPrograms, sharing: Sharing, conditions: Conditions) -> bool:
    """Whether there can be fans."""
    return fans_apply(job, sharing) and not (conditions.nodes_per_rack or conditions.workers_differ)


def _carriers(
    job: JobPrograms,
    engine: Engine,
    machines: Sequence[Machine],
    wires: tuple[list[Nic], list[float]],
    fans: FanLowering | None,
    step_ns: int | None,
) -> tuple[Network, Carrier | None]:
    """Build what carries messages and what carries fans, if there are any: queues, or shares in time steps of a length."""
    names = {node.name for node in _embedding_servers(job)}
    servers = [machine.index for machine in machines if machine.node.name in names]
    if step_ns is None:
        queues = FifoNetwork(engine, *wires)
        carries = NarrowFanNetwork if len(servers) <= NARROW else FanNetwork
        return queues, carries(engine, queues, machines, servers) if fans else None
    if fans is None:
        return Network(engine, *wires), None
    shares = SteppedNetwork(engine, wires[0], machines, servers, fans.fans, max(1, step_ns))
    return shares, shares


def _simulated(plan: Plan, folding: Folding) -> Callable[[int, int], bool]:
    """Tell of a group and a rank whether they stand for their like."""
    groups = folding.simulated_groups(plan)
    return lambda group, rank: group < groups and rank % folding.ranks == 0


def _nics(
    plan: Plan, machines: Sequence[Machine], folding: Folding, conditions: Conditions
) -> tuple[list[Nic], list[float]]:
    """NIC of each machine and uplink of each rack, if there are any."""
    size, uplinks, nics = conditions.nodes_per_rack, [], []
    twins = folding.ranks > 1 or (plan.ring and folding.simulated_groups(plan) == 1)
    for machine in machines:
        node, rack = machine.node, machine.index // size if size else -1
        nics.append(Nic(node.host, node.nic_bytes_per_second * machine.share, node.latency_seconds, twins, rack))
    if size:
        for first in range(0, len(nics), size):
            rates = [nic.bytes_per_second for nic in nics[first : first + size]]
            uplinks.append(sum(rates) / conditions.oversubscription)
    return nics, uplinks


def _readers(plan: Plan, conditions: Conditions, begin_ns: int) -> dict[str, Reader]:
    """Readers of each rank's node, if they may be too slow; they read one batch ahead for each thread."""
    if math.isinf(conditions.reader_batches_per_second):
        return {}
    interval = to_ns(1.0 / conditions.reader_batches_per_second)
    return {
        node.name: Reader(interval, plan.hogwild, begin_ns) for group in plan.groups for node in group[: plan.ranks]
    }


def _shadows(plan: Plan, runners: Sequence[Runner]) -> tuple[Shadow, ...]:
    """Pair each shadow worker with the worker that paces it: thread 0 of the first rank of its group."""
    firsts = [r for r in runners if r.worker.role == "rank" and r.worker.rank == r.worker.thread == 0]
    pace = {runner.worker.group: runner for runner in firsts}
    gap = plan.sync.gap if plan.sync else 1
    shadows = [runner for runner in runners if runner.worker.role == "shadow"]
    return tuple(Shadow(runner, pace[runner.worker.group], gap) for runner in shadows)


def _drop_slack_memory(machines: Sequence[Machine], runners: Sequence[Runner]) -> None:
    """Stop simulating memory bandwidth where it cannot bind.

    It cannot if no job needs longer for its traffic than for its core when every worker that shares the bandwidth wants its
    part at once: n jobs on c cores go at min(1, c / n) and have 1 / n of the bandwidth.
    """
    sharers: dict[int, int] = defaultdict(int)
    for machine in machines:
        sharers[id(machine.memory)] += machine.workers
    binds: set[int] = set()
    for runner in runners:
        memory = runner.machine.memory
        if memory is None or id(memory) in binds:
            continue
        active = min(sharers[id(memory)], runner.machine.cores.capacity)
        for p in runner.flat:
            if isinstance(p, Work) and p.traffic_bytes * active > p.core_ns * memory.capacity:
                binds.add(id(memory))
    for machine in machines:
        if machine.memory is not None and id(machine.memory) not in binds:
            machine.memory = None
