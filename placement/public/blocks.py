"""What may be cut where in a contiguous split: blocks of items and the order among them.

Knows the rule of the published dynamic program (throughput-dp/dp.cpp of github.com/msr-fiddle/dnn-partitioning): no path
leaves and re-enters the forward nodes of a device; a colour without forward nodes gets an artificial one, tied by the
mirror image of its backward edges; colours on a cycle of the contracted forward graph become one block; a block without
time that hangs on a single neighbour, and that no backward node touches, joins it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from placement.public.hypergraph import Hypergraph, Split, merge
from problem.public_graphs import MsrInstance, topological_order

Edge = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of a hypergraph and the forward order among them.

    Parameters
    ----------
    graph : Hypergraph
        One item for each block.
    block_of_item : tuple of int
        Block of each item of the contracted instance.
    edges : tuple of (int, int)
        Forward dependencies between blocks; no cycle.
    order : tuple of int
        A topological order of the blocks.
    """

    graph: Hypergraph
    block_of_item: tuple[int, ...]
    edges: tuple[Edge, ...]
    order: tuple[int, ...]

    def of_items(self, split: Split) -> Split:
        """Return the device of each item, given that of each block."""
        return np.asarray(split[np.array(self.block_of_item)])


def blocks(instance: MsrInstance, graph: Hypergraph) -> Blocks:
    """Return the blocks of a contracted instance."""
    edges = _forward_edges(instance, graph)
    block_of_item = _components(graph.items, edges)
    touched = {item for edge in _mixed_edges(instance, graph) for item in edge}
    blocked = {block_of_item[item] for item in touched}
    merged = merge(graph, block_of_item)
    home = _absorb(merged, _between(edges, block_of_item), blocked)
    block_of_item = tuple(home[block] for block in block_of_item)
    final = merge(graph, block_of_item)
    between = _between(edges, block_of_item)
    return Blocks(final, block_of_item, between, topological_order(final.items, between, instance.name))


def units(instance: MsrInstance, graph: Hypergraph) -> Blocks:
    """Return items that lie on a cycle of the contracted graph as one, with all dependencies between the results."""
    item = graph.item_of_node
    edges = tuple(dict.fromkeys((item[u], item[v]) for u, v in instance.edges if item[u] != item[v]))
    unit_of_item = _components(graph.items, edges)
    merged, between = merge(graph, unit_of_item), _between(edges, unit_of_item)
    return Blocks(merged, unit_of_item, between, topological_order(merged.items, between, instance.name))


def _between(edges: tuple[Edge, ...], block_of_item: tuple[int, ...]) -> tuple[Edge, ...]:
    """Return the edges between different blocks, each once."""
    ends = ((block_of_item[u], block_of_item[v]) for u, v in edges)
    return tuple(dict.fromkeys((u, v) for u, v in ends if u != v))


def _forward_edges(instance: MsrInstance, graph: Hypergraph) -> tuple[Edge, ...]:
    """Return forward edges between items, and the mirrored backward edges of items without forward nodes."""
    item, backward = graph.item_of_node, instance.backward
    with_forward = {item[node] for node, is_backward in enumerate(backward) if not is_backward}
    found: dict[Edge, None] = {}
    for u, v in instance.edges:
        a, b = item[u], item[v]
        if a == b:
            continue
        if not backward[u] and not backward[v]:
            found[a, b] = None
        elif backward[u] and backward[v] and not {a, b} <= with_forward:
            found[b, a] = None
    return tuple(found)


def _mixed_edges(instance: MsrInstance, graph: Hypergraph) -> list[Edge]:
    """Return the edges (as items) between a forward and a backward node."""
    item, backward = graph.item_of_node, instance.backward
    return [(item[u], item[v]) for u, v in instance.edges if backward[u] != backward[v]]


def _components(items: int, edges: tuple[Edge, ...]) -> tuple[int, ...]:
    """Return the strongly connected component of each item, numbered by first appearance."""
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    matrix = coo_matrix((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(items, items))
    labels = connected_components(matrix, directed=True, connection="strong")[1]
    number: dict[int, int] = {}
    return tuple(number.setdefault(int(label), len(number)) for label in labels)


def _absorb(graph: Hypergraph, edges: tuple[Edge, ...], blocked: set[int]) -> tuple[int, ...]:
    """Return the new block of each block after those without time have joined their only neighbour."""
    neighbours: list[set[int]] = [set() for _ in range(graph.items)]
    for u, v in edges:
        neighbours[u].add(v)
        neighbours[v].add(u)
    parent = list(range(graph.items))
    idle = [v for v in range(graph.items) if graph.accelerator_ms[v] + graph.cpu_ms[v] < 1e-6 and v not in blocked]
    waiting = [v for v in idle if len(neighbours[v]) == 1]
    while waiting:
        leaf = waiting.pop()
        if len(neighbours[leaf]) != 1:
            continue
        (host,) = neighbours[leaf]
        parent[leaf] = host
        neighbours[leaf].clear()
        neighbours[host].discard(leaf)
        if host in idle:
            waiting.append(host)
    number: dict[int, int] = {}
    return tuple(number.setdefault(_root(parent, v), len(number)) for v in range(graph.items))


def _root(parent: list[int], block: int) -> int:
    while parent[block] != block:
        block = parent[block]
    return block
