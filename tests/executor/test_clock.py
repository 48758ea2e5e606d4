"""The three clocks, on a pretended time: what work, waiting and messages do to each."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from executor.clock import Clock, ClockKind


@dataclass
class PretendedTime:
    """Wall time and CPU time of this thread, moved by the test."""

    wall: float = 100.0
    cpu: float = 5.0

    def perf_counter(self) -> float:
        """Return the wall time."""
        return self.wall

    def thread_time(self) -> float:
        """Return the CPU time."""
        return self.cpu

    def sleep(self, seconds: float) -> None:
        """Let the wall time pass."""
        self.wall += seconds

    def work(self, seconds: float) -> None:
        """Use CPU for some seconds on a machine where it takes twice as long on the wall."""
        self.cpu += seconds
        self.wall += 2 * seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> PretendedTime:
    """The clock module sees the pretended time."""
    pretended = PretendedTime()
    monkeypatch.setattr("executor.clock.time", pretended)
    return pretended


def test_cpu_clock_counts_work_not_waiting(time: PretendedTime) -> None:
    """Work advances it by its CPU time, whatever the wall says; sleeping does not."""
    clock = Clock(ClockKind.CPU, epoch=100.0)
    clock.begin()
    time.work(0.25)
    time.sleep(10.0)
    clock.lap()
    assert clock.now == clock.used == 0.25
    time.work(0.5)
    clock.lap()
    assert clock.now == clock.used == 0.75


def test_cpu_clock_leaves_out_what_is_between_instructions(time: PretendedTime) -> None:
    """Bookkeeping between ``lap`` and the next ``begin`` is not the program's."""
    clock = Clock(ClockKind.CPU, epoch=100.0)
    clock.begin()
    time.work(0.25)
    clock.lap()
    time.work(3.0)
    clock.begin()
    time.work(0.5)
    clock.lap()
    assert clock.now == 0.75
    assert clock.used == 0.5


@pytest.mark.parametrize("kind", [ClockKind.CPU, ClockKind.PACED])
def test_a_message_moves_a_virtual_clock_forward_only(kind: ClockKind, time: PretendedTime) -> None:
    """The receiver is at least as late as the message; an old message changes nothing."""
    clock = Clock(kind, epoch=100.0)
    clock.meet(4.0)
    assert clock.now == 4.0
    clock.meet(3.0)
    assert clock.now == 4.0
    assert clock.used == 0.0


def test_wall_clock_is_the_wall(time: PretendedTime) -> None:
    """Work counts as long as it took, messages move nothing, the CPU time used is kept all the same."""
    clock = Clock(ClockKind.WALL, epoch=100.0)
    clock.begin()
    assert clock.now == 0.0
    time.work(0.25)
    clock.meet(9.0)
    clock.lap()
    assert clock.now == 0.5
    assert clock.used == 0.25
    time.sleep(1.0)
    clock.begin()
    assert clock.now == 1.5


def test_paced_clock_takes_the_given_duration_and_sleeps_up_to_it(time: PretendedTime) -> None:
    """Half a second of work that shall take two: the clock moves by two, and the wall with it."""
    clock = Clock(ClockKind.PACED, epoch=100.0)
    clock.begin(2.0)
    time.work(0.25)
    clock.lap()
    assert clock.now == 2.0
    assert clock.wall == 2.0
    assert clock.used == 0.25


def test_paced_clock_takes_a_duration_once(time: PretendedTime) -> None:
    """An instruction that laps twice (a send inside) still takes its duration once."""
    clock = Clock(ClockKind.PACED, epoch=100.0)
    clock.begin(2.0)
    clock.lap()
    clock.lap()
    assert clock.now == 2.0


def test_paced_clock_is_not_held_up_by_slow_work(time: PretendedTime) -> None:
    """Work that took longer than its duration puts the wall behind; the clock keeps to the durations and does not sleep
    until the wall has caught up."""
    clock = Clock(ClockKind.PACED, epoch=100.0)
    clock.begin(0.5)
    time.work(1.0)
    clock.lap()
    assert (clock.now, clock.wall) == (0.5, 2.0)
    clock.begin(1.0)
    clock.lap()
    assert (clock.now, clock.wall) == (1.5, 2.0)
    clock.begin(1.0)
    clock.lap()
    assert (clock.now, clock.wall) == (2.5, 2.5)


def test_paced_clock_waits_for_a_message_then_takes_its_duration(time: PretendedTime) -> None:
    """A receive ends its duration after the message was there."""
    clock = Clock(ClockKind.PACED, epoch=100.0)
    clock.begin(0.5)
    clock.meet(3.0)
    clock.lap()
    assert clock.now == 3.5


def test_bug_a_server_held_up_the_client_with_the_earlier_clock() -> None:
    """A sync server kept the latest clock it had seen, so a client whose message came later but was earlier had to wait."""
    server = Clock(ClockKind.CPU, 0.0)
    server.meet(5.0)
    server.forget()
    server.meet(2.0)
    assert server.now == 2.0
