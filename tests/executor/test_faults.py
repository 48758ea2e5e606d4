"""What happens when a worker dies, hangs, computes nonsense or raises: it is named, and nothing is left behind."""

from __future__ import annotations

import dataclasses
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.checkpoint import FILE_NAME, load
from executor.clock import ClockKind
from executor.data import Batch, SyntheticStream
from executor.errors import WorkerFailed
from executor.run import RunOptions, run
from executor.state import JobState, allocate_state
from executor.transport import shared_array
from placement.plan import Plan, Sync
from problem.errors import BadInput
from programs.transform import transform
from programs.workers import Worker, workers
from tests.executor.conftest import Traces, alive
from tests.executor.tiny import dlrm, tables
from tests.programs import plans

pytestmark = pytest.mark.timeout(30)

ROOT = Path(__file__).resolve().parents[2]
#: One worker of each kind, of the plan below.
VICTIMS = {
    "rank": "g1/n0/t0",
    "mp copy": "g0/n1/serves-n0t0",
    "embedding server": "ps0/serves-g1n0t0",
    "sync server": "sync0",
    "shadow": "g1/n1/shadow",
}


def every_kind() -> Plan:
    """Two groups of a rank and an MP node, kept together in the background: 11 workers of all five kinds."""
    model = dlrm([3, 8, 4], tables(2, 40, 4), [8, 1])
    return plans.plan(model, nodes=2, groups=2, sync_servers=1, tags={"top0": 1}, sync=Sync("background", 2))


def slowly(plan: Plan, watch: Callable[[int], None], steps: int = 400, **settings: Any) -> RunOptions:
    """Options of a run in which every instruction takes 1 ms: many seconds, and next to no work."""
    durations = {worker.name: [1e-3] * len(worker.program) for worker in workers(transform(plan))}
    return RunOptions(steps=steps, clock=ClockKind.PACED, durations=durations, watch=watch, **settings)


@dataclass
class Assassin:
    """Sends a signal to a worker once every rank has done two steps and the worker is ready for it."""

    victim: str
    number: signal.Signals
    traces: Traces
    ready: np.ndarray = field(default_factory=lambda: np.ones(1))
    at: float = field(default=0.0)

    def __call__(self, steps: int) -> None:
        if steps >= 2 and not self.at and self.ready[0]:
            self.at = time.monotonic()
            os.kill(self.traces.note_children()[self.victim], self.number)


@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_killed_worker_is_named_and_everything_ends(victim: str, traces: Traces) -> None:
    """SIGKILL of any kind of worker ends the run within 5 s with that worker's name; no process, file or memory stays."""
    plan, assassin = every_kind(), Assassin(victim, signal.SIGKILL, traces)
    with pytest.raises(WorkerFailed) as caught:
        run(plan, slowly(plan, assassin))
    assert time.monotonic() - assassin.at < 5.0
    assert str(caught.value) == f"worker {victim}: was killed by SIGKILL"
    assert caught.value.exit_code == 4
    assert len(traces.pids) == len(workers(transform(plan)))
    traces.assert_gone()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_kills_at_random_leave_nothing(tmp_path: Path, traces: Traces) -> None:
    """A worker of any kind killed at a random moment, in every other run with checkpoints, which fork all workers anew every
    twenty steps: each run ends within 5 s with that worker's name, the last checkpoint loads, and nothing is left."""
    plan, draw = every_kind(), random.Random(7)
    names = [worker.name for worker in workers(transform(plan))]
    for number in range(100):
        victim, folder, after = draw.choice(names), tmp_path / str(number), draw.uniform(0.0, 0.6)
        assassin = LateAssassin(victim, traces, time.monotonic() + after)
        options = slowly(plan, assassin)
        if number % 2:
            options = dataclasses.replace(options, checkpoint=folder, checkpoint_every=20)
        with pytest.raises(WorkerFailed) as caught:
            run(plan, options)
        assert time.monotonic() - assassin.killed < 5.0
        assert str(caught.value) == f"worker {victim}: was killed by SIGKILL", number
        traces.assert_gone()
        if (folder / FILE_NAME).exists():
            assert load(folder / FILE_NAME, plan, allocate_state(plan)).step % 20 == 0


