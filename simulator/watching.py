"""The observer hook: somebody is told of the start and the end of every instruction, in the order of simulated time.

So that real mathematics can be driven in simulated time, or anything be measured that a result does not tell. Without a
watcher the interpreter is the plain one: nothing is asked on its way. Knows who updates which parameters; nothing of their
values.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Protocol

from programs.instructions import Average, Instruction, SyncStep, Update
from programs.workers import Worker
from simulator.engine import NANOSECONDS
from simulator.interpreter import Interpreter
from simulator.runner import Runner


@dataclass(frozen=True, slots=True)
class Moment:
    """Start or end of an instruction.

    Parameters
    ----------
    worker : Worker
        Who: its name, node, group, rank and thread.
    step, index : int
        Which step of the worker, from 0 (of a shadow worker: exchange), and which instruction of its program.
    instruction : Instruction
        What.
    time_ns : int
        When, in simulated nanoseconds.
    version : int
        Version of the parameters on the worker's node: how many updates and exchanges have changed them so far. At the
        end of an update it counts that update.
    """

    worker: Worker
    step: int
    index: int
    instruction: Instruction
    time_ns: int
    version: int

    @property
    def seconds(self) -> float:
        """When, in simulated seconds."""
        return self.time_ns / NANOSECONDS


class Watcher(Protocol):
    """Told of everything, at the instant at which it happens; changes nothing."""

    def begun(self, moment: Moment) -> None:
        """An instruction has begun: it will wait, work or both."""

    def ended(self, moment: Moment) -> None:
        """An instruction has ended; what it changed is changed now."""


class WatchedInterpreter(Interpreter):
    """An interpreter that tells a watcher.

    Parameters
    ----------
    watcher : Watcher
        Whom.
    gap : int
        Steps between two foreground exchanges.
    others
        As of :class:`simulator.interpreter.Interpreter`.
    """

    def __init__(self, watcher: Watcher, gap: int, *others: Any) -> None:
        super().__init__(*others)
        self._noted = True
        self._watcher, self._gap = watcher, gap
        self._versions: dict[str, int] = defaultdict(int)

    def _begin(self, runner: Runner) -> None:
        self._watcher.begun(self._moment(runner, 0, runner.step))
        super()._begin(runner)

    def _passed(self, runner: Runner) -> bool:
        if not runner.flat[runner.position].last:
            return super()._passed(runner)
        index = runner.origin[runner.position]
        instruction = runner.worker.program[index]
        if isinstance(instruction, Update) or (isinstance(instruction, SyncStep | Average) and self._exchanges(runner)):
            self._versions[runner.worker.node.name] += 1
        self._watcher.ended(self._moment(runner, index, runner.step))
        goes_on = super()._passed(runner)
        if goes_on:
            self._watcher.begun(self._moment(runner, runner.origin[runner.position], runner.step))
        return goes_on

    def _exchanges(self, runner: Runner) -> bool:
        """Whether an exchange is made in this step: always by a shadow worker."""
        return runner.worker.role == "shadow" or (runner.step + 1) % self._gap == 0

    def _moment(self, runner: Runner, index: int, step: int) -> Moment:
        worker = runner.worker
        version = self._versions[worker.node.name]
        return Moment(worker, step, index, worker.program[index], self._engine.now, version)
