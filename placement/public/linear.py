"""Contiguous splits along one order of the items: the linearised dynamic program, a warm start in well under a second.

Knows that a device takes an interval of the order. The load of every interval is tabulated at once: a net is cut by an
interval unless the interval holds none of its pins (it lies in a gap between two pins) or all of them; both cases are
rectangles in the plane of (begin, end), so a two-dimensional difference array adds them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from placement.public.hypergraph import Floats, Hypergraph, Split


def linear_split(graph: Hypergraph, order: Sequence[int]) -> Split | None:
    """Return the best split into intervals of an order, as device of each item; None if memory allows none."""
    accelerator, cpu = interval_loads(graph, order)
    shape = (graph.cpus + 1, graph.accelerators + 1, graph.items + 1)
    best = np.full(shape, np.inf)
    best[:, :, 0] = 0.0
    choice = np.zeros((*shape, 2), dtype=np.int64)
    for c in range(shape[0]):
        for a in range(shape[1]):
            if c:
                _extend(best[c, a], choice[c, a], best[c - 1, a], cpu, 1)
            if a:
                _extend(best[c, a], choice[c, a], best[c, a - 1], accelerator, 0)
    return _trace(graph, order, choice) if np.isfinite(best[-1, -1, -1]) else None


def interval_loads(graph: Hypergraph, order: Sequence[int]) -> tuple[Floats, Floats]:
    """Return the loads [begin, end) of an accelerator and of a CPU, each of shape (items + 1, items + 1); else inf."""
    size = graph.items + 1
    position = np.empty(graph.items, dtype=np.int64)
    position[list(order)] = np.arange(graph.items)
    saved = np.zeros((size + 1, size + 1))
    for pins, cost in zip(graph.nets, graph.net_ms, strict=True):
        _save(saved, sorted(position[list(pins)].tolist()), float(cost), size)
    accelerator = graph.net_ms.sum() - saved.cumsum(axis=0).cumsum(axis=1)[:size, :size]
    accelerator += _differences(graph.accelerator_ms[list(order)])
    too_big = _differences(graph.size_bytes[list(order)]) > graph.memory_bytes
    too_big |= _differences(graph.cpu_only[list(order)].astype(float)) > 0
    cpu = _differences(graph.cpu_ms[list(order)])
    backwards = np.tril(np.ones((size, size), dtype=bool), -1)
    return np.where(too_big | backwards, np.inf, accelerator), np.where(backwards, np.inf, cpu)


def _save(saved: Floats, pins: list[int], cost: float, size: int) -> None:
    """Take back the cost of a net where no pin, or every pin, is in [begin, end)."""
    edges = [-1, *pins, size - 1]
    for before, after in pairwise(edges):  # begin in (before, after], end <= after
        _rectangle(saved, (before + 1, after + 1), (0, after + 1), cost)
    _rectangle(saved, (0, pins[0] + 1), (pins[-1] + 1, size), cost)


def _rectangle(saved: Floats, begins: tuple[int, int], ends: tuple[int, int], cost: float) -> None:
    saved[begins[0], ends[0]] += cost
    saved[begins[1], ends[0]] -= cost
    saved[begins[0], ends[1]] -= cost
    saved[begins[1], ends[1]] += cost


def _differences(values: Floats) -> Floats:
    """Return the sums over [begin, end), shape (items + 1, items + 1)."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(sums[None, :] - sums[:, None])


def _extend(best: Floats, choice: Split, before: Floats, loads: Floats, kind: int) -> None:
    """Improve ``best[end]`` by an interval on one more device of a kind (possibly empty)."""
    through = np.maximum(before[:, None], loads)
    begin = through.argmin(axis=0)
    value = through[begin, np.arange(len(best))]
    better = value < best
    best[better] = value[better]
    choice[better, 0], choice[better, 1] = begin[better], kind


def _trace(graph: Hypergraph, order: Sequence[int], choice: Split) -> Split:
    split = np.zeros(graph.items, dtype=np.int64)
    cpu, accelerator, end = graph.cpus, graph.accelerators, graph.items
    while end:
        begin, kind = choice[cpu, accelerator, end].tolist()
        cpu, accelerator = cpu - kind, accelerator - 1 + kind
        split[list(order[begin:end])] = graph.accelerators + cpu if kind else accelerator
        end = begin
    return split
