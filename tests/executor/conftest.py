"""A guard around every test that starts processes: whatever happens, none of them outlives it."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor.state import JobState, allocate_state
from placement.plan import Plan
from tests import shared_memory


@pytest.fixture(autouse=True)
def no_child_survives() -> Iterator[None]:
    """Kill whatever forked children a test has left."""
    yield
    for child in multiprocessing.active_children():
        child.kill()
        child.join()


@pytest.fixture(autouse=True)
def paced_runs_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are not quite ready when a paced run begins catch up: virtual clocks do not see it."""
    monkeypatch.setattr("executor.run.PACED_START_SECONDS", 0.0)


class Traces:
    """What a run must not leave behind: processes, open files of this process, named shared memory."""

    def __init__(self) -> None:
        self.pids: set[int] = set()
        self._files = self._open_files()
        self._memory = shared_memory.names()

    @staticmethod
    def _open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def note_children(self) -> dict[str, int]:
        """Remember the process ids of all children; return them by name."""
        found = {child.name: child.pid for child in multiprocessing.active_children() if child.pid is not None}
        self.pids.update(found.values())
        return found

    def assert_gone(self, within_seconds: float = 0.0) -> None:
        """No noted process is alive, no file of this process is still open, no shared memory has a new name."""
        deadline = time.monotonic() + within_seconds
        while any(map(alive, self.pids)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert self.pids
        assert not [pid for pid in self.pids if alive(pid)]
        assert self._open_files() == self._files
        assert not shared_memory.left_since(self._memory)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


@pytest.fixture
def traces() -> Traces:
    """What was there before the test; skipped where there is no /proc."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc to see processes and open files")
    return Traces()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[JobState]:
    """The parameters of every run of the test, as its workers left them."""
    kept: list[JobState] = []

    def keep(plan: Plan) -> JobState:
        kept.append(allocate_state(plan))
        return kept[-1]

    monkeypatch.setattr("executor.run.allocate_state", keep)
    return kept
