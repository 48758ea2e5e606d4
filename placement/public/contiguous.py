"""The best contiguous split, exactly: the published dynamic program over ideals, in a form that NumPy runs fast.

Knows that a contiguous split is a chain of ideals, the set of a device being the difference I - J of two neighbours on
it. The published program looks at every pair J within I; here

* only pairs whose difference weighs at most the value of a known split are looked at: the ideals are sorted by weight,
  so these J are a slice;
* the load of I - J is never summed over nets: with O(I) the cost of the nets open in I, it is
  w(I) - w(J) + O(I) + O(J) - sum over nets open in both of c * (1 + [no pin was added]),
  because a net open in J alone or I alone is cut once, one open in both is counted twice, and not cut at all when I - J
  has none of its pins. Few nets are open in an ideal;
* all numbers of used devices are looked at together.

36,596 ideals take minutes instead of the 839 s to 1,467 s of the authors' C++ program.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placement.public.blocks import Blocks
from placement.public.hypergraph import Floats, Hypergraph, Split
from placement.public.ideals import Ideals, ideals
from placement.public.linear import linear_split

MAX_IDEALS = 200_000
SLACK = 1 + 1e-9
"""Relative: keeps the warm start's own pairs when loads are summed in another order."""


def contiguous_split(found: Blocks, limit: int = MAX_IDEALS) -> Split | None:
    """Return the best contiguous split, as device of each block; None if memory allows none.

    Raises
    ------
    TooManyIdeals
        When the order has more than ``limit`` ideals.
    """
    start = linear_split(found.graph, found.order)
    worst = np.inf if start is None else float(found.graph.loads(start).max())
    program = _Program(found.graph, ideals(found, limit), worst * SLACK)
    program.run()
    return program.trace() if np.isfinite(program.best[-1, -1, -1]) else start


@dataclass(eq=False)
class _Program:
    """Table best[c, a, i]: least value of ideal i on at most c CPUs and a accelerators."""

    graph: Hypergraph
    ideals: Ideals
    worst: float

    def __post_init__(self) -> None:
        self.best = np.full((self.graph.cpus + 1, self.graph.accelerators + 1, len(self.ideals)), np.inf)
        self.best[:, :, 0] = 0.0

    @cached_property
    def _first(self) -> NDArray[np.int64]:
        """Return the first ideal of each slice."""
        return np.searchsorted(self.ideals.weight, self.ideals.weight - self.worst - 1e-9)

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        return np.array([len(net) for net in self.graph.nets])

    def run(self) -> None:
        """Fill the table; ideals come after their subsets."""
        for i in range(1, len(self.ideals)):
            within = self._subsets(i)
            for axis, loads in enumerate((self._cpu(i, within), self._accelerator(i, within))):
                self._improve(i, within, loads, axis)
            self._spread(i)

    def _subsets(self, i: int) -> NDArray[np.int64]:
        """Return the ideals J within ideal i whose difference is light enough."""
        first = int(self._first[i])
        missing = ~self.ideals.words[:, i]
        within = np.flatnonzero((self.ideals.words[0, first:i] & missing[0]) == 0) + first
        for word, absent in zip(self.ideals.words[1:], missing[1:], strict=True):
            within = within[(word[within] & absent) == 0]
        return within

    def _cpu(self, i: int, within: NDArray[np.int64]) -> Floats:
        return np.asarray(self.ideals.cpu_ms[i] - self.ideals.cpu_ms[within])

    def _accelerator(self, i: int, within: NDArray[np.int64]) -> Floats:
        """Return the load of I - J for every J, inf where memory or the items forbid it."""
        sets, pins = self.ideals, self.ideals.pins[:, i]
        loads: Floats = sets.accelerator_ms[i] - sets.accelerator_ms[within]
        loads += sets.opened_ms[i] + sets.opened_ms[within]
        for net in np.flatnonzero((pins > 0) & (pins < self._sizes)):
            held = sets.pins[net][within]
            loads -= self.graph.net_ms[net] * ((held > 0).astype(np.float64) + (held == pins[net]))
        too_big = sets.size_bytes[i] - sets.size_bytes[within] > self.graph.memory_bytes
        loads[too_big | (sets.cpu_only[i] > sets.cpu_only[within])] = np.inf
        return loads

    def _improve(self, i: int, within: NDArray[np.int64], loads: Floats, axis: int) -> None:
        """Put I - J on one more CPU (axis 0) or accelerator (axis 1)."""
        light = loads <= self.worst
        within, loads = within[light], loads[light]
        if not len(within):
            return
        before = self.best[:-1] if axis == 0 else self.best[:, :-1]
        after = self.best[1:, :, i] if axis == 0 else self.best[:, 1:, i]
        np.minimum(after, np.maximum(before[:, :, within], loads).min(axis=2), out=after)

    def _spread(self, i: int) -> None:
        """Let devices stay idle."""
        column = self.best[:, :, i]
        np.minimum.accumulate(column, axis=0, out=column)
        np.minimum.accumulate(column, axis=1, out=column)

    def trace(self) -> Split:
        """Return the device of each block."""
        split = np.zeros(self.graph.items, dtype=np.int64)
        cpu, accelerator, i = self.graph.cpus, self.graph.accelerators, len(self.ideals) - 1
        while i:
            j, kind = self._step(cpu, accelerator, i)
            cpu, accelerator = cpu - kind, accelerator - 1 + kind
            split[self._difference(i, j)] = self.graph.accelerators + cpu if kind else accelerator
            i = j
        return split

    def _step(self, cpu: int, accelerator: int, i: int) -> tuple[int, int]:
        """Return the ideal before ``i`` on a best chain, and whether its difference is on a CPU."""
        within = np.append(self._subsets(i), i)
        options = []
        if cpu:
            options.append((np.maximum(self.best[cpu - 1, accelerator, within], self._cpu(i, within)), 1))
        if accelerator:
            through = np.maximum(self.best[cpu, accelerator - 1, within], self._accelerator(i, within))
            through[-1] = self.best[cpu, accelerator - 1, i]
            options.append((through, 0))
        values, kind = min(options, key=lambda option: float(option[0].min()))
        return int(within[values.argmin()]), kind

    def _difference(self, i: int, j: int) -> list[int]:
        words = (self.ideals.words[:, i] & ~self.ideals.words[:, j]).view(np.uint8)
        return np.flatnonzero(np.unpackbits(words, bitorder="little")).tolist()
