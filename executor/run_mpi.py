"""The ``mpi`` back-end: the same programs with one MPI rank for each worker, on one host or on many.

Ranks are in the order of the plan's machines, so that those of one machine, which share its memory, can be started on one
host. Rank 0, a reader of the first group, also gives parameters their start values or those of a checkpoint, sends every
machine its own, collects them to be saved and at the end, and alone returns a result: its host holds the whole model once.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from executor.arrays import BufferFactory, Floats, private_buffer
from executor.checkpoint import Done
from executor.data.batch import Stream
from executor.frame import Bytes
from executor.guard import Badge
from executor.homes import Home, home_of, show_home
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
from executor.mpi import Unwatched, await_, leave_no_names, library, meet, share
from executor.mpi_transport import MpiTransport
from executor.parameters import check_supported
from executor.state import JobState, Record, allocate_state
from executor.throttle import Nics
from executor.wiring import wire
from executor.worker import session_number, turns_of
from placement.plan import Plan
from problem.errors import BadInput
from problem.graph import FLOAT_BYTES
from programs.transform import JobPrograms, transform
from programs.verify import verify
from programs.workers import Worker, workers

_ALIGNMENT = 64


def crew_of(programs: JobPrograms) -> tuple[Worker, ...]:
    """Return the workers of a job in the order of their ranks: by machine, groups first, then the servers."""
    order = {"node": 0, "server": 1, "sync": 2}
    return tuple(sorted(workers(programs), key=lambda worker: (order[home_of(worker)[0]], home_of(worker))))


def machine_of(worker: Worker) -> str:
    """Return the machine of a worker: ranks of one machine must be started on one host."""
    return show_home(home_of(worker))


def run_ranks(
    plan: Plan, options: RunOptions | None = None, stream: Stream | None = None, badge: Badge | None = None
) -> RunResult | None:
    """Train a plan as the rank that this process is; every rank calls this with the same arguments.

    Parameters
    ----------
    plan, options, stream
        As for ``executor.run.run``; ``watch`` is not called. The folder of checkpoints is used by rank 0 alone.
    badge : Badge, optional
        Shows a guard who this is and that it lives.

    Returns
    -------
    RunResult or None
        On rank 0 what ``run`` returns; None on all others. MPI goes on until ``executor.mpi.finish``.

    Raises
    ------
    BadInput
        As ``run``; or the number of ranks is not that of the workers; or ranks of one machine are on several hosts.
    NotFinite, CheckpointFailed, UnsupportedModel
        As ``run``.
    """
    chosen, comm = options or RunOptions(), library().COMM_WORLD
    badge = badge or Badge()
    badge.take(f"of rank {comm.rank}", comm.rank)
    leave_no_names(comm)
    check_options(chosen)
    check_supported(plan.model)
    programs = verify(transform(plan))
    crew = crew_of(programs)
    if len(crew) != comm.size:
        if comm.rank:
            meet(comm)  # the first rank, which never comes, says it for all
        raise BadInput("mpiexec", "-n", comm.size, f"{len(crew)}: a rank for each worker of the plan (see --dry-run)")
    rank = _Rank(comm, programs, crew, badge)
    return rank.run(chosen, stream)


class _Rank:
    """One rank of a job."""

    def __init__(self, comm: Any, programs: JobPrograms, crew: tuple[Worker, ...], badge: Badge) -> None:
        self.comm, self.programs, self.crew, self.badge = comm, programs, crew, badge
        self.plan, self.me, self.leads = programs.plan, crew[comm.rank], comm.rank == 0
        self.home = home_of(self.me)
        badge.take(self.me.name, comm.rank)
        self.leaders: dict[Home, int] = {}
        for number, worker in enumerate(crew):
            self.leaders.setdefault(home_of(worker), number)
        self.pieces: list[tuple[Home, Floats]] = []  # all parameters, in the same order on all ranks
        self.state = self._allocate()

    def run(self, options: RunOptions, stream: Stream | None) -> RunResult | None:
        start = self._begin(options)
        steps = range(start.step, options.steps)
        session = session_number(self.plan, self.me) if self.me.role == "rank" else -1
        pool = read_pool(self.plan, stream, start, len(steps), session)
        noted = self.crew if self.leads else (self.me,)
        records = {worker.name: Record(worker, turns_of(self.plan, worker, steps)) for worker in noted}
        records[self.me.name].live = self.badge.live
        meet(self.comm)
        job = Job(self.programs, self.state, pool, records, options, start, time.perf_counter())
        for segment in job.segments:
            self._run_segment(job, segment)
            if options.checkpoint or segment.stop == steps.stop:
                self._collect()
            if self.leads:
                save_job(job, segment.stop)
        self._collect_records(job)
        return result_of(job) if self.leads else None

    def _run_segment(self, job: Job, steps: range) -> None:
        record = job.records[self.me.name]
        ranks = {worker.name: number for number, worker in enumerate(self.crew)}
        nics = self._nics() if job.options.throttled else None
        wiring = wire(job.programs, MpiTransport(self.comm, ranks, record), nics)
        latest = self.comm.allreduce(latest_clock([record]), op=library().MAX)
        record.waiting(False)
        work(job, wiring, self.me, steps, latest)
        self.badge.rest()
        meet(self.comm)
        if nics is not None:
            nics.close()

    def _nics(self) -> Nics:
        """Buckets that rank 0 makes and all others open, which takes ranks on one host."""
        if self.comm.Split_type(library().COMM_TYPE_SHARED).size != self.comm.size:
            raise BadInput("run", "nic_rate", "several hosts", "ranks on one host: hosts have NICs of their own")
        own = Nics(self.plan) if self.leads else None
        path: str = self.comm.bcast(own.path if own is not None else "")
        return own or Nics(self.plan, path)

    # ---- parameters

    def _allocate(self) -> JobState:
        """Memory for what this machine holds, which its ranks share; on rank 0, private memory for all the rest too."""
        comm = self.comm.Split(list(self.leaders).index(self.home))
        self._check_host(comm)
        counter = _Counter()
        allocate_state(self.plan, lambda home: counter if home == self.home else _not_here)
        arena = _Arena(share(comm, counter.bytes))
        return allocate_state(self.plan, lambda home: self._noting(home, arena))

    def _noting(self, home: Home, own: BufferFactory) -> BufferFactory:
        """Return what gives the buffers of a machine and notes them."""
        factory = own if home == self.home else private_buffer if self.leads else _not_here

        def give(name: str, elements: int) -> Floats:
            self.pieces.append((home, factory(name, elements)))
            return self.pieces[-1][1]

        return give

    def _check_host(self, comm: Any) -> None:
        host = comm.Split_type(library().COMM_TYPE_SHARED)
        if host.size != comm.size:
            first = self.leaders[self.home]
            asked = (
                f"ranks {first} to {first + comm.size - 1} on one host: they share the memory of {show_home(self.home)}"
            )
            raise BadInput("mpiexec", "hosts", f"{host.size} of {comm.size} ranks", asked)
        host.Free()

    def _begin(self, options: RunOptions) -> Done:
        start = begin(self.plan, options, self.state) if self.leads else None
        for home, piece in self.pieces:
            leader = self.leaders[home]
            if piece.size and leader and self.leads:
                self.comm.Send(piece, leader)
            elif piece.size and leader and leader == self.comm.rank:
                self._receive(piece, 0)
        meet(self.comm)
        found: Done = self.comm.bcast(start)
        return found

    def _collect(self) -> None:
        """Send all parameters to rank 0; the sends of the machines before are done when it comes to one."""
        for home, piece in self.pieces:
            leader = self.leaders[home]
            if piece.size and leader and self.leads:
                self._receive(piece, leader)
            elif piece.size and leader and leader == self.comm.rank:
                await_(self.comm.Isend(piece, 0).Test, Unwatched())
        meet(self.comm)

    def _receive(self, array: Any, source: int) -> None:
        await_(self.comm.Irecv(array, source).Test, Unwatched())

    def _collect_records(self, job: Job) -> None:
        for number, worker in enumerate(self.crew):
            if number and number == self.comm.rank:
                for array in job.records[worker.name].arrays:
                    await_(self.comm.Isend(array, 0).Test, Unwatched())
            elif number and self.leads:
                for array in job.records[worker.name].arrays:
                    self._receive(array, number)


class _Counter:
    """Counts the bytes of the buffers that it is asked for."""

    def __init__(self) -> None:
        self.bytes = 0

    def __call__(self, name: str, elements: int) -> Floats:
        self.bytes += -(-elements * FLOAT_BYTES // _ALIGNMENT) * _ALIGNMENT
        return _not_here(name, elements)


class _Arena:
    """Gives buffers out of one block of memory, one after the other."""

    def __init__(self, memory: Bytes) -> None:
        self._memory, self._at = memory, 0

    def __call__(self, name: str, elements: int) -> Floats:
        del name
        begin, size = self._at, elements * FLOAT_BYTES
        self._at += -(-size // _ALIGNMENT) * _ALIGNMENT
        return self._memory[begin : begin + size].view(np.float32)


def _not_here(name: str, elements: int) -> Floats:
    """Stand for memory of another machine: it takes none, and nobody can write to it."""
    del name
    return np.broadcast_to(np.float32(0.0), (elements,))
