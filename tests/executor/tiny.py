"""Small models built by hand for tests of the executor, and finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from problem.graph import Graph, Kind, Operator
from problem.model import EmbeddingTable, Model

SHARED = Path(__file__).resolve().parents[2].parent / "shared"

Array = npt.NDArray[np.float64]


def linear(name: str, source: str, inputs: int, width: int, activation: str = "relu") -> Operator:
    """A fully connected layer."""
    parameters = (inputs + 1) * width
    return Operator(name, Kind.LINEAR, (source,), width, parameters=parameters, activation=activation)


def cross(name: str, sources: tuple[str, str], width: int, rank: int) -> Operator:
    """A low-rank cross layer."""
    return Operator(name, Kind.CROSS, sources, width, parameters=2 * width * rank + width, rank=rank)


def stack(prefix: str, source: str, widths: Sequence[int]) -> list[Operator]:
    """Layers ``prefix0``, ``prefix1``, ...; widths start with that of the source; the last has no activation if 1 wide."""
    layers = []
    for index, (inputs, width) in enumerate(pairwise(widths)):
        activation = "none" if width == 1 else "relu"
        layers.append(linear(f"{prefix}{index}", source, inputs, width, activation))
        source = layers[-1].name
    return layers


def dlrm(bottom: Sequence[int], tables: Sequence[EmbeddingTable], top: Sequence[int], **settings: Any) -> Model:
    """DLRM: bottom MLP (``bottom[0]`` dense features), tables and features that share them, dots, top MLP to 1, loss."""
    dim, count = bottom[-1], len(tables) + 1
    lower = [Operator("dense", Kind.DENSE_INPUT, width=bottom[0]), *stack("bottom", "dense", bottom)]
    names = tuple(table.name for table in tables)
    lookups = [Operator(table.name, Kind.LOOKUP, width=dim, table=table.storage) for table in tables]
    width = dim + count * (count - 1) // 2
    interaction = Operator("interaction", Kind.INTERACTION, (lower[-1].name, *names), width)
    upper = stack("top", "interaction", [width, *top])
    loss = Operator("loss", Kind.LOSS, (upper[-1].name,), 1)
    graph = Graph((*lower, *lookups, interaction, *upper, loss))
    owned, shared = ([t for t in tables if bool(t.shares) is other] for other in (False, True))
    return Model("tiny-dlrm", graph, tuple(owned), shared=tuple(shared), **settings)


def dcn(dense: int, table: EmbeddingTable, rank: int, **settings: Any) -> Model:
    """DCN-v2: dense features and one table side by side, two cross layers and a deep branch, one logit, loss."""
    width = dense + table.dim
    ops = (
        Operator("dense", Kind.DENSE_INPUT, width=dense),
        Operator(table.name, Kind.LOOKUP, width=table.dim, table=table.name),
        Operator("x0", Kind.CONCAT, ("dense", table.name), width),
        cross("cross0", ("x0", "x0"), width, rank),
        cross("cross1", ("x0", "cross0"), width, rank),
        linear("deep", "x0", width, 5),
        Operator("both", Kind.CONCAT, ("cross1", "deep"), width + 5),
        linear("logit", "both", width + 5, 1, "none"),
        Operator("loss", Kind.LOSS, ("logit",), 1),
    )
    return Model("tiny-dcn", Graph(ops), (table,), **settings)


def tables(count: int, rows: int, dim: int, **settings: Any) -> list[EmbeddingTable]:
    """``count`` equal tables t0, t1, ..."""
    return [EmbeddingTable(f"t{index}", rows, dim, **settings) for index in range(count)]


def numerical_gradient(function: Callable[[], float], values: Array, step: float = 1e-6) -> Array:
    """Central differences of a function of ``values``, which is changed in place and put back."""
    gradient = np.zeros_like(values, dtype=np.float64)
    flat, out = values.reshape(-1), gradient.reshape(-1)
    for index in range(len(flat)):
        kept = flat[index]
        flat[index] = kept + step
        above = function()
        flat[index] = kept - step
        out[index] = (above - function()) / (2 * step)
        flat[index] = kept
    return gradient
