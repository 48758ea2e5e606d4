"""Starts the processes of a job, watches them, and ends them all when one fails.

A worker that dies is seen through its sentinel, at once; one that hangs through a progress counter in shared memory. Either
way the first fault is named and every other worker is killed: nothing keeps running, and since all shared memory is
anonymous, nothing is left behind. If the supervisor itself is killed, the kernel kills the workers (PR_SET_PDEATHSIG).
Knows nothing of what the workers do.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing as mp
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from threadpoolctl import threadpool_limits

from executor.errors import NotFinite, PeerGone, WorkerFailed
from executor.state import Record

_PR_SET_PDEATHSIG = 1
_FAILED, _PEER_GONE = 3, 4
_GRACE_SECONDS = 1.0

Task = Callable[[], None]


def supervise(
    tasks: Mapping[str, Task],
    records: Mapping[str, Record],
    *,
    started: Callable[[], None],
    hang_seconds: float = 60.0,
    watch: Callable[[], None] | None = None,
) -> None:
    """Run each task in a forked process until all have ended.

    Parameters
    ----------
    tasks : Mapping of worker name to callable
        What each process does.
    records : Mapping of worker name to Record
        Where each notes its progress.
    started : callable
        Called when all processes run, to close this process's ends of their channels.
    hang_seconds : float
        A worker that neither moves nor waits for a peer for so long counts as hung.
    watch : callable, optional
        Called about ten times a second (a progress bar).

    Raises
    ------
    WorkerFailed
        The first worker that died, failed or hung; all others have been killed.
    """
    _raise_file_limit()
    reports_read, reports_write = os.pipe()
    parent = os.getpid()
    context = mp.get_context("fork")
    processes = {
        name: context.Process(target=_enter, args=(name, task, reports_write, parent), name=name, daemon=True)
        for name, task in tasks.items()
    }
    try:
        sys.stdout.flush()
        for process in processes.values():
            process.start()
        os.close(reports_write)
        started()
        _watch(processes, records, reports_read, hang_seconds, watch)
    finally:
        _kill(processes)
        os.close(reports_read)


def _raise_file_limit() -> None:
    """A job of many workers needs two pipes a channel: allow as many files as the system lets us."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _enter(name: str, task: Task, reports: int, parent: int) -> None:
    """First and last thing that a worker's process does."""
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's
    gc.disable()
    code = 0
    try:
        with threadpool_limits(1):
            task()
    except PeerGone:
        code = _PEER_GONE
    except NotFinite as error:
        code = _report(reports, name, str(error))
    except BaseException as error:
        code = _report(reports, name, f"{type(error).__name__}: {error}")
    os._exit(code)


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(_PEER_GONE)


def _report(reports: int, name: str, message: str) -> int:
    os.write(reports, f"{name}\t{message}\n".encode()[:4000])
    return _FAILED


def _watch(
    processes: Mapping[str, BaseProcess],
    records: Mapping[str, Record],
    reports: int,
    hang_seconds: float,
    watch: Callable[[], None] | None,
) -> None:
    running = dict(processes)
    last: tuple[int, ...] = ()
    moved_at = time.monotonic()
    while running:
        wait([process.sentinel for process in running.values()], timeout=0.1)
        for name in [name for name, process in running.items() if process.exitcode is not None]:
            if running.pop(name).exitcode != 0:
                raise _first_fault(processes, reports)
        ticks = tuple(records[name].ticks for name in running)
        if ticks != last:
            last, moved_at = ticks, time.monotonic()
        elif time.monotonic() - moved_at > hang_seconds:
            raise _hung(running, records, hang_seconds)
        if watch is not None:
            watch()


def _first_fault(processes: Mapping[str, BaseProcess], reports: int) -> WorkerFailed:
    """Tell the culprit from its victims: it died of a signal or reported an error; they only lost a peer."""
    deadline = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < deadline:
        for name, process in processes.items():
            code = process.exitcode
            if code is not None and code < 0:
                return WorkerFailed(name, f"was killed by {signal.Signals(-code).name}")
            if code == _FAILED:
                worker, _, reason = os.read(reports, 4096).decode(errors="replace").partition("\n")[0].partition("\t")
                return WorkerFailed(worker or name, reason or "failed")
            if code not in (None, 0, _PEER_GONE):
                return WorkerFailed(name, f"ended with exit code {code}")
        time.sleep(0.01)
    lost = next(name for name, process in processes.items() if process.exitcode == _PEER_GONE)
    return WorkerFailed(lost, "lost a peer that ended without an error")


def _hung(running: Mapping[str, BaseProcess], records: Mapping[str, Record], seconds: float) -> WorkerFailed:
    name = next((name for name in running if not records[name].is_waiting), next(iter(running)))
    return WorkerFailed(name, f"made no progress for {seconds:g} s (stopped or hung)")


def _kill(processes: Mapping[str, BaseProcess]) -> None:
    for process in processes.values():
        if process.pid is not None and process.exitcode is None:
            process.kill()
    for process in processes.values():
        if process.pid is not None:
            process.join()
            process.close()
