"""Baselines and items: what a person would try first, within pins and components."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models.costs import CostTable, OpCost, PhaseCost
from placement.errors import ConstraintsConflict
from placement.evaluation.group import GroupProblem
from placement.plan import DP
from placement.tagging.baselines import baselines, contiguous, greedy
from placement.tagging.candidates import items_of
from placement.tagging.nets import Contracted
from problem.graph import Graph, Kind, Operator
from problem.model import Model
from tests.instances import linear, nodes, random_group, two_layers


def _chain(seconds: list[float], count: int) -> Contracted:
    ops, costs, source = [], {}, ()
    for i, cost in enumerate(seconds):
        ops.append(Operator(f"op{i}", Kind.FIXED, source, 0, 1))
        costs[f"op{i}"], source = OpCost(PhaseCost(cost)), (f"op{i}",)
    model = Model("chain", Graph(tuple(ops)))
    return Contracted(GroupProblem(model, CostTable(1, costs, kind="tiny"), nodes(count, cores=1), 1, 64, count))


def test_all_baselines_respect_pins_and_components() -> None:
    """On random groups every baseline keeps pins and components, and has no tag that is forbidden."""
    for seed in range(60):
        data = Contracted(random_group(seed))
        for baseline in baselines(data):
            for item in data.items:
                tags = {baseline.tags[op] for op in item.ops}
                assert len(tags) == 1
                assert item.fixed is None or tags == {item.fixed}
                assert not tags & item.forbidden


def test_greedy_balances_by_cost() -> None:
    """Longest first: 3, 2, 2, 1 on two nodes is 4 and 4."""
    choice = greedy(_chain([3.0, 2.0, 2.0, 1.0], 2))
    assert [choice[i] for i in range(4)] == [0, 1, 1, 0]


def test_contiguous_cut_is_the_best_cut() -> None:
    """1, 1, 4, 2 over two nodes in order: the cut before the 4, or after it, is found by the dynamic program."""
    choice = contiguous(_chain([1.0, 1.0, 4.0, 2.0], 2))
    assert [choice[i] for i in range(4)] == [0, 0, 1, 1]


def test_baseline_that_does_not_fit_says_so() -> None:
    """A baseline that lacks memory keeps its value and says which node is short."""
    problem = two_layers()
    short = replace(problem, nodes=nodes(2, memory_bytes=10**6))
    assert all("does not fit: n" in baseline.reason for baseline in baselines(Contracted(short)))


def test_component_with_two_forced_tags_is_refused() -> None:
    """A component that holds the loss and an operator pinned to node 1 is refused, with both names."""
    graph = Graph(
        (
            Operator("x", Kind.DENSE_INPUT, (), 1),
            linear("layer", "x", 1, 1, component="c"),
            Operator("loss", Kind.LOSS, ("layer",), 1, component="c"),
        )
    )
    with pytest.raises(ConstraintsConflict, match="layer") as caught:
        items_of(graph, {"layer": 1})
    assert set(caught.value.names) == {"layer", "loss"}
    assert items_of(graph, {})[1].fixed == DP
