"""Starts the processes of a job, watches them, and ends them all when one fails.

A worker that dies is seen through its sentinel, at once; one that hangs through its progress counter in shared memory,
however busy the others are. Either way the first fault is named and every other worker is killed: nothing keeps running,
and since all shared memory is anonymous, nothing is left behind. If the supervisor itself is killed, the kernel kills the
workers (PR_SET_PDEATHSIG).
Knows nothing of what the workers do.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing as mp
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from executor.errors import NotFinite, PeerGone, WorkerFailed

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_FAILED, _PEER_GONE = 3, 4
_GRACE_SECONDS = 1.0
#: Looks, ten a second, at which a worker may be found stopped: one that a terminal stops goes on with its supervisor.
_STOPPED_TIMES = 20

Task = Callable[[], None]


class Vital(Protocol):
    """What shows that a worker lives (``executor.state.Record``)."""

    @property
    def ticks(self) -> int:
        """Instructions that have ended so far."""

    @property
    def is_waiting(self) -> bool:
        """Whether the worker waits for a peer."""


def supervise(
    tasks: Mapping[str, Task],
    records: Mapping[str, Vital],
    *,
    started: Callable[[], None],
    hang_seconds: float = 60.0,
    watch: Callable[[], None] | None = None,
    idle_seconds: float = 0.0,
    alone: bool = False,
) -> None:
    """Run each task in a forked process until all have ended.

    Parameters
    ----------
    tasks : Mapping of worker name to callable
        What each process does.
    records : Mapping of worker name to Vital
        Where each notes its progress.
    started : callable
        Called when all processes run, to close this process's ends of their channels.
    hang_seconds : float
        A worker that neither moves nor waits for a peer for so long counts as hung.
    watch : callable, optional
        Called about ten times a second (a progress bar).
    idle_seconds : float
        How long the workers may sleep before their first instruction.
    alone : bool
        Whether their peers are watched by others, so that all of them may wait for long.

    Raises
    ------
    WorkerFailed
        The first worker that died, failed or hung; all others have been killed.
    """
    reports_read, reports_write = os.pipe()
    parent = os.getpid()
    context = mp.get_context("fork")
    processes = {
        name: context.Process(target=_enter, args=(name, task, reports_write, parent), name=name, daemon=True)
        for name, task in tasks.items()
    }
    try:
        try:
            sys.stdout.flush()
            with _interrupts_held():
                for process in processes.values():
                    process.start()
        finally:
            os.close(reports_write)
            started()
        _watch(processes, _Pulse(records, hang_seconds, idle_seconds, alone), reports_read, watch)
    finally:
        _kill(processes)
        os.close(reports_read)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Put Ctrl-C off to the end of the block: in the middle of a fork, Python's own hooks would swallow it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if noted:
        raise KeyboardInterrupt


def _enter(name: str, task: Task, reports: int, parent: int) -> None:
    """First and last thing that a worker's process does."""
    die_with(parent)
    show_name(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's
    gc.disable()
    code = 0
    try:
        with threadpool_limits(1), np.errstate(all="ignore"):  # what is not finite shows in the loss, and is reported
            task()
    except PeerGone:
        code = _PEER_GONE
    except NotFinite as error:
        code = _report(reports, name, str(error))
    except BaseException as error:
        code = _report(reports, name, f"{type(error).__name__}: {error}")
    os._exit(code)


def show_name(name: str) -> None:
    """Give this process a name of up to 15 bytes that ``ps -o comm`` and ``top`` show (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent, which is given, ends (Linux); at once if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(_PEER_GONE)


def _report(reports: int, name: str, message: str) -> int:
    os.write(reports, f"{name}\t{message}\n".encode()[:4000])
    return _FAILED


def _watch(processes: Mapping[str, BaseProcess], pulse: _Pulse, reports: int, watch: Callable[[], None] | None) -> None:
    running = dict(processes)
    while running:
        wait([process.sentinel for process in running.values()], timeout=0.1)
        for name in [name for name, process in running.items() if process.exitcode is not None]:
            if running.pop(name).exitcode != 0:
                raise _first_fault(processes, reports)
        pulse.check(running)
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


class _Pulse:
    """When each worker last ended an instruction.

    One that has not for too long is at fault if it has not waited for a peer either, or is stopped; if everybody waits, the
    job is in a deadlock. One that is seen stopped many times in a row is at fault at once.
    """

    def __init__(self, records: Mapping[str, Vital], limit_seconds: float, idle_seconds: float, alone: bool) -> None:
        self._records, self._limit, self._alone = records, limit_seconds, alone
        now = time.monotonic() + idle_seconds
        self._last = {name: (record.ticks, now) for name, record in records.items()}
        self._idle = dict.fromkeys(records, now)  # when each was last seen to wait, or to have moved
        self._stopped = dict.fromkeys(records, 0)

    def check(self, running: Mapping[str, BaseProcess]) -> None:
        """Raise WorkerFailed for the worker that has been at fault for longest, if there is one."""
        now = time.monotonic()
        for name, process in running.items():
            ticks = self._records[name].ticks
            if ticks != self._last[name][0]:
                self._last[name] = ticks, now
            if self._records[name].is_waiting or self._last[name][1] == now:
                self._idle[name] = now
            self._stopped[name] = self._stopped[name] + 1 if _is_stopped(process) else 0
        self._check_silent(running, now)
        for name, times in self._stopped.items():
            if times > _STOPPED_TIMES:
                raise WorkerFailed(name, "was stopped by a signal")

    def _check_silent(self, running: Mapping[str, BaseProcess], now: float) -> None:
        still = sorted((n for n in running if now - self._last[n][1] > self._limit), key=lambda n: self._last[n][1])
        for name in still:
            if now - self._idle[name] > self._limit or self._stopped[name]:
                raise WorkerFailed(name, f"made no progress for {self._limit:g} s (stopped or hung)")
        waits = all(self._records[name].is_waiting for name in running)
        if still and len(still) == len(running) and waits and not self._alone:
            raise WorkerFailed(still[0], f"all workers have waited for each other for {self._limit:g} s")


def _is_stopped(process: BaseProcess) -> bool:
    """Whether a child is stopped by a signal (or a debugger)."""
    if process.pid is None or not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has just ended
        return False


def _kill(processes: Mapping[str, BaseProcess]) -> None:
    for process in processes.values():
        if process.pid is not None and process.exitcode is None:
            process.kill()
    for process in processes.values():
        if process.pid is not None:
            process.join()
            process.close()
