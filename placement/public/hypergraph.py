"""A dnn-partitioning instance as a hypergraph of items, and the value of a split by the published rule.

Knows the objective "max load" of github.com/msr-fiddle/dnn-partitioning (Tarnawski et al., NeurIPS 2020): an accelerator
is loaded by the time of its nodes and, once for every node u, by the time to move the output of u when the accelerator
holds some but not all of {u} and its consumers; a CPU is loaded by the time of its nodes alone; the value of a split is
the largest load. Nodes of one colour share a device, so colours are contracted into items first (2,012 nodes become 456
items on BERT-12 training). Refuses to know how splits are found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placement.errors import InvalidPlan
from problem.public_graphs import MsrInstance

Floats = NDArray[np.float64]
Split = NDArray[np.int64]
"""Device of each item, shape (items,): accelerators first, then CPUs."""

MEMORY_TOLERANCE = 1e-9
"""Relative; sizes are whole bytes, sums of them are exact in float64."""


@dataclass(frozen=True, eq=False)
class Hypergraph:
    """Items, nets and devices; milliseconds and bytes.

    Parameters
    ----------
    name : str
        Of the instance.
    accelerators, cpus : int
        Number of devices.
    memory_bytes : float
        Memory of an accelerator.
    accelerator_ms, cpu_ms, size_bytes : ndarray of float, shape (items,)
        Load of an item on either device, and its memory on an accelerator.
    cpu_only : ndarray of bool, shape (items,)
        Items that no accelerator can run.
    nets : tuple of tuple of int
        Items that each net joins, ascending, at least two.
    net_ms : ndarray of float, shape (nets,)
        Load of each accelerator that cuts the net.
    item_of_node : tuple of int
        Item of each node of the instance.
    """

    name: str
    accelerators: int
    cpus: int
    memory_bytes: float
    accelerator_ms: Floats
    cpu_ms: Floats
    size_bytes: Floats
    cpu_only: NDArray[np.bool_]
    nets: tuple[tuple[int, ...], ...]
    net_ms: Floats
    item_of_node: tuple[int, ...]

    @property
    def items(self) -> int:
        """Number of items."""
        return len(self.accelerator_ms)

    @property
    def devices(self) -> int:
        """Number of devices of both kinds."""
        return self.accelerators + self.cpus

    @cached_property
    def nets_of(self) -> tuple[tuple[int, ...], ...]:
        """Nets of each item."""
        found: list[list[int]] = [[] for _ in range(self.items)]
        for net, pins in enumerate(self.nets):
            for item in pins:
                found[item].append(net)
        return tuple(map(tuple, found))

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Items that share a net with each item, ascending."""
        return tuple(
            tuple(sorted({pin for net in nets for pin in self.nets[net]} - {item}))
            for item, nets in enumerate(self.nets_of)
        )

    def loads(self, split: Split) -> Floats:
        """Return the load of each device, shape (devices,), in milliseconds."""
        on_cpu = split >= self.accelerators
        loads = np.bincount(split, np.where(on_cpu, self.cpu_ms, self.accelerator_ms), minlength=self.devices).astype(
            np.float64
        )
        for pins, cost in zip(self.nets, self.net_ms, strict=True):
            touched = set(split[list(pins)].tolist())
            if len(touched) > 1:
                loads[[device for device in touched if device < self.accelerators]] += cost
        return loads

    def fits(self, split: Split) -> bool:
        """Whether memory and the items that need a CPU allow the split."""
        used = np.bincount(split, self.size_bytes, minlength=self.devices)[: self.accelerators]
        if (used > self.memory_bytes * (1 + MEMORY_TOLERANCE)).any():
            return False
        return not (self.cpu_only & (split < self.accelerators)).any()

    def of_nodes(self, split: Split) -> tuple[int, ...]:
        """Return the device of each node of the instance."""
        return tuple(int(split[item]) for item in self.item_of_node)


def contract(instance: MsrInstance) -> Hypergraph:
    """Return the instance with one item for each colour."""
    number: dict[str, int] = {}
    return merge(_of_nodes(instance), [number.setdefault(colour, len(number)) for colour in instance.colour])


