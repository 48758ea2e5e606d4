"""Topological orders in which neighbours stay near: starts for programs that cut an order into intervals.

Knows a greedy rule: of the items that are ready, take the one that closes the dearest nets and opens the cheapest ones;
noise on the costs gives other orders of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from placement.public.hypergraph import Hypergraph


def near_order(
    graph: Hypergraph, edges: Iterable[tuple[int, int]], random: np.random.Generator, noise: float
) -> list[int]:
    """Return a topological order of the items; ``noise`` 0 gives the greedy one."""
    after: list[list[int]] = [[] for _ in range(graph.items)]
    waits = [0] * graph.items
    for u, v in edges:
        after[u].append(v)
        waits[v] += 1
    ready = {item: 0 for item in range(graph.items) if not waits[item]}
    left = [len(pins) for pins in graph.nets]
    order: list[int] = []
    while ready:
        shake = 1 + noise * random.random(len(ready))
        item = min(zip(ready, shake.tolist(), strict=True), key=lambda pair: _rank(graph, left, ready, *pair))[0]
        del ready[item]
        order.append(item)
        for net in graph.nets_of[item]:
            left[net] -= 1
        for other in after[item]:
            waits[other] -= 1
            if not waits[other]:
                ready[other] = len(order)
    return order


def _rank(graph: Hypergraph, left: list[int], ready: dict[int, int], item: int, shake: float) -> tuple[float, int]:
    """Return the cost of nets that the item opens less that of nets it closes; then, the latest first."""
    cost = 0.0
    for net in graph.nets_of[item]:
        if left[net] == len(graph.nets[net]):
            cost += float(graph.net_ms[net])
        elif left[net] == 1:
            cost -= float(graph.net_ms[net])
    return cost * shake, -ready[item]
