"""What the workers of a job share: parameters by node, table rows by server, the centre, progress and records.

By default everything lives in anonymous shared memory that is allocated before the fork, so that every worker of a machine
sees the same copy and nothing is left behind. Which worker may touch what follows from the programs; there is no locking
(Hogwild).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from executor.arrays import BufferFactory, Floats
from executor.average_memory import AverageMemory, allocate_averages
from executor.codecs.dct import forget
from executor.coded import LeftOutKey
from executor.homes import Home, node_home, server_home, sync_home
from executor.parameters import Parameters, TableRows, allocate_rows
from executor.pushing import PushMemory
from executor.transport import shared_array
from placement.codecs import ALL_REDUCE, EXCHANGE, parse_codec
from placement.errors import DoesNotFit
from placement.plan import DP, Plan
from problem.local import usable_memory_bytes
from problem.model import Model
from programs.exchanges import sync_server_of
from programs.workers import Worker

#: Columns of the record of an instruction: start, end (on the run's clock), CPU seconds used.
RECORD_COLUMNS = 3


def shared_buffer(name: str, elements: int) -> Floats:
    """Return zeroed float32 memory (elements,) that forked workers share; ``name`` is not used."""
    del name
    return shared_array((elements,), np.float32)


@dataclass(frozen=True)
class JobState:
    """Parameters of a job.

    Parameters
    ----------
    dense : Mapping of (group, node) to Parameters
        Dense parameters held by each node of each group.
    rows : tuple of TableRows or None
        Rows of each shard of the plan, in plan order; None for an empty shard.
    centre : Parameters or None
        The centre on the sync servers; None without them.
    feedback : Mapping of (group, rank) to Mapping of str to ndarray
        By operator what a rank remembers of gradients under DCT-DP, (elements + 1,); empty without it.
    velocity : Parameters or None
        Block momentum on the sync servers, for ``bmuf`` only.
    pushed : Mapping of (group, node) to PushMemory
        What nodes remember for gradient push and for rounded exchanges; empty for others.
    left_out : Mapping of key to ndarray
        What a session's node has not sent of the gradient of a cut under top-k with feedback, (batch * width,).
    averages : Mapping of (group, node) to AverageMemory
        What nodes remember where groups average among themselves; else empty.
    """

    dense: Mapping[tuple[int, int], Parameters]
    rows: tuple[TableRows | None, ...]
    centre: Parameters | None
    feedback: Mapping[tuple[int, int], Mapping[str, Floats]] = field(default_factory=dict)
    velocity: Parameters | None = None
    pushed: Mapping[tuple[int, int], PushMemory] = field(default_factory=dict)
    left_out: Mapping[LeftOutKey, Floats] = field(default_factory=dict)
    averages: Mapping[tuple[int, int], AverageMemory] = field(default_factory=dict)

    def initialise(self, seed: int) -> None:
        """Set everything to its start value: the same for every copy of a parameter."""
        for parameters in self.dense.values():
            parameters.initialise(seed)
        for rows in self.rows:
            if rows is not None:
                rows.initialise(seed)
        if self.centre is not None:
            self.centre.initialise(seed)
        for place, average in self.averages.items():
            average.write(average.centre, self.dense[place])
        self.forget()
        self.settle()

    def forget(self) -> None:
        """Drop what ranks remember of gradients."""
        for memories in self.feedback.values():
            for memory in memories.values():
                forget(memory)
        for memory in self.left_out.values():
            memory.fill(0.0)

    def settle(self) -> None:
        """Take the parameters for those of the last exchange, of which nothing is unsent; drop block momentum."""
        for place, memory in self.pushed.items():
            for name in memory.known.operators:
                memory.known.flat(name)[...] = self.dense[place].flat(name)
            for unsent in memory.unsent.values():
                forget(unsent)
        if self.velocity is not None:
            for name in self.velocity.operators:
                self.velocity.flat(name)[...] = 0.0
        for average in self.averages.values():
            average.velocity.fill(0.0)


def allocate_state(plan: Plan, memory: Callable[[Home], BufferFactory] = lambda home: shared_buffer) -> JobState:
    """Return zeroed memory for all parameters of a plan.

    Parameters
    ----------
    plan : Plan
        The plan.
    memory : callable
        Gives the factory of the buffers of a machine; by default memory that forked processes share.

    Raises
    ------
    UnsupportedModel
        The executor has no kernel for an operator, or no update for an optimizer.
    """
    dense = {
        (group, node): Parameters(plan.model, memory(node_home(group, node)), held_operators(plan, node))
        for group in range(len(plan.groups))
        for node in range(plan.group_size)
    }
    rows = tuple(
        allocate_rows(plan.model.table[s.table], s.row_begin, s.row_end, memory(server_home(s.server)), s.columns)
        if s.rows
        else None
        for s in plan.shards
    )
    centre = _allocate_centre(plan, memory)
    momentum = plan.sync is not None and plan.sync.algorithm == "bmuf"
    velocity = _allocate_centre(plan, memory) if momentum else None
    feedback, left_out = _allocate_feedback(plan, memory), _allocate_left_out(plan, memory)
    pushed = _allocate_pushed(plan, memory)
    averages = allocate_averages(plan, {place: memory(node_home(*place)) for place in dense})
    return JobState(dense, rows, centre, feedback, velocity, pushed, left_out, averages)


def check_memory(plan: Plan) -> None:
    """Refuse a plan whose parameters and optimizer state, on all of its machines together, exceed this machine's memory.

    Raises
    ------
    DoesNotFit
        With the bytes that are needed, and those that there are.
    """
    needed, room = 0, usable_memory_bytes()

    def count(name: str, elements: int) -> Floats:
        nonlocal needed
        del name
        needed += elements * np.dtype(np.float32).itemsize
        few = elements <= 2  # a counter, which is viewed as one number
        return np.zeros(elements, np.float32) if few else np.broadcast_to(np.float32(0), (elements,))

    allocate_state(plan, lambda home: count)
    if needed > room:
        what = "parameters and optimizer state of all machines of the plan: what is trained here"
        raise DoesNotFit(what, "this machine", needed, room)


def _allocate_pushed(plan: Plan, memory: Callable[[Home], BufferFactory]) -> dict[tuple[int, int], PushMemory]:
    pushes, codec = plan.sync is not None and plan.sync.algorithm == "push", plan.codec(EXCHANGE)
    if len(plan.groups) == 1 or not (pushes or codec):
        return {}
    graph, found = plan.model.graph, {}
    for group, node in itertools.product(range(len(plan.groups)), range(plan.group_size)):
        names, here = exchanged_operators(plan, node), memory(node_home(group, node))
        unsent = {name: here(f"{name}.unsent", graph[name].parameters + 1) for name in (names if codec else ())}
        found[group, node] = PushMemory(Parameters(plan.model, here, names if pushes else ()), unsent)
    return found


def exchanged_operators(plan: Plan, node: int) -> tuple[str, ...]:
    """Operators that a node of a group exchanges with the sync servers: its own, and node 0 those that are DP."""
    return (plan.dp_ops if node == 0 else ()) + plan.mp_ops(node)


def _allocate_centre(plan: Plan, memory: Callable[[Home], BufferFactory]) -> Parameters | None:
    if not plan.sync_servers or len(plan.groups) == 1:
        return None
    homes = {name: sync_home(server) for name, server in sync_server_of(plan).items()}
    return Parameters(plan.model, lambda name, size: memory(homes[name.removesuffix(".state")])(name, size))


def _allocate_feedback(plan: Plan, memory: Callable[[Home], BufferFactory]) -> dict[tuple[int, int], dict[str, Floats]]:
    codec = plan.codec(ALL_REDUCE)
    if plan.ranks == 1 or not codec or not parse_codec(codec).every:
        return {}
    graph, ranks = plan.model.graph, [(g, r) for g in range(len(plan.groups)) for r in range(plan.ranks)]
    return {
        key: {op: memory(node_home(*key))(f"{op}.feedback", graph[op].parameters + 1) for op in plan.dp_ops}
        for key in ranks
    }


def _allocate_left_out(plan: Plan, memory: Callable[[Home], BufferFactory]) -> dict[LeftOutKey, Floats]:
    """Room at every node that sends the gradient of a cut under top-k with feedback."""
    graph, found = plan.model.graph, {}
    sessions = itertools.product(range(len(plan.groups)), range(plan.ranks), range(plan.hogwild))
    for (group, rank, thread), op in itertools.product(sessions, graph):
        codec = plan.codec(op.name)
        if codec and parse_codec(codec).feedback and graph.needs_gradient[op.name]:
            places = {name: _place_of(plan, name, rank) for name in (op.name, *graph.consumers[op.name])}
            for node in sorted(set(places.values()) - {places[op.name]}):
                size = plan.batch * op.width
                found[group, rank, thread, node, op.name] = memory(node_home(group, node))(f"{op.name}.left_out", size)
    return found


def _place_of(plan: Plan, name: str, rank: int) -> int:
    """Node of a group on which a session runs an operator; pooled rows arrive at its rank."""
    tag = plan.tags.get(name, DP)
    return rank if tag == DP else int(tag)


def held_operators(plan: Plan, node: int) -> tuple[str, ...]:
    """Operators whose parameters a node of a group holds: its MP operators and, on a rank, the DP operators."""
    return (plan.dp_ops if node < plan.ranks else ()) + plan.mp_ops(node)


def gather(plan: Plan, state: JobState, group: int = 0) -> tuple[Parameters, dict[str, TableRows]]:
    """Put the parameters back together as one un-cut model: the centre, or the replica of a group without one.

    Returns
    -------
    tuple of Parameters and dict of str to TableRows
        Copies of the dense parameters and of the whole tables.
    """
    whole, centre = _replica(plan, state, group), centre_of(plan, state)
    if centre is not None:
        for name in whole.operators:
            whole.flat(name)[...] = centre.flat(name)
    return whole, _gather_rows(plan.model, state)


def _replica(plan: Plan, state: JobState, group: int = 0) -> Parameters:
    """Return a copy of the dense parameters of a replica, un-cut, without optimizer state."""
    whole = Parameters(plan.model)
    for name in whole.operators:
        home = 0 if plan.tags[name] == DP else int(plan.tags[name])
        whole.flat(name)[...] = state.dense[group, home].flat(name)
    return whole


def centre_of(plan: Plan, state: JobState) -> Parameters | None:
    """Return the centre: that on the sync servers, or a copy of that of the first group, un-cut; None with one group."""
    return _of_averages(state, "centre", _replica(plan, state)) if state.averages else state.centre


def velocity_of(plan: Plan, state: JobState) -> Parameters | None:
    """Return block momentum likewise; None if there is none."""
    momentum = any(average.velocity.size for average in state.averages.values())
    return _of_averages(state, "velocity", Parameters(plan.model)) if momentum else state.velocity


def _of_averages(state: JobState, what: Literal["centre", "velocity"], whole: Parameters) -> Parameters:
    for (group, _), average in state.averages.items():
        if group == 0:
            average.read(getattr(average, what), whole)
    return whole


def remember(state: JobState, what: Literal["centre", "velocity"], whole: Parameters) -> None:
    """Give every node that averages its part of the centre, or of block momentum, of an un-cut model."""
    for average in state.averages.values():
        average.write(getattr(average, what), whole)


def _gather_rows(model: Model, state: JobState) -> dict[str, TableRows]:
    tables = {table.name: allocate_rows(table, 0, table.rows) for table in model.tables}
    for shard in state.rows:
        if shard is not None:
            tables[shard.table.name].rows[shard.row_begin : shard.row_end, shard.columns] = shard.rows
    return tables


class Record:
    """What a worker writes down while it runs, in shared memory.

    Parameters
    ----------
    worker : Worker
        The worker.
    steps : range
        Numbers of the steps (of a shadow worker: the exchanges) of the run.
    """

    def __init__(self, worker: Worker, steps: range) -> None:
        self.worker, self.first = worker, steps.start
        shape = (len(steps), max(1, len(worker.program)), RECORD_COLUMNS)
        self.times: npt.NDArray[np.float64] = shared_array(shape, np.float64)
        self.wall_ends: npt.NDArray[np.float64] = shared_array((len(steps),), np.float64)
        self.losses: npt.NDArray[np.float64] = shared_array((len(steps),), np.float64)
        #: Instructions ended, whether it waits, steps done: what a supervisor reads while it runs.
        self.live: npt.NDArray[np.int64] = shared_array((3,), np.int64)
        self.live[2] = steps.start

    @property
    def arrays(self) -> tuple[npt.NDArray[np.float64], ...]:
        """Everything that the run's result needs of it."""
        return self.times, self.wall_ends, self.losses

    @property
    def done_times(self) -> npt.NDArray[np.float64]:
        """Start, end and CPU seconds of the instructions of the steps that have ended, (steps, instructions, 3)."""
        return self.times[: max(0, self.steps_done - self.first)]

    def waiting(self, yes: bool) -> None:
        """Note that the worker starts or stops waiting for a peer."""
        self.live[1] = yes

    def tick(self) -> None:
        """Note that an instruction has ended."""
        self.live[0] += 1

    def note(self, step: int, index: int, times: tuple[float, float, float]) -> None:
        """Note start, end and CPU seconds of an instruction of a step."""
        self.times[step - self.first, index] = times
        self.tick()

    def note_loss(self, step: int, loss: float) -> None:
        """Note the loss of a step."""
        self.losses[step - self.first] = loss

    def step_done(self, step: int, wall: float) -> None:
        """Note that a step has ended at ``wall`` seconds since the start of the job."""
        self.wall_ends[step - self.first] = wall
        self.live[2] = step + 1

    @property
    def ticks(self) -> int:
        """Instructions that have ended so far."""
        return int(self.live[0])

    @property
    def is_waiting(self) -> bool:
        """Whether the worker waits for a peer."""
        return bool(self.live[1])

    @property
    def steps_done(self) -> int:
        """Steps that have ended so far, those before the run included."""
        return int(self.live[2])
