"""What can go wrong while a plan runs: a worker failed, and which one; a checkpoint could not be written."""

from __future__ import annotations

from pathlib import Path

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


class CheckpointFailed(HiertrainError):
    """A checkpoint could not be written; the run was ended, and the last complete checkpoint is still there.

    Parameters
    ----------
    path : Path
        The file.
    step : int
        Steps that were to be saved.
    reason : str
        What the system says.
    """

    exit_code = 4

    def __init__(self, path: Path, step: int, reason: str) -> None:
        super().__init__(f"{path}: the checkpoint of step {step} could not be written: {reason}")
        self.path, self.step, self.reason = path, step, reason


class PeerGone(Exception):
    """The other end of a channel is closed: its worker ended. Raised inside a worker; the supervisor finds the cause."""


class NotFinite(Exception):
    """A loss is not a finite number; the message says at which step."""
