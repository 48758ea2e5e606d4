"""Readers of public placement benchmarks, as they are published and in their own units.

Knows three formats and checks what they say: dnn-partitioning (github.com/msr-fiddle/dnn-partitioning), PipeDream
profiles (github.com/msr-fiddle/pipedream) and Piper (github.com/msr-fiddle/piper). Refuses to know what an instance is
solved for; the objectives are in ``placement.public``. Unlike :mod:`problem.graph_json`, which turns a
dnn-partitioning file into a model of ours, nothing is converted here but PipeDream's milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from problem.documents import Document, parse_json, read_text
from problem.errors import BadInput
from problem.schema import (
    Bytes,
    Count,
    Identifier,
    MsrEdge,
    MsrGraph,
    MsrNode,
    Number,
    PositiveNumber,
    Schema,
    validate,
)

Edge = tuple[int, int]


class _MsrNode(MsrNode):
    """A node with the keys that only the benchmark needs."""

    supportedOnFpga: bool = True
    isBackwardNode: bool = False


class _MsrGraph(MsrGraph):
    """A graph with its CPUs."""

    maxCPUs: int = Field(default=0, ge=0)
    nodes: tuple[_MsrNode, ...] = Field(min_length=1, description="at least one node")


@dataclass(frozen=True)
class MsrInstance:
    """A dnn-partitioning instance; nodes are numbered in the order of the file.

    Parameters
    ----------
    name : str
        Folder and stem of the file, such as ``LayerGraphs/gnmt_training``.
    ids : tuple of str
        Identifier of each node in the file.
    accelerators, cpus : int
        Devices of each kind.
    memory_bytes : int
        Memory of one accelerator; a CPU has no limit.
    accelerator_ms, cpu_ms, output_ms : tuple of float
        Per node: milliseconds on an accelerator, on a CPU, and to move its output once.
    size_bytes : tuple of int
        Per node: memory it takes on an accelerator.
    on_accelerator, backward : tuple of bool
        Per node: may it run on an accelerator; is it of the backward pass.
    colour : tuple of str
        Per node: nodes of one colour share a device.
    edges : tuple of (int, int)
        Producer and consumer.
    """

    name: str
    ids: tuple[str, ...]
    accelerators: int
    cpus: int
    memory_bytes: int
    accelerator_ms: tuple[float, ...]
    cpu_ms: tuple[float, ...]
    output_ms: tuple[float, ...]
    size_bytes: tuple[int, ...]
    on_accelerator: tuple[bool, ...]
    backward: tuple[bool, ...]
    colour: tuple[str, ...]
    edges: tuple[Edge, ...]


def read_msr(path: Path) -> MsrInstance:
    """Read a dnn-partitioning instance.

    Raises
    ------
    BadInput
        On a broken file, repeated ids, edges to unknown nodes, or a cycle.
    """
    document = parse_json(read_text(path), str(path))
    graph = validate(_MsrGraph, document)
    nodes = graph.nodes
    index = _indices([node.id for node in nodes], document)
    edges = tuple(
        dict.fromkeys((_end(index, e.sourceId, document), _end(index, e.destId, document)) for e in graph.edges)
    )
    topological_order(len(nodes), edges, str(path))
    return MsrInstance(
        name=f"{path.parent.name}/{path.stem}",
        ids=tuple(index),
        accelerators=graph.maxFPGAs,
        cpus=graph.maxCPUs,
        memory_bytes=graph.maxSizePerFPGA,
        accelerator_ms=tuple(node.fpgaLatency for node in nodes),
        cpu_ms=tuple(node.cpuLatency for node in nodes),
        output_ms=_output_ms(graph.edges, index),
        size_bytes=tuple(node.size for node in nodes),
        on_accelerator=tuple(node.supportedOnFpga for node in nodes),
        backward=tuple(node.isBackwardNode for node in nodes),
        colour=tuple(f"node {node.id}" if node.colorClass is None else node.colorClass for node in nodes),
        edges=edges,
    )


def read_msr_split(path: Path, instance: MsrInstance) -> tuple[int, ...]:
    """Read a published split; nodes it leaves out follow their colour, as in the authors' ``dp.exe -expert``.

    Returns
    -------
    tuple of int
        Device of each node: accelerators first, then CPUs.

    Raises
    ------
    BadInput
        When the file is broken or leaves open where a node goes.
    """
    document = parse_json(read_text(path), str(path))
    index = {identifier: i for i, identifier in enumerate(instance.ids)}
    try:
        lists = {kind: [machine["nodes"] for machine in document.data[kind]] for kind in ("fpgas", "cpus")}
        found = {index[str(node)]: k for k, nodes in enumerate(lists["fpgas"]) for node in nodes}
        found |= {
            index[str(node)]: instance.accelerators + k for k, nodes in enumerate(lists["cpus"]) for node in nodes
        }
    except (KeyError, TypeError) as error:
        raise BadInput(path, "nodes", str(error), "lists of node ids under 'fpgas' and 'cpus'") from None
    of_colour = {instance.colour[node]: device for node, device in found.items()}
    missing = [i for i in range(len(instance.ids)) if instance.colour[i] not in of_colour]
    if missing:
        raise BadInput(path, "nodes", instance.ids[missing[0]], "a device for every colour class")
    return tuple(found.get(i, of_colour[colour]) for i, colour in enumerate(instance.colour))


def _indices(ids: Iterable[str], document: Document) -> dict[str, int]:
    index: dict[str, int] = {}
    for i, identifier in enumerate(ids):
        if identifier in index:
            raise BadInput(document.source, document.path(("nodes", i, "id")), identifier, "distinct ids")
        index[identifier] = i
    return index


def _end(index: Mapping[str, int], identifier: str, document: Document) -> int:
    if identifier not in index:
        raise BadInput(document.source, "edges", identifier, "the id of a node")
    return index[identifier]


def _output_ms(edges: Iterable[MsrEdge], index: Mapping[str, int]) -> tuple[float, ...]:
    """Return the cost of each node's output; the files repeat it on every out-edge."""
    costs = [0.0] * len(index)
    for edge in edges:
        costs[index[edge.sourceId]] = max(costs[index[edge.sourceId]], edge.cost)
    return tuple(costs)


