"""A generated model of AutoCTR's kind: hundreds of unlike dense branches between the features and the prediction.

AutoCTR (Song et al., KDD 2020) searches a directed acyclic graph of blocks, each a small MLP over the outputs of earlier
blocks. Here: branches of linear layers of drawn depth and width; each reads the features or the ends of up to two earlier
branches; what no branch reads is merged into the last layers. Drawn from a seed, so the same arguments give the same model.
``python -m experiments.autoctr`` plans it for groups of twelve nodes and prints value, bound, gap, seconds and memory.
"""

from __future__ import annotations

import random
import resource
from collections.abc import Sequence

from cost_models.roofline import roofline_costs
from placement.search.job import solve
from placement.search.options import SolveOptions
from problem.cluster_io import load_cluster
from problem.expand import concat, linear, lookup, loss
from problem.graph import Graph, Kind, Operator
from problem.model import EmbeddingTable, Model

#: Widths that layers are drawn from.
WIDTHS = (32, 64, 128, 256, 512)


def autoctr_model(operators: int = 1000, branches: int = 200, tables: int = 26, seed: int = 0) -> Model:
    """Return a model with a number of linear layers in a number of branches.

    Parameters
    ----------
    operators : int
        Linear layers in branches, at least one a branch.
    branches : int
        Branches.
    tables : int
        Embedding tables of 32 elements.
    seed : int
        Of everything drawn.
    """
    draw = random.Random(seed)
    dense = Operator("dense", Kind.DENSE_INPUT, width=64)
    bottom = linear("bottom", dense, 64, "relu", input_gradient=False)
    lookups = [lookup(table) for table in _tables(tables)]
    features = concat("features", [bottom, *lookups])
    built, ends = [dense, bottom, *lookups, features], list[Operator]()
    for number, depth in enumerate(_depths(draw, operators, branches)):
        sources = draw.sample(ends, min(len(ends), 2)) if ends and draw.random() < 0.6 else [features]
        branch = _branch(draw, f"b{number}", sources, depth)
        built += branch
        ends.append(branch[-1])
    read = {name for op in built for name in op.inputs}
    merge = concat("merge", [end for end in ends if end.name not in read])
    top = linear("top_0", merge, 256, "relu")
    last = linear("top_1", top, 1)
    return Model("autoctr", Graph((*built, merge, top, last, loss(last))), _tables(tables), batch=512)


def _tables(count: int) -> tuple[EmbeddingTable, ...]:
    return tuple(EmbeddingTable(f"t{i}", 1_000_000, 32, 5.0) for i in range(count))


def _depths(draw: random.Random, operators: int, branches: int) -> list[int]:
    """Depths of the branches, at least 1 each, that sum to the number of operators."""
    edges = sorted(draw.sample(range(1, operators), branches - 1))
    return [end - begin for begin, end in zip([0, *edges], [*edges, operators], strict=True)]


def _branch(draw: random.Random, name: str, sources: Sequence[Operator], depth: int) -> list[Operator]:
    """A chain of linear layers; two sources are concatenated first."""
    built = [concat(f"{name}_in", sources)] if len(sources) > 1 else []
    before = built[0] if built else sources[0]
    for layer in range(depth):
        before = linear(f"{name}_{layer}", before, draw.choice(WIDTHS), "relu")
        built.append(before)
    return built


def main() -> None:
    """Plan the model and print a line."""
    model = autoctr_model()
    options = SolveOptions(group_size=12, time_limit_seconds=60.0)
    result = solve(model, load_cluster("fb-1s-18c:32"), lambda batch, node: roofline_costs(model, batch, node), options)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    baseline = result.best_baseline
    print(f"{len(model.graph)} operators, groups {len(result.plan.groups)} x {result.plan.group_size}")
    print(f"{result.samples_per_second:,.0f} samples/s, bound {result.bound:,.0f}, gap {100 * result.gap:.2f} %")
    if baseline is not None:
        print(f"best baseline {baseline.samples_per_second:,.0f} samples/s, {baseline.name}")
    print(f"{result.solve_seconds:.1f} s, {peak:.2f} GiB; {result.bottleneck}")


if __name__ == "__main__":
    main()
