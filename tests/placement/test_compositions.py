"""Unlike machines: how they are put together, against every way to do so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cost_models.costs import CostTable
from placement.errors import PlacementError
from placement.evaluation.evaluate import Evaluation, NodeLoad
from placement.search.bounds import Bounds
from placement.search.compositions import Compositions
from placement.search.job import solve
from placement.search.options import SolveOptions
from placement.search.outcome import ONE_SET, shared_rate
from placement.search.shapes import Shapes
from placement.tagging.nets import Contracted
from placement.tagging.solve import solve_group
from problem.cluster import Cluster
from problem.model import Model
from tests.instances import GIGA, node, nodes
from tests.placement.unlike import best_of_ways, compositions_of, counts_of, every_way, forbidding, instance


def _compare(seeds: range, drawn: Callable = instance) -> list[float]:
    """Values found, each over the best in the order of names; none beats its own order, no bound is below, and all say of
    unlike groups that they share one set of tags."""
    ratios = []
    for seed in seeds:
        model, costs, machines, options = drawn(seed)
        best = best_of_ways(model, costs, machines, options)
        try:
            found = solve(model, Cluster("unlike", machines), lambda batch, machine, costs=costs: costs, options)
        except PlacementError:
            assert best == 0.0, seed
            continue
        ordered = replace(model, graph=found.plan.model.graph)
        most = best if ordered.graph.order == model.graph.order else best_of_ways(ordered, costs, machines, options)
        assert found.objective <= most * (1 + 1e-9), seed
        assert found.bound >= max(best, most) * (1 - 1e-6), seed
        kinds = {tuple(replace(one, name="", host="") for one in group) for group in found.plan.groups}
        assert (ONE_SET in found.assumptions) == (len(kinds) > 1 and found.plan.group_size > 1), seed
        ratios.append(found.objective / best)
    return ratios


def test_compositions_are_as_good_as_exhaustive_search() -> None:
    """On 8 tiny unlike clusters: never better than the best of all compositions and tags, equal on all but one at most."""
    ratios = _compare(range(8))
    assert len(ratios) >= 6
    assert sum(ratio < 1 - 1e-6 for ratio in ratios) <= 1
    assert min(ratios) > 0.9


def test_bug_a_group_of_two_kinds_was_never_tried() -> None:
    """One group, of a machine with memory and one with cores, is the best of all ways; the search had 81 % of it."""
    model, costs, machines, options = instance(166)
    pairs = [shape for shape in every_way(model, machines, options) if (len(shape.groups), shape.group_size) == (1, 2)]
    best = best_of_ways(model, costs, machines, options, pairs)
    assert solve(model, Cluster("unlike", machines), lambda *_: costs, options).objective == pytest.approx(
        best, rel=1e-6
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_compositions_are_as_good_as_exhaustive_search_on_many() -> None:
    """The same on 200: equal on at least 97 of 100."""
    ratios = _compare(range(200))
    assert sum(ratio > 1 - 1e-6 for ratio in ratios) >= 0.97 * len(ratios)
    assert min(ratios) > 0.9


def test_what_is_forbidden_is_compared_with_exhaustive_search() -> None:
    """On 4 of them with tags and kinds of machines forbidden: never better than the best allowed, equal on most."""
    ratios = _compare(range(4), forbidding)
    assert len(ratios) >= 2
    assert sum(ratio < 1 - 1e-6 for ratio in ratios) <= 1


@pytest.mark.parametrize("seed", [71, 123, 127, 163])
def test_bug_forbidden_kinds_and_places_left_ways_untried(seed: int) -> None:
    """Groups without a kind, or with another machine at a place, are best where those are forbidden: it found 33 to 99 %."""
    assert _compare(range(seed, seed + 1), forbidding) == [pytest.approx(1.0, rel=1e-6)]


@pytest.mark.timeout(60)
def test_bug_the_solver_raised_its_bound_by_one_unit_a_conflict() -> None:
    """Four layers on two machines kept the solver busy until the time limit, at 67 % of the best."""
    assert _compare(range(53, 54), forbidding) == [pytest.approx(1.0, rel=1e-6)]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_is_forbidden_is_compared_with_exhaustive_search_on_many() -> None:
    """The same on 200: equal on at least 99 of 100."""
    ratios = _compare(range(200), forbidding)
    assert len(ratios) >= 100
    assert sum(ratio > 1 - 1e-6 for ratio in ratios) >= 0.99 * len(ratios)
    assert min(ratios) > 0.9


def _evaluation(own: float, served: float) -> Evaluation:
    """A group of one node, 10 samples a step, two groups in all; the server's load is that of both at this pace."""
    empty = {"core_seconds": {}, "messages": 0.0, "memory_needed": 0.0, "memory_had": 1.0}
    loads = tuple(
        NodeLoad(name, role, cores_seconds=seconds, memory_seconds=0.0, tx_seconds=0.0, rx_seconds=0.0, **empty)
        for name, role, seconds in (("n", "group", own), ("ps", "server", served))
    )
    return Evaluation(loads, 0.0, 1, 20)