@dataclass
class LateAssassin:
    """Kills a worker as soon as it is there after a given moment; again if it had just ended its segment."""

    victim: str
    traces: Traces
    when: float
    killed: float = field(default=0.0)

    def __call__(self, steps: int) -> None:
        del steps
        pid = self.traces.note_children().get(self.victim)
        if time.monotonic() >= self.when and pid is not None:
            self.killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_stopped_worker_is_named_and_everything_ends(victim: str, traces: Traces) -> None:
    """A worker that is stopped (SIGSTOP), while it works or while it waits, is told from those that wait for it, and from
    those that go on."""
    plan, assassin = every_kind(), Assassin(victim, signal.SIGSTOP, traces)
    with pytest.raises(WorkerFailed, match=r"made no progress for 0\.5 s \(stopped or hung\)") as caught:
        run(plan, slowly(plan, assassin, hang_seconds=0.5))
    assert caught.value.worker == victim
    traces.assert_gone()


class Poisoned:
    """The synthetic stream, but one batch has dense features that are not numbers."""

    def __init__(self, plan: Plan, index: int) -> None:
        self._stream, self._index = SyntheticStream(plan.model, 1), index

    def batch(self, index: int, size: int) -> Batch:
        """Return a batch."""
        found = self._stream.batch(index, size)
        return Batch(found.dense * np.float32(np.nan), found.ids, found.labels) if index == self._index else found


def test_a_loss_that_is_not_a_number_names_rank_and_step(traces: Traces) -> None:
    """Batch 7 of two ranks is rank 1's at step 3; it is named, not rank 0, which gets the gradients."""
    plan = plans.plan(dlrm([3, 8, 4], tables(2, 40, 4), [8, 1]), nodes=2, ranks=2)
    options = RunOptions(steps=20, watch=lambda _: traces.note_children() and None)
    with pytest.raises(WorkerFailed) as caught:
        run(plan, options, Poisoned(plan, 7))
    assert str(caught.value) == "worker g0/n1/t0: loss is nan at step 3"


def test_a_loss_that_overflows_names_the_step(capfd: pytest.CaptureFixture[str]) -> None:
    """A learning rate of 1e30 makes the model overflow: one line about the loss, no warnings of NumPy from the workers."""
    plan = plans.plan(dlrm([3, 8, 4], tables(2, 40, 4), [8, 1], learning_rate=1e30))
    with pytest.raises(WorkerFailed, match=r"^worker g0/n0/t0: loss is (nan|inf) at step \d$"):
        run(plan, RunOptions(steps=20))
    assert capfd.readouterr() == ("", "")


@dataclass(frozen=True)
class Starves:
    """Leaves a worker without memory when it gets SIGALRM: no new page can be mapped."""

    victim: str
    ready: np.ndarray = field(default_factory=lambda: shared_array((1,), np.int64))

    def __call__(self, worker: Worker, state: JobState) -> None:
        """Wait for the alarm."""
        if worker.name == self.victim:
            signal.signal(signal.SIGALRM, lambda *_: self.allocate())
            self.ready[0] = 1

    @staticmethod
    def allocate() -> None:
        """Ask for 64 MB under a limit of what is in use."""
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(),) * 2)
        np.ones(1 << 23)


@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_worker_without_memory_is_named_and_everything_ends(victim: str, traces: Traces) -> None:
    """An allocation that fails under RLIMIT_AS, in any kind of worker, working or waiting, ends the run with its name."""
    plan, starves = every_kind(), Starves(victim)
    assassin = Assassin(victim, signal.SIGALRM, traces, starves.ready)
    options = slowly(plan, assassin, on_start=starves)
    with pytest.raises(WorkerFailed, match=r"MemoryError: Unable to allocate 64\.0 MiB") as caught:
        run(plan, options)
    assert time.monotonic() - assassin.at < 5.0
    assert caught.value.worker == victim
    traces.assert_gone()


