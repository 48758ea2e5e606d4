"""Lower bounds on the max load from what a single accelerator can do.

Knows this argument. Give every item a price p >= 0. In a split of value at most U (one is known) the l CPUs hold items of
price at most l * C, C being the fractional knapsack of prices in U milliseconds of a CPU; so some accelerator holds items
of price at least (sum of p - l * C) / k, and the value is no less than

    minimise  f(S) = time of S + cost of the nets that S cuts   over sets S of items that fit an accelerator
    subject to  price of S >= (sum of p - l * C) / k.

That is one mixed-integer program with one binary per item: no devices, no symmetry. With p = time it already beats the
bounds of the whole model on the BERT graphs, because no accelerator can do without cuts. Prices are then improved as in
column generation: the sets found so far are to be priced below the threshold, which is a linear program; this drives the
bound towards that of the relaxation which covers the items by fractions of sets (Dantzig-Wolfe).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_matrix, csr_matrix, diags, eye, hstack, vstack

from placement.public.hypergraph import Floats, Hypergraph, Split
from placement.public.mip import Program, solve

MIP_GAP = 1e-5
SAFETY = 1e-7
"""Relative; HiGHS keeps rows to 1e-6 of their scale, which is one here."""

PRICE_STEPS = 1e6
"""Whole numbers that prices sum to, about."""

STEPS = (0.1, 0.3, 1.0)
"""How far new prices go from the best ones to those that the known sets ask for: the latter alone jump about."""

Members = NDArray[np.bool_]


@dataclass
class Bound:
    """The best proven bound, in milliseconds, and what the proof may spend.

    Parameters
    ----------
    graph : Hypergraph
        Contracted instance.
    split : ndarray of int, shape (items,)
        A split; its value is U, its accelerators the first known sets.
    value : float
        A bound that is known already.
    pool : list of (float, ndarray of bool)
        Known sets and their loads.
    report : callable
        Takes every better bound.
    fruitless, fruitless_seconds : int, float
        Steps, and what they took, since the bound last rose.
    """

    graph: Hypergraph
    split: Split
    value: float = 0.0
    pool: list[tuple[float, Members]] = field(default_factory=list)
    report: Callable[[float], None] = lambda value: None
    fruitless: int = 0
    fruitless_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.upper = float(self.graph.loads(self.split).max())
        self.value = max(self.value, self._without_cuts())
        self._best = self._next = self.graph.accelerator_ms / self.graph.accelerator_ms.sum()
        self._steps = itertools.cycle(STEPS)
        for device in range(self.graph.accelerators):
            self._add(self.split == device)

    def _without_cuts(self) -> float:
        """Return the bound of times alone: every device equally long, nothing cut."""
        times = self.graph.accelerator_ms
        return max(0.0, float(times.sum() - self.graph.cpus * self._knapsack(times)) / max(self.graph.accelerators, 1))

    def _add(self, members: Members) -> None:
        if members.any():
            self.pool.append((set_load(self.graph, members), members))

    def step(self, seconds: float) -> None:
        """Try to raise the bound with one program at the next prices; may be called again and again."""
        before, began = self.value, time.monotonic()
        self._price(self._next, seconds)
        rose = self.value > before * (1 + 1e-6)
        if rose:
            self._best = self._next
        step = next(self._steps)
        self._next = step * self._prices() + (1 - step) * self._best
        self.fruitless = 0 if rose else self.fruitless + 1
        self.fruitless_seconds = 0.0 if rose else self.fruitless_seconds + time.monotonic() - began

    def raise_to(self, proven: float) -> None:
        """Take a bound as a solver gives it, less what solvers leave open."""
        value = min(proven * (1 - SAFETY), self.upper)
        if value > self.value:
            self.value = value
            self.report(value)

    def _price(self, prices: Floats, seconds: float) -> None:
        """Solve the program of one accelerator at these prices."""
        prices = np.round(prices / prices.sum() * PRICE_STEPS)  # whole numbers keep the program well scaled
        threshold = (prices.sum() - self.graph.cpus * self._knapsack(prices)) / self.graph.accelerators
        if threshold <= 0:
            return
        program = _single(self.graph, prices / threshold)
        outcome = solve(program, seconds, gap=MIP_GAP)
        self.raise_to(outcome.bound)
        if outcome.solution is not None:
            self._add(outcome.solution[: self.graph.items] > 0.5)

    def _knapsack(self, prices: Floats) -> float:
        """Return the most price that fits a CPU of U milliseconds, items divisible."""
        times = self.graph.cpu_ms
        free = float(prices[times <= 0].sum())
        order = [i for i in np.argsort(-prices / np.maximum(times, 1e-300)).tolist() if times[i] > 0]
        room = np.clip(getattr(self, "upper", np.inf) - (np.cumsum(times[order]) - times[order]), 0.0, times[order])
        return free + float((prices[order] * room / times[order]).sum())

    def _prices(self) -> Floats:
        """Return prices at which the known sets up to some load, as high as can be, miss the threshold."""
        loads = sorted({load for load, _ in self.pool})
        low, high = 0, len(loads)
        best: Floats = self.graph.accelerator_ms / self.graph.accelerator_ms.sum()
        while low < high:
            middle = (low + high) // 2
            worth, prices = self._master(loads[middle])
            if worth < 1 - 1e-9:
                low, best = middle + 1, prices
            else:
                high = middle
        return best

    def _master(self, load: float) -> tuple[float, Floats]:
        """Return the least (k * dearest set + CPUs) over prices that sum to one, and those prices.

        Columns: prices p, dearest set a, CPU rate m, CPU excess v; rows: p(S) <= a, p - m * cpu <= v.
        """
        n, graph = self.graph.items, self.graph
        sets = np.array([members for value, members in self.pool if value <= load], dtype=float)
        zero, cpu = csr_matrix((len(sets), n + 1)), coo_matrix(graph.cpu_ms[:, None])
        dearest = hstack([csr_matrix(sets), coo_matrix(-np.ones((len(sets), 1))), zero])
        excess = hstack([eye(n), csr_matrix((n, 1)), -cpu, -diags(np.ones(n))])
        costs = np.concatenate(
            [np.zeros(n), [graph.accelerators, graph.cpus * self.upper], np.full(n, float(graph.cpus))]
        )
        total = np.concatenate([np.ones(n), np.zeros(n + 2)])[None, :]
        answer = linprog(
            costs, vstack([dearest, excess]).tocsr(), np.zeros(len(sets) + n), total, [1.0], method="highs"
        )
        return float(answer.fun), np.maximum(answer.x[:n], 0.0)


def set_load(graph: Hypergraph, members: Members) -> float:
    """Return the load of an accelerator that holds exactly these items."""
    inside = np.array([members[list(pins)].sum() for pins in graph.nets])
    cut = (inside > 0) & (inside < np.array([len(pins) for pins in graph.nets]))
    return float(graph.accelerator_ms[members].sum() + graph.net_ms[cut].sum())


def _single(graph: Hypergraph, prices: Floats) -> Program:
    """Return: minimise the load of one accelerator subject to a price of at least one."""
    program = Program()
    for time_ms, barred in zip(graph.accelerator_ms.tolist(), graph.cpu_only.tolist(), strict=True):
        program.column(time_ms, upper=float(not barred), integer=True)
    for pins, cost in zip(graph.nets, graph.net_ms.tolist(), strict=True):
        cut = program.column(cost)
        for a, b in zip(pins, pins[1:] + pins[:1], strict=True):
            program.row({cut: 1.0, a: -1.0, b: 1.0}, low=0.0)
    program.row({i: float(price) for i, price in enumerate(prices) if price > 0}, low=1.0)
    shares = graph.size_bytes / graph.memory_bytes
    if shares.sum() > 1:
        program.row({i: float(share) for i, share in enumerate(shares) if share > 0}, high=1.0)
    return program
