"""Graphs with measured costs: our format and dnn-partitioning, and every fault that public inputs show."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from problem.errors import BadInput, HiertrainError
from problem.graph import GraphError, Kind
from problem.graph_json import graph_cluster, read_graph
from problem.readers import load_model, model_from_spec
from tests.problem.shared import EDGE_CASES, MSR, needs_shared

OWN = {
    "format": "hiertrain-graph/1",
    "name": "two",
    "batch": 4,
    "operators": [
        {"name": "a", "forward_seconds": 1e-3, "backward_seconds": 2e-3, "output_bytes": 10, "parameter_bytes": 9},
        {"name": "b", "inputs": ["a"], "forward_seconds": 0, "output_bytes": 0, "component": "c"},
    ],
}


def write(folder, data, name="g.json"):
    """Write a graph file and return its path."""
    path = folder / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_own_format(tmp_path):
    """Seconds are per sample; bytes become float32 elements, rounded up; the description rebuilds the model."""
    model = read_graph(write(tmp_path, OWN))
    first, second = model.graph
    assert (first.kind, first.width, first.parameters) == (Kind.FIXED, 3, 3)
    assert (first.forward.seconds_per_sample, first.backward.seconds_per_sample) == (1e-3, 2e-3)
    assert (second.inputs, second.component, model.batch) == (("a",), "c", 4)
    assert model_from_spec(json.loads(json.dumps(model.spec))) == model


def test_own_format_says_nothing_of_machines(tmp_path):
    """A graph of our own format needs a cluster."""
    with pytest.raises(BadInput, match="--cluster"):
        graph_cluster(write(tmp_path, OWN))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": "other"}, "format"),
        ({"operators": []}, "operators"),
        ({"operators": [{"name": "a", "output_bytes": 1}]}, r"operators\[0\]\(a\).forward_seconds"),
        ({"operators": [{"name": "a", "forward_seconds": -1, "output_bytes": 1}]}, r"\(a\).forward_seconds = -1"),
        ({"operators": [{"name": "a", "forward_seconds": "x", "output_bytes": 1}]}, r"\(a\).forward_seconds = 'x'"),
        ({"operators": [{"name": "a", "forward_seconds": 1, "output_bytes": 1.5}]}, r"\(a\).output_bytes = 1.5"),
        ({"operators": [{"name": "a", "forward_seconds": 1, "output_bytes": 2**63}]}, "output_bytes"),
        ({"nodes": []}, "nodes"),
    ],
)
def test_own_format_refused(tmp_path, change, told):
    """Each fault names operator and field, in one line."""
    with pytest.raises(BadInput, match=told) as caught:
        read_graph(write(tmp_path, OWN | change))
    assert "\n" not in str(caught.value)


def test_dangling_input(tmp_path):
    """An input that no operator produces is refused, the edge named."""
    operators = [OWN["operators"][1]]
    with pytest.raises(GraphError, match="'a' -> 'b'"):
        read_graph(write(tmp_path, OWN | {"operators": operators}))


@needs_shared
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("s04_cycle.json", "cycle: op1 <- op2 <- op1"),
        ("s04_self_loop_root.json", "cycle: op1 <- op1"),
        ("s05_dangling_edge.json", "7 -> 1"),
        ("s05_duplicate_ids.json", r"nodes\[1\]\(op0\).id = '0'"),
        ("s06_empty_graph.json", "nodes.*at least 1"),
        ("s07_duplicate_key.json", "nodes = 'given twice'"),
        ("s07_infinite_cost.json", r"\(op0\).cpuLatency = inf"),
        ("s07_nan_cost.json", r"\(op0\).cpuLatency = nan"),
        ("s07_negative_cost.json", r"\(op0\).cpuLatency = -5"),
    ],
)
def test_public_faults(name, told):
    """Each faulty public input is refused in one line that names file, operator and field."""
    with pytest.raises(HiertrainError, match=told) as caught:
        load_model(EDGE_CASES / name)
    assert caught.value.exit_code == 2
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@needs_shared
def test_public_extremes():
    """Cost ratios of 1e18, sizes of 1e14 bytes and times over 2**31 ns are read exactly."""
    tiny_, big = load_model(EDGE_CASES / "s08_cost_ratio_1e18.json").graph
    assert (tiny_.forward.seconds_per_sample, big.forward.seconds_per_sample) == (1e-21, 1e-3)
    huge = load_model(EDGE_CASES / "s09_bytes_over_2e63_products.json").graph
    assert {op.parameters * 4 for op in huge} == {10**14}
    long = load_model(EDGE_CASES / "s10_op_over_2e31_ns.json").graph
    assert [op.forward.seconds_per_sample for op in long] == [2.147483647, 2.147483648, 4.294967296]
    assert [op.output_bytes_per_sample for op in long] == [10**6, 10**6, 0]
    assert not any(long.needs_gradient.values())


@needs_shared
def test_public_graphs_bring_their_machines():
    """maxFPGAs nodes with maxSizePerFPGA bytes; a millisecond of edge cost takes a millisecond on their NIC."""
    cluster = graph_cluster(EDGE_CASES / "s12_pinned_infeasible_with_budget.json")
    assert len(cluster.nodes) == 4
    assert {(node.memory_bytes, node.cores, node.role) for node in cluster.nodes} == {(10**10, 1, "trainer")}
    model = load_model(EDGE_CASES / "s12_pinned_infeasible_with_budget.json")
    assert [op.component for op in model.graph] == ["color-1", "color-1", ""]
    assert model.graph["op0"].output_bytes_per_sample / cluster.nodes[0].nic_bytes_per_second == 1e-3


@needs_shared
def test_public_benchmarks_load():
    """All 24 dnn-partitioning instances load, with every node, edge and byte."""
    files = sorted(MSR.glob("*-inputs/*/*.json"))
    assert len(files) == 24
    for path in files:
        data = json.loads(path.read_text())
        model = load_model(path)
        assert len(model.graph) == len(data["nodes"])
        assert sum(len(op.inputs) for op in model.graph) == len(data["edges"])
        assert (
            0 <= model.graph.dense_parameters * 4 - sum(node["size"] for node in data["nodes"]) < 4 * len(model.graph)
        )
        assert len(graph_cluster(path).nodes) == data["maxFPGAs"]


def test_unequal_out_edges_take_the_largest(tmp_path):
    """An operator has one output: of unequal edge costs the largest counts, and a note says so; names fall back to ids."""
    nodes = [{"id": i, "name": "same", "fpgaLatency": 1, "size": 4} for i in range(3)]
    edges = [{"sourceId": 0, "destId": 1, "cost": 1}, {"sourceId": 0, "destId": 2, "cost": 3}]
    data = {"maxFPGAs": 1, "maxSizePerFPGA": 9, "nodes": nodes, "edges": edges}
    model = read_graph(write(tmp_path, data))
    assert model.graph["0"].output_bytes_per_sample == 3_000_000
    assert any("unequal" in note for note in model.notes)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_any_edges_load_or_are_refused(pairs):
    """Whatever the edges, the graph loads in topological order or its cycle is named: no other outcome."""
    from problem.documents import Document
    from problem.graph_json import graph_model
    from problem.schema import GraphSpec, validate

    operators = [
        {"name": f"o{i}", "inputs": [f"o{a}" for a, b in pairs if b == i], "forward_seconds": 1, "output_bytes": 4}
        for i in range(7)
    ]
    spec = validate(GraphSpec, Document("f", {"format": "hiertrain-graph/1", "name": "g", "operators": operators}))
    try:
        graph = graph_model(spec, "f").graph
    except GraphError as error:
        graph, told = None, str(error)
    if graph is None:
        assert "cycle" in told
        return
    order = [op.name for op in graph]
    assert all(order.index(f"o{a}") < order.index(f"o{b}") for a, b in pairs)


def test_missing_file():
    """A file that is not there is one line."""
    with pytest.raises(BadInput, match="No such file"):
        read_graph(Path("nowhere.json"))
