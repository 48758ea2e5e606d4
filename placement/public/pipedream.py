"""PipeDream's profiles: stages of a pipeline and how often each is replicated, exactly.

Knows the objective of optimizer/optimizer_graph_hierarchical.py of github.com/msr-fiddle/pipedream, one level of machines:
a stage on m machines takes (compute + 4 (m - 1) parameter_bytes / (bandwidth m)) / m seconds; the value is the largest
stage time. Activations travel for free and memory is unlimited, which are that program's defaults. Stages are differences
of ideals of the layer graph, all of them, of which that program's antichains are a part; at most n machines are used
(its option ``--use_fewer_machines``). So the optimum here is no more than the value there. Graphs with more than
``MAX_IDEALS`` ideals (Inception, NASNet) are split along one topological order; their bound is the compute time shared
by all machines evenly.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from placement.errors import InvalidPlan
from placement.public.hypergraph import Floats
from placement.public.ideals import TooManyIdeals, as_words, enumerate_ideals, members_of
from placement.public.result import BenchResult
from problem.public_graphs import PipeDreamProfile, topological_order

BANDWIDTH = 1_250_000_000.0
"""Bytes per second: 10 Gb/s, the ``-b 1250000000`` of the values that ours stand beside."""

MAX_IDEALS = 40_000


@dataclass(frozen=True)
class Stage:
    """Layers of a stage and its machines."""

    layers: tuple[int, ...]
    machines: int


def stage_seconds(profile: PipeDreamProfile, stage: Stage, bandwidth: float = BANDWIDTH) -> float:
    """Return the time of a stage per minibatch, in seconds."""
    compute = sum(profile.compute_seconds[layer] for layer in stage.layers)
    parameters = sum(profile.parameter_bytes[layer] for layer in stage.layers)
    m = stage.machines
    return (compute + 4 * (m - 1) * parameters / (bandwidth * m)) / m


def pipeline_seconds(
    profile: PipeDreamProfile, stages: Sequence[Stage], machines: int, bandwidth: float = BANDWIDTH
) -> float:
    """Return the largest stage time: the judge of a pipeline.

    Raises
    ------
    InvalidPlan
        When a layer is in no stage or in two, an edge leads backwards, or there are too many machines.
    """
    stage_of = {layer: number for number, stage in enumerate(stages) for layer in stage.layers}
    if len(stage_of) != len(profile.layers) or sum(len(stage.layers) for stage in stages) != len(stage_of):
        raise InvalidPlan(f"{profile.name}: every layer is in one stage")
    if any(stage_of[u] > stage_of[v] for u, v in profile.edges):
        raise InvalidPlan(f"{profile.name}: a stage feeds an earlier one")
    if sum(stage.machines for stage in stages) > machines:
        raise InvalidPlan(f"{profile.name}: more than {machines} machines")
    return max(stage_seconds(profile, stage, bandwidth) for stage in stages)


def solve_pipedream(profile: PipeDreamProfile, machines: int, bandwidth: float = BANDWIDTH) -> BenchResult:
    """Return an optimal pipeline, or along one order the best one where the ideals are too many."""
    began = time.monotonic()
    masks, exact = _ideals(profile)
    stages = _Program(profile, masks, machines, bandwidth).solve()
    value = pipeline_seconds(profile, stages, machines, bandwidth)
    return BenchResult(
        instance=f"{profile.name} n={machines}",
        value=value,
        bound=value if exact else min(value, sum(profile.compute_seconds) / machines),
        seconds=time.monotonic() - began,
        solution={"stages": [{"layers": list(stage.layers), "machines": stage.machines} for stage in stages]},
    )


def _ideals(profile: PipeDreamProfile) -> tuple[list[int], bool]:
    """Return all ideals as bit masks and True, or those of one order and False."""
    size = len(profile.layers)
    try:
        return enumerate_ideals(size, profile.edges, MAX_IDEALS), True
    except TooManyIdeals:
        order = topological_order(size, profile.edges, profile.name)
        return list(accumulate((1 << layer for layer in order), int.__or__, initial=0)), False


class _Program:
    """Table best[m, i]: least value of ideal i on at most m machines."""

    def __init__(self, profile: PipeDreamProfile, masks: Sequence[int], machines: int, bandwidth: float) -> None:
        size = len(profile.layers)
        words = as_words(masks, size)
        self.members = members_of(words, size)
        compute = self.members @ np.array(profile.compute_seconds)
        order = np.lexsort((self.members.sum(axis=1), np.round(compute, 12)))
        self.words, self.members = np.ascontiguousarray(words[:, order]), self.members[order]
        self.compute = np.maximum.accumulate(compute[order])
        self.parameters = self.members @ np.array(profile.parameter_bytes)
        self.machines, self.bandwidth = machines, bandwidth

    def solve(self) -> list[Stage]:
        """Fill the table and walk back through it."""
        count = len(self.compute)
        self.best = np.full((self.machines + 1, count), np.inf)
        self.best[:, 0] = 0.0
        single = [self._seconds(count - 1, np.array([0]), m)[0] for m in range(1, self.machines + 1)]
        self.worst = min(single) * (1 + 1e-9)
        for i in range(1, count):
            within = self._subsets(i)
            for m in range(1, self.machines + 1):
                self._replicate(i, within, m)
            np.minimum.accumulate(self.best[:, i], out=self.best[:, i])
        return self._trace()

    def _seconds(self, i: int, within: NDArray[np.int64], machines: int) -> Floats:
        """Return the times of the stages I - J on some machines."""
        traffic = 4 * (machines - 1) / (self.bandwidth * machines)
        parameters = self.parameters[i] - self.parameters[within]
        return np.asarray((self.compute[i] - self.compute[within] + traffic * parameters) / machines)

    def _subsets(self, i: int) -> NDArray[np.int64]:
        """Return the ideals J within ideal i that all machines together could take on to i in time."""
        first = int(np.searchsorted(self.compute, self.compute[i] - self.worst * self.machines - 1e-12))
        missing = ~self.words[:, i]
        within = np.arange(first, i)
        for word, absent in zip(self.words, missing, strict=True):
            within = within[(word[within] & absent) == 0]
        return within

    def _replicate(self, i: int, within: NDArray[np.int64], machines: int) -> None:
        """Put the stages I - J on ``machines`` machines, whatever is before them."""
        seconds = self._seconds(i, within, machines)
        fast = seconds <= self.worst
        if fast.any():
            through = np.maximum(self.best[: self.machines + 1 - machines, within[fast]], seconds[fast]).min(axis=1)
            np.minimum(self.best[machines:, i], through, out=self.best[machines:, i])

    def _trace(self) -> list[Stage]:
        stages, i, left = [], len(self.compute) - 1, self.machines
        while i:
            within = self._subsets(i)
            through = [np.maximum(self.best[left - m, within], self._seconds(i, within, m)) for m in range(1, left + 1)]
            m = min(range(left), key=lambda k: float(through[k].min()))
            j = int(within[through[m].argmin()])
            stages.append(Stage(tuple(np.flatnonzero(self.members[i] > self.members[j]).tolist()), m + 1))
            i, left = j, left - m - 1
        return stages[::-1]