def topological_order(size: int, edges: Iterable[Edge], source: str) -> tuple[int, ...]:
    """Return the nodes so that every edge leads onwards; of those that are ready the last found comes first.

    Raises
    ------
    BadInput
        When the edges form a cycle.
    """
    successors: list[list[int]] = [[] for _ in range(size)]
    waits = [0] * size
    for u, v in edges:
        successors[u].append(v)
        waits[v] += 1
    ready = [v for v in range(size) if not waits[v]]
    order: list[int] = []
    while ready:
        order.append(ready.pop())
        for v in successors[order[-1]]:
            waits[v] -= 1
            if not waits[v]:
                ready.append(v)
    if len(order) < size:
        raise BadInput(source, "edges", next(v for v in range(size) if waits[v]), "a graph without cycles")
    return tuple(order)


@dataclass(frozen=True)
class PipeDreamProfile:
    """A profiled layer graph; inputs, and outputs that nobody reads, are left out as PipeDream's optimizer does.

    Parameters
    ----------
    name : str
        Stem of the file.
    layers : tuple of str
        Description of each layer.
    compute_seconds : tuple of float
        Forward and backward time of each layer on one machine, together.
    forward_seconds : tuple of float
        Forward time alone.
    activation_bytes, parameter_bytes : tuple of float
        Per layer.
    edges : tuple of (int, int)
        Producer and consumer.
    """

    name: str
    layers: tuple[str, ...]
    compute_seconds: tuple[float, ...]
    forward_seconds: tuple[float, ...]
    activation_bytes: tuple[float, ...]
    parameter_bytes: tuple[float, ...]
    edges: tuple[Edge, ...]


_LAYER = re.compile(
    r"(?P<id>\S+) -- (?P<what>.*) -- forward_compute_time=(?P<forward>[\d.]+), backward_compute_time=(?P<backward>[\d.]+), "
    r"activation_size=(?P<activation>.+), parameter_size=(?P<parameters>[\d.]+)"
)


def read_pipedream(path: Path) -> PipeDreamProfile:
    """Read a ``graph.txt`` of PipeDream's profiler.

    Raises
    ------
    BadInput
        On a line that is neither a layer nor an edge, an edge to an unknown layer, or a cycle.
    """
    return pipedream_profile(read_text(path), str(path), path.stem)


def pipedream_profile(text: str, source: str, name: str) -> PipeDreamProfile:
    """Return the profile of a ``graph.txt``.

    Raises
    ------
    BadInput
        As :func:`read_pipedream`.
    """
    lines = [(i, line) for i, line in enumerate(text.splitlines(), start=1) if line.strip()]
    layers = {match["id"]: match for match in (_layer(source, i, line) for i, line in lines if line[0] != "\t")}
    edges = [_text_edge(source, i, line, layers) for i, line in lines if line[0] == "\t"]
    sources, sinks = set(layers) - {v for _, v in edges}, set(layers) - {u for u, _ in edges}
    dropped = {i for i in sources if layers[i]["what"].startswith("Input")}
    dropped |= {i for i in sinks if layers[i]["what"].startswith("__getitem__")}
    kept = {identifier: n for n, identifier in enumerate(i for i in layers if i not in dropped)}
    matches = [layers[i] for i in kept]
    wiring = tuple((kept[u], kept[v]) for u, v in edges if u in kept and v in kept)
    topological_order(len(kept), wiring, source)
    return PipeDreamProfile(
        name=name,
        layers=tuple(match["what"] for match in matches),
        compute_seconds=tuple((float(m["forward"]) + float(m["backward"])) / 1000 for m in matches),
        forward_seconds=tuple(float(m["forward"]) / 1000 for m in matches),
        activation_bytes=tuple(_activation(m["activation"]) for m in matches),
        parameter_bytes=tuple(float(m["parameters"]) for m in matches),
        edges=wiring,
    )


