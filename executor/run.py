"""Run a plan for real: allocate, fork, supervise, save, and put the records together.

This is the ``processes`` back-end: one forked process per worker of the plan, all on this host. Machines of the plan that
are not this host are emulated: their network adds latency and bytes / bandwidth to the clock that messages carry, without
sharing, and their cores are as fast as this machine's.

A run with checkpoints is cut into segments. At the end of a segment every worker has done the same steps, nothing is
under way, and all parameters lie in memory that this process shares: it saves them and forks the next segment's workers.
"""

from __future__ import annotations

import functools
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
from executor.parameters import Parameters, TableRows, check_supported
from executor.pool import BatchPool, read_ahead
from executor.state import JobState, Record, allocate_state, gather
from executor.supervisor import supervise
from executor.transport import SharedMemory, keep_only
from executor.wiring import Wiring, wire
from executor.worker import run_worker, session_number, sessions, turns_of
from placement.plan import Plan
from problem.errors import BadInput
from programs.timeline import Timeline, WorkerTimeline
from programs.transform import JobPrograms, transform
from programs.verify import verify
from programs.workers import Worker, workers

#: A paced run begins so long after the fork, so that every worker is ready when it does.
PACED_START_SECONDS = 1.0


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
        Trained parameters, un-cut (with several groups: the EASGD centre).
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


