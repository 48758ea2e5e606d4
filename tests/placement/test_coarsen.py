"""Large graphs: clusters cover every operator once, and a thousand operators are planned by way of them."""

from __future__ import annotations

import pytest

from cost_models.roofline import roofline_costs
from experiments.autoctr import autoctr_model
from placement.evaluation.evaluate import evaluate
from placement.evaluation.group import GroupProblem
from placement.explain import problem_of
from placement.plan import DP
from placement.search.job import solve
from placement.search.options import SolveOptions
from placement.tagging.coarsen import SHARE, coarse
from placement.tagging.limits import Limits
from placement.tagging.nets import Contracted
from placement.tagging.solve import solve_group
from problem.cluster import Cluster
from problem.graph import Kind
from problem.model import Model
from tests.instances import nodes

GIB = 2**30


def _group(model: Model, size: int, **changes: object) -> Contracted:
    machines = nodes(size, memory_bytes=64 * GIB)
    costs = roofline_costs(model, model.batch, machines[0])
    return Contracted(GroupProblem(model, costs, machines, model.batch, 2, size, **changes))  # type: ignore[arg-type]


def test_generated_model_has_the_size_asked_for() -> None:
    """A thousand linear layers in two hundred branches, the same ones each time."""
    model = autoctr_model()
    layers = [op.name for op in model.graph if op.kind is Kind.LINEAR and op.name.startswith("b") and "_" in op.name]
    assert len(layers) == 1000
    assert len({name.split("_")[0] for name in layers}) == 200
    assert autoctr_model().graph == model.graph


@pytest.mark.parametrize("most", [5, 20, 60])
def test_clusters_cover_every_operator_once(most: int) -> None:
    """Clusters are about as many as asked for, hold every operator once, keep pins, and none is too large."""
    model = autoctr_model(operators=150, branches=30)
    fine = _group(model, 4, pins={"top_0": 2})
    small = coarse(fine, most)
    names = [name for item in small.items for name in item.ops]
    assert sorted(names) == sorted(name for item in fine.items for name in item.ops)
    assert next(item for item in small.items if "top_0" in item.ops).fixed == 2
    assert len(small.free) <= max(most, 2 * 4 / SHARE)
    fair = sum(fine.work[i].work.core_seconds for i in fine.free) / 4
    heaviest = max(fine.work[i].work.core_seconds for i in fine.free)
    assert all(small.work[i].work.core_seconds <= max(SHARE * fair, heaviest) * (1 + 1e-9) for i in small.free)


def test_what_all_branches_read_is_a_cluster_of_its_own() -> None:
    """The features, which every branch reads, are tied to none of them."""
    small = coarse(_group(autoctr_model(operators=150, branches=30), 4), 20)
    assert next(item.ops for item in small.items if "features" in item.ops) == ("features",)


def test_placement_of_clusters_is_one_of_operators() -> None:
    """Tags found by way of clusters cover all operators, fit, and are no worse than any baseline."""
    model = autoctr_model(operators=300, branches=60)
    fine = _group(model, 3)
    found = solve_group(fine, Limits(deterministic_seconds=1.0, rounds=3), floor_seconds=1e-6)
    assert found.tags is not None
    value = evaluate(fine.problem, found.tags)
    assert value.fits
    assert value.seconds == pytest.approx(found.seconds)
    assert found.seconds <= min(b.evaluation.seconds for b in found.baselines if b.evaluation.fits)
    assert 1e-6 < found.bound_seconds <= found.seconds


def test_large_graph_gets_a_plan_with_an_honest_gap() -> None:
    """A group of four plans 400 operators: the value is the evaluator's own, and the bound is not below it."""
    model = autoctr_model(operators=400, branches=80, tables=4)
    machines = Cluster("c", nodes(5, memory_bytes=64 * GIB))
    options = SolveOptions(group_size=4, hogwild=4, max_replicas=1, time_limit_seconds=4.0, gap=0.2)
    result = solve(model, machines, lambda batch, node: roofline_costs(model, batch, node), options)
    again = evaluate(problem_of(result.plan, result.costs), result.plan.tags)
    assert again.samples_per_second == pytest.approx(result.objective)
    assert result.objective <= result.bound
    assert {op.name for op in model.graph if op.kind is not Kind.LOOKUP} == set(result.plan.tags)
    assert DP in result.plan.tags.values()
