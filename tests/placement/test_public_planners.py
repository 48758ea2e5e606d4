"""Public reports about other planners, with the same input: topologies, threads, a search without a budget."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from placement.evaluation.evaluate import evaluate
from placement.explain import problem_of
from placement.search.job import solve
from placement.search.options import SolveOptions
from problem.cluster import Cluster
from problem.expand import expand_model
from problem.model import Model
from problem.schema import ModelSpec
from tests.hiertrain.test_edge_cases import hiertrain
from tests.instances import node, nodes


def _model(**settings: object) -> Model:
    spec = {"name": "m", "dense_features": 13, "bottom_mlp": (64, 16), "embedding_dim": 16, "batch": 64, **settings}
    return expand_model(ModelSpec(**spec), "test")


def _hosts(count: int, each: int) -> Cluster:
    """Sixteen like nodes, so many to a host, with narrow NICs, and a server."""
    machines = nodes(count * each, nic_bytes_per_second=2e7)
    grouped = tuple(replace(machine, host=f"h{i // each}") for i, machine in enumerate(machines))
    return Cluster("hosts", (*grouped, node("ps", role="server")))


def test_the_same_nodes_on_other_hosts_are_planned_anew() -> None:
    """8 hosts of 2 against 4 of 4: a plan is costed anew on other hosts, and so is one to start from."""
    model = _model(top_mlp=(512, 512, 1), tables=[{"name": "t", "rows": 1000, "pooling_factor": 1}])
    options = SolveOptions(group_size=4, servers=1, max_replicas=1, hogwild=4, time_limit_seconds=20, gap=0.6)
    pairs, fours = _hosts(8, 2), _hosts(4, 4)
    first, second = (solve(model, cluster, options=options) for cluster in (pairs, fours))
    assert second.objective > 1.01 * first.objective
    moved = {machine.name: machine for machine in fours.nodes}
    carried = replace(first.plan, groups=tuple(tuple(moved[n.name] for n in group) for group in first.plan.groups))
    costed = evaluate(problem_of(carried, first.costs), carried.tags)
    assert costed.samples_per_second != pytest.approx(first.objective, rel=1e-3)
    started = solve(model, fours, options=replace(options, warm_start=first.plan))
    assert started.objective >= costed.samples_per_second
    assert {n.host for group in started.plan.groups for n in group} <= {f"h{i}" for i in range(4)}


def test_threads_of_libraries_and_hash_seeds_change_nothing(tmp_path: Path) -> None:
    """One thread or four, whatever the hash seed: the same plan and the same simulation, to the last digit."""
    found = []
    for seed, threads in (("0", "1"), ("9", "4")):
        limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
        plan = tmp_path / f"{seed}.json"
        done = hiertrain(
            "solve",
            "demo",
            "--cluster",
            "fb-1s-18c:6",
            "--max-rows",
            "1000",
            "--out",
            plan,
            PYTHONHASHSEED=seed,
            **limits,
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(hiertrain("simulate", plan, "--steps", "4", "--json", PYTHONHASHSEED=seed, **limits).stdout)
        found.append((json.loads(plan.read_text())["plan"], {k: v for k, v in report.items() if k != "wall_seconds"}))
    assert found[0] == found[1]


def test_a_dlrm_with_a_wide_mlp_ends_by_itself_with_its_gap() -> None:
    """24 tables of 1 M rows, layers of 4096, four hosts of two nodes, nothing limited: a plan with its bound and gap.

    Sizes: FlexFlow, ``examples/cpp/DLRM/run_summit_large.sh``.
    """
    model = _model(
        dense_features=2048,
        bottom_mlp=(4096,) * 5,
        top_mlp=(4096, 4096, 4096, 4096, 1),
        interaction="concat",
        embedding_dim=64,
        tables=[{"name": f"t{i}", "rows": 1_000_000, "pooling_factor": 100} for i in range(24)],
    )
    machines = tuple(
        node(f"n{i}", host=f"h{i // 2}", cores=21, memory_bytes=256 * 10**9, nic_bytes_per_second=12.5e9)
        for i in range(8)
    )
    result = solve(model, Cluster("4 x 2", machines))
    best = result.best_baseline
    assert best is not None
    assert result.objective >= (best.samples_per_second or 0)
    assert result.bound >= result.objective
    assert result.gap == pytest.approx((result.bound - result.objective) / result.bound)
