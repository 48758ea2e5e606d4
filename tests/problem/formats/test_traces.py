"""Execution traces: Chakra in protobuf and JSON, PyTorch, and profiled layer graphs."""

from __future__ import annotations

import json

import pytest

from problem.errors import BadInput
from problem.formats import wire
from problem.graph import GraphError
from problem.readers import load_model, model_from_spec
from tests.problem.shared import SHARED, needs_shared

TRACES = SHARED / "inputs" / "traces"


def written(tmp_path, data):
    """Write JSON and return its path."""
    (tmp_path / "t.json").write_text(json.dumps(data))
    return tmp_path / "t.json"


def test_chakra_json_in_any_spelling(tmp_path):
    """Keys differ in case and underscores; what is not in the file is dropped and counted; communication keeps its bytes."""
    nodes = [
        {"Id": 7, "Name": "mul", "NodeType": 4, "ctrlDeps": [3], "data_deps": [], "runtime": 250},
        {"id": 9, "name": "allreduce", "node_type": 7, "dataDeps": [7], "comm_size": 64, "runtime": 90},
        {"id": 1, "name": "start", "type": 1, "data_deps": []},
    ]
    model = load_model(written(tmp_path, {"workload_graph": nodes}))
    assert [(op.name, op.inputs) for op in model.graph] == [("mul #7", ()), ("allreduce #9", ("mul #7",))]
    first, second = model.graph
    assert (first.forward.seconds_per_sample, second.forward.seconds_per_sample) == (250e-6, 0.0)
    assert second.output_bytes_per_sample == 64
    assert any("1 nodes that are not operators" in note and "(3)" in note for note in model.notes)
    assert model_from_spec(model.spec) == model


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": 2}, "distinct ids"),
        ({"runtime": -1}, "0 or more microseconds"),
        ({"runtime": "1"}, "microseconds"),
        ({"data_deps": ["x"]}, "node ids"),
        ({"id": None}, "whole number"),
    ],
)
def test_bad_chakra_nodes_are_named(tmp_path, change, words):
    """Duplicate ids, negative and wrong durations and wrong dependencies are refused in one line."""
    nodes = [{"id": 2, "name": "a", "data_deps": []}, {"id": 3, "name": "b", "data_deps": [2], "runtime": 1} | change]
    with pytest.raises(BadInput, match=words):
        load_model(written(tmp_path, {"workload_graph": nodes}))


def test_cycles_are_named(tmp_path):
    """A cycle in a trace is refused with the nodes on it."""
    nodes = [{"id": 1, "name": "a", "data_deps": [2]}, {"id": 2, "name": "b", "data_deps": [1]}]
    with pytest.raises(GraphError, match="a #1 <- b #2"):
        load_model(written(tmp_path, {"workload_graph": nodes}))


def test_chakra_of_another_schema_is_refused(tmp_path):
    """A protobuf trace of another version is refused by its version, a cut one by its length."""
    path = tmp_path / "t.et"
    path.write_bytes(wire.put_delimited(wire.put(1, "0.9.9")))
    with pytest.raises(BadInput, match=r"version = '0\.9\.9'"):
        load_model(path)
    path.write_bytes(wire.put_delimited(wire.put(1, "0.0.4")) + wire.put_delimited(wire.put(2, "x"))[:-1])
    with pytest.raises(BadInput, match="cut off"):
        load_model(path)


@needs_shared
def test_public_chakra_traces():
    """The generated DLRM step reads the same from protobuf and JSON; the microbenchmark is one all-reduce of 1 MB."""
    folder = TRACES / "generated_dlrm4"
    one, other = load_model(folder / "dlrm4.0.et"), load_model(folder / "dlrm4.0.json")
    assert one.graph.operators == other.graph.operators
    assert one.graph["interaction_top_mlp_fwd #4"].inputs == ("bottom_mlp_fwd #2", "pooled_emb_a2a_fwd #3")
    collective = load_model(TRACES / "astrasim_4npus_1MB" / "all_reduce.0.et").graph.operators[0]
    assert collective.output_bytes_per_sample == 2**20


@needs_shared
def test_a_large_chakra_trace_is_read_whole():
    """3,664 nodes, 157 without a duration, 21 that communicate, 2 of them waiting for nothing."""
    model = load_model(TRACES / "chakra" / "json_trace.tar.gz" / "jsonData" / "chakra.0.json")
    notes = " ".join(model.notes)
    assert len(model.graph) == 3664
    assert "157 of 3664 nodes" in notes
    assert "21 nodes communicate" in notes
    assert "2 wait for nothing" in notes


