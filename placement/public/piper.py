"""Piper's instances: pipeline stages with data- and tensor-parallel degrees and a variant of every layer.

Knows the objective of algo.cpp of github.com/msr-fiddle/piper (Tarnawski et al., NeurIPS 2021). A stage with data-parallel
degree d and tensor-parallel degree t takes, per sample,

    [sum of 2 (c + sync) over its cut edges / d + 4 (d - 1) w / (d N)] / bandwidth + sum of timePerSample / d

and needs sum of (A y + B) bytes, y being the samples in flight: the d of this and all later stages over its own d, rounded
up. The value is the slowest stage; sum of t d <= devices, every d divides N, the sum of d is at most N.

How it is solved: for a limit V the question is the least number of devices, by set of last layers and sum of d; one table
with a row for each set answers it, and V is bisected. Variants of a stage are a knapsack (:mod:`placement.public.variants`):
its heuristic gives the value, its relaxation the bound.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from placement.errors import DoesNotFit, InvalidPlan
from placement.public.hypergraph import Floats
from placement.public.result import BenchResult
from placement.public.variants import StageSets, stage_sets
from problem.public_graphs import PiperInstance

TOLERANCE = 1e-9
"""Relative precision of the bisection."""

UNREACHABLE = 1 << 30


@dataclass(frozen=True)
class PiperStage:
    """A stage: its layers with their variants, its data-parallel and its tensor-parallel degree."""

    variants: Mapping[int, str]
    d: int
    t: int


def piper_seconds(instance: PiperInstance, stages: Sequence[PiperStage]) -> float:
    """Return the value of a pipeline, in seconds per sample: the judge.

    Raises
    ------
    InvalidPlan
        When a rule of the instance is broken; says which.
    """
    _check(instance, stages)
    in_flight = sum(stage.d for stage in stages)
    slowest = 0.0
    for stage in stages:
        slowest = max(slowest, _stage_seconds(instance, stage, -(-in_flight // stage.d)))
        in_flight -= stage.d
    return slowest


def _stage_seconds(instance: PiperInstance, stage: PiperStage, y: int) -> float:
    options = {layer: {o.id: o for o in instance.variants[layer].get(stage.t, ())} for layer in stage.variants}
    try:
        chosen = {layer: options[layer][name] for layer, name in stage.variants.items()}
    except KeyError as error:
        raise InvalidPlan(f"{instance.name}: no variant {error} at tensor-parallel degree {stage.t}") from None
    memory = sum(option.memoryUsageA * y + option.memoryUsageB for option in chosen.values())
    if memory > instance.memory_bytes:
        raise InvalidPlan(f"{instance.name}: a stage needs {memory:,.0f} bytes of {instance.memory_bytes:,.0f}")
    moved = 0.0
    for (u, v), cost in instance.edges.items():
        if u in chosen and v not in chosen:
            moved += 2 * (cost + chosen[u].syncTimeBw[instance.ids[v]])
        elif v in chosen and u not in chosen:
            moved += 2 * (cost + chosen[v].syncTimeFw[instance.ids[u]])
    weights = sum(option.parameterSize for option in chosen.values())
    shared = 4 * (stage.d - 1) * weights / stage.d / instance.microbatches
    compute = sum(option.timePerSample for option in chosen.values())
    return (moved / stage.d + shared) / instance.bandwidth + compute / stage.d


def _check(instance: PiperInstance, stages: Sequence[PiperStage]) -> None:
    stage_of = {layer: number for number, stage in enumerate(stages) for layer in stage.variants}
    broken = {
        "every layer is in one stage": len(stage_of) != len(instance.ids)
        or sum(len(stage.variants) for stage in stages) != len(stage_of),
        "stages feed later ones": any(
            stage_of[u] > stage_of[v] for u, v in instance.edges if {u, v} <= stage_of.keys()
        ),
        "devices suffice": sum(stage.d * stage.t for stage in stages) > instance.devices,
        "degrees divide the batch": any(instance.microbatches % stage.d for stage in stages),
        "degrees sum to the batch at most": sum(stage.d for stage in stages) > instance.microbatches,
    }
    for rule, is_broken in broken.items():
        if is_broken:
            raise InvalidPlan(f"{instance.name}: not so that {rule}")


def solve_piper(instance: PiperInstance) -> BenchResult:
    """Return the best pipeline and a bound.

    Raises
    ------
    DoesNotFit
        When no pipeline fits the devices' memory.
    """
    began = time.monotonic()
    sets = stage_sets(instance)
    stages, _ = _Search(instance, sets, sets.extra_seconds).run()
    value = piper_seconds(instance, stages)
    bound = value
    if (sets.relaxed_seconds < sets.extra_seconds).any():
        bound = min(value, _Search(instance, sets, sets.relaxed_seconds).run()[1])
    return BenchResult(
        instance=instance.name,
        value=value,
        bound=bound if sets.complete else 0.0,
        seconds=time.monotonic() - began,
        solution={
            "stages": [
                {"variants": {instance.ids[i]: name for i, name in stage.variants.items()}, "d": stage.d, "t": stage.t}
                for stage in stages
            ]
        },
    )


class _Search:
    """Bisection over the value; ``extra`` is what variants that fit cost beyond the fastest ones."""

    def __init__(self, instance: PiperInstance, sets: StageSets, extra: Floats) -> None:
        self.instance, self.sets, self.extra = instance, sets, extra
        self.most = min(instance.devices, instance.microbatches)
        degrees = [d for d in range(1, self.most + 1) if instance.microbatches % d == 0]
        self.choices = [(k, t, d) for k, t in enumerate(sets.degrees) for d in degrees if t * d <= instance.devices]

    @cached_property
    def _runs(self) -> list[tuple[int, slice]]:
        """Return each set of last layers with its slice of pairs."""
        outer = self.sets.outer
        edges = [0, *(np.flatnonzero(np.diff(outer)) + 1).tolist(), len(outer)]
        return [(int(outer[a]), slice(a, b)) for a, b in pairwise(edges) if b > a]

    def _seconds(self, k: int, d: int) -> Floats:
        """Return the time of every pair at a degree, shape (pairs, samples in flight)."""
        sets, one = self.sets, self.instance
        sync = 4 * (d - 1) / (d * one.microbatches * one.bandwidth) * sets.weight_bytes[k]
        fixed = (sets.compute_seconds[k] + sets.moved_bytes[k] / one.bandwidth) / d + sync
        return np.asarray(fixed[:, None] + self.extra[k] / d)

    def run(self) -> tuple[list[PiperStage], float]:
        """Return an optimal pipeline, and a value below which there is none."""
        everything = np.concatenate([self._seconds(k, d).ravel() for k, _, d in self.choices])
        values = np.unique(everything[np.isfinite(everything)])
        low, high = 0, len(values)
        while low < high:
            middle = (low + high) // 2
            if self._table(float(values[middle])) is None:
                low = middle + 1
            else:
                high = middle
        if low == len(values):
            raise self._does_not_fit()
        limit = float(values[low])
        table = self._table(limit)
        assert table is not None
        return self._trace(table, limit), limit * (1 - TOLERANCE)

    def _in_flight(self, limit: float) -> list[NDArray[np.int64]]:
        """Return, for every choice and pair, the most samples in flight at which the stage keeps the limit."""
        reach = limit * (1 + 1e-12)
        return [(self._seconds(k, d) <= reach).sum(axis=1) for k, _, d in self.choices]

    def _table(self, limit: float) -> NDArray[np.int64] | None:
        """Return the least devices by set of last layers and sum of d; None if all layers need too many."""
        flights = self._in_flight(limit)
        table = np.full((self.sets.count, self.most + 1), UNREACHABLE, dtype=np.int64)
        table[0, 0] = 0
        for outer, pairs in self._runs:
            for (_, t, d), flight in zip(self.choices, flights, strict=True):
                for pair in np.flatnonzero(flight[pairs]) + pairs.start:
                    last = min(self.most, d * int(flight[pair]))
                    before = table[self.sets.inner[pair], : last - d + 1] + t * d
                    np.minimum(table[outer, d : last + 1], before, out=table[outer, d : last + 1])
        return table if table[-1].min() <= self.instance.devices else None

    def _trace(self, table: NDArray[np.int64], limit: float) -> list[PiperStage]:
        """Walk back from all layers; the first stage comes first."""
        flights, stages = self._in_flight(limit), []
        at, s = self.sets.count - 1, int(table[-1].argmin())
        while at:
            pair, choice = self._step(table, flights, at, s)
            k, t, d = self.choices[choice]
            stages.append(PiperStage(self.sets.variants(pair, k, -(-s // d)), d, t))
            at, s = int(self.sets.inner[pair]), s - d
        return stages

    def _step(self, table: NDArray[np.int64], flights: list[NDArray[np.int64]], at: int, s: int) -> tuple[int, int]:
        """Return a pair and a choice by which the entry of the table came about."""
        for choice, (_, t, d) in enumerate(self.choices):
            pairs = np.flatnonzero((self.sets.outer == at) & (d * flights[choice] >= s))
            if d <= s:
                fits = pairs[table[self.sets.inner[pairs], s - d] + t * d == table[at, s]]
                if len(fits):
                    return int(fits[0]), choice
        raise AssertionError("an entry of the table has no origin; please report this")

    def _does_not_fit(self) -> DoesNotFit:
        needed = float(min(self.sets.least_bytes(k).max() for k in range(len(self.sets.degrees))))
        where = f"the {self.instance.devices} devices of {self.instance.name}"
        return DoesNotFit("the layers, in any pipeline,", where, needed, self.instance.memory_bytes)