@pytest.mark.parametrize(
    ("served", "rate"),
    [
        (0.1, 10 / 0.5 + 10 / 2),  # 0.05 s each step, 2.5 steps a second: the server is idle most of the time
        (
            1.0,
            10 / 0.6666666666666666 + 10 / 2,
        ),  # 0.5 s each step: the slow group takes a quarter, the fast one the rest
        (8.0, 10 / 4),  # 4 s each step: both get half of it
    ],
)
def test_faster_groups_take_what_slower_ones_leave_of_a_server(served: float, rate: float) -> None:
    """Groups of 0.5 s and 2 s a step: by hand, with a server that is idle, binds the fast group, binds both."""
    assert shared_rate([_evaluation(0.5, served), _evaluation(2.0, served)], [1, 1]) == pytest.approx(rate)


def test_groups_alike_share_a_server_as_one() -> None:
    """Two groups counted as two kinds are worth what they are worth as one kind."""
    for served in (0.1, 1.0, 8.0):
        one = _evaluation(0.5, served)
        assert shared_rate([one, one], [1, 1]) == pytest.approx(one.samples_per_second)


def test_like_with_like_and_the_same_mixture_are_both_made() -> None:
    """Two strong and two weak trainers in two groups: strong with strong, and one of each in both."""
    machines = (*nodes(2, cores=8, role="trainer"), *(node(f"w{i}", cores=2, role="trainer") for i in range(2)))
    made, shapes = compositions_of((*machines, node("s", role="server")), group_size=2)
    (shape,) = [shape for shape in shapes if len(shape.groups) == 2]
    cores = {tuple(tuple(n.cores for n in group) for group in way.groups) for way in made.of(shape)}
    assert {((8, 8), (2, 2)), ((8, 2), (8, 2))} <= cores


def test_weak_machines_serve_and_those_with_much_memory_too() -> None:
    """One weak machine and one with much memory among strong ones: each is the sync server of some way."""
    machines = (*nodes(4, cores=8), node("weak", cores=1), node("big", cores=8, memory_bytes=64 * GIGA))
    made, shapes = compositions_of(machines, group_size=2)
    (shape,) = [shape for shape in shapes if len(shape.groups) == 2]
    assert {"weak", "big"} <= {way.sync_servers[0].name for way in made.of(shape)}


