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
from itertools import chain

from executor.clock import ClockKind
from executor.data.batch import Stream
from executor.job import (
    Job,
    RunOptions,
    RunResult,
    begin,
    check_options,
    latest_clock,
    read_pool,
    result_of,
    save_job,
    work,
)
from executor.parameters import check_supported
from executor.prefault import parameters_of, prefault
from executor.state import Record, allocate_state, check_memory
from executor.supervisor import supervise
from executor.throttle import Nics
from executor.transport import SharedMemory, keep_only, looks_of
from executor.wiring import wire
from executor.worker import turns_of
from placement.plan import Plan
from programs.transform import transform
from programs.verify import verify
from programs.workers import Worker, workers

__all__ = ["RunOptions", "RunResult", "run"]

#: A paced run begins so long after the fork, so that every worker is ready when it does.
PACED_START_SECONDS = 1.0


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
    DoesNotFit
        This machine has not the memory of all machines of the plan.
    BadInput
        A batch does not fit the model, the paced clock was given no durations, or the checkpoint is of another model, is
        damaged, or would be overwritten unasked.
    WorkerFailed
        A worker died, hung or produced a loss that is not finite.
    CheckpointFailed
        A checkpoint could not be written.
    """
    chosen = options or RunOptions()
    check_options(chosen)
    check_supported(plan.model)
    programs = verify(transform(plan))
    check_memory(plan)
    state = allocate_state(plan)
    start = begin(plan, chosen, state)
    steps = range(start.step, chosen.steps)
    pool = read_pool(plan, stream, start, len(steps))
    records = {worker.name: Record(worker, turns_of(plan, worker, steps)) for worker in workers(programs)}
    delay = PACED_START_SECONDS if chosen.clock is ClockKind.PACED else 0.0
    job = Job(programs, state, pool, records, chosen, start, time.perf_counter() + delay)
    for segment in job.segments:
        _run_segment(job, segment)
        save_job(job, segment.stop)
    return result_of(job)


def _run_segment(job: Job, steps: range) -> None:
    """Fork the workers and wait until they have done some steps."""
    options, records = job.options, job.records
    # on virtual clocks a wait costs nothing, and others may use the core
    transport = SharedMemory(looks_of(len(records)) if options.clock is ClockKind.WALL else 0)
    nics = Nics(job.plan) if options.throttled else None
    wiring, latest = wire(job.programs, transport, nics), latest_clock(job.records.values())
    ranks = [records[worker.name] for worker in wiring.workers if worker.role == "rank"]

    def watch() -> None:
        if options.watch is not None:
            options.watch(min(record.steps_done for record in ranks))

    def enter(worker: Worker) -> None:
        keep_only(*transport.descriptors(worker.name))
        prefault(chain(transport.memory(worker.name), parameters_of(job.plan, job.state, worker)))
        work(job, wiring, worker, steps, latest)

    def started() -> None:
        transport.close()
        if nics is not None:
            nics.close()

    supervise(
        {worker.name: functools.partial(enter, worker) for worker in wiring.workers},
        records,
        started=started,
        hang_seconds=options.hang_seconds,
        watch=watch,
        idle_seconds=max(0.0, job.epoch - time.perf_counter()),
    )
