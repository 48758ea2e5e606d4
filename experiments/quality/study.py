"""Many cells and seeds of one task: what compression changes, with an interval.

Cells of one seed start from the same parameters and see the same batches, so that differences are between pairs. On planted
clicks the quality of a run is *progressive*: the loss of each batch before its update, over the last quarter of the run, as
normalised entropy. On a stream that is read once this is the loss on data not seen yet, averaged over many states of the
model; its noise is a third of that of one held-out set after the last step (which is reported beside it, with the codec in
use and without). Of a file it is the latter, as in the DCT paper, and the interval over parts of the held-out rows says
besides how much those rows can tell.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy import stats
from threadpoolctl import threadpool_limits

from executor.metrics import log_loss, measure, normalized_entropy
from experiments.quality.task import Clicks, Source, shares
from experiments.quality.trainer import Cell, Trainer
from problem.whole_file import whole_file

Watch = Callable[[str], None]
Result = TypeVar("Result")

#: Parts of a run whose progressive quality is kept, unless a study has others; a multiple of four.
WINDOWS = 8
#: Parts of the held-out samples whose losses are kept, each by itself.
PARTS = 32
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
        Progressive NE of each of :data:`WINDOWS` parts of the run, or as many as its study asks for.
    held_out, held_out_plain : float
        NE on held-out samples after the last step: with the cell's cuts compressed as in training, and without.
    wire : float
        Bytes that travelled over those of float32.
    parts : tuple of float
        Held-out log loss, compressed as in training, of each of up to :data:`PARTS` equal parts.
    """

    cell: str
    seed: int
    windows: tuple[float, ...]
    held_out: float
    held_out_plain: float
    wire: float
    parts: tuple[float, ...] = ()

    @property
    def progressive(self) -> float:
        """NE of the last quarter."""
        return float(np.mean(self.windows[-(len(self.windows) // 4) :]))


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
class Effort:
    """How much a study may take.

    Parameters
    ----------
    seeds : int
        Each cell is trained so many times.
    jobs : int
        Processes at a time.
    keep : Path or None
        A folder for finished runs: a study that was interrupted goes on from there.
    """

    seeds: int = 5
    jobs: int = 2
    keep: Path | None = None


#: Five seeds in two processes.
USUAL = Effort()


@dataclass(frozen=True)
class Study:
    """Cells to be trained on one task.

    Parameters
    ----------
    source : Source
        What is trained, on what.
    cells : tuple of Cell
        The first is what the others are compared with.
    effort : Effort
        How often, and in how many processes.
    run : callable, optional
        Trains a cell on the clicks of a seed; by default :func:`run_cell`.
    """

    source: Source
    cells: tuple[Cell, ...]
    effort: Effort = USUAL
    run: Callable[[Source, Cell, Clicks, int], Trained] | None = None


def run_cell(source: Source, cell: Cell, data: Clicks, seed: int, *, windows: int = WINDOWS) -> Trained:
    """Train one cell on the batches of a seed; its progress is kept in so many windows."""
    trainer = Trainer(source.model, cell, source.batch // cell.ranks, seed)
    losses, rates = [], []
    for batch in data.training:
        losses.append(trainer.step(shares(batch, cell.ranks)))
        rates.append(float(batch.labels.mean()))
    labels = np.concatenate([batch.labels for batch in data.held_out])
    coded, plain = (
        np.concatenate([trainer.oracle.logits(batch, linked=linked) for batch in data.held_out])
        for linked in (True, False)
    )
    parts = [
        log_loss(coded[part], labels[part]) for part in np.array_split(np.arange(len(labels)), min(PARTS, len(labels)))
    ]
    held_out, held_out_plain = (measure(logits, labels).normalized_entropy for logits in (coded, plain))
    progress = progress_of(losses, rates, windows)
    return Trained(cell.name, seed, progress, held_out, held_out_plain, trainer.wire_share, tuple(parts))


def progress_of(losses: Sequence[float], rates: Sequence[float], windows: int = WINDOWS) -> tuple[float, ...]:
    """Return the normalised entropy of each window of a run, from losses and shares of clicks by step."""
    parts = zip(np.array_split(losses, windows), np.array_split(rates, windows), strict=True)
    return tuple(normalized_entropy(float(np.mean(part)), float(np.mean(rate))) for part, rate in parts)


def run_study(study: Study, watch: Watch) -> list[Trained]:
    """Train every cell with every seed; the order of the result is that of cells, then seeds."""
    seeds = study.effort.seeds
    share = max(2, -(-study.effort.jobs // seeds))
    tasks = [(study, study.cells[i::share], seed) for seed in range(seeds) for i in range(min(share, len(study.cells)))]
    found = [run for runs in in_parallel(_run_seed, tasks, watch, study.effort.jobs) for run in runs]
    names = [cell.name for cell in study.cells]
    return sorted(found, key=lambda run: (names.index(run.cell), run.seed))


def in_parallel(
    do: Callable[..., Result], tasks: Sequence[tuple[Any, ...]], watch: Watch, jobs: int = 2
) -> list[Result]:
    """Return what ``do`` gives for each task, in order, computed on up to ``jobs`` cores with one BLAS thread each."""
    context, others = multiprocessing.get_context("fork"), set(multiprocessing.active_children())
    with ProcessPoolExecutor(min(jobs, os.cpu_count() or 1), context, threadpool_limits, (1,)) as pool:
        futures = [pool.submit(do, *task) for task in tasks]
        try:
            for number, done in enumerate(as_completed(futures), start=1):
                done.result()
                watch(f"{number} of {len(tasks)} parts trained")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            raise
        return [future.result() for future in futures]


def _run_seed(study: Study, cells: Sequence[Cell], seed: int) -> list[Trained]:
    kept = {cell.name: _kept(study, cell, seed) for cell in cells}
    found = {name: known for name, path in kept.items() if (known := _known(path)) is not None}
    if len(found) < len(cells):
        data = study.source.clicks(seed)
        for cell in cells:
            if cell.name not in found:
                found[cell.name] = (study.run or run_cell)(study.source, cell, data, seed)
                _keep(found[cell.name], kept[cell.name])
    return [found[cell.name] for cell in cells]


def _kept(study: Study, cell: Cell, seed: int) -> Path | None:
    """Return where a run is kept: by all that decides about it."""
    if study.effort.keep is None:
        return None
    told = repr((study.source, cell, seed)) + (study.run.__name__ if study.run is not None else "")
    return study.effort.keep / f"{hashlib.sha256(told.encode()).hexdigest()[:20]}.json"


def _known(path: Path | None) -> Trained | None:
    if path is None or not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    return Trained(**found | {name: tuple(found[name]) for name in ("windows", "parts")})


def _keep(run: Trained, path: Path | None) -> None:
    if path is not None:
        with whole_file(path) as file:
            json.dump(asdict(run), file)


def change(runs: Sequence[Trained], cell: str, base: str, value: Callable[[Trained], float]) -> Change:
    """Return what a cell changes of a value, seed by seed, in percent."""
    of = {(run.cell, run.seed): value(run) for run in runs}
    pairs = [(of[cell, run.seed], of[base, run.seed]) for run in runs if run.cell == base]
    return interval([100 * (mine / theirs - 1) for mine, theirs in pairs])


def row_change(runs: Sequence[Trained], cell: str, base: str) -> Change:
    """Return what a cell changes of the held-out loss, over parts of the held-out samples (means over seeds), in percent."""
    mine, theirs = (np.mean([run.parts for run in runs if run.cell == name], axis=0) for name in (cell, base))
    return interval((100 * (mine - theirs) / theirs.mean()).tolist())


def interval(values: Sequence[float]) -> Change:
    """Return mean and 95 % interval of the mean; of one value, no interval (NaN)."""
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Change(mean, math.nan, math.nan)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * np.std(values, ddof=1) / math.sqrt(count))
    return Change(mean, mean - half, mean + half)
