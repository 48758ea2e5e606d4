"""Bounds of unlike machines: no way to put them together, and no tags, exceed them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations, product

import pytest

from cost_models.costs import CostTable
from placement.evaluation.evaluate import evaluate
from placement.evaluation.group import GroupProblem
from placement.plan import DP
from placement.search.bounds import Bounds
from placement.search.compositions import Compositions
from placement.search.mixing import Mixing, best_together, ideal, together
from placement.search.shapes import Shape, Shapes
from problem.cluster import Cluster
from problem.graph import Graph, Kind, Operator
from problem.model import Model
from tests.instances import GIGA, linear, node, op_cost
from tests.placement.unlike import best_of_ways, compositions_of, counts_of, every_way, instance


def test_ideal_machines_have_the_best_of_each_resource() -> None:
    """The first two of the ideal machines have no less cores, memory and NIC, in sum and singly, than any two."""
    machines = (
        node("a", cores=8),
        node("b", memory_bytes=9 * GIGA),
        node("c", nic_bytes_per_second=9e9),
        node("d", cores=6),
    )
    best = ideal(machines, CostTable(1, {}, kind="tiny"))[:2]
    for what in ("cores", "memory_bytes", "nic_bytes_per_second"):
        values = [getattr(n, what) for n in best]
        for pair in permutations(machines, 2):
            had = [getattr(n, what) for n in pair]
            assert sum(values) >= sum(had)
            assert max(values) >= max(had)


def _best_bycounts_of(seed: int) -> tuple[Mixing, Shapes, dict[tuple[int, ...], float]]:
    """The bounds of an instance, and the best of all ways and tags for each numbers of machines."""
    model, costs, machines, options = instance(seed)
    hogwild, cluster = options.hogwild or 1, Cluster("unlike", machines)
    bounds = Bounds(model, costs, 4, hogwild, {}, local=False)
    shapes, best = Shapes(model, cluster, costs, options, 4, hogwild), dict[tuple[int, ...], float]()
    for shape in every_way(model, machines, options):
        value = best_of_ways(model, costs, machines, options, [shape])
        best[counts_of(shape)] = max(value, best.get(counts_of(shape), 0.0))
    return Compositions(bounds, shapes.trainers, shapes.hosts).mixing, shapes, best


@pytest.mark.parametrize("seed", [51, 82, 101, 162])
def test_bug_work_before_the_first_gradient_was_counted_into_the_cycle(seed: int) -> None:
    """No way to use a tiny unlike cluster exceeds its quick bound. Operators without gradient, whose work may overlap the
    step before, were counted into the longest path: of seed 51 a plan did 1.32 times what its bound allowed."""
    model, costs, machines, options = instance(seed)
    costs = replace(costs, next_batch_seconds=1e-3, metric_seconds=2e-3)
    bounds = Bounds(model, costs, 4, options.hogwild or 1, {}, local=False)
    for shape in list(every_way(model, machines, options))[:20]:
        unlike = len({tuple(sorted(repr(replace(n, name="", host="")) for n in group)) for group in shape.groups}) > 1
        bound = bounds.rate(bounds.quick(replace(shape, mixed=unlike)))
        assert best_of_ways(model, costs, machines, options, [shape]) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("size", [1, 2])
def test_a_session_has_one_thread_on_each_node(size: int) -> None:
    """With one thread the operators of a branched model run one after another: that bounds a group of one node exactly, and
    no two nodes do more than twice that, although their cores and the longest path would allow five times as much."""
    names = ("a", "b", "c", "d", "e")
    graph = Graph((Operator("x", Kind.DENSE_INPUT, width=1), *(linear(name, "x", 1, 1) for name in names)))
    costs = CostTable(1, {"x": op_cost(0.0), **{name: op_cost(1.0) for name in names}}, kind="tiny")
    machines = tuple(node(f"n{i}", cores=32) for i in range(size))
    bounds = Bounds(Model("fan", graph), costs, 1, 1, {}, local=False)
    shape = Shape(size, (machines,), (), (), 1)
    problem = GroupProblem(Model("fan", graph), costs, machines, 1, 1, 1)
    places = product([DP, *range(1, size)], repeat=len(names))
    least = min(evaluate(problem, {"x": DP, **dict(zip(names, at, strict=True))}).seconds for at in places)
    assert bounds.group_seconds(shape) == pytest.approx(len(names) / size)
    assert bounds.group_seconds(shape) <= least * (1 + 1e-9)
    assert size > 1 or least == pytest.approx(bounds.group_seconds(shape))


@pytest.mark.parametrize("seed", [2, 4, 11, 16])
def test_no_way_to_put_unlike_machines_together_exceeds_its_bound(seed: int) -> None:
    """For each number of groups and servers of a tiny unlike cluster, the best of all ways and tags is within the bound."""
    mixing, shapes, best = _best_bycounts_of(seed)
    looked = [shape for shape in shapes.all() if counts_of(shape) in best]
    assert looked
    for shape in looked:
        assert mixing.rate(shape) >= best[counts_of(shape)] * (1 - 1e-9), seed


def _drawn_groups(draw: random.Random) -> list[list[float]]:
    """Groups of machines of two or three kinds, all of a size."""
    kinds, size = draw.sample([1.0, 2.0, 3.0, 5.0], draw.randint(2, 3)), draw.randint(1, 4)
    return [[draw.choice(kinds) for _ in range(size)] for _ in range(draw.randint(1, 4))]


def test_groups_with_one_set_of_tags_do_no_more_than_their_bound() -> None:
    """Whatever shares of a step 300 drawn sets of groups give to their places, and for any groups of these machines."""
    draw = random.Random(0)
    for _ in range(300):
        groups = _drawn_groups(draw)
        machines = [rate for group in groups for rate in group]
        by_groups, by_machines = together(groups), best_together(machines, len(groups[0]), len(groups))
        assert by_groups <= by_machines * (1 + 1e-12)
        for _ in range(30):
            shares = [draw.choice([1.0, *draw.choice(groups)]) for _ in groups[0]]
            steps = (min(rate / share for rate, share in zip(group, shares, strict=True)) for group in groups)
            assert sum(shares) * sum(steps) <= by_groups * (1 + 1e-9)


def test_two_kinds_of_machines_with_one_set_of_tags_by_hand() -> None:
    """Sixteen of 40 and fourteen of 18 in five groups of six: at best four groups with four strong ones, which do 196 each,
    and one that does 18 / 40 of that; all that the machines could do is 892."""
    assert best_together([40.0] * 16 + [18.0] * 14, 6, 5) == pytest.approx(196 * (4 + 18 / 40))
    like = [[40.0] * 6] * 2 + [[18.0] * 6] * 2 + [[40.0] * 4 + [18.0] * 2]
    assert together(like) == pytest.approx(240 * 2 + 108 * 3)


def test_a_machine_has_one_role_in_the_bound() -> None:
    """Of a strong machine and two weak ones that only train, the strong one must be the sync server of two groups."""
    machines = (node("strong", cores=3), *(node(f"w{i}", cores=1, role="trainer") for i in range(2)))
    made, shapes = compositions_of(machines, group_size=1)
    (shape,) = [shape for shape in shapes if len(shape.groups) == 2]
    assert made.bounds.rate(made.bounded(shape)) == pytest.approx(4 / 1e-3)
    assert made.bounds.rate(made.refined(made.bounded(shape))) == pytest.approx(2 / 1e-3)
