"""Turns what was observed into a result: figures, the bottleneck sentence, the timeline, the laws, what was left out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from placement.plan import Plan
from programs.instructions import Average, SyncStep
from programs.timeline import Timeline, WorkerTimeline
from simulator.conditions import Conditions
from simulator.engine import NANOSECONDS
from simulator.errors import LawBroken
from simulator.fidelity import Fidelity
from simulator.folding import Folding
from simulator.machines import Sharing, nodes_of
from simulator.observer import Observer
from simulator.primitives import busy_ns
from simulator.result import SPLIT, SimulationResult
from simulator.runner import Runner
from simulator.scenario import Scenario
from simulator.stepped import SteppedNetwork
from simulator.usage import busiest, mean_by_role, utilization

#: A resource that is busier than this binds; below it a step is bound by its own path.
BINDS = 0.9
_WORDS = {
    "cpu": "cores",
    "memory_bandwidth": "memory bandwidth",
    "nic_tx": "NIC (sending)",
    "nic_rx": "NIC (receiving)",
    "compute": "its own work",
    "transfer": "messages on the wire",
    "contention": "contention for cores, memory and NICs",
    "peer": "waiting for other nodes of the group",
    "ps_queue": "waiting for the embedding servers",
    "sync": "synchronisation between groups",
    "reader": "waiting for readers",
    "recovery": "standing still after losses and for checkpoints",
}


def report(observer: Observer, asked: int, wall_seconds: float) -> SimulationResult:
    """Make the result of a simulation that has ended.

    Parameters
    ----------
    observer : Observer
        What was seen.
    asked : int
        Steps that were asked for.
    wall_seconds : float
        What the simulation took.

    Raises
    ------
    LawBroken
        The result contradicts itself.
    """
    scenario = observer.scenario
    check_laws(observer)
    by_node = utilization(*observer.window(), scenario.machines)
    split = time_split(observer)
    rate, half_width = observer.rates()
    useful, failures = failures_said(scenario)
    jobs = scenario.folding.copies * useful
    return SimulationResult(
        samples_per_second=rate * jobs,
        ci95=half_width * jobs,
        utilization=mean_by_role(by_node, roles(scenario)),
        node_utilization=by_node,
        bottleneck=bottleneck(by_node, split, scenario),
        time_split=split,
        average_sync_gap=average_sync_gap(observer),
        steps=observer.steps,
        warmup=observer.warmup,
        sharing=scenario.sharing,
        events=scenario.engine.events,
        simulated_seconds=(scenario.engine.now - scenario.engine.begin_ns) / NANOSECONDS,
        wall_seconds=wall_seconds,
        timeline=timeline(scenario) if observer.record else None,
        left_out=(*left_out(scenario, observer.steps, asked), *failures),
        fidelity=scenario.fidelity,
        happened=scenario.outages.told() if scenario.outages else (),
    )


def check_laws(observer: Observer) -> None:
    """Check what holds in every system: steps made, bytes sent = received, parts of time = time.

    Raises
    ------
    LawBroken
        One of them does not hold.
    """
    scenario = observer.scenario
    for runner in scenario.runners:
        if len(runner.done) != observer.steps:
            raise LawBroken(f"{runner.worker.name} made {len(runner.done)} of {observer.steps} steps")
    network = scenario.network
    arrived = network.arrived_bytes + network.under_way_bytes()
    if arrived != network.sent_bytes and not (scenario.shadows and arrived < network.sent_bytes):
        raise LawBroken(f"{network.sent_bytes} bytes were sent and {network.arrived_bytes} arrived")
    for rank in observer.ranks:
        if sum(rank.split) != rank.done[-1] - rank.start_ns:
            raise LawBroken(f"the parts of the time of {rank.worker.name} do not add up to its time")


def roles(scenario: Scenario) -> dict[str, tuple[str, ...]]:
    """Names of the simulated nodes of each role."""
    plan, present = scenario.plan, {machine.node.name for machine in scenario.machines}
    every = {
        "trainer": [node for group in plan.groups for node in group],
        "server": plan.servers,
        "sync": plan.sync_servers,
    }
    return {
        role: tuple(dict.fromkeys(node.name for node in nodes if node.name in present)) for role, nodes in every.items()
    }


def time_split(observer: Observer) -> dict[str, float]:
    """Mean seconds of a rank's step after the warm-up, by part."""
    steps = (observer.steps - observer.warmup) * len(observer.ranks) * NANOSECONDS
    spent = [0] * len(SPLIT)
    for rank in observer.ranks:
        before = observer.splits.get(rank, [0] * len(SPLIT))
        spent = [total + now - then for total, now, then in zip(spent, rank.split, before, strict=True)]
    return {name: part / steps for name, part in zip(SPLIT, spent, strict=True)}


def bottleneck(by_node: dict[str, dict[str, float]], split: dict[str, float], scenario: Scenario) -> str:
    """Say in a sentence what binds: the busiest resource if it is busy enough, else the largest parts of a step."""
    node, resource, fraction = busiest(by_node)
    if scenario.sharing is not Sharing.NONE and fraction >= BINDS:
        return f"{_WORDS[resource]} of {node} busy {fraction:.0%} of the time"
    total = sum(split.values())
    if not total:
        return "nothing takes time"
    largest = sorted(split, key=lambda part: -split[part])[:2]
    shares = " and ".join(f"{split[part] / total:.0%} {_WORDS[part]}" for part in largest if split[part])
    return f"a step's own path, no resource: {shares} (busiest: {_WORDS[resource]} of {node}, {fraction:.0%})"


