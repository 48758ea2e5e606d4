"""Quality against the number of replicas, at equal samples: why hierarchical training joins machines into groups.

EASGD as in the executor's foreground mode, in one process and so deterministic, with a stated staleness: all replicas
compute a step on the tables as they were before it, then apply their gradients to the shared tables in turn; every ``GAP``
steps they exchange with the centre in turn (x += alpha (centre - x), centre -= the same; alpha = 0.9 / replicas, Zhang,
Choromanska and LeCun, 2015). A group is one replica: with one rank its machines share the work of a batch (model
parallelism), with K ranks a step is the mean over K batches, what a synchronous all-reduce computes. What is used in the
end is the centre.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from executor.arrays import Floats
from executor.data import Batch
from executor.oracle import Oracle
from executor.parameters import Parameters
from executor.pushing import Rounding
from experiments.quality.study import Watch, in_parallel, interval
from experiments.quality.task import Clicks, clicks, dlrm
from problem.graph import FLOAT_BYTES
from problem.model import Model

Row = dict[str, Any]

#: Batches of 128 samples that all machines together train on.
BATCHES = 2048
#: How many times the rate of one rank a group has whose step is the mean over K ranks' batches: once, the root of K, or K
#: (the linear rule of Goyal et al., 2017, without their warm-up).
SCALINGS: Mapping[str, Callable[[int], float]] = {"none": lambda ranks: 1.0, "root": math.sqrt, "linear": float}
MACHINES = (1, 2, 4, 8, 16)
RATES = (0.1, 0.4)
SEEDS = 5
#: Steps between two exchanges, and the sum of all replicas' elastic rates.
GAP, BETA = 4, 0.9


@dataclass(frozen=True)
class Fleet:
    """How machines train together.

    Parameters
    ----------
    machines, group_size, ranks : int
        All machines, those of a group, and those of a group that read batches.
    rate : float
        Learning rate of a group with one rank.
    scaling : str
        One of :data:`SCALINGS`.
    """

    machines: int
    group_size: int
    ranks: int
    rate: float
    scaling: str = "none"

    @property
    def replicas(self) -> int:
        """Copies of the dense parameters that differ between exchanges."""
        return self.machines // self.group_size

    @property
    def training(self) -> tuple[int, int, float]:
        """What its quality depends on: fleets of equal replicas, ranks and rate compute the same."""
        return self.replicas, self.ranks, self.scaled_rate

    @property
    def scaled_rate(self) -> float:
        """Learning rate that it trains with."""
        return self.rate * SCALINGS[self.scaling](self.ranks)


class Replicas:
    """Replicas of a model kept together by EASGD; embedding tables are shared.

    Parameters
    ----------
    model : Model
        The model.
    count : int
        Replicas; one needs no centre.
    seed : int
        Seed of the start values, the same for all, and of random rounding.
    codec : str
        What exchanges are rounded by, as in a plan; empty: nothing.
    """

    def __init__(self, model: Model, count: int, seed: int, codec: str = "") -> None:
        first = Oracle(model, seed)
        self.replicas = [first, *(self._copy(model, seed, first) for _ in range(count - 1))]
        #: Where all start, and where the exchanges meet.
        self.centre = self._copy(model, seed, first)
        self._rounded = {op.name: Rounding(op, codec, seed) for op in model.graph if op.parameters and codec}
        #: Of each replica by operator, what rounding took from its parameters in the last exchange.
        self._errors = [
            {name: np.zeros_like(first.parameters.flat(name)) for name in self._rounded} for _ in range(count)
        ]
        self._steps = 0

    @staticmethod
    def _copy(model: Model, seed: int, first: Oracle) -> Oracle:
        parameters = Parameters(model)
        parameters.initialise(seed)
        return Oracle(model, seed, trained=(parameters, first.tables))

    def step(self, batches: list[Batch]) -> float:
        """Train each replica on a batch of its own; exchange if it is time. Return their mean loss before the update."""
        losses = [replica.backward(batch) for replica, batch in zip(self.replicas, batches, strict=True)]
        for replica, batch in zip(self.replicas, batches, strict=True):
            replica.update(batch)
        self._steps += 1
        if len(self.replicas) > 1 and self._steps % GAP == 0:
            self.exchange(BETA / len(self.replicas))

        return sum(losses) / len(losses)

    def exchange(self, alpha: float) -> None:
        """Move every replica and the centre towards each other, in turn."""
        for group, replica in enumerate(self.replicas):
            for name in replica.parameters.operators:
                mine, centre = replica.parameters.flat(name), self.centre.parameters.flat(name)
                difference = self._difference(group, name, np.float32(alpha))
                mine += difference
                centre -= difference

    def _difference(self, group: int, name: str, alpha: np.float32) -> Floats:
        """Return what a replica's parameters and the centre move by: as it arrives, if exchanges are rounded."""
        mine, centre = (one.parameters.flat(name) for one in (self.replicas[group], self.centre))
        if name not in self._rounded:
            return alpha * (centre - mine)
        rounded, number = self._rounded[name], self._steps // GAP - 1
        arrived = rounded.decode(rounded.feed_back(mine, self._errors[group][name], group, number))
        return rounded.decode(rounded.encode(alpha * (centre - arrived), group, number, "answer"))

    @property
    def wire_share(self) -> float:
        """Bytes of an exchange over those of float32."""
        plain = self.centre.model.graph.dense_parameters * FLOAT_BYTES
        return sum(one.bytes for one in self._rounded.values()) / plain if self._rounded else 1.0

    @property
    def trained(self) -> Oracle:
        """The model for use: the centre, or the only replica."""
        return self.centre if len(self.replicas) > 1 else self.replicas[0]