@pytest.mark.parametrize("seed", range(6))
def test_machines_that_only_serve_are_taken_first_where_they_are_no_worse(seed: int) -> None:
    """Three trainers and two servers of twice the cores: all ways covered, the plan proven the best of them all."""
    model, costs, (first, *_), options = instance(seed)
    first = replace(first, memory_bytes=GIGA)
    trainers = tuple(first.renamed(f"n{i}") for i in range(3))
    servers = tuple(replace(node, cores=2 * node.cores, role="server") for node in map(first.renamed, ("s0", "s1")))
    cluster = Cluster("rack", (*trainers, *servers))
    best = best_of_ways(model, costs, cluster.nodes, options)
    found = solve(model, cluster, lambda batch, machine: costs, options)
    assert found.objective == pytest.approx(best, rel=1e-6)
    assert found.bound == pytest.approx(best, rel=1e-6)


def _beside_weak_servers(seed: int) -> tuple[Model, CostTable, Cluster, SolveOptions]:
    """Three trainers of an instance, and two servers of few cores and ten times the NIC."""
    model, costs, (first, *_), options = instance(seed)
    first = replace(first, memory_bytes=GIGA, cores=4)
    wide = replace(first, cores=1, nic_bytes_per_second=10 * first.nic_bytes_per_second, role="server")
    nodes_of = (*(first.renamed(f"n{i}") for i in range(3)), *map(wide.renamed, ("s0", "s1")))
    return model, costs, Cluster("rack", nodes_of), options


@pytest.mark.parametrize("seed", [6, 9, 10, 13])
def test_what_is_proven_about_like_trainers_bounds_all_choices_of_servers(seed: int) -> None:
    """Groups alone, with one server that answers for free or all, and the tables of each choice of servers: for each numbers
    of machines no way and no tags do more than the bound of both."""
    model, costs, cluster, options = _beside_weak_servers(seed)
    hogwild, best = options.hogwild or 1, dict[tuple[int, ...], float]()
    bounds = Bounds(model, costs, 4, hogwild, {}, local=False)
    shapes = Shapes(model, cluster, costs, options, 4, hogwild)
    made = Compositions(bounds, shapes.trainers, shapes.hosts)
    for way in every_way(model, cluster.nodes, options):
        best[counts_of(way)] = max(
            best_of_ways(model, costs, cluster.nodes, options, [way]), best.get(counts_of(way), 0.0)
        )
    for shape in map(made.bounded, shapes.all()):
        for one in made.relaxed(shape):
            bounds.learn(one, solve_group(Contracted(bounds.relaxed(one))).bound_seconds)
        assert made.unproven(shape) is None
        assert bounds.rate(made.served(made.raised(shape))) >= best[counts_of(shape)] * (1 - 1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_like_trainers_beside_weak_servers_are_proven_by_all_choices_of_servers(seed: int) -> None:
    """Three trainers and two servers of few cores and ten times the NIC: the plan is proven the best of all ways."""
    model, costs, cluster, options = _beside_weak_servers(seed)
    best = best_of_ways(model, costs, cluster.nodes, options)
    found = solve(model, cluster, lambda batch, machine: costs, options)
    assert found.objective == pytest.approx(best, rel=1e-6)
    assert found.bound == pytest.approx(best, rel=1e-6)


def test_all_choices_of_servers_are_made_beside_like_trainers() -> None:
    """Three trainers that may serve, a weak machine that only serves: of groups of one, every way to have two servers."""
    made, shapes = compositions_of((*nodes(4, cores=8), node("s", cores=1, role="server")), group_size=1)
    (shape,) = [shape for shape in shapes if shape.sync_servers]
    assert made.covers(shape)
    assert {way.sync_servers[0].cores for way in made.of(shape)} == {1, 8}
    unlike, shapes = compositions_of((*nodes(3, cores=8), node("t", cores=4), node("s", cores=1, role="server")))
    assert not any(unlike.covers(shape) for shape in shapes)


def test_machines_alike_are_put_together_in_one_way() -> None:
    """Names make no difference: a cluster of equal machines has nothing to choose."""
    made, shapes = compositions_of(nodes(5), group_size=2)
    assert not made.unlike
    assert all(len(made.of(shape)) == 1 for shape in shapes)
    assert all(made.bounded(shape).composed for shape in shapes)
