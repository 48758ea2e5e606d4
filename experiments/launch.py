"""Runs in processes of their own, under either back-end: what tests and measurements of faults and transports start.

A task is a plan with options, pickled; ``python -m experiments.launch TASK OUT BACKEND`` does it and pickles the result.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from executor.data.batch import Stream
from executor.guard import Badge, guarded
from executor.mpi import finish
from executor.run import RunOptions, RunResult, run
from executor.run_mpi import crew_of, run_ranks
from placement.plan import Plan
from problem.errors import BadInput, HiertrainError
from programs.transform import transform

BACKENDS = ("processes", "mpi")
_ROOT = Path(__file__).resolve().parents[1]


def mpiexec() -> str:
    """Return the path of ``mpiexec``: beside this Python, or on the PATH; empty if there is none."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec") or ""


def command_of(backend: str, ranks: int, *arguments: str) -> list[str]:
    """Return the command that starts a Python module with arguments, under ``mpiexec`` if the back-end wants it.

    Raises
    ------
    BadInput
        There is no ``mpiexec``.
    """
    python = [sys.executable, "-m", *arguments]
    if backend != "mpi":
        return python
    if not mpiexec():
        raise BadInput("mpi", "mpiexec", "", "on the PATH, from an MPI library (pip install mpich)")
    return [mpiexec(), "-n", str(ranks), *python]


def launch(
    folder: Path,
    plan: Plan,
    options: RunOptions,
    backend: str,
    *,
    stream: Stream | None = None,
    ranks: int = 0,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start a run.

    Parameters
    ----------
    folder : Path
        For the task and the result (:func:`result_in`).
    plan, options, stream
        As for ``executor.run.run``; pickled.
    backend : str
        ``processes`` or ``mpi``.
    ranks : int
        Ranks of ``mpiexec``; 0: as many as the plan needs.
    environment : Mapping of str to str, optional
        Variables that are added.
    """
    (folder / "task").write_bytes(pickle.dumps((plan, options, stream)))
    needed = ranks or len(crew_of(transform(plan)))
    arguments = ("experiments.launch", str(folder / "task"), str(folder / "result"), backend)
    return subprocess.Popen(
        command_of(backend, needed, *arguments),
        cwd=_ROOT,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result_in(folder: Path) -> RunResult:
    """Return what the run of a folder gave."""
    found: RunResult = pickle.loads((folder / "result").read_bytes())
    return found


def _do(task: Path, out: Path, backend: str) -> None:
    plan, options, stream = pickle.loads(task.read_bytes())

    def as_rank(badge: Badge) -> None:
        result = run_ranks(plan, options, stream, badge)
        if result is not None:
            out.write_bytes(pickle.dumps(result))
        finish()

    if backend == "mpi":
        guarded(as_rank, options.hang_seconds)
    else:
        out.write_bytes(pickle.dumps(run(plan, options, stream)))


def main() -> None:
    """Do a task; an error is one line and an exit code, as on the command line."""
    task, out, backend = sys.argv[1:]
    try:
        _do(Path(task), Path(out), backend)
    except HiertrainError as error:
        print(f"hiertrain: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
