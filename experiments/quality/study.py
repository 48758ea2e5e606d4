"""Many cells and seeds of one task: what compression changes, with an interval.

Cells of one seed start from the same parameters and see the same batches, so that differences are between pairs. The quality
of a run is *progressive*: the loss of each batch before its update, over the last quarter of the run, as normalised entropy.
On a stream that is read once this is the loss on data not seen yet, averaged over many states of the model; its noise is a
third of that of one held-out set after the last step (which is reported beside it, with the codec in use and without).
"""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from scipy import stats
from threadpoolctl import threadpool_limits

from executor.metrics import normalized_entropy
from experiments.quality.task import BATCH, Clicks, clicks, shares
from experiments.quality.trainer import Cell, Trainer
from problem.model import Model

Watch = Callable[[str], None]
Result = TypeVar("Result")

#: Parts of a run whose progressive quality is kept.
WINDOWS = 8
#: Windows that count: the last quarter.
LAST = 2
#: Two-sided confidence of every interval.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Trained:
    """What one run came to.

    Parameters
    ----------
    cell : str
        Name of its cell.
    seed : int
        Its seed.
    windows : tuple of float
        Progressive NE of each eighth of the run.
    held_out, held_out_plain : float
        NE on held-out samples after the last step: with the cell's cuts compressed as in training, and without.
    wire : float
        Bytes that travelled over those of float32.
    """

    cell: str
    seed: int
    windows: tuple[float, ...]
    held_out: float
    held_out_plain: float
    wire: float

    @property
    def progressive(self) -> float:
        """NE of the last quarter."""
        return float(np.mean(self.windows[-LAST:]))


@dataclass(frozen=True)
class Change:
    """Relative change against the base, in percent: mean over seeds, ends of its 95 % interval (Student's t).

    Parameters
    ----------
    mean, low, high : float
        Percent; positive is worse.
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Study:
    """Cells to be trained on one task.

    Parameters
    ----------
    model : Model
        What is trained.
    cells : tuple of Cell
        The first is what the others are compared with.
    steps : int
        Steps of each run.
    seeds : int
        Each cell is trained so many times.
    """

    model: Model
    cells: tuple[Cell, ...]
    steps: int
    seeds: int = 5


def run_cell(model: Model, cell: Cell, data: Clicks, seed: int) -> Trained:
    """Train one cell on the batches of a seed."""
    trainer = Trainer(model, cell, BATCH // cell.ranks, seed)
    losses = [trainer.step(shares(batch, cell.ranks)) for batch in data.training]
    labels = [float(batch.labels.mean()) for batch in data.training]
    windows = [
        normalized_entropy(float(np.mean(part)), float(np.mean(rate)))
        for part, rate in zip(np.array_split(losses, WINDOWS), np.array_split(labels, WINDOWS), strict=True)
    ]
    coded, plain = (
        trainer.oracle.evaluate(data.held_out, linked=linked).normalized_entropy for linked in (True, False)
    )
    return Trained(cell.name, seed, tuple(windows), coded, plain, trainer.wire_share)


def run_study(study: Study, watch: Watch) -> list[Trained]:
    """Train every cell with every seed, on up to two cores; the order of the result is that of cells, then seeds."""
    halves = [study.cells[::2], study.cells[1::2]]
    tasks = [(study, half, seed) for seed in range(study.seeds) for half in halves if half]
    found = [run for runs in in_parallel(_run_seed, tasks, watch) for run in runs]
    names = [cell.name for cell in study.cells]
    return sorted(found, key=lambda run: (names.index(run.cell), run.seed))


def in_parallel(
    do: Callable[..., Result], tasks: Sequence[tuple[Any, ...]], watch: Watch, jobs: int = 2
) -> list[Result]:
    """Return what ``do`` gives for each task, in order, computed on up to ``jobs`` cores with one BLAS thread each."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(min(jobs, os.cpu_count() or 1), context, threadpool_limits, (1,)) as pool:
        futures = [pool.submit(do, *task) for task in tasks]
        for number, _ in enumerate(as_completed(futures), start=1):
            watch(f"{number} of {len(tasks)} parts trained")
        return [future.result() for future in futures]


def _run_seed(study: Study, cells: Sequence[Cell], seed: int) -> list[Trained]:
    data = clicks(study.model, seed, study.steps)
    return [run_cell(study.model, cell, data, seed) for cell in cells]


def change(runs: Sequence[Trained], cell: str, base: str, value: Callable[[Trained], float]) -> Change:
    """Return what a cell changes of a value, seed by seed, in percent."""
    of = {(run.cell, run.seed): value(run) for run in runs}
    pairs = [(of[cell, run.seed], of[base, run.seed]) for run in runs if run.cell == base]
    return interval([100 * (mine / theirs - 1) for mine, theirs in pairs])


def interval(values: Sequence[float]) -> Change:
    """Return mean and 95 % interval of the mean; of one value, no interval (NaN)."""
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Change(mean, math.nan, math.nan)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * np.std(values, ddof=1) / math.sqrt(count))
    return Change(mean, mean - half, mean + half)
