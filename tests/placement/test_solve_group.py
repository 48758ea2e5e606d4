"""The integer program against exhaustive search, and the solver loop around it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models.costs import CostTable, OpCost, PhaseCost
from placement.deadline import Deadline
from placement.evaluation.evaluate import evaluate
from placement.evaluation.group import GroupProblem
from placement.plan import DP
from placement.tagging.baselines import baselines
from placement.tagging.formulation import Formulation
from placement.tagging.limits import Limits
from placement.tagging.nets import Contracted
from placement.tagging.solve import GroupSolution, solve_group
from problem.graph import Graph, Kind, Operator
from problem.model import Model
from tests.instances import exhaustive, linear, node, nodes, op_cost, random_group, two_layers

SAME = 1e-6  # relative: the rounding of the integer program


@pytest.mark.parametrize("decade", range(25))
def test_exhaustive_search_equals_the_integer_program(decade: int) -> None:
    """On 250 random groups of up to 7 operators and 3 nodes the solver finds and proves what trying everything finds."""
    for seed in range(10 * decade, 10 * decade + 10):
        problem = random_group(seed)
        best, _ = exhaustive(problem)
        found = solve_group(Contracted(problem))
        if best == float("inf"):
            assert found.infeasible, f"seed {seed}: nothing fits, but the solver does not say so"
        else:
            assert found.seconds == pytest.approx(best, rel=SAME), f"seed {seed}"
            assert found.bound_seconds <= best * (1 + 1e-9), f"seed {seed}: the bound is not one"
            assert found.within(10 * SAME), f"seed {seed}: not proven"


@pytest.mark.parametrize("share", [0.7, 0.999, 1.001])
def test_a_search_ends_where_nothing_is_wanted_any_more(share: float) -> None:
    """Told what step is of no use, it proves that much or the optimum; the bound holds, a better placement is found."""
    for seed in range(8):
        best, _ = exhaustive(problem := random_group(seed))
        if best == float("inf"):
            continue
        wanted = share * best
        found = solve_group(Contracted(problem), Limits(enough_seconds=wanted))
        assert found.bound_seconds <= best * (1 + 1e-9), f"seed {seed}: the bound is not one"
        assert found.bound_seconds >= min(wanted, best) * (1 - 10 * SAME), f"seed {seed}: ended too early"
        assert found.seconds >= best * (1 - SAME)
        assert share <= 1 or found.seconds <= wanted


def test_random_groups_cover_what_they_must() -> None:
    """Memory limits, components, pins, unlike nodes, one host, several groups, MP and forbidden optima: all are drawn."""
    problems = [random_group(seed) for seed in range(250)]
    assert any(len({n.cores for n in p.nodes}) > 1 for p in problems)
    assert any(p.pins for p in problems)
    assert any(len(item.ops) > 1 for p in problems for item in Contracted(p).items)
    assert any(p.one_host and p.size > 1 for p in problems)
    assert any(p.groups > 1 for p in problems)
    assert any(p.split_tables for p in problems)
    assert sum(exhaustive(p)[0] == float("inf") for p in problems[:100]) > 3
    forbidden = [p for p in problems[:100] if p.forbids]
    best = {id(p): exhaustive(replace(p, forbids={}))[1] or {} for p in forbidden}
    assert sum(any(best[id(p)].get(op) in tags for op, tags in p.forbids.items()) for p in forbidden) > 10
    tags = [solve_group(Contracted(p)).tags or {} for p in problems[:60]]
    assert sum(any(tag != DP for tag in found.values()) for found in tags) > 15


def test_two_layers_by_hand() -> None:
    """The tiny instance has the optimum worked out in its docstring, and the other answer with slow NICs."""
    problem = two_layers()
    found = solve_group(Contracted(problem))
    assert found.tags == {"x": DP, "wide": DP, "small": DP, "loss": DP}
    assert found.seconds == pytest.approx(7e-3)
    slow = replace(problem, nodes=tuple(replace(n, nic_bytes_per_second=0.4e9) for n in problem.nodes))
    found = solve_group(Contracted(slow))
    assert found.tags == {"x": DP, "wide": 0, "small": DP, "loss": DP}
    assert found.seconds == pytest.approx(8e-3, rel=1e-3)


def test_never_worse_than_the_best_baseline_even_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no solver time at all the best baseline is returned, with a bound that holds (a busy machine given its time)."""
    monkeypatch.setattr("placement.tagging.baselines.GRACE", 60.0)
    for seed in range(20):
        data = Contracted(random_group(seed))
        fitting = [b.evaluation.seconds for b in baselines(data) if b.evaluation.fits]
        found = solve_group(data, Limits(deadline=Deadline(0.0), deterministic_seconds=0.0))
        if fitting:
            assert found.seconds <= min(fitting)
            assert found.bound_seconds <= found.seconds


