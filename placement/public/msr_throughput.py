"""Max load of the dnn-partitioning instances: the best split found, a bound, and the exact contiguous optimum.

Knows how the time is spent. Free splits: a third at most on coarse graphs, then the bound from one accelerator and
neighbourhoods in turns, and on small instances the whole program; less once value and bound meet. Contiguous splits: the
exact dynamic program, however long it takes.
"""

from __future__ import annotations

import time

from placement.errors import DoesNotFit
from placement.public.blocks import blocks
from placement.public.bound import SAFETY, Bound
from placement.public.contiguous import contiguous_split
from placement.public.hypergraph import Hypergraph, Split, contract, max_load
from placement.public.resplit_mip import solve_whole
from placement.public.result import BenchResult
from placement.public.split_search import Search
from problem.public_graphs import MsrInstance

TURN_SHARE = 0.12
"""Of the time limit: a turn of the bound or of the search."""

WHOLE_ITEMS, WHOLE_SHARE = 200, 0.35
"""Up to this many items the program of the whole instance gets its share of the time, at the end: it proves, and improves
what neighbourhoods left."""


def solve_throughput(instance: MsrInstance, seconds: float, seed: int = 0, workers: int = 2) -> BenchResult:
    """Return the best split found in a time limit, any node on any device.

    Raises
    ------
    DoesNotFit
        When no split was found that fits the accelerators' memory.
    """
    began = time.monotonic()
    graph = contract(instance)
    search = Search(graph, blocks(instance, graph), seconds, seed, workers)
    search.start()
    if search.best is None:
        raise _does_not_fit(graph)
    small = graph.items <= WHOLE_ITEMS
    bound = Bound(graph, search.best)
    _close_in(search, bound, WHOLE_SHARE * seconds if small else 0.0)
    proven = max(bound.value, _whole(search)) if small and search.left > 0 else bound.value
    return _result(instance, graph, search.best, proven, began)


def _close_in(search: Search, bound: Bound, spare: float) -> None:
    """Give slices of the time to the bound or to the search, whichever closed more of the gap when it last had one."""
    gains = {"bound": 2.0, "search": 1.0}
    while search.left > spare:
        turn = max(gains, key=lambda name: gains[name])
        gap, slice_seconds = search.value - bound.value, min(TURN_SHARE * search.seconds, search.left - spare)
        if turn == "bound":
            bound.improve(slice_seconds)
        else:
            search.improve(search.left - slice_seconds)
        bound.upper, search.goal = search.value, bound.value
        gains = {name: 2 * gain for name, gain in gains.items()}  # who waits gets another chance
        gains[turn] = (gap - search.value + bound.value) / search.value + 1e-6


def _whole(search: Search) -> float:
    """Spend the time that is left on the program of the whole instance; return its bound."""
    assert search.best is not None
    split, bound = solve_whole(search.graph, search.best, search.left, search.seed)
    search.offer(split)
    return bound * (1 - SAFETY)


def solve_contiguous(instance: MsrInstance) -> BenchResult:
    """Return an optimal contiguous split.

    Raises
    ------
    DoesNotFit
        When no contiguous split fits the accelerators' memory.
    TooManyIdeals
        When the graph is too wide for the dynamic program.
    """
    began = time.monotonic()
    graph = contract(instance)
    found = blocks(instance, graph)
    split = contiguous_split(found)
    if split is None:
        raise _does_not_fit(graph)
    return _result(instance, graph, found.of_items(split), float("inf"), began)


def _result(instance: MsrInstance, graph: Hypergraph, split: Split, bound: float, began: float) -> BenchResult:
    """Return the result; a bound within rounding of the value, or above it, is the value."""
    devices = graph.of_nodes(split)
    value = max_load(instance, devices)
    proven = min(bound, value)
    return BenchResult(
        instance=instance.name,
        value=value,
        bound=value if proven > value * (1 - 1e-6) else proven,
        seconds=time.monotonic() - began,
        solution={"device_of_node": dict(zip(instance.ids, devices, strict=True))},
    )


def _does_not_fit(graph: Hypergraph) -> DoesNotFit:
    needed, available = float(graph.size_bytes.sum()), graph.memory_bytes * graph.accelerators
    return DoesNotFit(f"{graph.name} (split by intervals)", "the accelerators", needed, available)
