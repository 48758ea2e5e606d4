"""The search for a split of least maximal load, devices free (a device may hold anything, contiguous or not).

Knows the portfolio and the order in which it is worth trying:

1. the linearised dynamic program, on the blocks of the contiguous problem and on coarsened graphs. An interval of a
   coarse order is not contiguous in the original one: BERT-12 training falls from 438.0 to 383.3 in well under a second;
2. CP-SAT on the graphs that coarsening makes small, from coarse to fine, each started from the best split so far;
3. neighbourhoods around the most loaded device, by HiGHS: patches of items among all devices, all or some items of two
   devices, of two devices and a CPU; as many items as the solver manages in its slice.

The incumbent is held here, not by a solver, and only a split that is better in floats replaces it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from placement.public.blocks import Blocks
from placement.public.coarsen import coarsen
from placement.public.hypergraph import Floats, Hypergraph, Split
from placement.public.linear import linear_split
from placement.public.resplit import Part, resplit
from placement.public.resplit_mip import resplit_mip

SLACKS = (2.0, 1.5, 1.2, 1.1, 1.0)
"""Levels of coarsening; the last one loses nothing (memory and CPUs aside)."""

SMALL = 100
"""CP-SAT takes on a coarsened graph of at most this many items, or of half the items."""

SLICE_SECONDS = 2.0
FEWEST = 12
FIRST_SIZES = {"patch": 40.0, "pair": 80.0, "triple": 60.0}
"""Free items of each kind of neighbourhood to begin with; sizes adapt."""

EPSILON = 1e-9


@dataclass
class Search:
    """Best split so far, and what the search may spend.

    Parameters
    ----------
    graph : Hypergraph
        Contracted instance.
    found : Blocks
        Its blocks, for starts.
    seconds : float
        When to stop, from the making of this object.
    seed, workers : int
        Of the solver.
    goal : float
        Milliseconds at which to stop: a proven bound.
    report : callable
        Takes seconds and value of every improvement.
    """

    graph: Hypergraph
    found: Blocks
    seconds: float
    seed: int = 0
    workers: int = 2
    goal: float = 0.0
    report: Callable[[float, float], None] = lambda seconds, value: None
    best: Split | None = None
    loads: Floats = field(default_factory=lambda: np.array([np.inf]))

    def __post_init__(self) -> None:
        self._started, self._lock = time.monotonic(), threading.Lock()
        self._random = np.random.default_rng(self.seed)
        self._sizes = dict(FIRST_SIZES)
        levels = [coarsen(self.graph, slack, self._target()) for slack in SLACKS]
        self._levels = [(graph, np.array(labels)) for graph, labels in levels]

    @property
    def value(self) -> float:
        """Largest load of the best split, in milliseconds."""
        return float(self.loads.max())

    @property
    def left(self) -> float:
        """Seconds left; none once the goal is reached."""
        return 0.0 if self.value <= self.goal * (1 + 1e-6) else self._started + self.seconds - time.monotonic()

    def _target(self) -> float:
        """Return the load of each accelerator when nothing is cut."""
        return float(self.graph.accelerator_ms.sum() / max(self.graph.accelerators, 1))

    def offer(self, split: Split | None) -> bool:
        """Take the split if it fits and its loads, sorted from the largest, are less than the best ones'."""
        if split is None or not self.graph.fits(split):
            return False
        loads = self.graph.loads(split)
        with self._lock:
            if self.best is not None and not _less(loads, self.loads):
                return False
            if loads.max() < self.value - EPSILON:
                self.report(time.monotonic() - self._started, float(loads.max()))
            self.best, self.loads = split, loads
        return True

    def start(self) -> None:
        """Find splits of coarse graphs: by dynamic programs, then of the small ones in a third of the time at most."""
        split = linear_split(self.found.graph, self.found.order)
        self.offer(None if split is None else self.found.of_items(split))
        for graph, labels in self._levels:
            for order in self._orders(labels):
                split = linear_split(graph, order)
                self.offer(None if split is None else split[labels])
        small = {g.items: (g, labels) for g, labels in self._levels if g.items <= max(SMALL, self.graph.items // 2)}
        for graph, labels in small.values():
            if self.left > 0:
                self._solve_level(graph, labels, min(self.left, max(self.seconds / (3 * len(small)), 1.0)))

    def improve(self) -> None:
        """Search neighbourhoods until time is up or the goal is reached; threads may do so side by side."""
        while self.best is not None and self.left > 0:
            self._neighbourhood(self.best)

    def _orders(self, labels: Split) -> Iterator[Sequence[int]]:
        """Yield orders of merged items: by the first, the last and the mean place of their items."""
        place = np.empty(len(self.found.order))
        place[list(self.found.order)] = np.arange(len(self.found.order))
        at = place[np.array(self.found.block_of_item)]
        size = int(labels.max()) + 1
        first, last = np.full(size, np.inf), np.zeros(size)
        np.minimum.at(first, labels, at)
        np.maximum.at(last, labels, at)
        mean = np.bincount(labels, at) / np.bincount(labels)
        for key in (first, last, mean):
            yield np.argsort(key, kind="stable").tolist()

    def _solve_level(self, graph: Hypergraph, labels: Split, seconds: float) -> None:
        """Split a coarsened graph anew, from the best split if its merged items are whole in it."""
        start = self._expressed(graph, labels)
        if start is not None:
            part = Part(graph, start, range(graph.items), range(graph.devices))
            split = resplit(part, seconds, self.seed, self.workers)
            self.offer(None if split is None else split[labels])

    def _expressed(self, graph: Hypergraph, labels: Split) -> Split | None:
        """Return a good split of merged items: the best one known, or of intervals."""
        starts = [split for order in self._orders(labels) if (split := linear_split(graph, order)) is not None]
        if self.best is not None:
            projected = np.zeros(graph.items, dtype=np.int64)
            projected[labels] = self.best
            if graph.fits(projected):
                starts.append(projected)
        return min(starts, key=lambda split: float(graph.loads(split).max()), default=None)

    def _neighbourhood(self, best: Split) -> None:
        """Solve one neighbourhood, and learn how many items of its kind fit in a slice."""
        graph, labels = self._working(best)
        split = np.zeros(graph.items, dtype=np.int64)
        split[labels] = best
        kind = str(self._random.choice(sorted(self._sizes)))
        free, devices = self._choose(kind, graph, split)
        began, seconds = time.monotonic(), min(SLICE_SECONDS, self.left)
        found = resplit_mip(Part(graph, split, free, devices), seconds, int(self._random.integers(2**31)))
        self.offer(None if found is None else found[labels])
        spent = time.monotonic() - began
        factor = 1.1 if spent < seconds / 2 else 0.93 if spent >= seconds else 1.0
        self._sizes[kind] = min(max(self._sizes[kind] * factor, FEWEST), 2.0 * self.graph.items)

    def _working(self, best: Split) -> tuple[Hypergraph, Split]:
        """Return the finest coarsened graph if the best split keeps its items whole, else the graph itself."""
        graph, labels = self._levels[-1]
        home = np.zeros(graph.items, dtype=np.int64)
        home[labels] = best
        return (graph, labels) if (home[labels] == best).all() else (self.graph, np.arange(self.graph.items))

    def _choose(self, kind: str, graph: Hypergraph, split: Split) -> tuple[list[int], list[int]]:
        """Return free items and devices of a neighbourhood; the most loaded device takes part."""
        busiest, most = int(self.loads.argmax()), int(self._sizes[kind])
        if kind == "patch":
            return self._patches(graph, split, busiest, most), list(range(graph.devices))
        devices = {busiest, *(range(graph.accelerators, graph.devices) if kind == "triple" else ())}
        others = [d for d in range(graph.devices) if d not in devices]
        devices |= {int(self._random.choice(others))} if others else set()
        free = np.flatnonzero(np.isin(split, sorted(devices)))
        if len(free) > most:
            free = np.sort(self._random.choice(free, most, replace=False))
        return free.tolist(), sorted(devices)

    def _patches(self, graph: Hypergraph, split: Split, busiest: int, most: int) -> list[int]:
        """Return some balls of items around places where the split cuts."""
        border = [i for i in range(graph.items) if any(split[j] != split[i] for j in graph.neighbours[i])]
        border = border or list(range(graph.items))
        sources = [item for item in border if split[item] == busiest] or border
        if self._random.random() < 0.5:
            sources = border
        found: set[int] = set()
        most = min(most, graph.items)
        while len(found) < most:
            ball = self._ball(graph, int(self._random.choice(sources)), int(self._random.integers(4, 20)))
            sources = border if set(ball) - found else list(range(graph.items))
            found.update(ball)
        return sorted(found)

    def _ball(self, graph: Hypergraph, centre: int, most: int) -> list[int]:
        """Return the items nearest to an item, itself first."""
        seen, queue = {centre: None}, [centre]
        while queue and len(seen) < most:
            near = [item for item in graph.neighbours[queue.pop(0)] if item not in seen]
            seen |= dict.fromkeys(near)
            queue += near
        return list(seen)


def _less(loads: Floats, than: Floats) -> bool:
    """Whether sorted loads are lexicographically less, by more than rounding."""
    for a, b in zip(np.sort(loads)[::-1], np.sort(than)[::-1], strict=True):
        if abs(a - b) > EPSILON * max(abs(b), 1.0):
            return bool(a < b)
    return False
