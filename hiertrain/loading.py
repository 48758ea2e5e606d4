"""What several commands read in the same way: models, clusters, costs, plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hiertrain.output import say
from problem.errors import BadInput

if TYPE_CHECKING:
    from cost_models.sources import CostsFor
    from placement.plan import Plan
    from problem.cluster import Cluster
    from problem.model import Model


def read_model(source: str, max_rows: int | None = None) -> Model:
    """Load a model, rows capped if asked; print what was assumed."""
    from problem.readers import load_model, with_max_rows

    model = load_model(source)
    if max_rows is not None:
        model = with_max_rows(model, max_rows)
    for note in model.notes:
        say(f"{model.name}: {note}")
    return model


def read_cluster(source: str | None, model_source: str) -> Cluster:
    """Load a cluster, by default the one that a graph file brings along; print what was assumed."""
    from problem.cluster_io import load_cluster
    from problem.formats.registry import split_forced
    from problem.graph_json import graph_cluster

    model_file = split_forced(model_source)[1]
    if source is None and not model_file.endswith(".json"):
        raise BadInput("solve", "--cluster", None, "a preset with a count (fb-1s-18c:32), local, or a file")
    cluster = load_cluster(source) if source is not None else graph_cluster(Path(model_file))
    for note in cluster.assumptions:
        say(f"{cluster.name}: {note}")
    return cluster


def plan_cluster(plan: Plan) -> Cluster:
    """Return the machines that a plan uses, each once."""
    from problem.cluster import Cluster

    nodes = (*(node for group in plan.groups for node in group), *plan.servers, *plan.sync_servers)
    return Cluster(plan.name, tuple({node.name: node for node in nodes}.values()))


def without_nodes(cluster: Cluster, names: Sequence[str]) -> Cluster:
    """Return a cluster without some machines."""
    known = [node.name for node in cluster.nodes]
    for name in names:
        if name not in known:
            raise BadInput("solve", "--lost-node", name, f"a machine of {cluster.name}: {', '.join(known)}")
    return replace(cluster, nodes=tuple(node for node in cluster.nodes if node.name not in names))


def read_costs(path: Path | None, model: Model, foreign_ok: bool) -> CostsFor:
    """Return where costs come from: a profile, the Kineto trace of a traced model, or the roofline of the machine."""
    from cost_models.kineto import is_kineto, load_kineto
    from cost_models.profile import load_profile
    from cost_models.sources import cost_source

    if path is not None and is_kineto(path):
        trace = load_kineto(path)
        return lambda batch, node: trace.costs(model, batch, node)
    return cost_source(model, load_profile(path) if path else None, foreign_ok=foreign_ok)


def shapes_to_fit() -> tuple[Model, ...]:
    """Models whose layers, tables and interactions span the shapes of the presets, for the fit of unseen shapes."""
    from problem.readers import model_from_spec

    return tuple(model_from_spec(_shape_spec(*shape)) for shape in _SHAPES)


#: Dense features, bottom MLP (its last width is the embeddings' dim), top MLP, tables, rows, ids per sample.
_SHAPES = (
    (64, [256, 64], [1024, 512, 1], 8, 100_000, 4),
    (256, [128, 32], [256, 64, 1], 16, 50_000, 20),
    (13, [512, 128], [512, 512, 256, 1], 12, 200_000, 1),
    (800, [512, 64], [128, 1], 4, 500_000, 40),
)


def _shape_spec(
    dense: int, bottom: list[int], top: list[int], tables: int, rows: int, pooling: int
) -> dict[str, object]:
    table = {"rows": rows, "dim": bottom[-1], "pooling_factor": pooling}
    return {
        "kind": "dlrm",
        "name": f"shapes {dense}-{bottom[0]}",
        "dense_features": dense,
        "bottom_mlp": bottom,
        "top_mlp": top,
        "interaction": "dot",
        "tables": [{"name": f"t{i}", **table} for i in range(tables)],
    }
