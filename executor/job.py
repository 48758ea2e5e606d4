"""What every back-end needs around the workers: options, where a job starts, where it is saved, and what it gives.

Knows nothing of how workers are started or how they talk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.checkpoint import FILE_NAME, Done, load, save
from executor.clock import Clock, ClockKind
from executor.data.batch import Batch, Stream
from executor.data.synthetic import SyntheticStream
from executor.exchange import Endpoint
from executor.interpreter import Context
from executor.metrics import Metrics
from executor.oracle import Oracle
from executor.parameters import Parameters, TableRows
from executor.pool import BatchPool, read_ahead
from executor.state import JobState, Record, gather
from executor.wiring import Wiring
from executor.worker import run_worker, session_number, sessions
from placement.plan import Plan
from problem.errors import BadInput
from problem.whole_file import made_folder
from programs.timeline import Timeline, WorkerTimeline
from programs.transform import JobPrograms
from programs.workers import Worker


@dataclass(frozen=True)
class RunOptions:
    """How to run.

    Parameters
    ----------
    steps : int
        Batches of every session, those before the checkpoint that the run goes on from included.
    warmup : int
        Steps left out of the throughput; None: a fifth of the steps, at most 20.
    clock : ClockKind
        Which clock the throughput and the timeline are in.
    hang_seconds : float
        A worker without progress for so long counts as hung.
    durations : Mapping of worker name to sequence of float
        Paced clock only: seconds of each instruction.
    watch : callable, optional
        Called with the number of steps that the slowest rank has done.
    checkpoint : Path, optional
        Folder for checkpoints; one is written at the end too. The latest takes the place of the one before.
    checkpoint_every : int
        Steps between two checkpoints.
    resume : bool
        Go on from the checkpoint in the folder; where there is none yet, start from the beginning.
    on_start : callable, optional
        Called in every worker's own process before its first step, with the worker and the parameters.
    throttled : bool
        Wall clock only: messages between hosts take the time that the NICs of the plan need (``executor.throttle``).
    """

    steps: int = 100
    warmup: int | None = None
    clock: ClockKind = ClockKind.CPU
    hang_seconds: float = 60.0
    durations: Mapping[str, Sequence[float]] | None = None
    watch: Callable[[int], None] | None = None
    checkpoint: Path | None = None
    checkpoint_every: int = 1000
    resume: bool = False
    on_start: Callable[[Worker, JobState], None] | None = None
    throttled: bool = False

    @property
    def warmup_steps(self) -> int:
        """Steps left out of the throughput."""
        chosen = min(20, self.steps // 5) if self.warmup is None else self.warmup
        return min(chosen, self.steps - 1)


@dataclass(frozen=True)
class RunResult:
    """What a run gave.

    Parameters
    ----------
    plan : Plan
        The plan.
    samples_per_second : float
        Throughput on the run's clock, after warm-up.
    wall_samples_per_second : float
        Throughput on the wall, after warm-up.
    losses : ndarray of float64, shape (sessions, steps)
        Mean log loss of each batch of this run before its update; not a number where the data had ended.
    timeline : Timeline
        Times of every worker on the run's clock.
    dense, tables : Parameters, dict of str to TableRows
        Trained parameters, un-cut (with several groups: the centre).
    workers : tuple of str
        Names of the processes.
    clock : ClockKind
        Which clock.
    notes : tuple of str
        What the reader of the numbers must know.
    first_step : int
        Steps that were done before this run, by the one whose checkpoint it goes on from.
    next_batch : int
        Number of the first batch of the stream that has not been trained on.
    lag_seconds : float
        Paced clock: the most that a rank's steps after the warm-up ended later than they should have.
    """

    plan: Plan
    samples_per_second: float
    wall_samples_per_second: float
    losses: npt.NDArray[np.float64]
    timeline: Timeline
    dense: Parameters
    tables: dict[str, TableRows]
    workers: tuple[str, ...]
    clock: ClockKind
    notes: tuple[str, ...]
    first_step: int = 0
    next_batch: int = 0
    lag_seconds: float = 0.0

    def evaluate(self, batches: Iterable[Batch]) -> Metrics:
        """Return the quality of the trained, un-cut model on some batches."""
        return Oracle(self.plan.model, trained=(self.dense, self.tables)).evaluate(batches)


@dataclass(frozen=True)
class Job:
    """Everything that lasts from the first segment to the last.

    Parameters
    ----------
    programs : JobPrograms
        What the workers do.
    state : JobState
        Parameters.
    pool : BatchPool
        Batches.
    records : Mapping of worker name to Record
        What workers write down.
    options : RunOptions
        How to run.
    start : Done
        Where the job started from.
    epoch : float
        Start of the clocks on ``time.perf_counter``.
    """

    programs: JobPrograms
    state: JobState
    pool: BatchPool
    records: Mapping[str, Record]
    options: RunOptions
    start: Done
    epoch: float

    @property
    def plan(self) -> Plan:
        """The plan of the programs."""
        return self.programs.plan

    @property
    def segments(self) -> list[range]:
        """Steps of the run, cut after every step that is saved."""
        every = self.options.checkpoint_every if self.options.checkpoint else self.options.steps
        return segments(range(self.start.step, self.options.steps), every)

    def done(self, step: int) -> Done:
        """How far the job is after a step of this run."""
        samples = (step - self.start.step) * sessions(self.plan) * self.plan.batch
        return Done(step, self.start.samples + samples)


def read_pool(plan: Plan, stream: Stream | None, start: Done, steps: int, session: int | None = None) -> BatchPool:
    """Read the batches of a run, of one session or of all; by default from synthetic clicks with the plan's seed."""
    source, first_batch = stream or SyntheticStream(plan.model, plan.seed), -(-start.samples // plan.batch)
    return read_ahead(
        source,
        plan.model,
        plan.batch,
        sessions(plan),
        steps,
        ranks=plan.ranks,
        hogwild=plan.hogwild,
        first_step=start.step,
        first_batch=first_batch,
        only=session,
    )


def segments(steps: range, every: int) -> list[range]:
    """Cut steps after every step whose number is divisible by ``every``."""
    ends = [*range((steps.start // every + 1) * every, steps.stop, every), steps.stop]
    return [range(begin, end) for begin, end in zip([steps.start, *ends], ends, strict=False)]


def check_options(options: RunOptions) -> None:
    """Raise BadInput where options contradict each other."""
    if options.clock is ClockKind.PACED and options.durations is None:
        raise BadInput("run", "durations", None, "the paced clock needs the seconds of each worker's instructions")
    if options.checkpoint_every < 1:
        raise BadInput("run", "checkpoint_every", options.checkpoint_every, "at least 1 step")
    if options.throttled and options.clock is not ClockKind.WALL:
        raise BadInput("run", "clock", str(options.clock), "wall: throttled NICs hold messages back on the wall")
    if options.resume and options.checkpoint is None:
        raise BadInput("run", "resume", True, "only with a checkpoint folder (--checkpoint) to go on from")


def begin(plan: Plan, options: RunOptions, state: JobState) -> Done:
    """Give all parameters their values, of the start or of a checkpoint; raises BadInput if that cannot be gone on from."""
    folder = options.checkpoint
    if folder is not None and (made_folder(folder) / FILE_NAME).exists():
        if not options.resume:
            raise BadInput("run", "checkpoint", str(folder), "holds a checkpoint: resume it, or take another folder")
        done = load(folder / FILE_NAME, plan, state)
        if done.step >= options.steps:
            raise BadInput("run", "steps", options.steps, f"more than the {done.step} that {folder} has done")
        return done
    state.initialise(plan.seed)
    return Done()


def save_job(job: Job, step: int) -> None:
    """Write a checkpoint, if the options ask for it; raises CheckpointFailed."""
    folder = job.options.checkpoint
    if folder is not None:
        save(folder / FILE_NAME, job.plan, job.state, job.done(step))


def latest_clock(records: Iterable[Record]) -> float:
    """Return the latest time in some records, 0 if there is none. Steps to come are not looked at: they may be millions."""
    return max((float(record.done_times[:, -1, 1].max(initial=0.0)) for record in records), default=0.0)


def work(job: Job, wiring: Wiring, worker: Worker, steps: range, latest: float) -> None:
    """Run a worker for a segment.

    Parameters
    ----------
    job, wiring : Job, Wiring
        The job and its channels.
    worker : Worker
        Who runs in this process.
    steps : range
        Steps of the segment.
    latest : float
        The latest that a clock showed at the end of the segment before: what all clocks begin at, but for a paced one,
        which goes with the wall.
    """
    plan, options = job.plan, job.options
    durations = options.durations.get(worker.name, ()) if options.durations is not None else ()
    reader = job.pool.reader(session_number(plan, worker), steps)
    paced = options.clock is ClockKind.PACED and steps.start > job.start.step
    clock = Clock(options.clock, job.epoch, max(latest, time.perf_counter() - job.epoch) if paced else latest)
    context = Context(plan, job.state, reader, durations)
    if options.on_start is not None:
        options.on_start(worker, job.state)
    run_worker(Endpoint(worker, wiring, clock, job.records[worker.name]), context, steps)


def next_batch_of(job: Job) -> int:
    """Number of the first batch of the stream that has not been trained on when the job is done."""
    return -(-job.done(job.options.steps).samples // job.plan.batch)


def result_of(job: Job) -> RunResult:
    """Put records and parameters together when all steps are done."""
    plan, options, records = job.plan, job.options, job.records
    timeline = Timeline(tuple(_timeline(record) for record in records.values() if record.worker.program))
    ranks = [record for record in records.values() if record.worker.role == "rank"]
    dense, tables = gather(plan, job.state)
    warmup = replace(options, steps=options.steps - job.start.step).warmup_steps
    return RunResult(
        plan=plan,
        samples_per_second=timeline.samples_per_second(plan.batch, warmup),
        wall_samples_per_second=sum(_wall_rate(record, plan.batch, warmup) for record in ranks),
        losses=np.stack([record.losses for record in ranks]),
        timeline=timeline,
        dense=dense,
        tables=tables,
        workers=tuple(records),
        clock=options.clock,
        notes=_notes(job),
        first_step=job.start.step,
        next_batch=next_batch_of(job),
        lag_seconds=max(_lag(record, warmup) for record in ranks) if options.clock is ClockKind.PACED else 0.0,
    )


def _notes(job: Job) -> tuple[str, ...]:
    plan, notes = job.plan, []
    if job.options.resume:
        folder, step = job.options.checkpoint, job.start.step
        notes.append(f"went on from step {step} of {folder}" if step else f"nothing in {folder} to go on from")
    nodes = [*plan.servers, *plan.sync_servers, *(node for group in plan.groups for node in group)]
    if len({node.host for node in nodes}) > 1:
        shared = ", which messages share; no latency" if job.options.throttled else ", without sharing, and latency"
        notes.append(f"machines other than this one are emulated: bytes / NIC rate{shared}")
    return tuple(notes)


def _wall_rate(record: Record, batch: int, warmup: int) -> float:
    ends = record.wall_ends
    begin = ends[warmup - 1] if warmup else 0.0
    return float(batch * (len(ends) - warmup) / (ends[-1] - begin))


def _lag(record: Record, warmup: int) -> float:
    behind = record.wall_ends - record.times[:, -1, 1]
    return float(behind[max(0, warmup - 1) :].max())


def _timeline(record: Record) -> WorkerTimeline:
    worker, times = record.worker, record.times
    columns: list[Any] = [np.array(times[:, :, column]) for column in range(3)]
    return WorkerTimeline(worker.name, worker.node.name, worker.role, worker.program, *columns)
