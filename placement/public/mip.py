"""Mixed-integer programs through HiGHS, with a start that is never lost and the bound that was proven.

Knows how rows and columns become HiGHS's arrays. The incumbent comes back even when the time limit strikes, which the
OR-tools wrapper of HiGHS (9.15) does not do.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import highspy
import numpy as np

from placement.public.hypergraph import Floats


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
    """Solve within a time limit; stops at a relative gap."""
    with _without_banner():
        highs = highspy.Highs()  # type: ignore[no-untyped-call]
    options = {"output_flag": False, "time_limit": max(seconds, 0.01), "mip_rel_gap": gap, "random_seed": seed}
    for name, value in {**options, "mip_abs_gap": 1e-9, "threads": 1}.items():
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


@contextlib.contextmanager
def _without_banner() -> Iterator[None]:
    """Keep the line that HiGHS prints when the first solver of a process is made out of our output."""
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


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
