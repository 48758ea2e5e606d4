"""One training run, from the data to its quality: what ``hiertrain run`` does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cost_models.costs import CostTable
from executor.clock import ClockKind
from executor.data import CriteoTsv, Stream, SyntheticStream
from executor.metrics import normalized_entropy
from executor.run import RunOptions, RunResult, run
from executor.worker import sessions
from placement.plan import Plan
from simulator.machines import Sharing
from simulator.simulate import simulate

#: Batches held out for the quality of a run on synthetic clicks.
EVALUATION_BATCHES = 20


@dataclass(frozen=True)
class Checkpoints:
    """Where a run is saved.

    Parameters
    ----------
    folder : Path, optional
        Holds the latest checkpoint; None: the run is not saved.
    every : int
        Steps between two.
    resume : bool
        Go on from the checkpoint that is there.
    """

    folder: Path | None = None
    every: int = 1000
    resume: bool = False


@dataclass(frozen=True)
class Outcome:
    """A run and its quality.

    Parameters
    ----------
    result : RunResult
        The run.
    steps : int
        Steps of every session, those before a checkpoint included.
    quality : float
        Normalised entropy; NaN where all labels were equal.
    evaluated_on : str
        On what.
    """

    result: RunResult
    steps: int
    quality: float
    evaluated_on: str

    def to_json_dict(self) -> dict[str, Any]:
        """Return the figures, ready for ``json.dumps``."""
        losses = self.result.losses
        tenth = max(1, losses.shape[1] // 10)
        return {
            "samples_per_second": self.result.samples_per_second,
            "wall_samples_per_second": self.result.wall_samples_per_second,
            "clock": str(self.result.clock),
            "loss": float(losses[:, -tenth:].mean()),
            "first_loss": float(losses[:, :tenth].mean()),
            "normalized_entropy": None if math.isnan(self.quality) else self.quality,
            "evaluated_on": self.evaluated_on,
            "steps": self.steps,
            "first_step": self.result.first_step,
            "workers": list(self.result.workers),
            "notes": list(self.result.notes),
        }


def train(
    plan: Plan,
    costs: CostTable,
    steps: int,
    clock: str = "cpu",
    data: Path | None = None,
    hang_seconds: float = 60.0,
    watch: Callable[[str], None] | None = None,
    checkpoints: Checkpoints = Checkpoints(),
) -> Outcome:
    """Train a plan and measure the quality of what came out.

    Parameters
    ----------
    plan, costs : Plan, CostTable
        The plan; its costs pace the ``paced`` clock and are used for nothing else.
    steps : int
        Batches of every session.
    clock : str
        ``cpu``, ``wall`` or ``paced``.
    data : Path, optional
        Click log in a Criteo layout, read round and round; by default synthetic clicks.
    hang_seconds : float
        A worker without progress for so long ends the run.
    watch : callable, optional
        Told how far the run is.
    checkpoints : Checkpoints, optional
        Where to save, how often, and whether to go on from what is there.

    Raises
    ------
    BadInput
        The data or a checkpoint cannot be read or does not fit the model.
    WorkerFailed
        A worker died, hung or diverged.
    CheckpointFailed
        A checkpoint could not be written.
    """
    stream: Stream = CriteoTsv(data, plan.model) if data is not None else SyntheticStream(plan.model, plan.seed)
    kind = ClockKind(clock)

    def tell(done: int) -> None:
        if watch is not None:
            watch(f"step {done} of {steps}")

    durations = modelled_durations(plan, costs) if kind is ClockKind.PACED else None
    options = RunOptions(
        steps=steps,
        clock=kind,
        hang_seconds=hang_seconds,
        durations=durations,
        watch=tell,
        checkpoint=checkpoints.folder,
        checkpoint_every=checkpoints.every,
        resume=checkpoints.resume,
    )
    result = run(plan, options, stream)
    if data is not None:
        return Outcome(result, steps, _progressive(result, stream), "the second half of the run, before each update")
    held_out = [stream.batch(result.next_batch + i, plan.batch) for i in range(EVALUATION_BATCHES)]
    quality = result.evaluate(held_out).normalized_entropy
    return Outcome(result, steps, quality, f"{EVALUATION_BATCHES} held-out batches, un-cut model")


def _progressive(result: RunResult, stream: Stream) -> float:
    """Normalised entropy of a one-pass run: each batch is predicted before it is learnt from."""
    plan, half = result.plan, result.losses.shape[1] // 2
    count = (result.losses.shape[1] - half) * sessions(plan)
    numbers = range(result.next_batch - count, result.next_batch)
    base = float(np.mean([stream.batch(number, plan.batch).labels.mean() for number in numbers]))
    return normalized_entropy(float(result.losses[:, half:].mean()), base)


def modelled_durations(plan: Plan, costs: CostTable) -> dict[str, Sequence[float]]:
    """Modelled seconds of every instruction of every worker, cores unshared: what the paced clock sleeps to."""
    timeline = simulate(plan, costs, steps=8, warmup=2, sharing=Sharing.NONE).timeline
    assert timeline is not None
    return {
        w.worker: w.busy.mean(axis=0).tolist() if len(w.busy) else [0.0] * w.busy.shape[1] for w in timeline.workers
    }
