"""Mixed-integer programs through HiGHS, with a start that is never lost, the bound that was proven, and a real time limit.

Knows how rows and columns become HiGHS's arrays, and what HiGHS gets wrong. The incumbent comes back even when the time
limit strikes (the OR-tools 9.15 wrapper loses it). HiGHS 1.16 was seen to spin for ever, deaf to its limit, on a program
of 250 columns; so it runs in a process of its own, which is ended when it is overdue. The process is started once, kept,
and speaks pickled pairs of a program and options over pipes; it also keeps what HiGHS prints out of our output.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

import highspy
import numpy as np

from placement.public.hypergraph import Floats

GRACE_SECONDS = 1.0
"""How long beyond a tenth more than its limit HiGHS may take to come back."""

START_SECONDS = 60.0
"""How long the process may take to come up, on a busy machine."""


@dataclass
class Program:
    """Minimise costs @ x subject to low <= rows @ x <= high, with x between 0 and ``upper``."""

    costs: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    rows: list[tuple[float, Mapping[int, float], float]] = field(default_factory=list)

    def column(self, cost: float = 0.0, upper: float = 1.0, integer: bool = False) -> int:
        """Add a variable; return its index."""
        self.costs.append(cost)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.costs) - 1

    def row(self, terms: Mapping[int, float], low: float = -np.inf, high: float = np.inf) -> None:
        """Add a constraint; coefficients by variable."""
        self.rows.append((low, terms, high))


@dataclass(frozen=True)
class Outcome:
    """What HiGHS found: a solution or None, and a value that none is below."""

    solution: Floats | None
    bound: float


def solve(program: Program, seconds: float, gap: float = 1e-6, start: Floats | None = None, seed: int = 0) -> Outcome:
    """Solve within a time limit; stops at a relative gap. No solution and no bound (-inf) if HiGHS had to be ended."""
    options = {"time_limit": max(seconds, 0.01), "mip_rel_gap": gap, "random_seed": seed}
    return worker().ask((program, options, start), 1.1 * seconds + GRACE_SECONDS)


class _Worker:
    """The process that runs HiGHS, started when it is first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: object, seconds: float) -> Outcome:
        """Return the answer, or nothing known when it is overdue."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _send(process.stdin, request)
            if select.select([process.stdout], [], [], seconds)[0]:
                answer = _receive(process.stdout)
                assert isinstance(answer, Outcome)
                return answer
        except (OSError, EOFError, ValueError):  # HiGHS took the process down, or another thread ended it
            pass
        except BaseException:  # interrupted: the answer of this request must not be taken for that of the next
            self.end()
            raise
        self.end()
        return Outcome(None, -np.inf)

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109 - as the interpreter reads it
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], START_SECONDS)[0]:
            self.end()
            raise TimeoutError(f"the process that runs HiGHS did not come up in {START_SECONDS:.0f} s")
        _receive(self._process.stdout)
        return self._process

    def end(self) -> None:
        """End the process, whatever it does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError):  # of a request that nobody will read
                    _close(pipe)


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        pipe.close()


def _send(stream: IO[bytes], message: object) -> None:
    data = pickle.dumps(message)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> object:
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    return pickle.loads(stream.read(struct.unpack("<Q", head)[0]))


_LOCAL, _WORKERS = threading.local(), list[_Worker]()


def worker() -> _Worker:
    """Return the process of this thread; threads solve side by side."""
    if not hasattr(_LOCAL, "worker"):
        _LOCAL.worker = _Worker()
        _WORKERS.append(_LOCAL.worker)
    found: _Worker = _LOCAL.worker
    return found


@atexit.register
def end_workers() -> None:
    """End all processes; whoever waits for one is told that nothing is known."""
    for each in tuple(_WORKERS):
        each.end()


@contextlib.contextmanager
def own_worker() -> Iterator[None]:
    """Let a thread have a process for as long as the block lasts."""
    try:
        yield
    finally:
        _WORKERS.remove(worker())
        worker().end()


def serve() -> None:
    """Answer requests from stdin until it ends: what the process runs. HiGHS's own lines go to stderr's place, nowhere."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _send(answers, "ready")
    while True:
        try:
            request: Any = _receive(sys.stdin.buffer)
        except EOFError:
            return
        _send(answers, _run(*request))


def _run(program: Program, options: Mapping[str, float], start: Floats | None) -> Outcome:
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in {"output_flag": False, "mip_abs_gap": 1e-9, "threads": 1, **options}.items():
        highs.setOptionValue(name, value)
    highs.passModel(_lp(program))
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = start.tolist()
        highs.setSolution(solution)
    highs.run()
    info = highs.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    values = np.array(highs.getSolution().col_value) if found else None
    if highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return Outcome(None, np.inf)
    return Outcome(values, float(info.mip_dual_bound))


def _lp(program: Program) -> highspy.HighsLp:
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(program.costs), len(program.rows)
    lp.col_cost_ = np.array(program.costs)
    lp.col_lower_, lp.col_upper_ = np.zeros(lp.num_col_), np.array(program.upper)
    lp.row_lower_ = np.array([low for low, _, _ in program.rows])
    lp.row_upper_ = np.array([high for _, _, high in program.rows])
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    lp.integrality_ = [kinds[integer] for integer in program.integer]
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0, *(len(terms) for _, terms, _ in program.rows)])
    lp.a_matrix_.index_ = np.array([column for _, terms, _ in program.rows for column in terms])
    lp.a_matrix_.value_ = np.array([value for _, terms, _ in program.rows for value in terms.values()])
    return lp


if __name__ == "__main__":
    # The classes must be those of the parent, not of __main__, on both sides of the pipe.
    from placement.public.mip import serve as serve_as_module

    serve_as_module()
