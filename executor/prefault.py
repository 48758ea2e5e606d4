"""Maps memory that was made before the fork into a worker, before its first step.

A forked process maps a page of shared memory when it first touches it: about a microsecond, more where nobody has touched it
yet. Left to the first steps that is milliseconds (an exchange of 2 MB took 1.7 ms instead of 0.2 while the slots of its
channel were new), and of tables, whose rows are met one by one, a part of many steps. Knows addresses; nothing of what they
hold.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Iterator
from typing import Any

import numpy.typing as npt

from executor.state import JobState
from executor.wiring import node_of
from placement.plan import Plan
from programs.instructions import Average
from programs.workers import Worker

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14 and later (linux/mman.h)
#: Bytes that a worker maps at most: more rows than this are mapped as they are met, or a start would take seconds.
MOST_BYTES = 1 << 30

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def prefault(arrays: Iterable[npt.NDArray[Any]]) -> int:
    """Map the pages of arrays for writing, up to :data:`MOST_BYTES`; returns the bytes mapped.

    Where the kernel does not know how, nothing happens: pages are then mapped when they are touched.
    """
    mapped = 0
    for array in arrays:
        begin = array.ctypes.data - array.ctypes.data % mmap.PAGESIZE
        size = array.ctypes.data + array.nbytes - begin
        if array.nbytes and mapped + size <= MOST_BYTES and _libc.madvise(begin, size, _POPULATE_WRITE) == 0:
            mapped += size
    return mapped


def parameters_of(plan: Plan, state: JobState, worker: Worker) -> Iterator[npt.NDArray[Any]]:
    """Yield what a worker reads and updates: the parameters of its node, the centre, or the rows of its shards."""
    if worker.role == "server" and worker.place is not None:
        rows = [state.rows[index] for index, shard in enumerate(plan.shards) if shard.server == worker.place.index]
        for held in rows:
            if held is not None:
                yield from (held.rows, held.state)
        return
    held_here = state.centre if worker.role == "sync" else state.dense[worker.group, node_of(worker)]
    for name in held_here.operators if held_here is not None else ():
        assert held_here is not None
        yield from (held_here.flat(name), held_here.state(name))
    if any(isinstance(instruction, Average) for instruction in worker.program):
        average = state.averages[worker.group, node_of(worker)]
        yield from (average.centre, average.velocity)