def run(plan: Plan, options: RunOptions | None = None, stream: Stream | None = None) -> RunResult:
    """Train a plan with one process per worker.

    Parameters
    ----------
    plan : Plan
        What to run.
    options : RunOptions, optional
        How to run it.
    stream : Stream, optional
        Where batches come from; by default the synthetic click stream with the plan's seed.

    Raises
    ------
    UnsupportedModel
        The executor cannot train the model.
    BadInput
        A batch does not fit the model, the paced clock was given no durations, or the checkpoint is of another model, is
        damaged, or would be overwritten unasked.
    WorkerFailed
        A worker died, hung or produced a loss that is not finite.
    CheckpointFailed
        A checkpoint could not be written.
    """
    chosen = options or RunOptions()
    _check(chosen)
    check_supported(plan.model)
    programs = verify(transform(plan))
    state = allocate_state(plan)
    start = _start(plan, chosen, state)
    source, steps = stream or SyntheticStream(plan.model, plan.seed), range(start.step, chosen.steps)
    first_batch = -(-start.samples // plan.batch)
    pool = read_ahead(
        source,
        plan.model,
        plan.batch,
        sessions(plan),
        len(steps),
        ranks=plan.ranks,
        hogwild=plan.hogwild,
        first_step=start.step,
        first_batch=first_batch,
    )
    records = {worker.name: Record(worker, turns_of(plan, worker, steps)) for worker in workers(programs)}
    delay = PACED_START_SECONDS if chosen.clock is ClockKind.PACED else 0.0
    job = _Job(programs, state, pool, records, chosen, start, time.perf_counter() + delay)
    for segment in segments(steps, chosen.checkpoint_every if chosen.checkpoint else chosen.steps):
        _run_segment(job, segment)
        _save(job, segment.stop)
    return _result(job)


@dataclass(frozen=True)
class _Job:
    """Everything that lasts from the first segment to the last."""

    programs: JobPrograms
    state: JobState
    pool: BatchPool
    records: Mapping[str, Record]
    options: RunOptions
    start: Done
    epoch: float

    @property
    def plan(self) -> Plan:
        return self.programs.plan

    def done(self, step: int) -> Done:
        """How far the job is after a step of this run."""
        samples = (step - self.start.step) * sessions(self.plan) * self.plan.batch
        return Done(step, self.start.samples + samples)


def segments(steps: range, every: int) -> list[range]:
    """Cut steps after every step whose number is divisible by ``every``."""
    ends = [*range((steps.start // every + 1) * every, steps.stop, every), steps.stop]
    return [range(begin, end) for begin, end in zip([steps.start, *ends], ends, strict=False)]


def _check(options: RunOptions) -> None:
    if options.clock is ClockKind.PACED and options.durations is None:
        raise BadInput("run", "durations", None, "the paced clock needs the seconds of each worker's instructions")
    if options.checkpoint_every < 1:
        raise BadInput("run", "checkpoint_every", options.checkpoint_every, "at least 1 step")
    if options.resume and options.checkpoint is None:
        raise BadInput("run", "resume", True, "needs the folder of the checkpoint to go on from")


def _start(plan: Plan, options: RunOptions, state: JobState) -> Done:
    """Give all parameters their values, of the start or of a checkpoint."""
    folder = options.checkpoint
    if folder is not None and (folder / FILE_NAME).exists():
        if not options.resume:
            raise BadInput("run", "checkpoint", str(folder), "holds a checkpoint: resume it, or take another folder")
        done = load(folder / FILE_NAME, plan, state)
        if done.step >= options.steps:
            raise BadInput("run", "steps", options.steps, f"more than the {done.step} that {folder} has done")
        return done
    if folder is not None:
        _make_folder(folder)
    state.initialise(plan.seed)
    return Done()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput("run", "checkpoint", str(folder), f"a folder: {error.strerror}") from None


def _save(job: _Job, step: int) -> None:
    folder = job.options.checkpoint
    if folder is not None:
        save(folder / FILE_NAME, job.plan, job.state, job.done(step))


def _run_segment(job: _Job, steps: range) -> None:
    """Fork the workers and wait until they have done some steps."""
    transport, options, records = SharedMemory(), job.options, job.records
    wiring = wire(job.programs, transport)
    task = functools.partial(_work, job, wiring, transport, steps, _clock_start(job, steps))
    ranks = [records[worker.name] for worker in wiring.workers if worker.role == "rank"]

    def watch() -> None:
        if options.watch is not None:
            options.watch(min(record.steps_done for record in ranks))

    tasks = {worker.name: functools.partial(task, worker) for worker in wiring.workers}
    supervise(
        tasks,
        records,
        started=transport.close,
        hang_seconds=options.hang_seconds,
        watch=watch,
        idle_seconds=max(0.0, job.epoch - time.perf_counter()),
    )


def _clock_start(job: _Job, steps: range) -> float:
    """Return what clocks show at the start of a segment: the latest of the one before; a paced one goes with the wall."""
    latest = max((float(record.times[:, -1, 1].max(initial=0.0)) for record in job.records.values()), default=0.0)
    paced = job.options.clock is ClockKind.PACED and steps.start > job.start.step
    return max(latest, time.perf_counter() - job.epoch) if paced else latest


def _work(job: _Job, wiring: Wiring, transport: SharedMemory, steps: range, clock_start: float, worker: Worker) -> None:
    """Body of a worker's process."""
    keep_only(*transport.descriptors(worker.name))
    plan, options = job.plan, job.options
    session = session_number(plan, worker)
    durations = options.durations.get(worker.name, ()) if options.durations is not None else ()
    context = Context(plan, job.state, job.pool.reader(session, steps), durations)
    clock = Clock(options.clock, job.epoch, clock_start)
    run_worker(Endpoint(worker, wiring, clock, job.records[worker.name]), context, steps)


def _result(job: _Job) -> RunResult:
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
        next_batch=-(-job.done(options.steps).samples // plan.batch),
        lag_seconds=max(_lag(record, warmup) for record in ranks) if options.clock is ClockKind.PACED else 0.0,
    )


def _notes(job: _Job) -> tuple[str, ...]:
    plan, notes = job.plan, []
    if job.options.resume:
        folder, step = job.options.checkpoint, job.start.step
        notes.append(f"went on from step {step} of {folder}" if step else f"nothing in {folder} to go on from")
    nodes = [*plan.servers, *plan.sync_servers, *(node for group in plan.groups for node in group)]
    if len({node.host for node in nodes}) > 1:
        notes.append("machines other than this one are emulated: latency and bytes / NIC rate, without sharing")
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
