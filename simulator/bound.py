"""The level ``bound``: throughput in closed form, for inner loops and as a check of the levels with events.

Three figures, from the same primitives that the other levels run; the prediction is the smallest:

1. latency bound: sessions / path, the path being one step on an idle cluster (:mod:`simulator.paths`);
2. bottleneck bound: no resource does more than it can (Denning and Buzen, Operational analysis, 1978);
3. mean value analysis: sessions queue at the resources. Approximate MVA of a closed network with one class per rank
   (Schweitzer 1979; Lazowska and others, Quantitative System Performance, 1984, section 7.4): an arriving session sees
   the queues of all sessions but its own part; n sessions on c cores go at min(1, c / n) of their speed. Servers answer
   side by side, so of their queues the longest counts; ranks that meet in an all-reduce go as fast as the slowest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.draws import meets
from simulator.engine import NANOSECONDS
from simulator.fidelity import Fidelity
from simulator.paths import Load, idle_paths, loads
from simulator.primitives import busy_ns
from simulator.report import bottleneck, failures_said, roles
from simulator.result import SPLIT, SimulationResult
from simulator.scenario import Scenario
from simulator.usage import RESOURCES, mean_by_role

Matrix = npt.NDArray[np.float64]

#: Rounds of the fixed point, and the relative change at which it has been reached.
ROUNDS, CLOSE = 500, 1e-7


@dataclass(frozen=True)
class Bounds:
    """Samples per second of the whole job: what each figure allows."""

    latency: float
    bottleneck: float
    mean_value: float

    @property
    def least(self) -> float:
        """The prediction."""
        return min(self.latency, self.bottleneck, self.mean_value)


def bounds(scenario: Scenario, threads: int) -> tuple[Bounds, Matrix]:
    """Work out the three figures.

    Parameters
    ----------
    scenario : Scenario
        One Hogwild thread of each rank, staged.
    threads : int
        Hogwild threads of each rank.

    Returns
    -------
    (Bounds, ndarray)
        The figures, and the waits of each rank's step by resource in nanoseconds, axes (ranks, stations).
    """
    load = loads(scenario, threads)
    paths = np.array(idle_paths(scenario), dtype=np.float64)
    per_ns = scenario.plan.batch * NANOSECONDS * scenario.folding.copies
    latency = float(np.sum(threads / paths))
    groups = _meets(scenario)
    most = float(bottleneck_rates(load, groups).sum())
    rates, waits = mean_value_analysis(load, paths, threads, groups)
    return Bounds(latency * per_ns, most * per_ns, float(rates.sum()) * per_ns), waits


def bottleneck_rates(load: Load, groups: Sequence[int]) -> Matrix:
    """Steps per nanosecond of each class that its busiest station allows, classes at a station taking equal parts.

    Parameters
    ----------
    load, groups
        As for :func:`mean_value_analysis`.
    """
    total = load.work.sum(axis=0)
    rooms = np.where(load.work > 0.0, load.capacity / np.where(total > 0.0, total, 1.0), math.inf)
    return _slowest(rooms.min(axis=1, initial=math.inf), np.asarray(groups))


def _slowest(rates: Matrix, groups: npt.NDArray[np.int64]) -> Matrix:
    """Rate of the slowest class of each class's group."""
    return np.array([rates[groups == group].min() for group in groups])


