"""The number of data-parallel ranks of a group, chosen by the search."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models.roofline import roofline_costs
from placement.result import PlacementResult
from placement.search.job import solve
from placement.search.options import MOST_RANKS, SolveOptions
from problem.cluster import Cluster
from problem.model import Model
from tests.instances import nodes
from tests.placement.test_search import QUICK, _model


def _solve(model: Model, options: SolveOptions, count: int = 5, **changes: float) -> PlacementResult:
    machines = Cluster("c", nodes(count, **changes))
    return solve(model, machines, lambda batch, node: roofline_costs(model, batch, node), options)


@pytest.mark.parametrize("rate", [1e7, pytest.param(1e6, marks=pytest.mark.slow)])
def test_chosen_ranks_do_as_much_as_the_best_number(rate: float) -> None:
    """Groups of 3 of 5 nodes with slow NICs: chosen ranks do what the best of 1, 2 and 3 does, proven for all three."""
    options = replace(QUICK, group_size=3, gap=0.0)
    each = [_solve(_model(), replace(options, ranks=ranks), nic_bytes_per_second=rate) for ranks in (1, 2, 3)]
    chosen = _solve(_model(), replace(options, ranks="auto"), nic_bytes_per_second=rate)
    best = max(each, key=lambda one: one.objective)
    assert chosen.objective == pytest.approx(best.objective, rel=1e-6)
    assert chosen.bound >= best.objective * (1 - 1e-9)
    assert chosen.bound <= max(one.bound for one in each) * (1 + 1e-6)
    assert chosen.plan.ranks == best.plan.ranks
    assert any("ranks" in sentence for sentence in chosen.assumptions)


def test_fewer_ranks_win_where_they_allow_more_groups() -> None:
    """Samples of four ranks may be in flight: two groups of two ranks do more than one of three, as it is unless asked."""
    options = replace(QUICK, group_size=3, batch=8, hogwild=2, max_elp=4 * 8 * 2, gap=0.1)
    chosen, plain = (_solve(_model(), replace(options, ranks=ranks), count=8) for ranks in ("auto", None))
    assert (chosen.plan.ranks, len(chosen.plan.groups)) == (2, 2)
    assert (plain.plan.ranks, len(plain.plan.groups)) == (3, 1)
    assert chosen.objective > plain.objective


@pytest.mark.parametrize("size", [1, 2, 12, 13, 31, 128])
def test_which_numbers_of_ranks_are_looked_at(size: int) -> None:
    """Of small groups all, of large ones so many: all nodes, halves, others between; no number twice, none out of range."""
    counts = SolveOptions(ranks="auto").ranks_of(size)
    assert counts[0] == size
    assert size < 2 or counts[1] == size // 2
    assert len(set(counts)) == len(counts) == min(size, MOST_RANKS)
    assert set(counts) <= set(range(1, size + 1))
    assert SolveOptions().ranks_of(size) == (size,)
