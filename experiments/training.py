"""One training run, from the data to its quality: what ``hiertrain run`` does."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cost_models.costs import CostTable
from executor.clock import ClockKind
from executor.data import DataOptions, Passes, Rows, Stream, SyntheticStream, open_data
from executor.guard import Badge
from executor.metrics import Metrics, normalized_entropy
from executor.mpi import finish
from executor.run import RunOptions, RunResult, run
from executor.run_mpi import run_ranks
from executor.worker import sessions
from placement.plan import Plan
from problem.cluster import Node
from problem.errors import BadInput
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
class Data:
    """Click logs of a run.

    Parameters
    ----------
    path : Path, optional
        To train on; None: synthetic clicks.
    options : DataOptions
        How to read it, and ``held_out``.
    passes : int
        How often it is read; 0: round and round, as long as the run takes.
    held_out : Path, optional
        To measure the quality of the trained model with.
    """

    path: Path | None = None
    options: DataOptions = field(default_factory=DataOptions)
    passes: int = 0
    held_out: Path | None = None

    def stream(self, plan: Plan) -> Stream:
        """Read the file, if there is one."""
        if self.path is None:
            if self.passes:
                raise BadInput("run", "epochs", self.passes, "needs data to pass over")
            return SyntheticStream(plan.model, plan.seed)
        rows = open_data(self.path, plan.model, self.options)
        return Passes(rows, self.passes) if self.passes else rows


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
    metrics : Metrics, optional
        All there is about the quality on held-out samples.
    """

    result: RunResult
    steps: int
    quality: float
    evaluated_on: str
    metrics: Metrics | None = None

    def to_json_dict(self) -> dict[str, Any]:
        """Return the figures, ready for ``json.dumps``."""
        losses = self.result.losses
        tenth = max(1, losses.shape[1] // 10)
        return {
            "samples_per_second": self.result.samples_per_second,
            "wall_samples_per_second": self.result.wall_samples_per_second,
            "clock": str(self.result.clock),
            "loss": float(np.nanmean(losses[:, -tenth:])),
            "first_loss": float(np.nanmean(losses[:, :tenth])),
            "normalized_entropy": None if math.isnan(self.quality) else self.quality,
            "evaluated_on": self.evaluated_on,
            "held_out": None if self.metrics is None else _finite(dataclasses.asdict(self.metrics)),
            "steps": self.steps,
            "first_step": self.result.first_step,
            "workers": list(self.result.workers),
            "notes": list(self.result.notes),
        }


def _finite(figures: dict[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def train(
    plan: Plan,
    costs: CostTable,
    steps: int,
    clock: str = "cpu",
    data: Data = Data(),
    hang_seconds: float = 60.0,
    watch: Callable[[str], None] | None = None,
    checkpoints: Checkpoints = Checkpoints(),
    throttled: bool = False,
) -> Outcome:
    """Train a plan and measure the quality of what came out.

    Parameters
    ----------
    plan, costs : Plan, CostTable
        The plan; its costs pace the ``paced`` clock and are used for nothing else.
    steps : int
        Batches of every session; of data with a number of passes those follow.
    clock : str
        ``cpu``, ``wall`` or ``paced``.
    data : Data
        Click logs to train on and to measure quality with; by default synthetic clicks.
    hang_seconds : float
        A worker without progress for so long ends the run.
    watch : callable, optional
        Told how far the run is.
    checkpoints : Checkpoints, optional
        Where to save, how often, and whether to go on from what is there.
    throttled : bool
        Whether messages between hosts take the time that the plan's NICs need (``wall`` clock).

    Raises
    ------
    BadInput
        The data or a checkpoint cannot be read or does not fit the model.
    WorkerFailed
        A worker died, hung or diverged.
    CheckpointFailed
        A checkpoint could not be written.
    """
    training = _prepare(plan, costs, steps, clock, data, hang_seconds, watch, checkpoints, throttled)
    return training.outcome(run(plan, training.options, training.stream))


def train_ranks(
    badge: Badge,
    plan: Plan,
    costs: CostTable,
    steps: int,
    clock: str = "cpu",
    data: Data = Data(),
    hang_seconds: float = 60.0,
    checkpoints: Checkpoints = Checkpoints(),
    throttled: bool = False,
) -> Outcome | None:
    """Do what :func:`train` does as one rank of an MPI job, all of whose ranks call this (``executor.run_mpi``).

    Parameters
    ----------
    badge : Badge
        Shows this rank's guard who it is and that it lives.
    plan, costs, steps, clock, data, hang_seconds, checkpoints, throttled
        As for :func:`train`.

    Returns
    -------
    Outcome or None
        The outcome on rank 0; None on all others.

    Raises
    ------
    BadInput, CheckpointFailed
        As :func:`train`; or the number of ranks is not that of the plan's workers.
    """
    training = _prepare(plan, costs, steps, clock, data, hang_seconds, None, checkpoints, throttled)
    result = run_ranks(plan, training.options, training.stream, badge)
    outcome = None if result is None else training.outcome(result)
    finish()
    return outcome


@dataclass(frozen=True)
class _Training:
    """What is to be run, and how what comes out is measured."""

    options: RunOptions
    stream: Stream
    data: Data
    held_out: Rows | None

    def outcome(self, result: RunResult) -> Outcome:
        steps = self.options.steps
        if self.held_out is not None:
            numbers = range(Passes(self.held_out).batches(result.plan.batch))
            return _evaluated(result, steps, Passes(self.held_out), numbers, str(self.data.held_out))
        if self.data.path is not None:
            quality = _progressive(result, self.stream)
            return Outcome(result, steps, quality, "the second half of the run, before each update")
        numbers = range(result.next_batch, result.next_batch + EVALUATION_BATCHES)
        return _evaluated(result, steps, self.stream, numbers, f"{EVALUATION_BATCHES} held-out batches")


def _prepare(
    plan: Plan,
    costs: CostTable,
    steps: int,
    clock: str,
    data: Data,
    hang_seconds: float,
    watch: Callable[[str], None] | None,
    checkpoints: Checkpoints,
    throttled: bool,
) -> _Training:
    stream = data.stream(plan)
    held_out = open_data(data.held_out, plan.model, data.options) if data.held_out is not None else None
    if isinstance(stream, Passes):
        steps = stream.steps(plan.batch, sessions(plan))
    kind = ClockKind(clock)

    def tell(done: int) -> None:
        if watch is not None:
            watch(f"step {done} of {steps}")

    options = RunOptions(
        steps=steps,
        clock=kind,
        hang_seconds=hang_seconds,
        durations=modelled_durations(plan, costs) if kind is ClockKind.PACED else None,
        watch=tell,
        checkpoint=checkpoints.folder,
        checkpoint_every=checkpoints.every,
        resume=checkpoints.resume,
        throttled=throttled,
    )
    return _Training(options, stream, data, held_out)


def _evaluated(result: RunResult, steps: int, stream: Stream, numbers: range, what: str) -> Outcome:
    """The quality of the trained, un-cut model on some batches."""
    metrics = result.evaluate(stream.batch(number, result.plan.batch) for number in numbers)
    return Outcome(result, steps, metrics.normalized_entropy, f"{what}, un-cut model", metrics)


def _progressive(result: RunResult, stream: Stream) -> float:
    """Normalised entropy of samples when they were first met: each batch is predicted before it is learnt from."""
    plan, half = result.plan, result.losses.shape[1] // 2
    losses = result.losses[:, half:].T.reshape(-1)  # in the order of the stream
    numbers = range(result.next_batch - len(losses), result.next_batch)
    labels = [stream.batch(number, plan.batch).labels for number in numbers]
    counts = np.array([len(found) for found in labels])
    loss = float(np.sum(losses[counts > 0] * counts[counts > 0]) / counts.sum())
    return normalized_entropy(loss, float(np.concatenate(labels).mean(dtype=np.float64)))


def with_nics(plan: Plan, bytes_per_second: float) -> Plan:
    """Return a plan whose nodes are hosts of their own, with NICs of a rate."""

    def alone(nodes: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(replace(n, host=n.name, nic_bytes_per_second=bytes_per_second) for n in nodes)

    groups = tuple(alone(group) for group in plan.groups)
    return replace(plan, groups=groups, servers=alone(plan.servers), sync_servers=alone(plan.sync_servers))


def modelled_durations(plan: Plan, costs: CostTable) -> dict[str, Sequence[float]]:
    """Modelled seconds of every instruction of every worker, cores unshared: what the paced clock sleeps to."""
    timeline = simulate(plan, costs, steps=8, warmup=2, sharing=Sharing.NONE).timeline
    assert timeline is not None
    return {
        w.worker: w.busy.mean(axis=0).tolist() if len(w.busy) else [0.0] * w.busy.shape[1] for w in timeline.workers
    }
