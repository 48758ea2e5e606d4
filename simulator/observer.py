"""Watches a simulation: reads the counters when the warm-up ends and when the first session ends.

Knows which moments matter for the figures; ``simulator.report`` turns what it saw into a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from simulator import statistics
from simulator.draws import STRATA
from simulator.interpreter import Interpreter
from simulator.runner import Runner
from simulator.scenario import Scenario
from simulator.usage import Snapshot, snapshot
from simulator.watching import WatchedInterpreter, Watcher

#: Steps after the warm-up before which a run is not ended early: three batches of two (2 degrees of freedom, t = 4.3).
ENOUGH_STEPS = 6
#: The same where so many sessions are averaged: two batches of two (1 degree of freedom, t = 12.7).
ENOUGH_STEPS_OF_MANY, MANY_SESSIONS = 4, 1000
#: Checks in a row at which the interval must be narrow enough: of few sessions, one alone is often narrow by chance.
PRECISE_CHECKS = 2


class Observer:
    """Runs a scenario and watches it.

    Parameters
    ----------
    scenario : Scenario
        What is run.
    steps : int
        Steps of every session, at most.
    warmup : int
        Steps left out of the figures.
    record : bool
        Whether to keep the end of every instruction.

    precision : float or None
        Half width of the interval, relative to the throughput, at which the run may end before all steps are made.

    watcher : Watcher or None
        Told of every instruction.
    progress : callable or None
        Told the part of the steps that has been made.

    Attributes
    ----------
    splits : dict of Runner to list of int
        Time split of each rank when its warm-up ended.
    """

    def __init__(
        self,
        scenario: Scenario,
        steps: int,
        warmup: int,
        record: bool,
        precision: float | None = None,
        watcher: Watcher | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self._progress, self._told = progress, 0.0
        self.scenario, self.warmup, self.record, self.precision = scenario, warmup, record, precision
        self._steps_made = 0
        self._finishing, self._precise = False, 0
        self.ranks = scenario.ranks()
        parts = (scenario.engine, scenario.network, scenario.lowering, steps, record, self.step, self.notices)
        self.interpreter = _interpreter(watcher, scenario, *parts, scenario.fans, scenario.outages)
        self.splits: dict[Runner, list[int]] = {}
        self._begin = self.take_snapshot()
        self._end: Snapshot | None = None

    @property
    def steps(self) -> int:
        """Steps that every session makes."""
        return self.interpreter.steps

    def run(self) -> None:
        """Run to the end."""
        scenario = self.scenario
        self.interpreter.run(scenario.starts(), scenario.shadows, scenario.servers)

    def window(self) -> tuple[Snapshot, Snapshot]:
        """Counters when all ranks had ended the warm-up and when the first had ended its last step.

        Counters of the whole run where there is no such window.
        """
        last = self._end or self.take_snapshot()
        if last.time_ns > self._begin.time_ns:
            return self._begin, last
        empty = Snapshot(self.scenario.engine.begin_ns, 0, tuple(tuple(0.0 for _ in column) for column in last.served))
        return empty, self.take_snapshot()

    def take_snapshot(self) -> Snapshot:
        """Read all counters now."""
        return snapshot(self.scenario.engine, self.scenario.machines, self.scenario.network)

    def rates(self) -> tuple[float, float]:
        """Samples per second of the simulated groups after the warm-up, and the half width of its 95 % interval."""
        done, begun = [rank.done for rank in self.ranks], [rank.start_ns for rank in self.ranks]
        plan = self.scenario.plan
        period = plan.sync.gap if plan.sync is not None and plan.sync.mode == "foreground" else 1
        known = self.scenario.mixing and not self.scenario.conditions.workers_differ  # then the mean factor is 1
        if self.scenario.mixing and not known and self.steps - self.warmup >= 4 * STRATA:
            period = math.lcm(period, STRATA)  # whole strata: their mean is 1
        factors = [rank.factors for rank in self.ranks] if known else None
        return statistics.estimate(done, begun, plan.batch, self.warmup, period, factors)

    def step(self, runner: Runner) -> None:
        """Note the end of a worker's step; called by the interpreter."""
        if runner.worker.role != "rank":
            return
        if runner.step == self.warmup:
            self.splits[runner] = list(runner.split)
            if len(self.splits) == len(self.ranks):
                self._begin = self.take_snapshot()
        if runner.step == self.steps and self._end is None:
            self._end = self.take_snapshot()
        self._steps_made += 1
        if self._progress is not None:
            self._tell(self._progress)
        if self.precision is not None and self._steps_made % len(self.ranks) == 0:
            self._finish_if_precise(self.precision)

    def notices(self, runner: Runner) -> bool:
        """Whether anything is read or decided at the end of the step that a worker is in."""
        return self.precision is not None or runner.step + 1 in (self.warmup, self.steps)

    def _tell(self, progress: Callable[[float], None]) -> None:
        done = min(1.0, self._steps_made / (self.steps * len(self.ranks)))
        if done >= self._told + 0.01 or done == 1.0:
            self._told = done
            progress(done)

    def _finish_if_precise(self, precision: float) -> None:
        """End the run when enough steps have been made and the interval is narrow enough."""
        enough = ENOUGH_STEPS if len(self.ranks) < MANY_SESSIONS else ENOUGH_STEPS_OF_MANY
        if self._finishing or min(rank.step for rank in self.ranks) < self.warmup + enough:
            return
        rate, half_width = self.rates()
        self._precise = self._precise + 1 if half_width <= precision * rate else 0
        if self._precise == (PRECISE_CHECKS if len(self.ranks) < MANY_SESSIONS else 1):
            self._finishing = True
            self.interpreter.finish()


def _interpreter(watcher: Watcher | None, scenario: Scenario, *parts: Any) -> Interpreter:
    """Return the plain interpreter, which asks nothing on its way, unless somebody watches."""
    if watcher is None:
        return Interpreter(*parts)
    sync = scenario.plan.sync
    return WatchedInterpreter(watcher, sync.gap if sync is not None else 1, *parts)
