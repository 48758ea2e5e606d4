"""Stands guard over one process that an outside launcher started: names it when it fails, ends when it ends.

``mpiexec`` starts the guard, which forks the worker, before MPI is started in it. The guard knows nothing of MPI. It sees
a death, an exception or a stop of its worker, says whose it was, asks the launcher to end the whole job, and ends with an
exit code. When the guard itself is killed, the kernel kills its worker.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from executor.errors import WorkerFailed
from executor.supervisor import show_name, supervise
from executor.transport import shared_array
from problem.errors import BadInput, HiertrainError

_TEXT_BYTES = 4096
_PATIENCE_SECONDS = 1.0
_LAST_WORDS_SECONDS = 0.05


class Relayed(HiertrainError):
    """An error that a user's input caused in the guarded process, with its message and exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Badge:
    """What a guarded process shows to its guard, in shared memory: its name, that it lives, what went wrong."""

    def __init__(self) -> None:
        self._name: npt.NDArray[np.uint8] = shared_array((256,), np.uint8)
        self._error: npt.NDArray[np.uint8] = shared_array((_TEXT_BYTES,), np.uint8)
        self._numbers: npt.NDArray[np.int64] = shared_array((2,), np.int64)
        #: Progress of the worker (``executor.state.Record``): instructions ended, whether it waits, steps done.
        self.live: npt.NDArray[np.int64] = shared_array((3,), np.int64)
        self.rest()

    @property
    def name(self) -> str:
        """Name of the worker, empty as long as it has none."""
        return self._name.tobytes().rstrip(b"\0").decode()

    def take(self, name: str, rank: int) -> None:
        """Note who the process is, and let ``ps`` show it."""
        show_name(name)
        self._name[:] = 0
        self._name[: len(name)] = np.frombuffer(name.encode(), np.uint8)
        self._numbers[0] = rank

    def rest(self) -> None:
        """Note that no instruction runs: it may take its time."""
        self.live[1] = 1

    def fail(self, error: Exception, exit_code: int) -> None:
        """Note an error of the input."""
        text = str(error).encode()[:_TEXT_BYTES]
        self._error[: len(text)] = np.frombuffer(text, np.uint8)
        self._numbers[1] = exit_code

    @property
    def ticks(self) -> int:
        """Instructions that have ended so far."""
        return int(self.live[0])

    @property
    def is_waiting(self) -> bool:
        """Whether the worker waits for a peer, or does not work on instructions at all."""
        return bool(self.live[1])

    def raise_error(self) -> None:
        """Raise the error of the input, if there is one; the first rank first, since all may have the same."""
        rank, exit_code = self._numbers.tolist()
        if exit_code:
            time.sleep(_PATIENCE_SECONDS * min(rank, 2) + 0.01 * rank)
            raise Relayed(self._error.tobytes().rstrip(b"\0").decode(errors="replace"), exit_code)


def guarded(body: Callable[[Badge], None], hang_seconds: float = 60.0) -> None:
    """Run a function in a forked process and watch it.

    Parameters
    ----------
    body : callable
        What the process does, given its badge.
    hang_seconds : float
        A worker that neither moves nor waits for a peer for so long counts as hung.

    Raises
    ------
    WorkerFailed
        The process died, hung or failed.
    Relayed
        It refused its input.
    """
    badge = Badge()

    def enter() -> None:
        try:
            body(badge)
        except HiertrainError as error:
            badge.fail(error, error.exit_code)
        except OSError as error:
            if badge.ticks:
                raise
            badge.fail(error, BadInput.exit_code)
        else:
            sys.stdout.flush()
            sys.stderr.flush()
            ctypes.CDLL(None).exit(0)  # MPICH takes leave of its launcher in an exit handler of C; os._exit runs none

    try:
        supervise({"rank": enter}, {"rank": badge}, started=lambda: None, hang_seconds=hang_seconds, alone=True)
        badge.raise_error()
    except HiertrainError as error:
        atexit.register(_end_job, error.exit_code)
        if isinstance(error, WorkerFailed):
            raise WorkerFailed(badge.name or "without a name yet", error.reason) from None
        raise


def _end_job(exit_code: int) -> None:
    """Ask the launcher to end the whole job with an exit code, at the end of this process, when its error has been printed.

    By the wire protocol of PMI-1 (Balaji et al., EuroMPI 2010), whose connection the launcher left in ``PMI_FD`` for the
    worker, which is dead: ``mpiexec`` of MPICH and ``srun --mpi=pmi2`` both know it. Without it ``mpiexec`` may wait for
    ever for ranks of other hosts. Launchers that speak something else see the exit code.
    """
    descriptor = os.environ.get("PMI_FD", "")
    if descriptor.isdigit():
        time.sleep(_LAST_WORDS_SECONDS)
        with contextlib.suppress(OSError):
            os.write(int(descriptor), f"cmd=abort exitcode={exit_code}\n".encode())