def merge(graph: Hypergraph, block_of_item: Sequence[int]) -> Hypergraph:
    """Return the hypergraph with one item for each block; nets within a block go, nets of equal pins become one."""
    block, size = np.array(block_of_item), max(block_of_item) + 1
    costs: dict[tuple[int, ...], float] = {}
    for net, cost in zip(graph.nets, graph.net_ms, strict=True):
        pins = tuple(sorted({block_of_item[item] for item in net}))
        if len(pins) > 1 and cost > 0:
            costs[pins] = costs.get(pins, 0.0) + float(cost)
    return Hypergraph(
        name=graph.name,
        accelerators=graph.accelerators,
        cpus=graph.cpus,
        memory_bytes=graph.memory_bytes,
        accelerator_ms=_sums(block, graph.accelerator_ms, size),
        cpu_ms=_sums(block, graph.cpu_ms, size),
        size_bytes=_sums(block, graph.size_bytes, size),
        cpu_only=np.bincount(block, graph.cpu_only, minlength=size) > 0,
        nets=tuple(costs),
        net_ms=np.array(list(costs.values()), dtype=float),
        item_of_node=tuple(block_of_item[item] for item in graph.item_of_node),
    )


def _sums(block: Split, values: Floats, size: int) -> Floats:
    """Return the sum of ``values`` in each block."""
    return np.asarray(np.bincount(block, values, minlength=size), dtype=np.float64)


def _of_nodes(instance: MsrInstance) -> Hypergraph:
    """Return the hypergraph whose items are the nodes."""
    pins: dict[int, set[int]] = {}
    for u, v in instance.edges:
        pins.setdefault(u, {u}).add(v)
    return Hypergraph(
        name=instance.name,
        accelerators=instance.accelerators,
        cpus=instance.cpus,
        memory_bytes=float(instance.memory_bytes),
        accelerator_ms=np.array(instance.accelerator_ms),
        cpu_ms=np.array(instance.cpu_ms),
        size_bytes=np.array(instance.size_bytes, dtype=float),
        cpu_only=~np.array(instance.on_accelerator),
        nets=tuple(tuple(sorted(items)) for items in pins.values()),
        net_ms=np.array([instance.output_ms[node] for node in pins]),
        item_of_node=tuple(range(len(instance.ids))),
    )


def max_load(instance: MsrInstance, device_of_node: Sequence[int]) -> float:
    """Return the value of a split of the nodes, in milliseconds: the published rule, read from the instance alone.

    This is the judge of every split; it shares no code with contraction, search or bounds.

    Raises
    ------
    InvalidPlan
        When a node is on no device, colours are torn apart, an accelerator lacks memory or cannot run a node.
    """
    _check(instance, device_of_node)
    loads = [0.0] * (instance.accelerators + instance.cpus)
    for node, device in enumerate(device_of_node):
        is_accelerator = device < instance.accelerators
        loads[device] += instance.accelerator_ms[node] if is_accelerator else instance.cpu_ms[node]
    for node, touched in _touched(instance.edges, device_of_node).items():
        if len(touched) > 1:
            for device in sorted(touched):
                loads[device] += instance.output_ms[node] if device < instance.accelerators else 0.0
    return max(loads)


def _touched(edges: Iterable[tuple[int, int]], device_of_node: Sequence[int]) -> Mapping[int, set[int]]:
    touched: dict[int, set[int]] = {}
    for u, v in edges:
        touched.setdefault(u, {device_of_node[u]}).add(device_of_node[v])
    return touched


def _check(instance: MsrInstance, device_of_node: Sequence[int]) -> None:
    if len(device_of_node) != len(instance.ids):
        raise InvalidPlan(f"{instance.name}: {len(device_of_node)} of {len(instance.ids)} nodes are placed")
    used = [0] * instance.accelerators
    home: dict[str, int] = {}
    for node, device in enumerate(device_of_node):
        where = f"{instance.name}: node {instance.ids[node]}"
        if not 0 <= device < instance.accelerators + instance.cpus:
            raise InvalidPlan(f"{where} is on device {device}, which there is not")
        if home.setdefault(instance.colour[node], device) != device:
            raise InvalidPlan(f"{where} is not on the device of its colour {instance.colour[node]}")
        if device < instance.accelerators:
            used[device] += instance.size_bytes[node]
            if not instance.on_accelerator[node]:
                raise InvalidPlan(f"{where} is on an accelerator, which cannot run it")
    if max(used, default=0) > instance.memory_bytes:
        raise InvalidPlan(f"{instance.name}: accelerator {used.index(max(used))} holds {max(used):,} bytes, too many")
