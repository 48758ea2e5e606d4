"""The search for a split of least maximal load, devices free (a device may hold anything, contiguous or not).

Knows the portfolio and the order in which it is worth trying:

1. the linearised dynamic program, on the blocks of the contiguous problem and on coarsened graphs. An interval of a
   coarse order is not contiguous in the original one: BERT-12 training falls from 438.0 to 383.3 in well under a second;
2. CP-SAT on coarsened graphs, from coarse to fine, each started from the best split that the level can express;
3. neighbourhoods of the full graph around the most loaded device: two or three devices split anew, or a patch of items
   among all devices, as large as the solver manages in its slice.

The incumbent is held here, not by a solver, and only a split that is better in floats replaces it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from placement.public.blocks import Blocks
from placement.public.coarsen import coarsen
from placement.public.hypergraph import Floats, Hypergraph, Split
from placement.public.linear import linear_split
from placement.public.resplit import Part, resplit

SLACKS = (2.0, 1.5, 1.2, 1.1, 1.0)
SLICE_SECONDS = 2.0
SMALLEST_PATCH, FIRST_PATCH = 12, 40
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
        self._started = time.monotonic()
        self._random = np.random.default_rng(self.seed)
        self._patch = float(FIRST_PATCH)
        self._coarse = [coarsen(self.graph, slack, self._target()) for slack in SLACKS]

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
        if self.best is not None and not _less(loads, self.loads):
            return False
        if loads.max() < self.value - EPSILON:
            self.report(time.monotonic() - self._started, float(loads.max()))
        self.best, self.loads = split, loads
        return True

    def run(self) -> None:
        """Search until time is up or the goal reached."""
        self._linear()
        for graph, labels in self._coarse:
            if self.left > 0:
                self._coarse_solve(graph, np.array(labels), min(self.left, max(self.seconds / 8, 1.0)))
        while self.best is not None and self.left > 0:
            self._neighbourhood()

    def _linear(self) -> None:
        split = linear_split(self.found.graph, self.found.order)
        self.offer(None if split is None else self.found.of_items(split))
        for graph, labels in self._coarse:
            index = np.array(labels)
            for order in self._orders(index):
                split = linear_split(graph, order)
                self.offer(None if split is None else split[index])

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

    def _coarse_solve(self, graph: Hypergraph, labels: Split, seconds: float) -> None:
        """Split a coarsened graph anew, from the best split if its merged items are whole in it."""
        start = self._expressed(graph, labels)
        if start is not None:
            part = Part(graph, start, range(graph.items), range(graph.devices))
            split = resplit(part, seconds, self.seed, self.workers)
            self.offer(None if split is None else split[labels])

    def _expressed(self, graph: Hypergraph, labels: Split) -> Split | None:
        starts = [split for order in self._orders(labels) if (split := linear_split(graph, order)) is not None]
        if self.best is not None:
            projected = np.zeros(graph.items, dtype=np.int64)
            projected[labels] = self.best
            if graph.fits(projected):
                starts.append(projected)
        return min(starts, key=lambda split: float(graph.loads(split).max()), default=None)

    def _neighbourhood(self) -> None:
        """Solve one neighbourhood, and learn how many items fit in a slice."""
        assert self.best is not None
        free, devices = self._choose(self.best)
        began, seconds = time.monotonic(), min(SLICE_SECONDS, self.left)
        part = Part(self.graph, self.best, free, devices)
        self.offer(resplit(part, seconds, int(self._random.integers(2**31)), self.workers))
        quick = time.monotonic() - began < seconds / 2
        self._patch = max(self._patch * (1.15 if quick else 0.9), SMALLEST_PATCH)

    def _choose(self, best: Split) -> tuple[list[int], list[int]]:
        """Return free items and devices: around the most loaded device, three times in four."""
        busiest = int(self.loads.argmax())
        if self._random.random() < 0.25:
            busiest = int(self._random.integers(self.graph.devices))
        home = np.flatnonzero(best == busiest)
        if not len(home):
            home = np.arange(self.graph.items)
        size = int(self._random.integers(2, 5))
        others = self._random.permutation([d for d in range(self.graph.devices) if d != busiest])
        devices = (
            sorted({busiest, *(int(d) for d in others[: size - 1])}) if size < 4 else list(range(self.graph.devices))
        )
        allowed = set(np.flatnonzero(np.isin(best, devices)).tolist())
        most = self._patch * (len(self.graph.accelerator_ms) > 0) * {2: 2.0, 3: 1.4}.get(len(devices), 1.0)
        start = int(self._random.choice([item for item in home.tolist() if item in allowed] or sorted(allowed)))
        return self._grow(start, allowed, int(most)), devices

    def _grow(self, start: int, allowed: set[int], most: int) -> list[int]:
        """Return up to ``most`` allowed items: nearest first, then anywhere."""
        seen, queue = {start: None}, [start]
        while queue and len(seen) < most:
            for item in self.graph.neighbours[queue.pop(0)]:
                if item in allowed and item not in seen and len(seen) < most:
                    seen[item] = None
                    queue.append(item)
        rest = self._random.permutation([item for item in sorted(allowed) if item not in seen])
        return sorted([*seen, *(int(item) for item in rest[: most - len(seen)])])


def _less(loads: Floats, than: Floats) -> bool:
    """Whether sorted loads are lexicographically less, by more than rounding."""
    for a, b in zip(np.sort(loads)[::-1], np.sort(than)[::-1], strict=True):
        if abs(a - b) > EPSILON * max(abs(b), 1.0):
            return bool(a < b)
    return False
