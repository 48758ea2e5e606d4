"""ONNX models: counted work, parameters, tables, and what is refused."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from cost_models.roofline import roofline_costs
from problem.cluster_io import load_cluster
from problem.errors import BadInput
from problem.graph import GraphError, Kind
from problem.readers import load_model, model_from_spec, with_max_rows
from tests.problem.shared import SHARED, needs_shared

onnx = pytest.importorskip("onnx")
helper, FLOAT, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def weight(name, *shape):
    """A float initializer of ones."""
    size = 1
    for dim in shape:
        size *= dim
    return helper.make_tensor(name, FLOAT, shape, [1.0] * size)


def saved(tmp_path, nodes, inputs, outputs, weights):
    """Save a model and return its path."""
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def floats(name, *shape):
    """A float input or output."""
    return helper.make_tensor_value_info(name, FLOAT, shape)


def ids(name, *shape):
    """An integer input."""
    return helper.make_tensor_value_info(name, INT64, shape)


def test_products_are_counted_and_constants_are_parameters(tmp_path):
    """A layer of 6 to 4 with bias, batch 8: 2*6*4 flops a sample, 28 parameters; a constant that is computed is folded."""
    nodes = [
        helper.make_node("Mul", ["W0", "W0"], ["W"], name="square"),
        helper.make_node("Gemm", ["x", "W", "b"], ["h"], name="layer"),
        helper.make_node("Relu", ["h"], ["y"], name="relu"),
    ]
    path = saved(tmp_path, nodes, [floats("x", 8, 6)], [floats("y", 8, 4)], [weight("W0", 6, 4), weight("b", 4)])
    model = load_model(path)
    layer, relu = model.graph
    assert (layer.forward.flops_per_sample, layer.backward.flops_per_sample, layer.parameters) == (48, 96, 28)
    assert (relu.inputs, relu.forward.flops_per_sample, relu.output_bytes_per_sample) == (("layer",), 4, 16)
    assert model.graph.needs_gradient["layer"]
    assert model_from_spec(model.spec) == model


def test_counted_operators_cost_what_a_core_takes(tmp_path):
    """Seconds follow from flops and the core's rate: a machine twice as fast takes half (the call itself apart)."""
    nodes = [helper.make_node("MatMul", ["x", "W"], ["y"], name="layer")]
    model = load_model(saved(tmp_path, nodes, [floats("x", 8, 1000)], [floats("y", 8, 500)], [weight("W", 1000, 500)]))
    node = load_cluster("fb-1s-18c").nodes[0]
    seconds = roofline_costs(model, 10, node).ops["layer"].forward.core_seconds
    assert seconds == pytest.approx(10 * 2 * 1000 * 500 / node.flops_per_core_second, rel=0.01)


@pytest.mark.parametrize("pooled", [True, False])
def test_a_gather_of_weights_is_a_table(tmp_path, pooled):
    """Rows gathered from a constant matrix are a lookup: (B, 3) ids are 3 a sample, and a sum behind them is part of it."""
    nodes = [helper.make_node("Gather", ["E", "i"], ["rows"], name="gather")]
    if pooled:
        nodes.append(helper.make_node("ReduceSum", ["rows", "axis"], ["v"], name="sum", keepdims=0))
    nodes.append(helper.make_node("Relu", ["v" if pooled else "rows"], ["y"], name="relu"))
    shape = (2, 4) if pooled else (2, 3, 4)
    axis = helper.make_tensor("axis", INT64, (1,), [1])
    model = load_model(saved(tmp_path, nodes, [ids("i", 2, 3)], [floats("y", *shape)], [weight("E", 10, 4), axis]))
    assert [(t.name, t.rows, t.dim, t.pooling_factor) for t in model.tables] == [("E", 10, 4, 3.0)]
    assert [(op.name, op.kind, op.inputs) for op in model.graph] == [
        ("E", Kind.LOOKUP, ()),
        ("relu", Kind.FIXED, ("E",)),
    ]
    assert with_max_rows(model, 5).tables[0].rows == 5


