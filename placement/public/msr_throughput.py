"""Max load of the dnn-partitioning instances: the best split found, a bound, and the exact contiguous optimum.

Knows how the time is spent. Free splits: a third at most on coarse graphs, then neighbourhoods on one core and proofs on
the other: the bound from one accelerator for as long as it rises, the whole program of a small instance, and at last
neighbourhoods, too; less once value and bound meet. The whole program starts from the best split of coarse graphs: from a
worse one HiGHS was seen to prove in a minute what it proves in four seconds. Contiguous splits: the exact dynamic program,
however long it takes.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from placement.errors import DoesNotFit
from placement.public.blocks import blocks
from placement.public.bound import Bound
from placement.public.contiguous import contiguous_split
from placement.public.hypergraph import Hypergraph, Split, contract, max_load
from placement.public.mip import end_workers, own_worker
from placement.public.resplit_mip import solve_whole
from placement.public.result import BenchResult
from placement.public.split_search import Search
from problem.public_graphs import MsrInstance

PATIENCE_STEPS, PATIENCE_SHARE = 6, 0.25
"""The bound from one accelerator is left as it is after so many fruitless steps and, where there is no other proof, so much
of the time without a rise: a step takes 0.1 to 15 seconds, and on BERT-6 training the bound rises after ten short ones."""

WHOLE_ITEMS, WHOLE_SHARE = 200, 0.75
"""Up to this many items the program of the whole instance gets at most its share of the time."""

FAR = 0.02
"""Where the bound from one accelerator is nearer to the best value than this, the whole program was never seen to raise it
in a minute; searching neighbourhoods on both cores finds more."""


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
    bound = Bound(graph, search.best)
    _close_in(search, bound)
    return _result(instance, graph, search.best, bound.value, began)


def _close_in(search: Search, bound: Bound) -> None:
    """Search and prove side by side until they meet or time is up."""

    def search_found(_: float, value: float) -> None:
        bound.upper = value

    def bound_found(value: float) -> None:
        search.goal = value

    search.goal, search.report, bound.report = bound.value, search_found, bound_found
    with ThreadPoolExecutor(1) as pool:
        proving = pool.submit(_prove, search, bound)
        try:
            search.improve()
        except BaseException:
            search.seconds = 0.0
            raise
        finally:  # value and bound have met, time is up, or Ctrl-C: do not wait for the other thread's solver
            end_workers()
        proving.result()


def _prove(search: Search, bound: Bound) -> None:
    """Raise the bound for as long as that works, then with the whole program; then help to search."""
    with own_worker():
        while search.left > 0 and not _stalls(search, bound):
            bound.step(search.left)
        if _small(search) and bound.value < (1 - FAR) * search.value and search.left > 0:
            _whole(search, bound)
        search.improve()


def _small(search: Search) -> bool:
    """Whether the program of the whole instance is worth a try."""
    return search.graph.items <= WHOLE_ITEMS


def _stalls(search: Search, bound: Bound) -> bool:
    """Whether the bound from one accelerator has not risen for so long that the time is better spent otherwise."""
    patience = 0.0 if _small(search) else PATIENCE_SHARE * search.seconds
    return bound.fruitless >= PATIENCE_STEPS and bound.fruitless_seconds >= patience


def _whole(search: Search, bound: Bound) -> None:
    """Spend a share of the time on the program of the whole instance."""
    assert search.best is not None
    seconds = min(search.left, WHOLE_SHARE * search.seconds)
    split, proven = solve_whole(search.graph, search.best, seconds, search.seed)
    search.offer(split)
    bound.raise_to(proven)


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