def train_fleet(fleet: Fleet, data: Clicks, seed: int) -> float:
    """Train on all batches of a study; return the held-out normalised entropy."""
    job = Replicas(replace(dlrm(), learning_rate=fleet.scaled_rate), fleet.replicas, seed)
    for batches in steps_of(fleet, data.training):
        job.step(batches)
    return job.trained.evaluate(data.held_out).normalized_entropy


def steps_of(fleet: Fleet, batches: Sequence[Batch]) -> Iterator[list[Batch]]:
    """Yield the batches of each step, one for each replica: dealt to the machines, those of a group joined."""
    ranks, each = fleet.ranks, fleet.replicas * fleet.ranks
    for begin in range(0, len(batches) - each + 1, each):
        own = batches[begin : begin + each]
        yield [_joined(own[at : at + ranks]) for at in range(0, each, ranks)]


def _joined(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    return Batch(
        np.concatenate([batch.dense for batch in batches]),
        {name: np.concatenate([batch.ids[name] for batch in batches]) for name in batches[0].ids},
        np.concatenate([batch.labels for batch in batches]),
    )


def fleets() -> list[Fleet]:
    """Plain replicas of one machine each; groups of four with one rank, and with four at three rates."""
    kinds = [(1, 1, "none"), (4, 1, "none"), *((4, 4, scaling) for scaling in SCALINGS)]
    return [
        Fleet(count, size, ranks, rate, scaling)
        for rate in RATES
        for size, ranks, scaling in kinds
        for count in MACHINES
        if count >= size
    ]


def replicas(watch: Watch) -> list[Row]:
    """What do replicas cost in quality at equal samples, alone and joined into groups, whose rate may be scaled?"""
    distinct = list({fleet.training: fleet for fleet in fleets()}.values())
    tasks = [(part, seed) for seed in range(SEEDS) for part in (distinct[::2], distinct[1::2])]
    runs = [run for part in in_parallel(_run, tasks, watch) for run in part]
    found = {(fleet.training, seed): quality for fleet, seed, quality in runs}
    return [_row(fleet, found) for fleet in fleets()]


def _run(part: list[Fleet], seed: int) -> list[tuple[Fleet, int, float]]:
    data = clicks(dlrm(), seed, BATCHES)
    return [(fleet, seed, train_fleet(fleet, data, seed)) for fleet in part]


def _row(fleet: Fleet, found: dict[tuple[tuple[int, int, float], int], float]) -> Row:
    mine = [found[fleet.training, seed] for seed in range(SEEDS)]
    alone = [found[(1, 1, fleet.rate), seed] for seed in range(SEEDS)]
    change = interval([100 * (quality / base - 1) for quality, base in zip(mine, alone, strict=True)])
    return {
        "rate": fleet.rate,
        "scaling": fleet.scaling,
        "machines": fleet.machines,
        "group_size": fleet.group_size,
        "ranks": fleet.ranks,
        "replicas": fleet.replicas,
        "batches": BATCHES,
        "seeds": SEEDS,
        "normalized_entropy": float(np.mean(mine)),
        "change": change.mean,
        "low": change.low,
        "high": change.high,
    }