def test_an_exported_embedding_bag_is_a_table(tmp_path):
    """``EmbeddingBag`` exports as a Loop over bags with Slice, Gather and ReduceSum inside: one table, one lookup."""
    body = helper.make_graph(
        [
            helper.make_node("Slice", ["indices", "begin", "end"], ["bag"]),
            helper.make_node("Gather", ["E", "bag"], ["rows"]),
            helper.make_node("ReduceSum", ["rows", "axis"], ["pooled"], keepdims=0),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [ids("k"), helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, ())],
        [helper.make_tensor_value_info("go_on", onnx.TensorProto.BOOL, ()), floats("pooled", 4)],
    )
    constants = [helper.make_tensor(name, INT64, (1,), [0]) for name in ("begin", "end", "axis")]
    nodes = [
        helper.make_node("Loop", ["bags", "yes"], ["v"], name="bag_loop", body=body),
        helper.make_node("Relu", ["v"], ["y"], name="relu"),
    ]
    yes = helper.make_tensor("yes", onnx.TensorProto.BOOL, (), [True])
    weights = [weight("E", 10, 4), yes, helper.make_tensor("bags", INT64, (), [2]), *constants]
    model = load_model(saved(tmp_path, nodes, [ids("indices", 6)], [floats("y", 2, 4)], weights))
    assert [(table.name, table.rows, table.dim) for table in model.tables] == [("E", 10, 4)]
    assert model.graph["relu"].inputs == ("E",)


def test_a_table_that_nobody_reads_is_refused(tmp_path):
    """An embedding that is the output of the model has no reader: refused by name, not by a broken program later."""
    nodes = [
        helper.make_node("Gather", ["E", "i"], ["y"], name="gather"),
        helper.make_node("Relu", ["x"], ["z"], name="relu"),
    ]
    path = saved(
        tmp_path, nodes, [ids("i", 2), floats("x", 2, 3)], [floats("y", 2, 4), floats("z", 2, 3)], [weight("E", 9, 4)]
    )
    with pytest.raises(GraphError, match=r"m\.onnx: table 'E': no operator reads it"):
        load_model(path)


def test_operators_of_other_domains_are_named(tmp_path):
    """An operator that is not ONNX's own is refused with its node, its domain and its name."""
    nodes = [helper.make_node("Fused", ["x"], ["y"], name="n7", domain="com.example")]
    path = saved(tmp_path, nodes, [floats("x", 2, 3)], [floats("y", 2, 3)], [])
    with pytest.raises(BadInput, match=r"node\(n7\)\.op_type = 'com\.example::Fused'"):
        load_model(path)


def test_bytes_that_are_no_model_are_refused(tmp_path):
    """Broken bytes, and an empty file, are refused in one line."""
    for data in (b"", b"\xff\xff\xff", b"hello"):
        (tmp_path / "m.onnx").write_bytes(data)
        with pytest.raises(BadInput, match=r"m\.onnx"):
            load_model(tmp_path / "m.onnx")


def test_without_the_package_the_line_says_how_to_get_it(tmp_path, monkeypatch):
    """Without ``onnx`` there is one line with the name of the extra."""
    (tmp_path / "m.onnx").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(BadInput, match=r"pip install 'hiertrain\[onnx\]'"):
        load_model(tmp_path / "m.onnx")


@needs_shared
@pytest.mark.parametrize(
    ("name", "giga_flops", "mega_parameters"),
    [("light_resnet50.onnx", 8.2, 25.6), ("light_bvlc_alexnet.onnx", 1.4, 61.0)],
)
def test_published_networks_have_their_published_size(name, giga_flops, mega_parameters):
    """ResNet-50: 4.1 GMAC and 25.6 M parameters (He et al. 2016); AlexNet: 0.7 GMAC, 61 M (Krizhevsky et al. 2012)."""
    model = load_model(SHARED / "inputs" / "onnx" / name)
    flops = sum(op.forward.flops_per_sample for op in model.graph)
    assert flops / 1e9 == pytest.approx(giga_flops, rel=0.08)
    assert sum(op.parameters for op in model.graph) / 1e6 == pytest.approx(mega_parameters, rel=0.01)


@needs_shared
def test_an_operator_of_classical_machine_learning_is_named():
    """scikit-learn's logistic regression uses ai.onnx.ml, which is not read."""
    with pytest.raises(BadInput, match=r"ai\.onnx\.ml::LinearClassifier"):
        load_model(SHARED / "inputs" / "onnx" / "logreg_iris.onnx")


def test_weights_outside_the_file_are_parameters_too(tmp_path):
    """Models above 2 GB keep their weights beside the file: shapes are in the file, and the weights are not opened."""
    nodes = [helper.make_node("MatMul", ["x", "W"], ["y"], name="layer")]
    raw = onnx.numpy_helper.from_array(np.ones((100, 50), np.float32), "W")
    path = saved(tmp_path, nodes, [floats("x", 8, 100)], [floats("y", 8, 50)], [raw])
    whole = load_model(path)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    assert load_model(path).graph.operators == whole.graph.operators
