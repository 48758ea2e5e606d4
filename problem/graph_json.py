"""Graphs that come with measured costs: our own JSON and the dnn-partitioning JSON.

Every operator becomes ``Kind.FIXED``: known by its seconds, never executed. Both formats end in one description
(:class:`~problem.schema.GraphSpec`), so that a plan file holds the same text whichever the source was.

The dnn-partitioning format (github.com/msr-fiddle/dnn-partitioning) is read as follows.

==================  ================================================================================================
``fpgaLatency``     milliseconds -> core-seconds per sample of the forward phase; its training graphs have operators
                    of their own for the backward pass, so there is no backward and no update here
``cpuLatency``      checked, not used: all nodes of the cluster are of one kind
``size``            parameter bytes (float32 elements, rounded up)
``colorClass``      component: operators of one class are placed together
``cost`` of edges   milliseconds to move the output of ``sourceId``; becomes bytes at :data:`NOMINAL_RATE`
``maxFPGAs``        number of nodes, each with ``maxSizePerFPGA`` bytes, when no cluster is given
==================  ================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from problem.cluster import Cluster, Node
from problem.documents import Document
from problem.errors import BadInput
from problem.expand import lookup
from problem.formats.content import Content
from problem.graph import FLOAT_BYTES, Graph, GraphError, Kind, Operator, Work
from problem.model import Model
from problem.schema import MAX_BYTES, GraphSpec, ModelSpec, MsrEdge, MsrGraph, MsrNode, OperatorSpec, validate
from problem.tables import expand_shared, expand_tables

NOMINAL_RATE = 1_000_000_000
"""Bytes per second at which the milliseconds of a dnn-partitioning edge are turned into bytes, and back by the nodes of
:func:`graph_cluster`. Any value gives the same times; this one makes a millisecond a megabyte."""


def read_graph(path: Path) -> Model:
    """Read a graph of either format.

    Raises
    ------
    BadInput
        On broken JSON, duplicate keys, missing or unknown keys, an empty graph, costs that are negative, NaN or
        infinite, duplicate ids and edges to unknown ids; the message names operator and field.
    GraphError
        On a cycle; the message names the operators on it.
    """
    return model_of_content(Content(path))


def model_of_content(content: Content) -> Model:
    """Return the model of a graph of either format.

    Raises
    ------
    BadInput, GraphError
        As :func:`read_graph`.
    """
    return graph_model(_read_spec(content.json, content.stem), content.source)


def graph_model(spec: GraphSpec, source: str) -> Model:
    """Return the model that a graph description stands for.

    Raises
    ------
    GraphError
        On duplicate names, unknown inputs, a cycle, or a table that no operator reads.
    BadInput
        When a table has no dim, or a name is given twice.
    """
    as_model = ModelSpec(name=spec.name, dense_features=0, top_mlp=(1,), tables=spec.tables)
    tables = expand_tables(as_model, source)
    shared = expand_shared(as_model, tables, source)
    try:
        graph = Graph((*map(lookup, (*tables, *shared)), *(_operator(op) for op in spec.operators)))
        _check_read(graph)
    except GraphError as error:
        raise GraphError(f"{source}: {error}") from None
    return Model(
        name=spec.name,
        graph=graph,
        tables=tables,
        shared=shared,
        batch=spec.batch,
        spec=spec.model_dump(mode="json", exclude_defaults=True),
        notes=spec.notes,
    )


def _check_read(graph: Graph) -> None:
    """Refuse a table whose rows nobody reads: nothing would push its gradient."""
    for op in graph:
        if op.kind is Kind.LOOKUP and not graph.consumers[op.name]:
            raise GraphError(f"table {op.name!r}: no operator reads it")


def graph_cluster(path: Path) -> Cluster:
    """Return the machines that a dnn-partitioning file asks for: ``maxFPGAs`` trainers of one core each.

    Raises
    ------
    BadInput
        When the file is broken, or holds a graph of our own format, which says nothing of machines.
    """
    document = Content(path).json
    if not _is_msr(document.data):
        raise BadInput(path, "maxFPGAs", None, "a graph that says nothing of machines needs a cluster (--cluster)")
    machines = validate(MsrGraph, document)
    nodes = tuple(_accelerator(f"n{i}", machines.maxSizePerFPGA) for i in range(machines.maxFPGAs))
    note = f"machines from the graph file: 1 core, NIC of {NOMINAL_RATE:.0e} bytes/s, no latency"
    return Cluster(path.stem, nodes, (note,))


def _accelerator(name: str, memory_bytes: int) -> Node:
    """Return a node on which FIXED operators take their own time and memory traffic is no limit."""
    return Node(
        name=name,
        host=name,
        kind="accelerator",
        cores=1,
        flops_per_core_second=1e9,
        memory_bandwidth_bytes_per_second=1e15,
        memory_bytes=memory_bytes,
        nic_bytes_per_second=float(NOMINAL_RATE),
        latency_seconds=0.0,
        role="trainer",
    )


def _operator(op: OperatorSpec) -> Operator:
    return Operator(
        name=op.name,
        kind=Kind.FIXED,
        inputs=tuple(dict.fromkeys(op.inputs)),
        width=math.ceil(Fraction(op.output_bytes, FLOAT_BYTES)),
        parameters=math.ceil(Fraction(op.parameter_bytes, FLOAT_BYTES)),
        forward=Work(op.forward_flops, seconds_per_sample=op.forward_seconds),
        backward=Work(op.backward_flops, seconds_per_sample=op.backward_seconds),
        update=Work(seconds_per_sample=op.update_seconds),
        component=op.component,
    )


def _is_msr(data: Any) -> bool:
    """Whether the keys are those of dnn-partitioning."""
    return isinstance(data, Mapping) and {"nodes", "edges", "maxFPGAs"} <= data.keys()


def _read_spec(document: Document, name: str) -> GraphSpec:
    if not _is_msr(document.data):
        return validate(GraphSpec, document)
    graph = validate(MsrGraph, document)
    names = _names(graph.nodes, document)
    inputs, costs = _wiring(graph.edges, names, document)
    operators = [_msr_operator(node, names, inputs[node.id], costs[node.id]) for node in graph.nodes]
    data = {"format": "hiertrain-graph/1", "name": name, "operators": operators, "notes": _notes(graph)}
    return validate(GraphSpec, Document(document.source, data))


def _names(nodes: tuple[MsrNode, ...], document: Document) -> Mapping[str, str]:
    """Return the operator name of each id: the node's name where names are distinct, else its id."""
    by_id = {node.id: node.name or node.id for node in nodes}
    if len(by_id) < len(nodes):
        twice = next(i for i, node in enumerate(nodes) if node.id in {before.id for before in nodes[:i]})
        raise BadInput(document.source, document.path(("nodes", twice, "id")), nodes[twice].id, "distinct ids")
    return by_id if len(set(by_id.values())) == len(by_id) else {key: key for key in by_id}


