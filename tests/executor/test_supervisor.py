"""The supervisor alone, on tasks that do not train: which fault is named, and when nobody is to blame."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping

import pytest
import threadpoolctl

from executor.errors import NotFinite, PeerGone, WorkerFailed
from executor.state import Record
from executor.supervisor import _interrupts_held, supervise
from programs.workers import Worker
from tests.executor.conftest import Traces, alive
from tests.programs import plans

pytestmark = pytest.mark.timeout(30)

Body = Callable[[Record], None]


def outcome(bodies: Mapping[str, Body], **settings: float) -> str:
    """Supervise one process per body; return the message of the fault, or nothing."""
    node = plans.machine("here")
    records = {name: Record(Worker(name, node, "rank", 0, 0, 0, None, ()), range(1)) for name in bodies}

    def task(name: str) -> Callable[[], None]:
        return lambda: bodies[name](records[name])

    try:
        supervise({name: task(name) for name in bodies}, records, started=lambda: None, **settings)  # type: ignore[arg-type]
    except WorkerFailed as failed:
        return str(failed)
    return ""


def well(record: Record) -> None:
    """End at once."""
    record.tick()


def loses_peer(record: Record) -> None:
    """What a worker does when a peer has gone."""
    raise PeerGone


def busy(record: Record) -> None:
    """Make progress for a second."""
    for _ in range(100):
        record.tick()
        time.sleep(0.01)


def waits(record: Record) -> None:
    """Wait for a peer that never sends."""
    record.waiting(True)
    time.sleep(20)


def hangs(record: Record) -> None:
    """Neither wait nor make progress."""
    time.sleep(20)


def raises(error: BaseException, after_seconds: float = 0.0) -> Body:
    """Raise an error."""

    def body(record: Record) -> None:
        time.sleep(after_seconds)
        raise error

    return body


def test_tasks_that_end_well_are_no_fault() -> None:
    """Nothing is raised when every process ends with 0, whatever the order."""
    assert not outcome({"a": well, "b": lambda r: time.sleep(0.2), "c": well})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (raises(ValueError("no such row")), "ValueError: no such row"),
        (raises(ValueError("two\nlines")), "ValueError: two"),
        (raises(NotFinite("loss is nan at step 3")), "loss is nan at step 3"),
        (raises(SystemExit(0)), "SystemExit: 0"),
        (lambda record: os._exit(7), "ended with exit code 7"),
        (lambda record: os.kill(os.getpid(), signal.SIGTERM), "was killed by SIGTERM"),
    ],
    ids=["exception", "two lines", "not finite", "exit", "exit code", "signal"],
)
def test_the_culprit_is_told_from_its_victims(body: Body, reason: str) -> None:
    """Peers end first, because they lost a peer; the one with an error of its own is named, with its first line."""
    assert outcome({"a": loses_peer, "culprit": body, "c": loses_peer}) == f"worker culprit: {reason}"


def test_the_first_report_is_the_fault() -> None:
    """Of two errors the earlier one is told."""
    bodies = {"late": raises(ValueError("late"), 0.3), "early": raises(ValueError("early"))}
    assert outcome(bodies) == "worker early: ValueError: early"


def test_a_lost_peer_without_a_culprit_is_told_as_such() -> None:
    """A worker that ended well too early is a fault of the programs; its victim is named."""
    assert outcome({"a": well, "b": loses_peer}) == "worker b: lost a peer that ended without an error"


def test_a_hung_worker_is_named_though_others_make_progress() -> None:
    """Progress of one worker does not hide that another has stopped; those that wait for it are not blamed."""
    found = outcome({"waits": waits, "hangs": hangs, "busy": busy}, hang_seconds=0.3)
    assert found == "worker hangs: made no progress for 0.3 s (stopped or hung)"


def test_waiting_for_a_busy_peer_is_no_fault() -> None:
    """A worker may wait for longer than the limit as long as somebody makes progress."""

    def waits_long(record: Record) -> None:
        record.waiting(True)
        time.sleep(0.7)

    assert not outcome({"waits": waits_long, "busy": busy}, hang_seconds=0.3)


def test_bug_a_worker_that_had_waited_for_long_was_blamed_when_it_went_on() -> None:
    """It counted as hung the moment it woke, because its last instruction was long ago; it has the whole limit now."""

    def wakes_late(record: Record) -> None:
        record.waiting(True)
        time.sleep(1.0)
        record.waiting(False)
        time.sleep(0.4)

    assert not outcome({"wakes late": wakes_late, "busy": busy}, hang_seconds=0.8)


def test_a_deadlock_is_told() -> None:
    """When everybody waits, nobody is stopped or hung; the message says so."""
    found = outcome({"a": waits, "b": waits}, hang_seconds=0.3)
    assert found == "worker a: all workers have waited for each other for 0.3 s"


def test_ends_are_closed_though_a_process_cannot_be_started(traces: Traces, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the second fork fails, the first process is ended and ``started``, which closes channels, is called."""
    closed, fork = [], os.fork

    def fork_once() -> int:
        monkeypatch.setattr(os, "fork", fails)
        return fork()

    def fails() -> int:
        traces.note_children()
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", fork_once)
    record = Record(Worker("a", plans.machine("here"), "rank", 0, 0, 0, None, ()), range(1))
    tasks = dict.fromkeys(("a", "b"), lambda: time.sleep(20))
    with pytest.raises(BlockingIOError):
        supervise(tasks, {"a": record, "b": record}, started=lambda: closed.append(True))
    assert closed
    assert traces.pids
    assert not any(map(alive, traces.pids))


def test_bug_an_interrupt_during_the_forks_was_lost() -> None:
    """Ctrl-C in the middle of a fork was swallowed by Python's own fork hooks, and the run went on: it is held now."""
    reached = []

    def interrupted_block() -> None:
        with _interrupts_held():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            reached.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted_block()
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_workers_have_one_blas_thread() -> None:
    """Whatever the process that starts them has: four workers on two cores do not run eight BLAS threads."""

    def look(record: Record) -> None:
        threads = [library["num_threads"] for library in threadpoolctl.threadpool_info()]
        record.note_loss(0, max(threads, default=1))

    node = plans.machine("here")
    record = Record(Worker("w", node, "rank", 0, 0, 0, None, ()), range(1))
    with threadpoolctl.threadpool_limits(2):
        supervise({"w": lambda: look(record)}, {"w": record}, started=lambda: None)
    assert record.losses[0] == 1
