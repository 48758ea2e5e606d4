"""MPI: starting and ending it, waiting under it, memory that ranks share. The only module that imports mpi4py, and it does
so when it is first asked to.

Every worker is a rank; ``executor.mpi_transport`` has the channels between them. Workers of one machine share an MPI window.

MPI libraries wait by spinning. Here a worker that waits soon gives its core away between two tests and then sleeps, since
ranks may outnumber cores.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

from executor.clock import Clock
from executor.counter import Progress
from executor.frame import Bytes
from problem.errors import BadInput

#: Tests before a waiting worker gives its core away between two of them, tests before it sleeps, and how long it sleeps. The
#: time of the tests must be longer than a sleep: otherwise two workers that talk would make each other sleep for ever.
SPINS, YIELDS = 100, 1000
NAP_SECONDS = 50e-6


def library() -> Any:
    """Return ``mpi4py.MPI``; the first call starts MPI in this process, for calls of one thread only.

    Raises
    ------
    BadInput
        mpi4py, or the MPI library that it looks for, is not there.
    """
    try:
        import mpi4py  # noqa: PLC0415 - optional, and importing MPI starts it

        mpi4py.rc.thread_level = "funneled"
        from mpi4py import MPI  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise BadInput("run", "backend", "mpi", f"needs mpi4py and an MPI library: {reason}") from None
    return MPI


@contextlib.contextmanager
def rank_pool() -> Iterator[tuple[Executor, int] | None]:
    """Yield a pool of all ranks but the first, and their number, on the first; None on the others, once they have served it.

    Starts MPI with support for threads, so not for use in a process that trains (:func:`library`).

    Raises
    ------
    BadInput
        mpi4py or an MPI library is not there, or there is only one rank.
    """
    try:
        from mpi4py import MPI  # noqa: PLC0415 - as in library()
        from mpi4py.futures import MPICommExecutor  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise BadInput("sweep", "mpi", True, f"needs mpi4py and an MPI library: {reason}") from None
    size = MPI.COMM_WORLD.size
    if size == 1:
        raise BadInput("mpiexec", "-n", size, "at least 2: the first rank hands out what the others do")
    with MPICommExecutor(MPI.COMM_WORLD, root=0) as pool:
        found: Any = pool  # an Executor in all but name
        yield None if found is None else (found, size - 1)


class Unwatched:
    """Progress of nobody: for waiting outside the instructions."""

    def waiting(self, yes: bool) -> None:
        """Take no notice."""


def meet(comm: Any) -> None:
    """Wait for all ranks of a communicator, without spinning."""
    await_(comm.Ibarrier().Test, Unwatched())


def finish() -> None:
    """Wait for all ranks and end MPI in this process, so that the launcher takes its end for a good one."""
    meet(library().COMM_WORLD)
    library().Finalize()


def await_(test: Callable[[], bool], progress: Progress, clock: Clock | None = None) -> None:
    """Wait until a test succeeds: by trying again, then giving the core away in between, then sleeping.

    What comes after the first tests is no CPU time of the clock's.
    """
    for _ in range(SPINS):
        if test():
            return
    progress.waiting(True)
    if clock is not None:
        clock.pause()
    for _ in range(YIELDS):
        if test():
            break
        os.sched_yield()
    else:
        while not test():
            time.sleep(NAP_SECONDS)
    if clock is not None:
        clock.resume()
    progress.waiting(False)


def share(comm: Any, size: int) -> Bytes:
    """Return so many bytes of zeroed memory that the ranks of a communicator, all on one host, see alike."""
    if comm.size == 1 or not size:
        return np.zeros(size, np.uint8)
    window = library().Win.Allocate_shared(size if comm.rank == 0 else 0, 1, comm=comm)
    memory: Bytes = np.frombuffer(window.Shared_query(0)[0], np.uint8, count=size)
    if comm.rank == 0:
        memory[:] = 0
    comm.Barrier()
    return memory


def leave_no_names(comm: Any) -> None:
    """Take the names of MPI's own shared memory away, once all ranks have it open: a killed job then leaves none."""
    host = comm.Split_type(library().COMM_TYPE_SHARED)
    comm.Barrier()
    maps = Path("/proc/self/maps")
    if host.rank == 0 and maps.exists():
        lines = (line.split(maxsplit=5) for line in maps.read_text().splitlines() if "/dev/shm/" in line)
        for path in {fields[5] for fields in lines}:
            if not path.endswith("(deleted)"):
                Path(path).unlink(missing_ok=True)
    comm.Barrier()
    host.Free()