@needs_shared
@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("pytorch_et/dlrm_8rank/dlrm_eg_0.json", 651),
        ("pytorch_et/linear_et.json.gz", 320),
        ("pytorch_et/pt2_et.json", 10),
        ("chakra/1.0.2-chakra.0.0.4.json", 90),
        ("chakra/1.0.2-chakra.0.0.4.tgz", 90),
    ],
)
def test_pytorch_traces_of_every_schema(name, operators):
    """Schemas 1.0.1, 1.0.2, 1.1.0 and 1.1.1 in both layouts, packed or not."""
    assert len(load_model(TRACES / name).graph) == operators


@needs_shared
def test_the_collectives_of_the_dlrm_trace():
    """Five all-to-alls and three all-reduces, of the published numbers of elements, each behind what it sends."""
    graph = load_model(TRACES / "pytorch_et" / "dlrm_8rank" / "dlrm_eg_0.json").graph
    reduces = [op for op in graph if op.name.startswith("c10d::allreduce_")]
    exchanges = [op for op in graph if op.name.startswith("c10d::alltoall_base_")]
    assert [op.width for op in reduces] == [394241, 112, 226960]
    assert len(exchanges) == 5
    assert sum(op.width == 6144 for op in exchanges) == 2
    assert all(op.inputs for op in (*reduces, *exchanges))


def call(number, name, parent=1, schema="s", reads=(), writes=()):
    """A call of a trace; tensors are numbers of storages."""

    def tensors(storages):
        return [[100 + s, s, 0, 2, 4, "cpu"] for s in storages]

    attrs = [{"name": "op_schema", "type": "string", "value": schema}]
    return {
        "id": number,
        "name": name,
        "ctrl_deps": parent,
        "inputs": {"values": tensors(reads)},
        "outputs": {"values": tensors(writes)},
        "attrs": attrs,
    }


def test_operators_of_a_pytorch_trace(tmp_path):
    """Topmost calls with a schema are operators and wait for the last writer of what they read; labels are not."""
    nodes = [
        call(1, "[pytorch|profiler|execution_trace|process]", schema=""),
        call(2, "## forward ##", schema=""),
        call(3, "aten::mul", parent=2, writes=[5]),
        call(4, "aten::inner", parent=3, writes=[6]),
        call(8, "aten::mul", parent=2, reads=[5], writes=[5]),
        call(6, "aten::add", parent=2, reads=[5]),
    ]
    model = load_model(written(tmp_path, {"schema": "1.1.0-chakra.0.0.4", "nodes": nodes}))
    assert {op.name: op.inputs for op in model.graph} == {
        "aten::mul [0]": (),
        "aten::add [0]": ("aten::mul [0]",),
        "aten::mul [1]": ("aten::mul [0]",),
    }
    assert model.graph["aten::mul [0]"].output_bytes_per_sample == 8


def test_unknown_schema_is_refused(tmp_path):
    """A schema that nobody has seen is refused by its number."""
    with pytest.raises(BadInput, match=r"schema = '2\.0\.0'"):
        load_model(written(tmp_path, {"schema": "2.0.0", "nodes": []}))


def test_pipedream_profile_is_a_model(tmp_path):
    """Milliseconds of both passes become seconds, bytes stay; the input and what nobody reads are left out."""
    layer = "node{} -- {} -- forward_compute_time={}, backward_compute_time={}, activation_size={}, parameter_size={}\n"
    layers = [
        (1, "Input0", 0.0, 0.0, 0.0, 0.0),
        (2, "Conv2d(3, 64)", 2.0, 6.0, 80.0, 40.0),
        (3, "ReLU()", 1.0, 1.0, 80.0, 0.0),
    ]
    text = "".join(layer.format(*values) for values in layers) + "\tnode1 -- node2\n\tnode2 -- node3\n"
    (tmp_path / "g.txt").write_text(text)
    first, second = load_model(tmp_path / "g.txt").graph
    assert (first.forward.seconds_per_sample, first.backward.seconds_per_sample) == (2e-3, pytest.approx(6e-3))
    assert (first.parameters, first.output_bytes_per_sample, second.inputs) == (10, 80, (first.name,))


@needs_shared
def test_public_profiles_are_models():
    """A Piper instance and a PipeDream profile keep the sum of their times."""
    piper = load_model(SHARED / "workloads" / "piper" / "inputs" / "gnmt.json")
    raw = json.loads((SHARED / "workloads" / "piper" / "inputs" / "gnmt.json").read_text())
    expected = sum(node["TMPCs"]["1"][0]["timePerSample"] for node in raw["nodes"])
    total = sum(op.forward.seconds_per_sample + op.backward.seconds_per_sample for op in piper.graph)
    assert total == pytest.approx(expected)
    assert len(load_model(SHARED / "workloads" / "pipedream" / "vgg16.txt").graph) == 40