def mean_value_analysis(load: Load, paths: Matrix, threads: int, groups: Sequence[int]) -> tuple[Matrix, Matrix]:
    """Schweitzer's fixed point.

    Parameters
    ----------
    load : Load
        Work of each class at each station.
    paths : ndarray, shape (classes,)
        Nanoseconds of a step without queues.
    threads : int
        Customers of each class.
    groups : sequence of int
        For each class, its group; classes of one group go as fast as its slowest.

    Returns
    -------
    (ndarray, ndarray)
        Steps per nanosecond of each class; waits in nanoseconds, axes (classes, stations).
    """
    members, order = np.asarray(groups), sorted(set(load.owners))
    queues = np.zeros_like(load.work)
    rates, waits = threads / paths, queues
    owners = np.asarray(load.owners)
    for turn in range(ROUNDS):
        seen = np.maximum(load.copies * queues.sum(axis=0) - queues / threads, 0.0)
        crowd = np.maximum((1.0 + seen) / load.cores, 1.0) - 1.0
        waits = load.waited * crowd
        sums = {owner: waits[:, owners == owner].sum(axis=1) for owner in order}
        beside = [sums[owner] for owner in order if owner >= 0]
        excess = sums.get(-1, 0.0) + (np.max(beside, axis=0) if beside else 0.0)
        found = _slowest(threads / (paths + excess), members)
        close = turn > 0 and bool(np.all(np.abs(found - rates) <= CLOSE * found))
        rates = 0.5 * (rates + found)
        queues = 0.5 * (queues + rates[:, None] * load.work * (1.0 + crowd))
        if close:
            break
    return rates, waits


def bound(scenario: Scenario, threads: int, wall_seconds: float) -> SimulationResult:
    """Return what the closed forms predict, as a result without events.

    Parameters
    ----------
    scenario : Scenario
        One Hogwild thread of each rank, staged.
    threads : int
        Hogwild threads of each rank.
    wall_seconds : float
        What it took.
    """
    found, waits = bounds(scenario, threads)
    useful, said = failures_said(scenario)
    by_node = _utilization(scenario, threads, found.least)
    split = _split(scenario, waits)
    return SimulationResult(
        samples_per_second=found.least * useful,
        ci95=math.nan,
        utilization=mean_by_role(by_node, roles(scenario)),
        node_utilization=by_node,
        bottleneck=bottleneck(by_node, split, scenario),
        time_split=split,
        average_sync_gap=None,
        steps=0,
        warmup=0,
        sharing=scenario.sharing,
        events=0,
        simulated_seconds=0.0,
        wall_seconds=wall_seconds,
        timeline=None,
        left_out=(
            f"Closed form: latency bound {found.latency:,.0f}, bottleneck bound {found.bottleneck:,.0f}, mean value "
            f"analysis {found.mean_value:,.0f} samples per second; the smallest is the prediction.",
            "Waiting for peers and servers on an idle cluster is booked as transfer.",
            *(("Losses and checkpoints as events are left out.",) if scenario.conditions.eventful else ()),
            *said,
        ),
        fidelity=Fidelity.BOUND,
    )


def _meets(scenario: Scenario) -> list[int]:
    """For each rank, the group with which it goes in step: its own where ranks meet in every step."""
    meet = meets(scenario.plan)
    return [rank.worker.group if meet else index for index, rank in enumerate(scenario.ranks())]


def _utilization(scenario: Scenario, threads: int, samples_per_second: float) -> dict[str, dict[str, float]]:
    load = loads(scenario, threads)
    sessions = len(scenario.ranks())
    steps_per_ns = samples_per_second / (scenario.plan.batch * NANOSECONDS * scenario.folding.copies * sessions)
    busy = load.work.sum(axis=0) * steps_per_ns / load.capacity
    found = {machine.node.name: dict.fromkeys(RESOURCES, 0.0) for machine in scenario.machines}
    for name, fraction in zip(load.names, busy, strict=True):
        for node, resource in name:
            found[node][resource] = float(fraction)
    return found


def _split(scenario: Scenario, waits: Matrix) -> dict[str, float]:
    ranks = scenario.ranks()
    paths = idle_paths(scenario)
    work = [sum(map(busy_ns, rank.code)) for rank in ranks]
    mean = 1.0 / (len(ranks) * NANOSECONDS)
    split = dict.fromkeys(SPLIT, 0.0)
    split["compute"] = sum(work) * mean
    split["transfer"] = (sum(paths) - sum(work)) * mean
    split["contention"] = float(waits.sum()) * mean
    return split
