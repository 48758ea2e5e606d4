"""Items that need not be told apart: dominance, made stronger by a slack where only a good split is wanted.

Knows one exchange: item i hangs on net {i, j}. If the net costs at least the time of i and all its other nets together,
moving i to the accelerator of j makes no accelerator slower: that of j saves the net, and pays at most the time and the
other nets of i. So i and j may as well be one item (but for memory, and for a j on a CPU, which is why the result is a
search space and never a bound). With ``slack`` > 1 nets count that much more: on BERT-12 training slack 1 leaves 354 of
456 items, 1.2 leaves 155, 1.5 leaves 58, and what is lost shows in the value only.
"""

from __future__ import annotations

from placement.public.hypergraph import Hypergraph, merge


def coarsen(graph: Hypergraph, slack: float, heaviest: float) -> tuple[Hypergraph, tuple[int, ...]]:
    """Return the graph with dominated items merged, and the new item of each item.

    Parameters
    ----------
    slack : float
        Factor on the cost of the net that joins two items.
    heaviest : float
        Milliseconds on an accelerator that no merged item exceeds.
    """
    labels = tuple(range(graph.items))
    while True:
        partner = _matching(graph, slack, heaviest)
        if partner == list(range(graph.items)):
            return graph, labels
        number: dict[int, int] = {}
        step = [number.setdefault(partner[item], len(number)) for item in range(graph.items)]
        graph, labels = merge(graph, step), tuple(step[label] for label in labels)


def _matching(graph: Hypergraph, slack: float, heaviest: float) -> list[int]:
    """Return the item that each item joins, itself where it stays; no item takes part twice."""
    partner, used = list(range(graph.items)), [False] * graph.items
    for item in range(graph.items):
        other = None if used[item] else _dominating(graph, item, slack)
        if other is None or used[other]:
            continue
        if graph.accelerator_ms[item] + graph.accelerator_ms[other] <= heaviest:
            partner[item] = other
            used[item] = used[other] = True
    return partner


def _dominating(graph: Hypergraph, item: int, slack: float) -> int | None:
    """Return the item at the other end of the first net that outweighs everything else about ``item``, if any."""
    total = float(graph.accelerator_ms[item] + sum(graph.net_ms[net] for net in graph.nets_of[item]))
    for net in graph.nets_of[item]:
        cost = float(graph.net_ms[net])
        if len(graph.nets[net]) == 2 and slack * cost >= (total - cost) * (1 - 1e-12):
            return sum(graph.nets[net]) - item
    return None
