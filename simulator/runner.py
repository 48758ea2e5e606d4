"""The state of one simulated worker, and of the two kinds of worker that do not follow the steps of a batch.

Data only; ``simulator.interpreter`` moves it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from programs.instructions import Instruction
from programs.workers import Worker
from simulator.draws import Draws
from simulator.machines import Machine
from simulator.primitives import Answer, EveryGap, Lag, Mailbox, Message, Part, Primitive, Work, busy_ns


@dataclass(eq=False, slots=True)
class Runner:
    """A worker while it is simulated.

    Parameters
    ----------
    worker : Worker
        Who it is.
    machine : Machine
        Where it runs.
    code : tuple of tuple of Primitive
        Primitives of each instruction.
    draws : Draws
        By how much its core times vary.

    Attributes
    ----------
    flat : list of Primitive
        The same, one after the other; ``position`` points into it.
    origin : list of int
        For each of them, the index of its instruction.
    step : int
        Steps (of a shadow worker: exchanges) that have ended.
    since, core_ns : int
        Start of the primitive under way and, if it is work, its core time.
    ahead_ns : int
        Core time of the next work that was spent while waiting.
    own_core : list or None
        A core that nobody else uses; then ``clock`` is the worker's own time (:mod:`simulator.ahead`), else it stays 0.
    work_ns, busy_ns : int
        Core time of a step before the ranks of a group meet, and of all of it.
    factors : list of float
        For each step, what its core times are multiplied by.
    begun, done : list of int
        Start and end of each step.
    ends : list of int
        End of each instruction executed so far, if times are recorded; each starts where the one before it ended.
    split : list of int
        Nanoseconds so far, by :class:`Part`.
    """

    worker: Worker
    machine: Machine
    code: tuple[tuple[Primitive, ...], ...]
    draws: Draws
    flat: list[Primitive] = field(default_factory=list)
    origin: list[int] = field(default_factory=list)
    position: int = 0
    step: int = 0
    since: int = 0
    core_ns: int = 0
    ahead_ns: int = 0
    own_core: Any = None
    clock: int = 0
    factor: float = 1.0
    factors: list[float] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    split: list[int] = field(default_factory=lambda: [0] * len(Part))
    finished: bool = False
    work_ns: int = 0
    busy_ns: int = 0
    first_ns: int = -1

    def __post_init__(self) -> None:
        for index, primitives in enumerate(self.code):
            if primitives:
                self.flat.extend(primitives)
                self.origin.extend([index] * len(primitives))
        before = itertools.takewhile(lambda primitive: not isinstance(primitive, Lag), self.flat)
        self.work_ns = busy_ns(before)
        self.busy_ns = busy_ns(self.flat)

    def begin_step(self, now: int) -> None:
        """Note the start of a step and draw how long its work takes."""
        self.begun.append(now)
        self.factor = self.draws.step_factor()
        self.factors.append(self.factor)

    def time(self, now: int) -> int:
        """Return the clock's time or, of a worker that is ahead of it, its own."""
        return now if self.clock <= now else self.clock

    @property
    def start_ns(self) -> int:
        """When the first step began, lost ones included."""
        return self.first_ns if self.first_ns >= 0 else self.begun[0]

    def rewind(self, step: int) -> None:
        """Forget all steps after a step, as if they had not been made; the time that they took stays spent."""
        self.first_ns = self.start_ns
        del self.begun[step:], self.done[step:], self.factors[step:], self.ends[step * len(self.code) :]
        self.step = step

    def lag_ns(self, ranks: int) -> int:
        """Draw by how much the slowest of ``ranks`` alike is behind this one in core time of the step."""
        return round(self.draws.lag_factor(ranks) * self.work_ns)

    def merge(self) -> None:
        """Let successive work be one job: the time is the same where memory bandwidth does not bind.

        The primitives then no longer tell where an instruction ends.
        """
        if any(isinstance(primitive, EveryGap) for primitive in self.flat):
            return
        flat, origin = self.flat, self.origin
        self.flat, self.origin = [], []
        for primitive, index in zip(flat, origin, strict=True):
            last = self.flat[-1] if self.flat else None
            if isinstance(last, Work) and isinstance(primitive, Work) and last.part is primitive.part:
                core, traffic = last.core_ns + primitive.core_ns, last.traffic_bytes + primitive.traffic_bytes
                self.flat[-1] = Work(core, traffic, part=last.part)
            else:
                self.flat.append(primitive)
                self.origin.append(index)

    def under_way(self) -> tuple[int, Instruction]:
        """Return the index of the instruction under way, and the instruction."""
        index = self.origin[min(self.position, len(self.origin) - 1)]
        return index, self.worker.program[index]


@dataclass(eq=False, slots=True)
class Shadow:
    """A background sync worker: one exchange for every ``gap`` steps of the worker that paces it, which never waits."""

    runner: Runner
    pace: Runner
    gap: int
    idle: bool = True
    paced_at: list[int] = field(default_factory=list)  # steps of the pacing worker at the start of each exchange

    def due(self) -> bool:
        """Whether the next exchange may start."""
        return self.idle and len(self.paced_at) < self.pace.step // self.gap


@dataclass(eq=False, slots=True)
class SyncServer:
    """A sync server: one thread that answers requests in the order of their arrival.

    Where it takes all groups together, ``parties`` requests of one node make a round; they wait in ``arrived`` for it.
    """

    worker: Worker
    machine: Machine
    inbox: Mailbox
    parties: int = 1
    queue: deque[tuple[Answer, ...]] = field(default_factory=deque)
    arrived: dict[int, list[Answer]] = field(default_factory=lambda: defaultdict(list))

    def admit(self, message: Message) -> tuple[Answer, ...]:
        """Take a request; return those that are answered together now, none if others of the round are missing."""
        answer = message.answer
        if answer is None:
            return ()
        waiting = self.arrived[answer.node]
        waiting.append(answer)
        if len(waiting) < self.parties:
            return ()
        del self.arrived[answer.node]
        return tuple(waiting)
