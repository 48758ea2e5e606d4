"""Faults on purpose: what a worker does to itself, or has done to it, for measurements and tests.

Knows nothing of how a run is started or what it makes of the fault.
"""

from __future__ import annotations

import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from executor.state import JobState
from programs.workers import Worker

#: Faults that are a signal.
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
#: How far a file may grow on the full disk.
FULL_DISK_BYTES = 100
#: Rank 0, which saves.
LEADER = "g0/n0/t0"


def prepare(victim: str, kind: str, worker: Worker, state: JobState) -> None:
    """Let the victim do what the kind says when it gets SIGALRM."""
    if worker.name == victim:
        signal.signal(signal.SIGALRM, lambda *_: act(kind, worker, state))


def act(kind: str, worker: Worker, state: JobState) -> None:
    """Suffer a fault of a kind, as a worker."""
    if kind in SIGNALS:
        os.kill(os.getpid(), SIGNALS[kind])
    elif kind == "out of memory":
        starve()
    elif kind == "full disk":
        fill_disk()
    elif kind == "loss not finite":
        held = state.dense[worker.group, worker.rank]
        for name in held.operators:
            held.flat(name).fill(np.nan)
    else:
        raise RuntimeError("a fault on purpose")


def starve() -> None:
    """Ask for 64 MB under a limit of what is in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(),) * 2)
    np.ones(1 << 23)


def fill_disk() -> None:
    """Let no file of this process grow, as on a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_DISK_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@dataclass(frozen=True)
class Strikes:
    """A fault under MPI, where the victim strikes itself: called in every rank before its first step.

    Parameters
    ----------
    victim, kind : str
        Who suffers what; a full disk is that of rank 0, which saves.
    after_seconds : float
        From the victim's start to its fault.
    folder : Path
        Where ranks leave their process ids, and the victim the moment.
    """

    victim: str
    kind: str
    after_seconds: float
    folder: Path

    @property
    def moment(self) -> Path:
        """File that is written at the moment of the fault."""
        return self.folder / "moment"

    def __call__(self, worker: Worker, state: JobState) -> None:
        """Note the process; set the victim's alarm, once."""
        (self.folder / f"{os.getpid()}.pid").touch()
        if worker.name == (LEADER if self.kind == "full disk" else self.victim) and not self.moment.exists():
            signal.signal(signal.SIGALRM, lambda *_: self._strike(worker, state))
            signal.setitimer(signal.ITIMER_REAL, self.after_seconds)

    def _strike(self, worker: Worker, state: JobState) -> None:
        self.moment.touch()
        act(self.kind, worker, state)
