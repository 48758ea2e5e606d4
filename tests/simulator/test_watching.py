"""The observer hook: what it tells, that it changes nothing, and real gradients replayed in simulated time."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import mean

import numpy as np
import pytest

from executor.clock import Clock, ClockKind
from executor.data import SyntheticStream
from executor.exchange import Endpoint
from executor.interpreter import Context, Interpreter
from executor.state import Record, allocate_state
from executor.wiring import wire
from executor.worker import session_number, sessions
from placement.plan import Plan, Sync
from programs.instructions import Compute, Update
from programs.transform import transform
from simulator.conditions import Conditions
from simulator.simulate import simulate
from simulator.watching import Moment
from tests.executor.reference import oracle_of
from tests.executor.tiny import dlrm, tables
from tests.programs import plans
from tests.simulator.instances import US, chain_model, make_costs, make_plan, table


@dataclass
class Log:
    """Everything that was told, in order."""

    moments: list[tuple[str, Moment]] = field(default_factory=list)

    def begun(self, moment: Moment) -> None:
        """Write it down."""
        self.moments.append(("begun", moment))

    def ended(self, moment: Moment) -> None:
        """Write it down."""
        self.moments.append(("ended", moment))


def told(plan: Plan, **settings) -> tuple[Log, object]:
    """A short run with a log."""
    log = Log()
    return log, simulate(plan, make_costs(plan.model), steps=12, watcher=log, **settings)


EVERY_KIND = make_plan(
    chain_model(2, (table(),)),
    nodes=2,
    ranks=2,
    groups=2,
    servers=1,
    sync_servers=1,
    hogwild=2,
    sync=Sync("background", 3),
)


def test_what_is_told_is_the_timeline():
    """Starts and ends of every instruction of every worker are those of the recorded timeline, told in order of time."""
    log, result = told(EVERY_KIND)
    times = [moment.time_ns for _, moment in log.moments]
    assert times == sorted(times)
    by_worker = defaultdict(dict)
    for what, moment in log.moments:
        by_worker[moment.worker.name][what, moment.step, moment.index] = moment.seconds
    for worker in result.timeline.workers:
        for step, (starts, ends) in enumerate(zip(worker.starts, worker.ends, strict=True)):
            for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
                assert by_worker[worker.worker]["begun", step, index] == pytest.approx(start, abs=1e-12)
                assert by_worker[worker.worker]["ended", step, index] == pytest.approx(end, abs=1e-12)


def test_a_watcher_changes_nothing():
    """Same events, same throughput to the bit, with a watcher and without; also where the job stands still meanwhile."""
    for conditions in (Conditions(), Conditions(worker_sigma=0.2)):
        _, watched = told(EVERY_KIND, conditions=conditions)
        plain = simulate(EVERY_KIND, make_costs(EVERY_KIND.model), steps=12, conditions=conditions)
        assert (watched.samples_per_second, watched.events) == (plain.samples_per_second, plain.events)


def test_versions_count_updates_and_exchanges():
    """One thread: version n at the start of step n (from 0), n + 1 when its update has ended; an exchange counts too."""
    log, _ = told(make_plan(chain_model(2)))
    for what, moment in log.moments:
        before = not isinstance(moment.instruction, Update) or what == "begun"
        if moment.index <= [type(i) for i in moment.worker.program].index(Update):
            assert moment.version == moment.step + (0 if before else 1)
    synced = make_plan(chain_model(2), groups=2, sync_servers=1, sync=Sync("foreground", 4))
    log, _ = told(synced)
    versions = [m.version for what, m in log.moments if m.worker.name == "g0/n0/t0"]
    assert versions[-1] == 12 + 3


def test_every_thread_updates_one_copy():
    """Threads of a node share its version: with four of them a step's update meets three others since its batch was read."""
    plan = make_plan(chain_model(2), hogwild=4, changes={"cores": 4})
    log, _ = told(plan)
    assert staleness(log.moments) == pytest.approx(3.0, abs=0.5)


def staleness(moments) -> float:
    """Mean updates of others between the first use of parameters in a step and the end of its update, after 4 steps."""
    read, found = {}, []
    for what, moment in moments:
        key = moment.worker.name, moment.step
        if isinstance(moment.instruction, Compute) and what == "begun":
            read.setdefault(key, moment.version)
        elif isinstance(moment.instruction, Update) and what == "ended" and 4 <= moment.step < 10 and key in read:
            found.append(moment.version - read[key] - 1)
    return mean(found)


# ---- real gradients