def _layer(source: str, number: int, line: str) -> re.Match[str]:
    match = _LAYER.match(line)
    if match is None:
        raise BadInput(f"{source}:{number}", "layer", line[:60], "'id -- description -- forward_compute_time=..., ...'")
    return match


def _text_edge(source: str, number: int, line: str, layers: Mapping[str, object]) -> tuple[str, str]:
    ends = line.strip().split(" -- ")
    if len(ends) != 2 or ends[0] not in layers or ends[1] not in layers:
        raise BadInput(f"{source}:{number}", "edge", line.strip()[:60], "'id -- id' of two layers")
    return ends[0], ends[1]


def _activation(text: str) -> float:
    """Return the bytes of an activation; a layer with several outputs lists them (``[1.0; 2.0]``)."""
    return sum(float(part) for part in re.split("[;,]", text.strip("[]")))


class PiperVariant(Schema):
    """One way to run a layer at a given tensor-parallel degree ("TMPC"); bytes, and seconds per sample."""

    other_keys = True
    id: str = Field(description="name of the variant")
    timePerSample: Number = Field(description="seconds of a sample, forward and backward")
    parameterSize: Number = Field(description="bytes of weights")
    memoryUsageA: Number = Field(description="bytes for each sample in flight")
    memoryUsageB: Number = Field(description="bytes whatever is in flight")
    syncTimeFw: dict[str, Number] = Field(description="bytes for each incoming edge that is cut")
    syncTimeBw: dict[str, Number] = Field(description="bytes for each outgoing edge that is cut")


class _PiperNode(Schema):
    other_keys = True
    id: Identifier = Field(description="identifier of the layer")
    TMPCs: dict[Count, tuple[PiperVariant, ...]] = Field(description="variants for each tensor-parallel degree")


class _PiperEdge(Schema):
    other_keys = True
    sourceId: Identifier = Field(description="id of a layer")
    destId: Identifier = Field(description="id of a layer")
    communicationCost: Number = Field(description="bytes")


class _PiperGraph(Schema):
    other_keys = True
    maxDevices: Count = Field(description="number of devices")
    maxMemoryPerDevice: Bytes = Field(description="bytes of a device")
    bandwidth: PositiveNumber = Field(description="bytes per second")
    mbsInBatch: Count = Field(description="microbatches in a batch")
    nodes: tuple[_PiperNode, ...] = Field(min_length=1, description="at least one layer")
    edges: tuple[_PiperEdge, ...] = Field(description="list of edges")


@dataclass(frozen=True)
class PiperInstance:
    """A Piper instance; layers are numbered in the order of the file.

    Parameters
    ----------
    name : str
        Stem of the file.
    devices, microbatches : int
        Devices, and microbatches in a batch.
    memory_bytes, bandwidth : float
        Of one device; bandwidth in bytes per second.
    ids : tuple of str
        Identifier of each layer.
    variants : tuple of mapping
        Per layer: the ways to run it, by tensor-parallel degree.
    edges : mapping of (int, int) to float
        Bytes that cross an edge when it is cut.
    """

    name: str
    devices: int
    microbatches: int
    memory_bytes: float
    bandwidth: float
    ids: tuple[str, ...]
    variants: tuple[Mapping[int, tuple[PiperVariant, ...]], ...]
    edges: Mapping[Edge, float]


def read_piper(path: Path) -> PiperInstance:
    """Read a Piper instance.

    Raises
    ------
    BadInput
        On a broken file, repeated ids, edges to unknown layers, or a cycle.
    """
    return piper_instance(parse_json(read_text(path), str(path)), path.stem)


def piper_instance(document: Document, name: str) -> PiperInstance:
    """Return the instance of parsed JSON.

    Raises
    ------
    BadInput
        As :func:`read_piper`.
    """
    graph = validate(_PiperGraph, document)
    index = _indices([node.id for node in graph.nodes], document)
    edges = {
        (_end(index, e.sourceId, document), _end(index, e.destId, document)): e.communicationCost for e in graph.edges
    }
    topological_order(len(index), edges, document.source)
    return PiperInstance(
        name=name,
        devices=graph.maxDevices,
        microbatches=graph.mbsInBatch,
        memory_bytes=float(graph.maxMemoryPerDevice),
        bandwidth=graph.bandwidth,
        ids=tuple(index),
        variants=tuple(node.TMPCs for node in graph.nodes),
        edges=edges,
    )
