"""Coarsening: a group problem with thousands of items made into one with few, by tying what exchanges most bytes.

Multilevel partitioning (Karypis, Kumar, SIAM J. Sci. Comput. 20 (1998) 359-392), one level of uncoarsening: items are
merged along the heaviest nets as long as a cluster stays a small share of a node's work and memory, then neighbours in
topological order. Hubs, which very many items read, stay by themselves: where they are decides what everybody's messages
cost, and tied to one of their readers they would be as hard to move as that. A placement of the coarse problem is one of the
fine problem, worth the same; a bound of it is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from placement.tagging.nets import RANK, Contracted

#: Clusters take at most this share of a node's fair share of the work.
SHARE = 0.25
#: An item that more items read is a hub.
READERS = 8


def coarse(contracted: Contracted, most: int) -> Contracted:
    """Return the problem with open items tied to about ``most`` clusters.

    Parameters
    ----------
    contracted : Contracted
        The fine problem.
    most : int
        Clusters to aim for; there are more where work or memory would be too large.
    """
    clusters = _Clusters(contracted)
    for one, other in _heavy_pairs(contracted):
        if clusters.count > most:
            clusters.merge(one, other)
    passed = -1
    while clusters.count > most and clusters.count != passed:
        passed, order = clusters.count, clusters.in_order()
        for one, other in zip(order[::2], order[1::2], strict=False):
            if clusters.count > most:
                clusters.merge(one, other)
    names = {i: contracted.items[clusters.root(i)].name for i in contracted.free}
    return replace(contracted, ties={contracted.items[i].name: name for i, name in names.items()})


def _heavy_pairs(contracted: Contracted) -> Iterator[tuple[int, int]]:
    """Pairs of open items by falling bytes that flow between them; a net counts less the more items read it."""
    weight: dict[tuple[int, int], float] = {}
    free = dict.fromkeys(contracted.free)
    for net in contracted.nets:
        readers = [item for item, _ in net.consumers if item in free]
        if net.producer != RANK and net.producer in free:
            for item in readers:
                pair = (net.producer, item)
                weight[pair] = weight.get(pair, 0.0) + net.bytes * (1 + net.gradient) / len(readers)
    yield from sorted(weight, key=lambda pair: (-weight[pair], pair))


class _Clusters:
    """Sets of items, joined while they stay small."""

    def __init__(self, contracted: Contracted) -> None:
        self.data, size = contracted, contracted.problem.size
        self.parent = {i: i for i in contracted.free}
        self.work = {i: contracted.work[i].work.core_seconds for i in contracted.free}
        self.held = {i: self._bytes(i) for i in contracted.free}
        self.most_work = SHARE * sum(self.work.values()) / size
        self.most_held = SHARE * min(node.memory_bytes for node in contracted.problem.nodes)
        self.hubs = {net.producer for net in contracted.nets if len(net.consumers) > READERS}
        self.count = len(self.parent)

    def _bytes(self, item: int) -> int:
        work = self.data.work[item]
        return work.resident_bytes + self.data.problem.sessions * work.session_bytes

    def root(self, item: int) -> int:
        """Return the first item of the cluster that an item is in."""
        while self.parent[item] != item:
            item = self.parent[item]
        return item

    def in_order(self) -> list[int]:
        """Return the clusters by their first item."""
        return [i for i in self.data.free if self.parent[i] == i]

    def merge(self, one: int, other: int) -> None:
        """Join two clusters unless together they are too large, may not be in the same places, or one is a hub."""
        first, second = sorted((self.root(one), self.root(other)))
        if first in self.hubs or second in self.hubs:
            return
        work, held = self.work[first] + self.work[second], self.held[first] + self.held[second]
        same = self.data.allowed[first] == self.data.allowed[second]
        if first != second and same and work <= self.most_work and held <= self.most_held:
            self.parent[second] = first
            self.work[first], self.held[first] = work, held
            self.count -= 1