def test_a_stopped_worker_is_named_long_before_it_counts_as_hung(traces: Traces) -> None:
    """SIGSTOP is seen within seconds, whatever the limit of a hang."""
    plan, assassin = every_kind(), Assassin("g0/n0/t0", signal.SIGSTOP, traces)
    with pytest.raises(WorkerFailed, match=r"^worker g0/n0/t0: was stopped by a signal$"):
        run(plan, slowly(plan, assassin, hang_seconds=1000.0))
    traces.assert_gone()


def test_an_exception_inside_a_worker_is_its_message(traces: Traces) -> None:
    """A worker whose instruction fails: its name and the exception, not its peers that lost it."""
    plan = every_kind()
    options = slowly(plan, lambda _: traces.note_children() and None)
    assert isinstance(options.durations, dict)
    options.durations["g0/n1/serves-n0t0"] = [1e-3]
    with pytest.raises(WorkerFailed, match=r"^worker g0/n1/serves-n0t0: IndexError: list index out of range$"):
        run(plan, options)


def test_an_interrupted_run_leaves_nothing(traces: Traces) -> None:
    """Ctrl-C in the coordinator goes through, after all workers were ended."""
    plan = every_kind()

    def interrupt(steps: int) -> None:
        traces.note_children()
        if steps:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan, slowly(plan, interrupt))
    traces.assert_gone()


def test_a_run_that_ends_well_leaves_nothing(traces: Traces) -> None:
    """The same for a run that comes to its end."""
    plan = every_kind()
    run(plan, slowly(plan, lambda _: traces.note_children() and None, steps=10))
    traces.assert_gone()


def test_bug_bad_data_leaves_no_open_files(traces: Traces) -> None:
    """A stream that fails before any worker was started left every pipe of the job open."""

    class Broken:
        def batch(self, index: int, size: int) -> Batch:
            raise BadInput("day_0.tsv", "line 3", "x", "a number")

    traces.pids.add(2**22 + 1)  # no process was started
    with pytest.raises(BadInput):
        run(every_kind(), RunOptions(steps=2), Broken())
    traces.assert_gone()


COORDINATOR = """
import multiprocessing
from executor.run import run
from tests.executor.test_faults import every_kind, slowly

def watch(steps):
    if steps >= 2:
        print(*[child.pid for child in multiprocessing.active_children()], flush=True)

plan = every_kind()
run(plan, slowly(plan, watch))
"""


def coordinate(traces: Traces) -> subprocess.Popen[str]:
    """Start a coordinator in a session of its own, and wait until its workers have done two steps."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", COORDINATOR]
    coordinator = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert coordinator.stdout is not None
    traces.pids.update(map(int, coordinator.stdout.readline().split()))
    return coordinator


@pytest.mark.parametrize("ended_by", ["kill", "Ctrl-C"])
def test_workers_end_with_their_coordinator(ended_by: str, traces: Traces) -> None:
    """SIGKILL of the coordinator, which can clean up nothing, ends every worker; so does Ctrl-C, which all of them get and
    only the coordinator answers."""
    with coordinate(traces) as coordinator:
        try:
            assert len(traces.pids) == len(workers(transform(every_kind())))
            assert all(map(alive, traces.pids))
        finally:
            if ended_by == "kill":
                coordinator.kill()
            else:
                os.killpg(coordinator.pid, signal.SIGINT)
        assert coordinator.stderr is not None
        assert coordinator.stderr.read().count("Traceback") == (ended_by == "Ctrl-C")
    traces.assert_gone(within_seconds=5.0)


def test_bug_a_job_of_many_channels_raises_the_limit_of_open_files() -> None:
    """The limit was raised after the pipes had been made: a job of 75 channels (300 ends) failed under a limit of 128."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        run(plans.easgd_plan("background"), RunOptions(steps=2))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
