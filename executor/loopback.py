"""Run the programs of one session in ONE process, messages through plain buffers.

The same interpreter, kernels and order as the processes, so it shows two things: that cut programs compute to the bit what
the untransformed graph computes, and what each instruction costs in the context of the whole step (the profile). It takes
plans with one group, one rank and one thread; programs run in turn, each until it must wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.clock import Clock, ClockKind
from executor.counter import Progress
from executor.data.batch import Stream
from executor.exchange import Endpoint
from executor.frame import Layout, copier
from executor.interpreter import Context, Interpreter
from executor.pool import read_ahead
from executor.state import JobState, Record, allocate_state
from executor.transport import Bell, Inbox, Link
from executor.wiring import Label, wire
from placement.errors import InvalidPlan
from placement.plan import Plan
from programs.instructions import Recv
from programs.transform import transform
from programs.verify import verify
from programs.workers import workers


class Buffer:
    """A channel inside one process: a message is copied once, like a slot of the ring, and read in place."""

    def __init__(self, layout: Layout) -> None:
        self._arrays: list[Any] = [np.zeros(shape, dtype) for shape, dtype in layout]
        self._copy = copier(layout)
        self.full = False

    def send(self, arrays: Sequence[Any], clock: Clock, progress: Progress) -> None:
        """Copy arrays into the buffer."""
        del clock, progress
        self._copy(self._arrays, arrays)
        self.full = True

    def receive(self, clock: Clock, progress: Progress) -> list[Any]:
        """Return the arrays of the last message."""
        del clock, progress
        self.full = False
        return self._arrays


class Buffers:
    """The transport inside one process; a plan of one session needs no more of it than channels."""

    def channel(self, source: str, target: str, layout: Layout, link: Link) -> Buffer:
        """Return a one-way channel."""
        del source, target, link
        return Buffer(layout)

    def bell(self, source: str, target: str) -> Bell:
        """Refuse: nobody exchanges parameters."""
        raise InvalidPlan(f"a loop-back run has no bell from {source} to {target}")

    def inbox(self, channels: Sequence[Any]) -> Inbox:
        """Refuse: nobody exchanges parameters."""
        raise InvalidPlan(f"a loop-back run has no inbox of {len(channels)} channels")

    def poke(self) -> None:
        """Messages are there at once."""

    def leave(self, channels: Iterable[Any]) -> None:
        """Nothing is under way."""


class Loopback:
    """One session of a plan, all its places in this process.

    Parameters
    ----------
    plan : Plan
        One group, one rank, one thread.
    stream : Stream
        Where batches come from.
    steps : int
        Steps that can be run.

    Raises
    ------
    InvalidPlan
        The plan has more than one session.
    """

    def __init__(self, plan: Plan, stream: Stream, steps: int) -> None:
        if len(plan.groups) * plan.ranks * plan.hogwild != 1:
            raise InvalidPlan("a loop-back run takes a plan with one group, one rank and one thread")
        job = verify(transform(plan))
        self.plan, self.steps = plan, steps
        self.pool = read_ahead(stream, plan.model, plan.batch, 1, steps)
        self.state: JobState = allocate_state(plan)
        self.state.initialise(plan.seed)
        self.workers = workers(job)
        wiring = wire(job, Buffers())
        self._channels: Mapping[Label, Any] = wiring.channels
        self.records = {worker.name: Record(worker, range(steps)) for worker in self.workers}
        context = Context(plan, self.state, lambda step: self.pool.take(0, step))
        self._interpreters = [
            Interpreter(Endpoint(w, wiring, Clock(ClockKind.CPU, 0.0), self.records[w.name]), context)
            for w in self.workers
        ]

    def run_step(self, step: int) -> float:
        """Run one step of all programs; returns the loss."""
        cursors = [self._run(interpreter, step) for interpreter in self._interpreters]
        open_cursors = list(cursors)
        while open_cursors:
            open_cursors = [cursor for cursor in open_cursors if next(cursor, "done") != "done"]
        return float(self.records["g0/n0/t0"].losses[step])

    def _run(self, interpreter: Interpreter, step: int) -> Iterator[str]:
        """Run a program; yield whenever its next message is not there yet."""
        interpreter.step = step
        program = interpreter.end.worker.program
        for index, instruction in enumerate(program):
            while isinstance(instruction, Recv) and not self._channels["session", 0, 0, 0, instruction.channel].full:
                yield "waits"
            interpreter.run_instruction(index)

    def busy_seconds(self, worker: str) -> npt.NDArray[np.float64]:
        """CPU seconds of each instruction of a worker, shape (steps, instructions)."""
        return self.records[worker].times[:, :, 2]
