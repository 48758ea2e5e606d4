"""What can go wrong while a plan runs: a worker failed, and which one."""

from __future__ import annotations

from problem.errors import HiertrainError


class WorkerFailed(HiertrainError):
    """A worker died, hung, or computed nonsense; everything else was ended.

    Parameters
    ----------
    worker : str
        Name of the worker, as in ``programs.workers``.
    reason : str
        What happened to it.
    """

    exit_code = 4

    def __init__(self, worker: str, reason: str) -> None:
        super().__init__(f"worker {worker}: {reason}")
        self.worker, self.reason = worker, reason


class PeerGone(Exception):
    """The other end of a channel is closed: its worker ended. Raised inside a worker; the supervisor finds the cause."""


class NotFinite(Exception):
    """A loss is not a finite number; the message says at which step."""
