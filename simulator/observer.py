"""Watches a simulation: reads the counters when the warm-up ends and when the first session ends, and may end it early.

Knows which moments matter for the figures; ``simulator.report`` turns what it saw into a result.
"""

from __future__ import annotations

import math
from collections import Counter

from simulator import statistics
from simulator.interpreter import Interpreter
from simulator.runner import Runner
from simulator.scenario import Scenario
from simulator.usage import Snapshot, snapshot

#: Steps that a run that may end early makes at least: 10 steps of a thread were within 0.7 % of 300 on contended
#: clusters (hierarchical model, 1 group of 8 nodes with 24 threads, independent implementation; docs/simulation.md).
FEWEST_STEPS = 10


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
        Relative half width of the confidence interval at which the run ends; None for all steps.

    Attributes
    ----------
    splits : dict of Runner to list of int
        Time split of each rank when its warm-up ended.
    """

    def __init__(self, scenario: Scenario, steps: int, warmup: int, record: bool, precision: float | None) -> None:
        self.scenario, self.warmup, self.record = scenario, warmup, record
        self.ranks = scenario.ranks()
        self.interpreter = Interpreter(scenario.engine, scenario.network, scenario.lowering, steps, record, self.step)
        self.splits: dict[Runner, list[int]] = {}
        self._precision = precision
        self._ended: Counter[int] = Counter()  # by number of the step: ranks that have ended it
        self._begin = self.take_snapshot()
        self._end: Snapshot | None = None

    def run(self) -> None:
        """Run to the end."""
        scenario = self.scenario
        self.interpreter.run(scenario.starts(), scenario.shadows, scenario.servers)

    @property
    def steps(self) -> int:
        """Steps that every session made."""
        return self.interpreter.steps

    def window(self) -> tuple[Snapshot, Snapshot]:
        """Counters when all ranks had ended the warm-up and when the first had ended its last step.

        Counters of the whole run where there is no such window.
        """
        last = self._end or self.take_snapshot()
        if last.time_ns > self._begin.time_ns:
            return self._begin, last
        empty = Snapshot(0, 0, tuple(tuple(0.0 for _ in column) for column in last.served))
        return empty, self.take_snapshot()

    def take_snapshot(self) -> Snapshot:
        """Read all counters now."""
        return snapshot(self.scenario.engine, self.scenario.machines, self.scenario.network)

    def rates(self) -> tuple[float, float]:
        """Samples per second of the simulated groups after the warm-up, and the half width of its 95 % interval."""
        return self._rates(self.steps)

    def _rates(self, steps: int) -> tuple[float, float]:
        done, begun = [rank.done for rank in self.ranks], [rank.begun[0] for rank in self.ranks]
        batch = self.scenario.plan.batch
        rate = statistics.throughput(done, begun, batch, self.warmup, steps)
        return rate, statistics.half_width(done, begun, batch, self.warmup, steps)

    def step(self, runner: Runner) -> None:
        """Note the end of a worker's step; called by the interpreter."""
        if runner.worker.role != "rank":
            return
        if runner.step == self.warmup:
            self.splits[runner] = list(runner.split)
        self._ended[runner.step] += 1
        if self._ended[runner.step] == len(self.ranks):
            self._all_ended(runner.step)
        if runner.step == self.steps and self._end is None:
            self._end = self.take_snapshot()

    def _all_ended(self, step: int) -> None:
        if step == self.warmup:
            self._begin = self.take_snapshot()
        if self._precision is not None and step >= self.warmup + FEWEST_STEPS:
            rate, half_width = self._rates(step)
            if math.isfinite(rate) and half_width <= self._precision * rate:
                self._precision = None
                self.interpreter.finish_early()
