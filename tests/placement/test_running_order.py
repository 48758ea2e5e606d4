"""The order in which a plan runs its operators: the best of those tried, by the evaluator and in the simulator."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path

import pytest

from cost_models.costs import CostTable, OpCost, PhaseCost
from cost_models.roofline import roofline_costs
from placement.deadline import Deadline
from placement.evaluation.evaluate import evaluate
from placement.explain import rate_of
from placement.plan import Plan, Tag
from placement.planfile import load_plan, save_plan
from placement.result import PlacementResult
from placement.search.input_order import ordered_graph, ordered_model
from placement.search.job import solve
from placement.search.options import SolveOptions
from placement.search.outcome import Solved, problems_of
from placement.search.running_order import reordered
from placement.search.shapes import Shape
from problem.cluster import Cluster
from problem.errors import BadInput
from problem.graph import Graph, Kind, Operator
from problem.model import Model
from problem.readers import model_from_spec
from programs.transform import transform
from simulator.folding import Folding
from simulator.machines import Sharing
from simulator.observer import Observer
from simulator.scenario import stage
from tests.programs import plans
from tests.simulator.instances import BATCH, US, machine, make_costs, table


def _branched(layers: list[int], order: tuple[int, ...] = ()) -> Model:
    """Branches of some layers, each over the dense features and a table of its own, listed in some order, then a top."""
    names = "abcdef"[: len(layers)]
    ops = [Operator("dense", Kind.DENSE_INPUT, width=2)]
    ops += [Operator(name, Kind.LOOKUP, width=2, table=name) for name in names]
    for branch in order or range(len(layers)):
        inputs = ("dense", names[branch])
        for layer in range(layers[branch]):
            ops.append(Operator(f"{'xyz'[layer]}{branch}", Kind.LINEAR, inputs, 2, 500))
            inputs = (ops[-1].name,)
    ends = tuple(f"{'xyz'[count - 1]}{branch}" for branch, count in enumerate(layers))
    ops += [Operator("top", Kind.LINEAR, ends, 2, 500), Operator("loss", Kind.LOSS, ("top",), 1)]
    return Model("branches", Graph(tuple(ops)), tuple(table(name) for name in names), batch=BATCH)


def _plan(model: Model, costs: CostTable, *, named: str = "m", **options: object) -> PlacementResult:
    settings = {"max_replicas": 1, "hogwild": 1, "group_size": 2, "servers": 2, "ranks": 1, **options}
    cluster = Cluster("c", tuple(machine(f"{named}{index}") for index in range(4)))
    return solve(model, cluster, lambda *_: costs, SolveOptions(**settings))  # type: ignore[arg-type]


def _reordered(plan: Plan, graph: Graph) -> Plan:
    return replace(plan, model=replace(plan.model, graph=graph))


def _simulated(plan: Plan, costs: CostTable) -> float:
    """Samples per second without variation."""
    observer = Observer(stage(transform(plan), costs, Sharing.NODE, 0.0, Folding(merged=True)), 16, 4, record=False)
    observer.run()
    return float(observer.rates()[0])


@cache
def _three(remote: int, servers: int = 2) -> PlacementResult:
    """Three branches of two layers, one of them on another node, and servers of their tables."""
    model = _branched([2, 2, 2])
    pins: dict[str, Tag] = {op.name: "dp" for op in model.graph if op.kind is Kind.LINEAR}
    return _plan(model, make_costs(model), pins=pins | {f"x{remote}": 1, f"y{remote}": 1}, servers=servers)


@pytest.mark.parametrize("remote", range(3))
def test_three_branches_run_in_the_best_of_their_orders(remote: int) -> None:
    """Whichever of three branches is on another node, the plan does at least as much as the best order of branches,
    predicted and simulated; the worst, which a file may well have, does 0.7 of it."""
    plan, costs = _three(remote).plan, make_costs(_three(remote).plan.model)
    others = [_reordered(plan, _branched([2, 2, 2], order).graph) for order in permutations(range(3))]
    for judge in (rate_of, _simulated):
        rates = [judge(other, costs) for other in others]
        assert judge(plan, costs) >= max(rates) * (1 - 1e-9)
        assert min(rates) < 0.73 * max(rates)


def test_a_plan_that_is_worth_less_wins_by_its_order() -> None:
    """All operators data-parallel do more than a branch on another node in the order of names, and less in its best one."""
    model = ordered_model(_branched([2, 2, 2]))
    every: dict[str, Tag] = {op.name: "dp" for op in model.graph if op.kind is not Kind.LOOKUP}
    plan, costs = _three(0).plan, make_costs(model)
    shape = Shape(2, plan.groups, plan.servers, (), plan.ranks)
    problems = problems_of(shape, plan.shards, model, costs, (plan.batch, 1), SolveOptions(max_replicas=1))

    def solved(tags: dict[str, Tag]) -> Solved:
        value = evaluate(problems[0], tags).samples_per_second
        return Solved(shape, plan.shards, problems, 0.0, tags=tags, value=value, score=value)

    first, other = solved(every), solved(every | {"x2": 1, "y2": 1})
    assert first.value > other.value
    best, said = reordered([first], Deadline(), [other])
    assert best is other
    assert best.value > first.value
    assert said


def test_what_is_said_of_a_plan_in_another_order() -> None:
    """Where the order of names is the best one, the bound is tight. Where it is not, the value is that of the order, the
    bound holds for every order, is within a tenth of it (shapes alone promise twice as much), and both are said."""
    first, last = _three(0, servers=1), _three(2, servers=1)
    assert first.plan.model.graph == ordered_graph(first.plan.model.graph)
    assert (first.status, first.gap) == ("optimal", pytest.approx(0.0, abs=1e-6))
    assert last.plan.model.graph != ordered_graph(last.plan.model.graph)
    assert last.objective == pytest.approx(rate_of(last.plan, last.costs))
    assert last.objective <= last.bound < 1.1 * last.objective
    assert len(last.assumptions) == len(first.assumptions) + 1
    assert max(point.samples_per_second or 0.0 for point in last.curve) == last.objective


def _saved(folder: Path) -> tuple[Plan, Path]:
    """A plan file of a model whose branches, projections of two tables, do not run in the order of the description."""
    tables = [{"name": name, "rows": 300, "dim": 20} for name in "ab"]
    spec = {"kind": "dlrm", "name": "mixed", "dense_features": 13, "bottom_mlp": [16, 8], "top_mlp": [16, 1]}
    model = model_from_spec({**spec, "interaction": "fm", "projection_dim": 8, "tables": tables})
    graph = model.graph.in_order(sorted(model.graph.order, key=lambda name: name != "b_projection"))
    plan = plans.plan(replace(model, graph=graph), nodes=2, tags={"b_projection": 1})
    assert plan.model.graph.order != model.graph.order
    save_plan(folder / "plan.json", plan, roofline_costs(model, plan.batch, plan.servers[0]))
    return plan, folder / "plan.json"


def test_a_plan_file_keeps_the_order(tmp_path: Path) -> None:
    """A plan that is saved and read again is the same, order of operators included; without one, that of the model."""
    plan, path = _saved(tmp_path)
    assert load_plan(path).plan == plan
    document = json.loads(path.read_text())
    del document["plan"]["order"]
    path.write_text(json.dumps(document))
    assert load_plan(path).plan.model.graph == model_from_spec(plan.model.spec).graph


@pytest.mark.parametrize(
    "change", [lambda names: names[1:], lambda names: [*names, "a"], lambda names: [*names, names[0]]]
)
def test_an_order_that_is_none_is_refused(change: Callable[[list[str]], list[str]], tmp_path: Path) -> None:
    """An operator left out, a look-up, an operator twice: one line with the file, the field and the operator."""
    _, path = _saved(tmp_path)
    document = json.loads(path.read_text())
    first = document["plan"]["order"][0]
    document["plan"]["order"] = change(document["plan"]["order"])
    path.write_text(json.dumps(document))
    with pytest.raises(BadInput, match=rf"plan.json: plan.order = '?({first}|a)'?: each operator"):
        load_plan(path)


def test_the_search_starts_again_from_a_plan_in_another_order() -> None:
    """Planned again from a plan whose order is not that of names, moving being dear: the same plan, nothing moved."""
    first = _three(2)
    same = _plan(first.plan.model, first.costs, warm_start=first.plan, movement_seconds_per_byte=1.0, gap=0.9)
    assert (same.plan.tags, same.plan.model.graph) == (first.plan.tags, first.plan.model.graph)
    assert same.moved_bytes == 0


def test_moving_may_be_too_dear_for_any_number() -> None:
    """All machines being new, and moving a byte costing more than numbers hold, the same order is found all the same."""
    first = _three(2)
    model, pins = first.plan.model, first.plan.tags
    moved = _plan(
        model, first.costs, named="n", pins=pins, warm_start=first.plan, movement_seconds_per_byte=1e306, gap=0.9
    )
    assert moved.moved_bytes
    assert moved.plan.model.graph.order == first.plan.model.graph.order


def _random(seed: int) -> tuple[Model, CostTable, dict[str, object]]:
    """Two to four branches of one to three layers of unlike costs, one or two of them on another node."""
    draw = random.Random(seed)
    layers = [draw.randint(1, 3) for _ in range(draw.randint(2, 4))]
    model = _branched(layers, tuple(draw.sample(range(len(layers)), len(layers))))
    costs = make_costs(model)
    for name, cost in costs.ops.items():
        factor = 10 ** draw.uniform(-0.7, 0.7) if name[0] in "xyz" else 1.0
        phases = (cost.forward, cost.backward, cost.update)
        costs.ops[name] = OpCost(*(PhaseCost(round(phase.core_seconds / US * factor) * US) for phase in phases))  # type: ignore[index]
    away = draw.sample(range(len(layers)), draw.randint(1, 2))
    pins = {op.name: 1 for op in model.graph if op.name[0] in "xyz" and int(op.name[1]) in away}
    return model, costs, {"pins": pins, "ranks": draw.choice([1, 2]), "hogwild": draw.choice([1, 1, 2]), "gap": 0.9}


def _never_worse(seeds: Iterable[int]) -> list[float]:
    """Plan random branches; return what the order makes of the samples per second in the simulator."""
    gains = []
    for seed in seeds:
        model, costs, options = _random(seed)
        plan = _plan(model, costs, **options).plan
        plain = _reordered(plan, ordered_graph(model.graph))
        assert rate_of(plan, costs) >= rate_of(plain, costs) * (1 - 1e-9), seed
        gains.append(_simulated(plan, costs) / _simulated(plain, costs))
    return gains


def test_an_order_is_never_worse() -> None:
    """5 random jobs: no less than in the order of names by the evaluator, no less than 1 % less in the simulator."""
    assert min(_never_worse((0, 1, 3, 4, 5))) > 0.99


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_order_is_never_worse_on_many() -> None:
    """The same on 100; some gain more than a tenth."""
    gains = _never_worse(range(100))
    assert min(gains) > 0.99
    assert max(gains) > 1.1


def test_the_order_of_the_file_decides_nothing() -> None:
    """Operators listed in another order, the same plan in the same order."""
    model, costs, options = _random(3)
    shuffled = random.Random(1).sample(model.graph.operators, len(model.graph))
    other = replace(model, graph=Graph(tuple(shuffled)))
    assert _plan(other, costs, **options).plan == _plan(model, costs, **options).plan
