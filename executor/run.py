"""Run a plan for real: allocate, fork, supervise, and put the records together.

This is the ``processes`` back-end: one forked process per worker of the plan, all on this host. Machines of the plan that
are not this host are emulated: their network adds latency and bytes / bandwidth to the clock that messages carry, without
sharing, and their cores are as fast as this machine's.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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
from executor.transport import keep_only
from executor.wiring import Wiring, wire
from executor.worker import run_worker, session_number, sessions, steps_of
from placement.plan import Plan
from problem.errors import BadInput
from programs.timeline import Timeline, WorkerTimeline
from programs.transform import transform
from programs.verify import verify
from programs.workers import Worker


@dataclass(frozen=True)
class RunOptions:
    """How to run.

    Parameters
    ----------
    steps : int
        Batches of every session.
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
    """

    steps: int = 100
    warmup: int | None = None
    clock: ClockKind = ClockKind.CPU
    hang_seconds: float = 60.0
    durations: Mapping[str, Sequence[float]] | None = None
    watch: Callable[[int], None] | None = None

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
        Mean log loss of each batch before its update.
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
        A batch does not fit the model, or the paced clock was given no durations.
    WorkerFailed
        A worker died, hung or produced a loss that is not finite.
    """
    chosen = options or RunOptions()
    if chosen.clock is ClockKind.PACED and chosen.durations is None:
        raise BadInput("run", "durations", None, "the paced clock needs the seconds of each worker's instructions")
    check_supported(plan.model)
    job = verify(transform(plan))
    source = stream or SyntheticStream(plan.model, plan.seed)
    pool = read_ahead(source, plan.model, plan.batch, sessions(plan), chosen.steps)
    state = allocate_state(plan)
    state.initialise(plan.seed)
    wiring = wire(job)
    records = {w.name: Record(w, steps_of(plan, w, chosen.steps)) for w in wiring.workers}
    _supervise(wiring, state, pool, records, chosen)
    return _result(plan, chosen, pool, state, records)


def _supervise(
    wiring: Wiring, state: JobState, pool: BatchPool, records: Mapping[str, Record], options: RunOptions
) -> None:
    epoch = time.perf_counter()
    task = functools.partial(_work, wiring, state, pool, records, options, epoch)
    ranks = [records[worker.name] for worker in wiring.workers if worker.role == "rank"]

    def watch() -> None:
        if options.watch is not None:
            options.watch(min(record.steps_done for record in ranks))

    tasks = {worker.name: functools.partial(task, worker) for worker in wiring.workers}
    supervise(tasks, records, started=wiring.close, hang_seconds=options.hang_seconds, watch=watch)


def _work(
    wiring: Wiring,
    state: JobState,
    pool: BatchPool,
    records: Mapping[str, Record],
    options: RunOptions,
    epoch: float,
    worker: Worker,
) -> None:
    """Body of a worker's process."""
    keep_only(*wiring.descriptors(worker.name))
    plan = wiring.job.plan
    session = session_number(plan, worker)
    durations = options.durations.get(worker.name, ()) if options.durations is not None else ()
    context = Context(plan, state, functools.partial(pool.take, session), durations)
    end = Endpoint(worker, wiring, Clock(options.clock, epoch), records[worker.name])
    run_worker(end, context, options.steps)


def _result(
    plan: Plan, options: RunOptions, pool: BatchPool, state: JobState, records: Mapping[str, Record]
) -> RunResult:
    timeline = Timeline(tuple(_timeline(record) for record in records.values() if record.worker.program))
    ranks = [record for record in records.values() if record.worker.role == "rank"]
    dense, tables = gather(plan, state)
    warmup = options.warmup_steps
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
        notes=_notes(plan, pool),
    )


def _notes(plan: Plan, pool: BatchPool) -> tuple[str, ...]:
    notes = []
    if pool.cycled:
        notes.append(f"the run is longer than the {len(pool.batches)} batches read ahead; they are gone through again")
    nodes = [*plan.servers, *plan.sync_servers, *(node for group in plan.groups for node in group)]
    if len({node.host for node in nodes}) > 1:
        notes.append("machines other than this one are emulated: latency and bytes / NIC rate, without sharing")
    return tuple(notes)


def _wall_rate(record: Record, batch: int, warmup: int) -> float:
    ends = record.wall_ends
    begin = ends[warmup - 1] if warmup else 0.0
    return float(batch * (len(ends) - warmup) / (ends[-1] - begin))


def _timeline(record: Record) -> WorkerTimeline:
    worker, times = record.worker, record.times
    columns: list[Any] = [np.array(times[:, :, column]) for column in range(3)]
    return WorkerTimeline(worker.name, worker.node.name, worker.role, worker.program, *columns)
