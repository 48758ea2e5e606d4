"""Linear programs whose bound is safe: HiGHS's dual prices, whatever their errors, are turned into a bound that holds.

Minimise costs @ x subject to rows @ x <= limits, equations @ x = values and 0 <= x <= upper. For any prices p >= 0 of the
rows and q of the equations, and reduced costs r = costs + rows' p - equations' q, no x is cheaper than

    - p @ limits + q @ values + sum of min(0, r_j) upper_j

(Neumaier, Shcherbina, Math. Program. 99 (2004) 283-296). What floating point may lose in these sums is taken off. Knows
nothing of what the variables mean.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_matrix, csr_matrix

Array = NDArray[np.float64]
#: A coefficient of a variable.
Term = tuple[int, float]
#: Relative error of the sums of a bound, far above that of double precision with 10^5 terms.
ROUNDING = 1e-10
#: Status of ``scipy.optimize.linprog``.
OPTIMAL = 0


class _Rows:
    """Rows of a sparse matrix, and their right-hand sides."""

    def __init__(self) -> None:
        self.row: list[int] = []
        self.column: list[int] = []
        self.value: list[float] = []
        self.right: list[float] = []

    def add(self, terms: Iterable[Term], right: float) -> None:
        for column, value in terms:
            if value:
                self.row.append(len(self.right))
                self.column.append(column)
                self.value.append(value)
        self.right.append(right)

    def matrix(self, columns: int) -> csr_matrix:
        return coo_matrix((self.value, (self.row, self.column)), (len(self.right), columns)).tocsr()


class LinearProgram:
    """A linear program in the making."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.upper: list[float] = []
        self._most, self._equal = _Rows(), _Rows()

    def variable(self, upper: float = 1.0, cost: float = 0.0) -> int:
        """Add a variable between 0 and ``upper``; return its number."""
        self.costs.append(cost)
        self.upper.append(upper)
        return len(self.costs) - 1

    def at_most(self, terms: Iterable[Term], limit: float) -> None:
        """Add a row: the terms sum to no more than ``limit``."""
        self._most.add(terms, limit)

    def equal(self, terms: Iterable[Term], value: float) -> None:
        """Add an equation."""
        self._equal.add(terms, value)

    def bound(self, seconds: float) -> float:
        """Return a cost that no solution is below; minus infinity if none is known after so many seconds."""
        count = len(self.costs)
        costs, upper = np.array(self.costs), np.array(self.upper)
        rows, equations = self._most.matrix(count), self._equal.matrix(count)
        limits, values = np.array(self._most.right), np.array(self._equal.right)
        box = np.stack([np.zeros(count), upper], axis=1)
        options = {"time_limit": seconds}
        found = linprog(costs, rows, limits, equations, values, box, method="highs-ds", options=options)
        if found.status != OPTIMAL:  # that there is no solution comes without prices: nothing here could check it
            return -float("inf")
        prices, free = np.maximum(0.0, -found.ineqlin.marginals), np.asarray(found.eqlin.marginals)
        reduced = costs + rows.T @ prices - equations.T @ free
        parts = [-prices * limits, free * values, np.minimum(0.0, reduced) * upper]
        error = sum(float(np.abs(part).sum()) for part in parts)
        error += float((abs(rows).T @ prices + abs(equations).T @ np.abs(free)) @ upper)
        return sum(float(part.sum()) for part in parts) - ROUNDING * error
