"""Latency of the dnn-partitioning instances: one sample, one call of each accelerator.

Knows the objective: a node on a CPU (there are enough) ends at its own time after its last predecessor; an accelerator
runs the nodes it holds as one call that starts when every outside predecessor has ended, and takes c(u) for every outside
u that feeds it, the time of its nodes, and c(u) for every node u of it with a consumer outside; the value is the last end.
Colours that lie on a cycle are one unit: they share an accelerator or all run on CPUs.

How it is searched: intervals of many topological orders, where calls follow each other, by dynamic programming; then windows
of units are placed anew by :mod:`placement.public.latency_window`, everything else staying, and the better plan is kept.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np

from placement.errors import InvalidPlan
from placement.public.blocks import Blocks, units
from placement.public.hypergraph import Floats, Hypergraph, Split, contract
from placement.public.latency_window import Window, replace_window
from placement.public.linear import interval_loads
from placement.public.orders import near_order
from placement.public.result import BenchResult
from problem.errors import BadInput
from problem.public_graphs import MsrInstance, topological_order

WINDOW_SECONDS = 4.0
FIRST_WINDOW, FEWEST = 30.0, 8

ORDERS_SHARE, NOISES = 0.25, (0.0, 0.3, 1.0, 3.0)
"""Share of the time for orders, and how noisy they are in turn."""


def latency(instance: MsrInstance, device_of_node: Sequence[int]) -> float:
    """Return the value of a plan in milliseconds; device ``instance.accelerators`` stands for the CPUs. The judge.

    Raises
    ------
    InvalidPlan
        When colours are torn apart, memory is short, or two calls wait for each other.
    """
    _check(instance, device_of_node)
    call = [device if device < instance.accelerators else -1 - node for node, device in enumerate(device_of_node)]
    number = {name: i for i, name in enumerate(dict.fromkeys(call))}
    home = [number[name] for name in call]
    edges = tuple(dict.fromkeys((home[u], home[v]) for u, v in instance.edges if home[u] != home[v]))
    try:
        order = topological_order(len(number), edges, instance.name)
    except BadInput:
        raise InvalidPlan(f"{instance.name}: two calls wait for each other") from None
    durations = _durations(instance, device_of_node, home, len(number))
    ends = [0.0] * len(number)
    before: list[list[int]] = [[] for _ in ends]
    for u, v in edges:
        before[v].append(u)
    for i in order:
        ends[i] = durations[i] + max((ends[j] for j in before[i]), default=0.0)
    return max(ends)


def _durations(instance: MsrInstance, device_of_node: Sequence[int], home: Sequence[int], calls: int) -> list[float]:
    """Return the milliseconds of each call: its nodes, and on an accelerator what it fetches and hands over."""
    durations, outside = [0.0] * calls, [set[int]() for _ in instance.ids]
    for u, v in instance.edges:
        if home[u] != home[v]:
            outside[u] |= {home[u], home[v]}
    accelerated = {home[node] for node, device in enumerate(device_of_node) if device < instance.accelerators}
    for node, calls_of in enumerate(outside):
        times = instance.accelerator_ms if home[node] in accelerated else instance.cpu_ms
        durations[home[node]] += times[node]
        for call in calls_of & accelerated:
            durations[call] += instance.output_ms[node]
    return durations


def _check(instance: MsrInstance, device_of_node: Sequence[int]) -> None:
    used, home = [0] * (instance.accelerators + 1), dict[str, int]()
    for node, device in enumerate(device_of_node):
        if home.setdefault(instance.colour[node], device) != device:
            raise InvalidPlan(f"{instance.name}: node {instance.ids[node]} is not with its colour")
        if device < instance.accelerators and not instance.on_accelerator[node]:
            raise InvalidPlan(f"{instance.name}: no accelerator can run node {instance.ids[node]}")
        used[device] += instance.size_bytes[node]
    if max(used[:-1], default=0) > instance.memory_bytes:
        raise InvalidPlan(f"{instance.name}: an accelerator holds more than {instance.memory_bytes:,} bytes")


def solve_latency(instance: MsrInstance, seconds: float, seed: int = 0, workers: int = 2) -> BenchResult:
    """Return the best plan found in a time limit, and the bound of the longest path."""
    search = _Search(instance, seconds, seed, workers)
    search.run()
    value = latency(instance, search.of_nodes(search.best))
    bound = min(value, _longest_path(instance))
    if search.proven:
        bound = value
    devices = dict(zip(instance.ids, search.of_nodes(search.best), strict=True))
    return BenchResult(instance.name, value, bound, time.monotonic() - search.began, {"device_of_node": devices})


def _longest_path(instance: MsrInstance) -> float:
    """Return the largest sum of the lesser times along a path: what no plan is below."""
    times = [min(cpu, acc) for cpu, acc in zip(instance.cpu_ms, instance.accelerator_ms, strict=True)]
    ends = list(times)
    after: list[list[int]] = [[] for _ in times]
    for u, v in instance.edges:
        after[u].append(v)
    for u in topological_order(len(times), instance.edges, instance.name):
        for v in after[u]:
            ends[v] = max(ends[v], ends[u] + times[v])
    return max(ends)


class _Search:
    """Best plan so far: device of each unit."""

    def __init__(self, instance: MsrInstance, seconds: float, seed: int, workers: int) -> None:
        self.began = time.monotonic()
        self.instance, self.seconds, self.workers = instance, seconds, workers
        graph = contract(instance)
        self.units: Blocks = units(instance, graph)
        self.graph: Hypergraph = self.units.graph
        self.random, self.proven = np.random.default_rng(seed), False
        self.best = np.full(self.graph.items, instance.accelerators, dtype=np.int64)
        self.value = latency(instance, self.of_nodes(self.best))
        self.size = FIRST_WINDOW

    def of_nodes(self, split: Split) -> tuple[int, ...]:
        """Return the device of each node."""
        return tuple(int(split[unit]) for unit in self.graph.item_of_node)

    def _offer(self, split: Split) -> None:
        try:
            value = latency(self.instance, self.of_nodes(split))
        except InvalidPlan:
            return
        if value <= self.value:
            self.best, self.value = split, value

    def run(self) -> None:
        """Intervals first, then windows until time is up or everything was one window and proven best."""
        self._offer(intervals(self.graph, self.units.order))
        for noise in itertools.cycle(NOISES):
            if time.monotonic() > self.began + ORDERS_SHARE * self.seconds:
                break
            order = near_order(self.graph, self.units.edges, self.random, noise)
            self._offer(intervals(self.graph, order))
        while not self.proven and (left := self.began + self.seconds - time.monotonic()) > 0.05:
            free, devices = self._window(min(int(self.size), self.graph.items))
            began, limit = time.monotonic(), min(WINDOW_SECONDS, left)
            if len(free) == self.graph.items:
                limit = left
            window = Window(self.instance, self.graph, self.best, free, devices, self.value)
            found, optimal = replace_window(window, limit, int(self.random.integers(2**31)), self.workers)
            if found is not None:
                self._offer(found)
            self.proven = optimal and len(free) == self.graph.items
            factor = 1.2 if time.monotonic() - began < limit / 2 else 0.9
            self.size = max(self.size * factor, FEWEST)

    def _window(self, most: int) -> tuple[list[int], list[int]]:
        """Return units near each other and devices: theirs, the CPUs, and one that is idle; all if all are free."""
        cpu = self.graph.accelerators
        free = self._devices_of(most) if self.random.random() < 0.4 else self._near(most)
        if len(free) == self.graph.items:
            return free, list(range(cpu + 1))
        used = {cpu, *self.best[free].tolist()}
        idle = [d for d in range(cpu) if not (self.best == d).any()]
        return free, sorted({*used, *idle[:1]})

    def _devices_of(self, most: int) -> list[int]:
        """Return units of two accelerators, one of which feeds the other, and of CPUs beside them."""
        first = int(self.random.integers(self.graph.items))
        beside = [unit for unit in self.graph.neighbours[first] if self.best[unit] != self.best[first]]
        second = int(self.random.choice(beside)) if beside else first
        homes = {int(self.best[first]), int(self.best[second]), self.graph.accelerators}
        free = np.flatnonzero(np.isin(self.best, sorted(homes)))
        most = 2 * most
        return np.sort(self.random.choice(free, most, replace=False)).tolist() if len(free) > most else free.tolist()

    def _near(self, most: int) -> list[int]:
        """Return a stretch of the order, or a ball in the graph."""
        if self.random.random() < 0.5:
            first = int(self.random.integers(0, self.graph.items - most + 1))
            return sorted(self.units.order[first : first + most])
        seen = {int(self.random.integers(self.graph.items)): None}
        queue = list(seen)
        while queue and len(seen) < most:
            near = [unit for unit in self.graph.neighbours[queue.pop(0)] if unit not in seen][: most - len(seen)]
            seen |= dict.fromkeys(near)
            queue += near
        rest = [unit for unit in self.random.permutation(self.graph.items).tolist() if unit not in seen]
        return sorted([*seen, *rest[: most - len(seen)]])


def intervals(graph: Hypergraph, order: Sequence[int]) -> Split:
    """Return the plan of least total time whose accelerators hold intervals of an order, the rest on CPUs."""
    calls = interval_loads(graph, order)[0]
    cpu = np.concatenate([[0.0], np.cumsum(graph.cpu_ms[list(order)])])
    best: list[Floats] = [cpu]
    for _ in range(graph.accelerators):
        ends = (best[-1][:, None] + calls).min(axis=0)
        best.append(np.minimum(best[-1], np.minimum.accumulate(ends - cpu) + cpu))
    return _trace(graph, order, best, calls, cpu)


def _trace(graph: Hypergraph, order: Sequence[int], best: list[Floats], calls: Floats, cpu: Floats) -> Split:
    split = np.full(graph.items, graph.accelerators, dtype=np.int64)
    end, used = graph.items, graph.accelerators
    while end and used:
        through = best[used - 1] + calls[:, end]
        begin = int(through.argmin())
        if best[used - 1][end] <= best[used][end] * (1 + 1e-12):
            used -= 1
        elif through[begin] <= best[used][end] * (1 + 1e-12):
            used -= 1
            split[list(order[begin:end])] = used
            end = begin
        else:
            end -= 1
    return split