def _wiring(
    edges: tuple[MsrEdge, ...], names: Mapping[str, str], document: Document
) -> tuple[dict[str, list[str]], dict[str, float]]:
    """Return inputs (names) and output cost (milliseconds, the largest over its edges) of each id."""
    inputs: dict[str, list[str]] = {key: [] for key in names}
    costs = dict.fromkeys(names, 0.0)
    for i, edge in enumerate(edges):
        for key, end in (("sourceId", edge.sourceId), ("destId", edge.destId)):
            if end not in names:
                edge_name = f"edges[{i}]({edge.sourceId} -> {edge.destId}).{key}"
                raise BadInput(document.source, edge_name, end, "the id of a node")
        inputs[edge.destId].append(names[edge.sourceId])
        costs[edge.sourceId] = max(costs[edge.sourceId], edge.cost)
    return inputs, costs


def _msr_operator(node: MsrNode, names: Mapping[str, str], inputs: list[str], cost_ms: float) -> dict[str, Any]:
    """Return the node in our own format; milliseconds become seconds, moving costs become bytes."""
    return {
        "name": names[node.id],
        "inputs": inputs,
        "forward_seconds": float(Fraction(str(node.fpgaLatency)) / 1000),
        "output_bytes": min(math.ceil(Fraction(str(cost_ms)) * NOMINAL_RATE / 1000), MAX_BYTES),
        "parameter_bytes": node.size,
        "component": "" if node.colorClass is None else f"color-{node.colorClass}",
    }


def _notes(graph: MsrGraph) -> list[str]:
    notes = [
        "dnn-partitioning graph: fpgaLatency is the time of an operator on every node; cpuLatency is not used",
        f"edge costs are bytes at a nominal {NOMINAL_RATE:.0e} bytes/s; batch is 1",
    ]
    by_source: dict[str, set[float]] = {}
    for edge in graph.edges:
        by_source.setdefault(edge.sourceId, set()).add(edge.cost)
    unequal = sum(len(costs) > 1 for costs in by_source.values())
    if unequal:
        notes.append(
            f"{unequal} operators have out-edges of unequal cost; an operator has one output, the largest counts"
        )
    return notes
