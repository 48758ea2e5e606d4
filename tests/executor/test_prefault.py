"""Memory that a worker maps before its first step is not mapped while it is timed."""

from __future__ import annotations

import os
import resource

import numpy as np
import pytest

from executor.prefault import parameters_of, prefault
from executor.state import allocate_state
from executor.transport import shared_array
from placement.plan import Sync
from programs.transform import transform
from programs.workers import workers
from tests.executor.tiny import dlrm, tables
from tests.programs import plans

pytestmark = pytest.mark.timeout(60)
PAGES = 512


def _faults(*, ahead: bool) -> int:
    """Page faults of a child that touches every page of an array made before the fork."""
    array = shared_array((PAGES * resource.getpagesize() // 4,), np.float32)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        if ahead:
            prefault([array])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        array.fill(1.0)
        os.write(write, str(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before).encode())
        os._exit(0)
    os.waitpid(child, 0)
    found = int(os.read(read, 20))
    os.close(read)
    os.close(write)
    return found


def test_pages_are_mapped_ahead() -> None:
    """Touching 512 pages costs hardly a fault after ``prefault``."""
    if not prefault([shared_array((1024,), np.float32)]):
        pytest.skip("this kernel maps nothing ahead (MADV_POPULATE_WRITE, Linux 5.14)")
    assert _faults(ahead=True) < PAGES // 8


def test_more_than_the_limit_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three arrays of which two fit the limit, two are mapped at most; an empty one is no error."""
    monkeypatch.setattr("executor.prefault.MOST_BYTES", 3 * resource.getpagesize())
    page = resource.getpagesize() // 4
    arrays = [shared_array((size,), np.float32) for size in (page, 0, 2 * page, 2 * page)]
    assert prefault(arrays) <= 3 * resource.getpagesize()


def test_every_worker_maps_what_it_updates() -> None:
    """A rank maps all dense parameters of its node, a server the rows of its shards, a sync server the centre."""
    model = dlrm([3, 8, 4], tables(2, 20, 4), [8, 1])
    plan = plans.plan(model, groups=2, sync_servers=1, sync=Sync())
    state = allocate_state(plan)
    mapped = {w.role: sum(a.size for a in parameters_of(plan, state, w)) for w in workers(transform(plan))}
    dense = sum(op.parameters for op in model.graph)
    assert mapped["rank"] == mapped["sync"] == dense
    assert mapped["server"] == sum(table.rows * table.dim for table in model.tables)
