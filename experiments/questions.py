"""Questions about placement, answered by planning and simulating: what ``hiertrain figure`` draws besides measurements.

Rows are data; every rate is a prediction in samples per second. The clusters are stated in full here; nothing is tuned to a
published number. ``modern`` is an assumption that makes the network the narrow place: 32 cores at 50 GFLOP/s and 25 Gb/s.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cost_models.roofline import roofline_costs
from experiments.planning import planned
from placement.result import PlacementResult
from placement.search.options import SolveOptions
from problem.cluster import Cluster, Node
from problem.cluster_io import load_cluster
from problem.errors import HiertrainError
from problem.model import Model
from problem.readers import load_model, model_from_spec
from simulator.simulate import simulate

Row = dict[str, Any]
Watch = Callable[[str], None]

PRESETS = ("dlrm-kaggle", "dlrm-terabyte", "mlperf-dlrm-dcnv2", "rm1", "rm2", "rm3", "m1", "m2", "m3")
TRAINERS = (2, 4, 8, 12, 16, 20, 24, 28, 32)
GROUP_SIZES = (1, 2, 3, 4, 6, 8)
MAX_REPLICAS = 4


def modern(count: int) -> Cluster:
    """Return a cluster whose cores outrun its network: 32 cores at 50 GFLOP/s, 256 GB, 200 GB/s, 25 Gb/s, 20 us."""
    nodes = [Node(f"n{i}", f"n{i}", "modern", 32, 50e9, 200e9, 256 * 10**9, 25e9 / 8, 20e-6) for i in range(count)]
    return Cluster(f"modern:{count}", tuple(nodes))


def wide(branches: int = 4) -> Model:
    """Return a model with a wide top MLP in grouped branches, batch 200, 26 tables of a million rows."""
    table = {"name": "t", "rows": 1_000_000, "dim": 64, "pooling_factor": 10, "count": 26}
    spec: Mapping[str, Any] = {
        "kind": "dlrm",
        "name": "wide",
        "dense_features": 256,
        "bottom_mlp": [512, 64],
        "top_mlp": [2048, 2048, 1],
        "top_branches": branches,
        "interaction": "dot",
        "embedding_dim": 64,
        "batch": 200,
        "tables": [table],
    }
    return model_from_spec(spec)


def _solved(model: Model, cluster: Cluster, **options: Any) -> PlacementResult | None:
    """Plan; None where nothing fits."""
    try:
        settings = SolveOptions(time_limit_seconds=15.0, gap=0.02, **options)
        return planned(model, cluster, functools.partial(roofline_costs, model), settings)
    except HiertrainError:
        return None


def _simulated(result: PlacementResult) -> float:
    return simulate(result.plan, result.costs, steps=20, record=False).samples_per_second


def trainers(watch: Watch) -> list[Row]:
    """How does throughput grow with machines, one machine a replica, and in groups with few replicas?"""
    model, rows = load_model("dlrm-kaggle"), []
    for count in TRAINERS:
        watch(f"{count} machines")
        cluster = load_cluster(f"fb-1s-18c:{count}")
        cases = {
            "one machine a replica": {"group_size": 1, "max_replicas": count},
            f"groups, at most {MAX_REPLICAS} replicas": {"max_replicas": MAX_REPLICAS},
            f"one machine a replica, at most {MAX_REPLICAS}": {"group_size": 1, "max_replicas": MAX_REPLICAS},
        }
        for name, options in cases.items():
            result = _solved(model, cluster, **options)
            if result is not None:
                rows.append(_row(result, architecture=name, machines=count))
    return rows


def group_size(watch: Watch) -> list[Row]:
    """What is a larger group worth: data-parallel only, on other nodes only, or both as the ILP chooses?"""
    model, cluster, rows = wide(), modern(12), []
    for size in GROUP_SIZES:
        watch(f"groups of {size}")
        result = _solved(model, cluster, group_size=size, max_replicas=1)
        if result is None:
            continue
        baselines = {found.name: found.samples_per_second or 0.0 for found in result.baselines}
        data_parallel = baselines.pop("all data-parallel", 0.0)
        rows.append(
            {
                "group_size": size,
                "all data-parallel": data_parallel,
                "best model-parallel heuristic": max(baselines.values(), default=0.0),
                "data and model parallel (ILP)": result.objective,
                "bound": result.bound,
                "simulated": _simulated(result),
            }
        )
    return rows


def heuristics(watch: Watch) -> list[Row]:
    """How much does the ILP gain over every heuristic, where the network is the narrow place?"""
    rows = []
    for name in (*PRESETS, "wide"):
        watch(name)
        model = wide() if name == "wide" else load_model(name)
        result = _solved(replace(model, name=name), modern(8), group_size=4, max_replicas=1)
        if result is not None:
            values = {found.name: found.samples_per_second for found in result.baselines}
            rows.append({"model": name, **values, "ILP": result.objective, "bound": result.bound})
    return rows


def _row(result: PlacementResult, **more: Any) -> Row:
    return {
        **more,
        "group_size": result.plan.group_size,
        "replicas": len(result.plan.groups),
        "planned": result.objective,
        "bound": result.bound,
        "simulated": _simulated(result),
    }
