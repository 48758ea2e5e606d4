"""Small models and machines for the tests of the cost models."""

from __future__ import annotations

from problem.cluster import Node
from problem.expand import concat, cross, dot_interaction, linear, lookup, loss
from problem.graph import Graph, Kind, Operator
from problem.model import EmbeddingTable, Model

GIB = 2**30


def node(name: str = "n0", host: str = "", kind: str = "test-machine", flops: float = 10e9, cores: int = 20) -> Node:
    """A machine with 128 GB/s of memory bandwidth."""
    return Node(name, host or name, kind, cores, flops, 128e9, 64 * GIB, 12.5e9 / 8, 20e-6)


def chain(entry: Operator, prefix: str, widths: list[int], first_needs_gradient: bool) -> list[Operator]:
    """A chain of ReLU layers."""
    built: list[Operator] = []
    for i, width in enumerate(widths):
        source = built[-1] if built else entry
        needs = bool(built) or first_needs_gradient
        built.append(linear(f"{prefix}_{i}", source, width, "relu", input_gradient=needs))
    return built


def dlrm(dense: int, bottom: list[int], tables: list[EmbeddingTable], top: list[int], name: str = "dlrm") -> Model:
    """A DLRM with dot interaction."""
    entry = Operator("dense", Kind.DENSE_INPUT, width=dense)
    lower = chain(entry, "bottom", bottom, False)
    lookups = [lookup(table) for table in tables]
    meet = dot_interaction("interaction", [lower[-1], *lookups])
    upper = chain(meet, "top", top, True)
    return Model(name, Graph((entry, *lower, *lookups, meet, *upper, loss(upper[-1]))), tuple(tables))


def small() -> Model:
    """Two tables, every layer of another shape."""
    tables = [EmbeddingTable("t0", 1000, 16, 1.0), EmbeddingTable("t1", 500, 16, 4.0)]
    return dlrm(13, [64, 16], tables, [32, 1], "small")


def mixed() -> Model:
    """The small model's kinds and the others: a concatenation and a cross layer."""
    entry = Operator("dense", Kind.DENSE_INPUT, width=8)
    table = EmbeddingTable("t0", 1000, 16, 2.0)
    left, rows = linear("left", entry, 16, "relu", input_gradient=False), lookup(table)
    both = concat("both", [left, rows])
    crossed = cross("cross_0", both, both, 4)
    top = linear("top", crossed, 1)
    return Model("mixed", Graph((entry, left, rows, both, crossed, top, loss(top))), (table,))