def test_reported_bound_and_value_are_those_of_the_evaluator() -> None:
    """The step that is reported is the evaluator's own, not the solver's."""
    data = Contracted(random_group(3))
    found = solve_group(data)
    assert found.tags is not None
    assert found.seconds == evaluate(data.problem, found.tags).seconds


def _chain(seconds: list[float], size: list[int], count: int, memory: int = 10**9, **changes: float) -> GroupProblem:
    """Imported operators of the given cost and bytes in a chain, one rank."""
    ops, costs, source = [], {}, ()
    for i, (cost, held) in enumerate(zip(seconds, size, strict=True)):
        ops.append(Operator(f"op{i}", Kind.FIXED, source, 0, held // 4))
        costs[f"op{i}"] = OpCost(PhaseCost(cost))
        source = (f"op{i}",)
    machines = nodes(count, memory_bytes=memory, cores=1, **changes)
    return GroupProblem(Model("chain", Graph(tuple(ops))), CostTable(1, costs, kind="tiny"), machines, 1, hogwild=64)


@pytest.mark.parametrize("ratio", [1e4, 1e5, 1e9, 1e18])
def test_costs_far_apart(ratio: float) -> None:
    """Costs that differ by up to 18 orders of magnitude do not break the scaling: the large one decides."""
    problem = _chain([1.0, 1.0 / ratio], [4, 4], 2)
    found = solve_group(Contracted(problem))
    assert found.seconds == pytest.approx(1.0)
    assert found.within(1e-5)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_costs_of_nanoseconds_and_of_years(scale: float) -> None:
    """The unit of the integer program is chosen from the data, so the same plan is found at any scale."""
    problem = _chain([3 * scale, 2 * scale, 2 * scale, 1 * scale], [4] * 4, 2)
    found = solve_group(Contracted(problem))
    assert found.seconds == pytest.approx(4 * scale)
    assert found.within(1e-5)


def test_terabyte_operators_on_terabyte_nodes() -> None:
    """Two operators of 1e12 bytes on two nodes of 1e12 bytes: one on each, exactly full."""
    found = solve_group(Contracted(_chain([100.0, 1.0], [10**12] * 2, 2, memory=10**12)))
    assert found.tags is not None
    assert {str(tag) for tag in found.tags.values()} == {"dp", "1"}


def test_six_operators_of_1e14_bytes() -> None:
    """Six operators of 1e14 bytes on three nodes of 3e14: two on each balance the work; sums beyond 2**53 are exact."""
    found = solve_group(Contracted(_chain([100.0] * 6, [10**14] * 6, 3, memory=3 * 10**14)))
    assert found.seconds == pytest.approx(200.0)
    assert found.within(1e-5)


def test_twelve_equal_operators_give_one_plan() -> None:
    """All ties: the same tags every time."""
    problem = _chain([1.0] * 12, [4] * 12, 4)
    first, second = (solve_group(Contracted(problem)) for _ in range(2))
    assert first.tags == second.tags
    assert first.seconds == pytest.approx(3.0)


def test_free_operators_that_fill_memory_are_spread() -> None:
    """Operators that cost nothing but 8 GiB each do not all go to one node of 16 GiB."""
    found = solve_group(Contracted(_chain([1.0] + [0.0] * 7, [1000] + [8 * 2**30] * 7, 8, memory=2**34)))
    assert found.evaluation is not None
    assert found.evaluation.fits


def test_nothing_costs_anything() -> None:
    """A graph without any cost has an optimal plan and an infinite rate, not a division by zero."""
    found = solve_group(Contracted(_chain([0.0, 0.0], [4, 4], 2)))
    assert found.seconds == 0
    assert found.evaluation is not None
    assert found.evaluation.samples_per_second == float("inf")


def test_equal_nodes_share_one_row() -> None:
    """Of 32 equal ranks only as many as there are open items appear in the model, and one for the rest."""
    problem = replace(two_layers(), nodes=nodes(32), ranks=32)
    form = Formulation(Contracted(problem), best_seconds=1.0)
    assert [(row.node, row.copies) for row in form.rows] == [(0, 1), (1, 1), (2, 30)]


def test_relabelling_equal_nodes_changes_nothing() -> None:
    """The canonical form of a placement is worth what the placement is worth, on equal nodes."""
    problem = replace(two_layers(), nodes=nodes(4), ranks=4)
    tags = {"x": DP, "wide": 3, "small": 2, "loss": DP}
    canonical = Contracted(problem).canonical(tags)
    assert canonical == {"x": DP, "wide": 0, "small": 1, "loss": DP}
    assert evaluate(problem, canonical).seconds == pytest.approx(evaluate(problem, tags).seconds, rel=1e-12)


def test_an_idle_node_more_never_hurts() -> None:
    """Another node that need not be a rank never worsens the optimum."""
    for seed in range(30):
        problem = random_group(seed)
        wider = replace(problem, nodes=(*problem.nodes, node("extra", cores=1)))
        before, after = (solve_group(Contracted(p)) for p in (problem, wider))
        assert after.seconds <= before.seconds * (1 + SAME)


@pytest.mark.parametrize("most_items", [200, 0])
def test_components_stay_together_and_pins_hold(most_items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every placement respects components, pins and what is forbidden; so do those of local search alone."""
    monkeypatch.setattr("placement.tagging.solve.MOST_ITEMS", most_items)
    for seed in range(60):
        problem = random_group(seed)
        found: GroupSolution = solve_group(Contracted(problem))
        for op in problem.model.graph if found.tags else ():
            if op.name in problem.pins:
                assert found.tags[op.name] == problem.pins[op.name]
            assert found.tags.get(op.name) not in problem.forbids.get(op.name, ()), seed
            mates = [o.name for o in problem.model.graph if op.component and o.component == op.component]
            assert len({str(found.tags[name]) for name in mates}) <= 1


def test_wide_layers_move_to_one_node_when_the_network_is_slow() -> None:
    """With a slow NIC a layer with many parameters is model-parallel, for its all-reduce would cost more than its cut."""
    graph = Graph(
        (
            Operator("x", Kind.DENSE_INPUT, (), 1),
            linear("wide", "x", 1, 10**7),
            Operator("loss", Kind.LOSS, ("wide",), 1),
        )
    )
    costs = CostTable(1, {"x": OpCost(), "wide": op_cost(1e-3), "loss": OpCost()}, kind="tiny")
    problem = GroupProblem(
        Model("wide", graph), costs, nodes(4, nic_bytes_per_second=1e8, memory_bytes=10**11), 1, 64, 4
    )
    assert (solve_group(Contracted(problem)).tags or {})["wide"] == 0


def test_nanoseconds_years_and_petabytes_in_one_instance() -> None:
    """Costs of 1e-9 to 1e9 s and 4 to 1e15 bytes at once: exhaustive search agrees, and no node holds both large ones."""
    problem = _chain([1e9, 4e8, 1e-9, 6e8, 1.0], [10**15, 4, 10**3, 10**15, 10**9], 2, memory=10**15 + 10**10)
    best, _ = exhaustive(problem)
    found = solve_group(Contracted(problem))
    assert found.seconds == pytest.approx(best, rel=1e-6)
    assert found.within(1e-5)
    assert found.tags is not None
    assert found.tags["op0"] != found.tags["op3"]


def test_bug_a_bound_that_servers_explain_was_taken_for_one_of_all_shardings() -> None:
    """A node is busiest, but what is proven is what a server takes: the server binds; beyond that it does not."""
    found = solve_group(Contracted(two_layers()))
    assert not found.server_binds
    assert replace(found, served_seconds=found.bound_seconds).server_binds
    assert not replace(found, served_seconds=found.bound_seconds * 0.9).server_binds