class Queue:
    """A channel inside this process that keeps messages in order."""

    def __init__(self) -> None:
        self.messages: deque = deque()

    def send(self, arrays, clock, progress) -> None:
        """Copy and keep."""
        self.messages.append([np.array(array) for array in arrays])

    def receive(self, clock, progress):
        """The oldest message: in simulated time it has arrived."""
        return self.messages.popleft()


class Queues:
    """A transport of queues."""

    def channel(self, source, target, layout, link) -> Queue:
        """Return a channel."""
        return Queue()

    def poke(self) -> None:
        """Messages are there at once."""


class Replay(Log):
    """Runs each instruction with NumPy when it ends in simulated time, with the executor's own interpreter."""

    def __init__(self, plan: Plan, steps: int) -> None:
        super().__init__()
        wiring, self.state = wire(transform(plan), Queues()), allocate_state(plan)
        self.state.initialise(plan.seed)
        self.records = {worker.name: Record(worker, range(steps)) for worker in wiring.workers}
        stream, count = SyntheticStream(plan.model, 1), sessions(plan)
        self.interpreters = {}
        for worker in wiring.workers:
            number = session_number(plan, worker)
            context = Context(
                plan, self.state, lambda step, number=number: stream.batch(step * count + number, plan.batch)
            )
            end = Endpoint(worker, wiring, Clock(ClockKind.CPU, 0.0), self.records[worker.name])
            self.interpreters[worker.name] = Interpreter(end, context)

    def ended(self, moment: Moment) -> None:
        """Do it."""
        super().ended(moment)
        interpreter = self.interpreters[moment.worker.name]
        interpreter.step = moment.step
        interpreter.run_instruction(moment.index)


def replayed(plan: Plan, steps: int) -> Replay:
    """A plan trained in simulated time."""
    replay = Replay(plan, steps)
    costs = make_costs(chain_model(len(plan.model.graph.operators)))
    ops = {op.name: costs.ops["layer0"] for op in plan.model.graph}
    found = {t.name: make_costs(chain_model(1, (table(),))).tables["table"] for t in plan.model.tables}
    simulate(plan, type(costs)(plan.batch, ops, found, costs.message), steps=steps, watcher=replay)
    return replay


def machines(plan: Plan, cores: int) -> Plan:
    """The plan on machines of their own, with so many cores."""
    apart = {"cores": cores, "latency_seconds": 5 * US}

    def own(nodes):
        return tuple(plans.machine(node.name, host=node.name, **apart) for node in nodes)

    return type(plan)(
        **(vars(plan) | {"groups": tuple(own(group) for group in plan.groups), "servers": own(plan.servers)})
    )


MODEL = dlrm([3, 16, 8], tables(2, 60, 8), [16, 1])


def test_one_synchronous_replica_is_the_oracle_to_the_bit():
    """Two nodes, a cut, a server, one thread: replayed in simulated time, losses and parameters are the oracle's."""
    plan = machines(plans.plan(MODEL, nodes=2, tags={"top0": 1}, batch=16, synchronous=True), 2)
    replay, oracle, stream = replayed(plan, 15), oracle_of(plan), SyntheticStream(MODEL, 1)
    losses = [oracle.step(stream.batch(step, 16)) for step in range(15)]
    np.testing.assert_array_equal(replay.records["g0/n0/t0"].losses, losses)
    trained = {name: replay.state.dense[0, 1 if name == "top0" else 0] for name in oracle.parameters.operators}
    for name, held in trained.items():
        np.testing.assert_array_equal(held.flat(name), oracle.parameters.flat(name))


def test_a_replay_repeats_to_the_bit():
    """Hogwild threads in simulated time race the same way every time, which real ones never do."""
    plan = machines(plans.plan(MODEL, hogwild=4, batch=16), 4)
    first, second = replayed(plan, 12), replayed(plan, 12)
    for name in first.state.dense[0, 0].operators:
        np.testing.assert_array_equal(first.state.dense[0, 0].flat(name), second.state.dense[0, 0].flat(name))


def test_stale_gradients_train_worse():
    """The same 240 batches with a high learning rate: the more threads, the staler the gradients, the higher the loss."""
    model = dlrm([3, 16, 8], tables(2, 60, 8), [16, 1], learning_rate=1.0)
    stale, losses = [], []
    for threads in (1, 16):
        plan = machines(plans.plan(model, hogwild=threads, batch=16), threads)
        replay = replayed(plan, 240 // threads)
        found = np.array([replay.records[f"g0/n0/t{thread}"].losses for thread in range(threads)])
        stale.append(staleness(replay.moments))
        losses.append(float(found.mean()))
    assert stale[0] == 0.0
    assert stale[1] == pytest.approx(15.0, abs=1.0)
    assert losses[1] > losses[0] + 0.01
