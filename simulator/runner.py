"""The state of one simulated worker, and of the two kinds of worker that do not follow the steps of a batch.

Data only; ``simulator.interpreter`` moves it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from programs.instructions import Instruction
from programs.workers import Worker
from simulator.machines import Machine
from simulator.primitives import Mailbox, Message, Part, Primitive


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

    Attributes
    ----------
    flat : tuple of Primitive
        The same, one after the other; ``position`` points into it.
    step : int
        Steps (of a shadow worker: exchanges) that have ended.
    since : int
        Start of the primitive under way, in nanoseconds.
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
    flat: tuple[Primitive, ...] = ()
    position: int = 0
    step: int = 0
    since: int = 0
    begun: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    split: list[int] = field(default_factory=lambda: [0] * len(Part))
    finished: bool = False

    def __post_init__(self) -> None:
        self.flat = tuple(primitive for instruction in self.code for primitive in instruction)

    def under_way(self) -> tuple[int, Instruction]:
        """Return the index of the instruction under way, and the instruction."""
        passed = 0
        for index, primitives in enumerate(self.code):
            passed += len(primitives)
            if self.position < passed:
                return index, self.worker.program[index]
        return len(self.code) - 1, self.worker.program[-1]


@dataclass(eq=False, slots=True)
class Shadow:
    """A background sync worker: exchanges not more often than every ``gap`` steps of the worker that paces it."""

    runner: Runner
    pace: Runner
    gap: int
    idle: bool = True
    paced_at: list[int] = field(default_factory=list)  # steps of the pacing worker at the start of each exchange

    def due(self) -> bool:
        """Whether the next exchange may start."""
        last = self.paced_at[-1] if self.paced_at else 0
        return self.idle and self.pace.step - last >= self.gap


@dataclass(eq=False, slots=True)
class SyncServer:
    """A sync server: one thread that answers requests in the order of their arrival."""

    worker: Worker
    machine: Machine
    inbox: Mailbox
    queue: deque[Message] = field(default_factory=deque)
