"""The problem types: graph, tables, nodes and errors."""

import pickle
import subprocess
import sys

import pytest

from problem.cluster_io import load_cluster
from problem.errors import BadInput
from problem.graph import Graph, GraphError, Kind, Operator, Work
from problem.model import EmbeddingTable
from tests.problem.test_expand import tiny


def op(name, *inputs, **more):
    """A linear operator of one element."""
    return Operator(name, Kind.LINEAR, tuple(inputs), 1, **more)


def test_topological_order_keeps_the_given_order():
    """Inputs come first; otherwise the given order stays."""
    graph = Graph((op("c", "a"), op("b"), op("a")))
    assert [node.name for node in graph] == ["a", "c", "b"]
    assert graph.consumers == {"a": ("c",), "c": (), "b": ()}


def test_lookups_are_in_the_order_of_their_names():
    """Tables that a file lists in another order are concatenated in another order, but looked up in the same one."""
    lookups = [Operator(f"t{i}", Kind.LOOKUP, (), 1) for i in (10, 2, 1)]
    graph = Graph((*lookups, op("dense"), Operator("all", Kind.CONCAT, ("t10", "dense", "t2", "t1"), 4)))
    assert [node.name for node in graph] == ["t1", "t2", "t10", "dense", "all"]


@pytest.mark.parametrize(
    "operators", [(op("a"), op("a")), (op("a", "x"),), (op("a", "b"), op("b", "a")), (op("a", "a"),)]
)
def test_graph_faults(operators):
    """Duplicates, unknown inputs and cycles are refused, long chains are not too deep."""
    with pytest.raises(GraphError):
        Graph(operators)
    chain = [op("o0"), *(op(f"o{i}", f"o{i - 1}") for i in range(1, 5000))]
    assert len(Graph(tuple(reversed(chain)))) == 5000


def test_gradients():
    """Dense features need no gradient; lookups and everything behind parameters do; imported operators only if trained."""
    needed = tiny().graph.needs_gradient
    assert [needed[name] for name in ("dense", "bottom_0", "a", "loss")] == [False, True, True, True]
    frozen = Operator("f", Kind.FIXED, (), 1, 5)
    trained = Operator("t", Kind.FIXED, (), 1, 5, backward=Work(seconds_per_sample=1.0))
    assert Graph((frozen, trained)).needs_gradient == {"f": False, "t": True}


def test_table_bytes():
    """Rows and optimizer state: none for SGD, one float a row for row-wise Adagrad, one an element for Adagrad."""
    sizes = {
        name: EmbeddingTable("t", 10, 4, optimizer=name).total_bytes
        for name in ("sgd", "rowwise_adagrad", "adagrad", "adam")
    }
    assert sizes == {"sgd": 160, "rowwise_adagrad": 200, "adagrad": 320, "adam": 480}
    assert EmbeddingTable("t", 10, 4, dtype="fp16").total_bytes == 80
    assert EmbeddingTable("t", 10, 4, pooling_factor=0).ids_per_sample == 1


def test_bad_input_travels():
    """The error survives the way between processes."""
    error = pickle.loads(pickle.dumps(BadInput("f", "x", 3, "less")))
    assert str(error) == "f: x = 3: less"


def test_models_and_clusters_travel():
    """Models and clusters survive the way between processes."""
    assert pickle.loads(pickle.dumps(tiny())) == tiny()
    assert pickle.loads(pickle.dumps(load_cluster("local:2"))) == load_cluster("local:2")


def test_import_is_light():
    """Reading problems imports neither NumPy nor YAML."""
    code = "import sys, problem.readers, problem.cluster_io; print(sorted({'numpy', 'scipy', 'yaml'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
