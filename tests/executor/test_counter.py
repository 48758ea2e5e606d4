"""Counters: what is waited for is seen, slept for, or gone; whoever sleeps is woken, and nobody else."""

from __future__ import annotations

import os
import select
import threading

import pytest

from executor.counter import Counter
from executor.errors import PeerGone
from tests.executor.test_transport import Waits

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def counter() -> Counter:
    """Both ends in this process."""
    return Counter()


def is_rung(counter: Counter) -> bool:
    """Whether something is in the pipe."""
    return bool(select.select([counter.read_end], [], [], 0)[0])


def close(counter: Counter) -> None:
    """Close both ends."""
    os.close(counter.read_end)
    os.close(counter.write_end)


@pytest.mark.parametrize("looks", [0, 10])
def test_what_has_been_counted_is_not_waited_for(counter: Counter, looks: int) -> None:
    """No wait begins, and nothing goes through the pipe, while nobody sleeps."""
    waits = Waits()
    counter.tell(2)
    counter.wait(1, waits, looks)
    counter.wait(2, waits, looks)
    assert counter.count == 2
    assert waits.begun == 0
    assert not is_rung(counter)
    close(counter)


@pytest.mark.parametrize("looks", [0, 100])
def test_who_waits_is_woken(counter: Counter, looks: int) -> None:
    """Asleep at once or after some looks: the wait ends with the event."""
    waits = Waits()
    other = threading.Thread(target=counter.wait, args=(1, waits, looks), daemon=True)
    other.start()
    while not waits.now:
        pass
    counter.tell(1)
    other.join(20)
    assert not other.is_alive()
    assert (waits.begun, waits.now) == (1, False)
    close(counter)


def test_who_looks_sees_without_sleeping(counter: Counter) -> None:
    """An event that comes while one looks ends the wait before it has begun, and nothing goes through the pipe."""
    waits = Waits()
    other = threading.Thread(target=counter.wait, args=(1, waits, 10**9), daemon=True)
    other.start()
    counter.tell(1)
    other.join(20)
    assert not other.is_alive()
    assert waits.begun == 0
    assert not is_rung(counter)
    close(counter)


def test_what_is_left_in_the_pipe_wakes_nobody_for_good(counter: Counter) -> None:
    """A sleeper that finds a ring of an earlier event goes on sleeping; the announcement ends with the wait."""
    assert not counter.announced(1)
    counter.tell(1)
    assert is_rung(counter)
    other = threading.Thread(target=counter.wait, args=(2, Waits()), daemon=True)
    other.start()
    other.join(0.1)
    assert other.is_alive()
    counter.tell(2)
    other.join(20)
    assert not other.is_alive()
    counter.tell(3)
    assert not is_rung(counter)
    close(counter)


def test_a_wait_for_the_dead_ends(counter: Counter) -> None:
    """What they had counted is there; more is not to come, also for one who looked first."""
    counter.tell(1)
    os.close(counter.write_end)
    counter.wait(1, Waits())
    for looks in (0, 100):
        with pytest.raises(PeerGone):
            counter.wait(2, Waits(), looks)
    os.close(counter.read_end)


def test_waking_the_dead_says_so(counter: Counter) -> None:
    """One that had gone to sleep and has ended is noticed by who wakes it."""
    counter.announced(1)
    os.close(counter.read_end)
    with pytest.raises(PeerGone):
        counter.tell(1)
    os.close(counter.write_end)
