"""Token buckets with an injected clock: rates, bursts, debts, and two buckets in a row."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.clock import ClockKind
from executor.run import RunOptions, run
from executor.throttle import Nics, TokenBucket
from experiments.training import with_nics
from placement.plan import Plan
from problem.errors import BadInput
from programs.transform import transform
from programs.workers import Worker, workers
from tests.executor.tiny import dlrm, tables
from tests.programs import plans

pytestmark = pytest.mark.timeout(30)


def test_messages_in_a_row_take_bytes_over_rate_each() -> None:
    """Without a burst, three messages that are there at 10 s leave at 100 bytes/s, one behind the other."""
    bucket, full, ends = TokenBucket(100.0, 0.0), 0.0, []
    for size in (50, 100, 25):
        end, full = bucket.take(full, 10.0, size)
        ends.append(end)
    assert ends == [10.5, 11.5, 11.75]


def test_a_full_bucket_lets_its_burst_through_at_once() -> None:
    """40 bytes of tokens: 40 go at once, the next 10 wait for theirs; after a pause it is full again, and not fuller."""
    bucket = TokenBucket(10.0, 40.0)
    end, full = bucket.take(0.0, 100.0, 40)
    assert (end, full) == (100.0, 104.0)
    end, full = bucket.take(full, 100.0, 10)
    assert (end, full) == (101.0, 105.0)
    assert bucket.take(full, 1000.0, 40)[0] == 1000.0
    assert bucket.take(full, 1000.0, 60)[0] == 1002.0


@given(
    messages=st.lists(st.tuples(st.floats(0, 5), st.integers(1, 500)), min_size=1, max_size=30),
    burst=st.integers(0, 300),
)
def test_no_more_than_burst_and_rate_passes_in_any_time(messages: list[tuple[float, int]], burst: int) -> None:
    """From any message to any later one, what has passed is at most the burst and what the rate gives in that time."""
    bucket, now, full, passed = TokenBucket(100.0, burst), 0.0, 0.0, []
    for pause, size in messages:
        now += pause
        end, full = bucket.take(full, now, size)
        assert end >= now
        passed.append((now, end, size))
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            sent = sum(size for _, _, size in passed[first : last + 1])
            assert sent <= burst + 100.0 * (passed[last][1] - passed[first][0]) + 1e-6


def emulated() -> Plan:
    """Two ranks and a server on machines of their own, with 1 MB/s each."""
    return with_nics(plans.plan(dlrm([3, 8, 4], tables(2, 40, 4), [8, 1]), nodes=2, ranks=2, synchronous=True), 1e6)


@pytest.fixture
def nics() -> Nics:
    """The buckets of that plan."""
    return Nics(emulated())


def worker(plan: Plan, name: str) -> Worker:
    """A worker by name."""
    return next(found for found in workers(transform(plan)) if found.name == name)


def test_two_senders_share_the_receiver_and_directions_are_apart(nics: Nics) -> None:
    """Two ranks send 1 MB each to a server at 0 s: the first arrives at 1 s, the second at 2 s; what the server sends
    meanwhile is not held up by what it receives."""
    plan, wires = emulated(), {}
    for source, target in (("g0/n0/t0", "ps0/serves-g0n0t0"), ("g0/n1/t0", "ps0/serves-g0n1t0")):
        wires[source] = nics.between(worker(plan, source), worker(plan, target))
        wires[target] = nics.between(worker(plan, target), worker(plan, source))
    arrivals = [
        nics.take(wire.numbers, tuple(TokenBucket(b.bytes_per_second, 0.0) for b in wire.buckets), 10**6, 0.0)
        for wire in (wires[name] for name in ("g0/n0/t0", "g0/n1/t0", "ps0/serves-g0n0t0"))
        if wire is not None
    ]
    assert arrivals == [1.0, 2.0, 1.0]
    nics.close()


def test_another_process_opens_the_same_buckets(nics: Nics) -> None:
    """What is taken through one of them is gone from the other."""
    plan = emulated()
    other = Nics(plan, nics.path)
    first, second = (found.between(worker(plan, "g0/n0/t0"), worker(plan, "g0/n1/t0")) for found in (nics, other))
    assert first is not None
    assert second is not None
    nics.take(first.numbers, first.buckets, 10**6, 0.0)
    assert other.take(second.numbers, second.buckets, 10**6, 0.0) == pytest.approx(2.0, abs=0.01)
    nics.close()
    other.close()


def test_messages_inside_a_host_are_not_held_up(nics: Nics) -> None:
    """Two workers of a machine, and any two of a plan for one host, have no NIC between them."""
    plan = emulated()
    assert nics.between(worker(plan, "ps0/serves-g0n0t0"), worker(plan, "ps0/serves-g0n1t0")) is None
    here = plans.plan(dlrm([3, 8, 4], tables(2, 40, 4), [8, 1]), nodes=2, ranks=2)
    assert nics.between(worker(here, "g0/n0/t0"), worker(here, "g0/n1/t0")) is None
    nics.close()


def test_a_throttled_run_computes_the_same() -> None:
    """Losses and parameters equal those of the run that is not held up, to the bit; the notes say what is emulated."""
    options = RunOptions(steps=3, clock=ClockKind.WALL)
    free, held = (run(emulated(), dataclasses.replace(options, throttled=on)) for on in (False, True))
    np.testing.assert_array_equal(held.losses, free.losses)
    np.testing.assert_array_equal(held.dense.flat("top0"), free.dense.flat("top0"))
    assert "which messages share" in held.notes[-1]


def test_the_throttle_needs_the_wall_clock() -> None:
    """Virtual clocks do not see what happens on the wall."""
    with pytest.raises(BadInput, match="wall"):
        run(emulated(), RunOptions(steps=3, throttled=True))