def average_sync_gap(observer: Observer) -> float | None:
    """Mean steps between two exchanges of a node."""
    scenario = observer.scenario
    if scenario.plan.sync is not None and len(scenario.plan.groups) > 1 and not scenario.shadows:
        return float(scenario.plan.sync.gap)
    paced = [[step for step in shadow.paced_at if step < observer.steps] for shadow in scenario.shadows]
    spans = [(steps[-1] - steps[0], len(steps) - 1) for steps in paced if len(steps) > 1]
    count = sum(gaps for _, gaps in spans)
    return sum(steps for steps, _ in spans) / count if count else None


def timeline(scenario: Scenario) -> Timeline:
    """Return start, end and core time of every instruction, workers in the order of ``programs.workers``."""
    shadows = [shadow.runner for shadow in scenario.shadows]
    lines = [_worker_timeline(runner, scenario) for runner in (*scenario.runners, *shadows)]
    empty = np.zeros((0, 0))
    for server in scenario.servers:
        worker = server.worker
        lines.append(WorkerTimeline(worker.name, worker.node.name, worker.role, (), empty, empty, empty))
    return Timeline(tuple(lines))


def _worker_timeline(runner: Runner, scenario: Scenario) -> WorkerTimeline:
    worker, steps, count = runner.worker, len(runner.done), len(runner.code)
    ends = np.array(runner.ends[: steps * count], dtype=np.int64).reshape(steps, count)
    starts = np.hstack([np.array(runner.begun[:steps], dtype=np.int64).reshape(steps, 1), ends[:, :-1]])
    busy = np.outer(runner.factors[:steps], [float(busy_ns(primitives)) for primitives in runner.code])
    if worker.role != "shadow" and scenario.plan.sync is not None:
        passed = np.arange(1, steps + 1) % scenario.plan.sync.gap != 0
        for index, instruction in enumerate(worker.program):
            if isinstance(instruction, SyncStep | Average):
                busy[passed, index] = 0.0
    begin = scenario.engine.begin_ns
    seconds = ((starts - begin) / NANOSECONDS, (ends - begin) / NANOSECONDS, busy / NANOSECONDS)
    return WorkerTimeline(worker.name, worker.node.name, worker.role, worker.program, *seconds)


def _folded(folding: Folding, plan: Plan) -> Iterator[str]:
    if folding.groups > 1:
        found = folding.simulated_groups(plan)
        yield f"Groups that were simulated: {found} for {len(plan.groups)} alike, with their part of the servers."
    if folding.ranks > 1:
        yield f"One rank was simulated for {folding.ranks} alike; what it waits for the slowest is drawn."
    elif folding.merged:
        yield "Slices of an all-reduce travel as one message per rank and phase, as long as they are together."


def failures_said(scenario: Scenario) -> tuple[float, tuple[str, ...]]:
    """Useful part of the time where nodes fail, and the sentence that says so."""
    failures, plan = scenario.conditions.failures, scenario.plan
    if failures is None:
        return 1.0, ()
    nodes = len(nodes_of(plan))
    useful = failures.useful_fraction(nodes)
    return useful, (f"Failures of {nodes} nodes and checkpoints leave {useful:.1%} of the time for training.",)


def left_out(scenario: Scenario, steps: int, asked: int) -> tuple[str, ...]:
    """Say what the prediction leaves out or takes for granted."""
    vary = f"vary by {scenario.variation:.0%}" if scenario.variation else "do not vary"
    missing = [word for word, present in _disturbances(scenario.conditions) if not present]
    if scenario.mixing:
        vary += f", the steps of a thread by {scenario.mixing:.0%},"
    said = [f"Core times {vary} from step to step{'; no ' + ', no '.join(missing) if missing else ''}."]
    said.append("Lock-free updates cost no more when threads collide; shared caches are not modelled.")
    if scenario.sharing is Sharing.NONE:
        said.append("Every worker has a core of its own (cpu clock); cores and memory bandwidth are not shared.")
    if scenario.fidelity is Fidelity.FIFO:
        said.append("Cores and NICs pass one job after the other (fifo), which is somewhat faster than fair shares.")
    if isinstance(scenario.network, SteppedNetwork):
        said.append(
            f"Shares of messages and servers are worked out every {scenario.network.step_ns / 1000:.0f} us: each message is "
            "up to two such steps late at each stage of its way."
        )
    said.extend(_folded(scenario.folding, scenario.plan))
    if steps < asked:
        said.append(f"{steps} of {asked} steps were simulated: the plan is large or the interval narrow enough.")
    return tuple(said)


def _disturbances(conditions: Conditions) -> tuple[tuple[str, bool], ...]:
    slow = conditions.workers_differ or bool(conditions.node_sigma or conditions.slow_nodes)
    return (("stragglers", slow), ("failures", conditions.failures is not None or bool(conditions.losses)))
