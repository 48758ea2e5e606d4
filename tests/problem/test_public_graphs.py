"""Readers of public graphs: what they refuse, and how they say so."""

import json

import pytest

from problem.errors import BadInput
from problem.public_graphs import read_msr, read_msr_split, read_pipedream, read_piper, topological_order

NODE = {"fpgaLatency": 1.0, "cpuLatency": 2.0, "size": 3}
EDGE = {"sourceId": 0, "destId": 1, "cost": 4.0}
MSR = {
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "maxSizePerFPGA": 10,
    "nodes": [{"id": 0, **NODE}, {"id": 1, **NODE, "colorClass": 7, "isBackwardNode": True}],
    "edges": [EDGE],
}
LAYER = "{} -- {} -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size={}, parameter_size=8.0\n"
PIPER = {
    "maxDevices": 2,
    "maxMemoryPerDevice": 8.0,
    "bandwidth": 1.0,
    "mbsInBatch": 4,
    "nodes": [{"id": 5, "TMPCs": {}}, {"id": 6, "TMPCs": {}}],
    "edges": [{"sourceId": 5, "destId": 6, "communicationCost": 3.0}],
}


def write(path, data):
    """A file with JSON data."""
    path.write_text(json.dumps(data))
    return path


def test_msr_file(tmp_path):
    """Times stay in milliseconds; a node without a colour has its own; the cost of an output is that of its edges."""
    instance = read_msr(write(tmp_path / "a.json", MSR))
    assert instance.accelerators == 2
    assert instance.output_ms == (4.0, 0.0)
    assert instance.colour == ("node 0", "7")
    assert instance.backward == (False, True)
    assert instance.edges == ((0, 1),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": [{"id": 0, **NODE}] * 2}, "distinct ids"),
        ({"edges": [{**EDGE, "destId": 9}]}, "the id of a node"),
        ({"edges": [EDGE, {"sourceId": 1, "destId": 0, "cost": 1}]}, "without cycles"),
        ({"nodes": []}, "nodes"),
    ],
)
def test_broken_msr_files(tmp_path, change, message):
    """Repeated ids, dangling edges, cycles and empty graphs are refused."""
    with pytest.raises(BadInput, match=message):
        read_msr(write(tmp_path / "a.json", MSR | change))


def test_msr_splits(tmp_path):
    """A split places nodes by list; those left out follow their colour, or are missed."""
    nodes = [{"id": i, **NODE, "colorClass": 1} for i in range(2)]
    instance = read_msr(write(tmp_path / "a.json", MSR | {"nodes": nodes}))
    split = write(tmp_path / "s.json", {"fpgas": [{"nodes": []}, {"nodes": [0]}], "cpus": []})
    assert read_msr_split(split, instance) == (1, 1)
    with pytest.raises(BadInput, match="colour class"):
        read_msr_split(write(tmp_path / "s.json", {"fpgas": [], "cpus": []}), instance)
    with pytest.raises(BadInput, match="lists of node ids"):
        read_msr_split(write(tmp_path / "s.json", {"fpgas": [{"nodes": [99]}], "cpus": []}), instance)


def test_pipedream_file(tmp_path):
    """Inputs and unread outputs go, several activations add up, milliseconds become seconds."""
    path = tmp_path / "graph.txt"
    text = LAYER.format("n1", "Input0", "0.0") + LAYER.format("n2", "LSTM(2, 3)", "[1.0; 2.0]")
    text += LAYER.format("n3", "__getitem__(0)", "4.0") + LAYER.format("n4", "Linear", "4.0")
    path.write_text(text + "\tn1 -- n2\n\tn2 -- n3\n\tn2 -- n4\n")
    profile = read_pipedream(path)
    assert profile.layers == ("LSTM(2, 3)", "Linear")
    assert profile.activation_bytes == (3.0, 4.0)
    assert profile.compute_seconds == (0.003, 0.003)
    assert profile.edges == ((0, 1),)


@pytest.mark.parametrize("text", ["nonsense\n", LAYER.format("n1", "A", "1.0") + "\tn1 -- n9\n"])
def test_broken_pipedream_files(tmp_path, text):
    """A line that is neither layer nor edge is named with its number."""
    path = tmp_path / "graph.txt"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"graph.txt:\d"):
        read_pipedream(path)


def test_piper_file(tmp_path):
    """Layers are numbered in file order, edges carry bytes."""
    instance = read_piper(write(tmp_path / "p.json", PIPER))
    assert instance.ids == ("5", "6")
    assert instance.edges == {(0, 1): 3.0}
    with pytest.raises(BadInput, match="maxDevices"):
        read_piper(write(tmp_path / "p.json", PIPER | {"maxDevices": 0}))


def test_orders_follow_edges():
    """A topological order has every edge lead onwards."""
    order = topological_order(4, [(3, 1), (1, 0), (3, 2)], "here")
    assert order.index(3) < order.index(1) < order.index(0)
