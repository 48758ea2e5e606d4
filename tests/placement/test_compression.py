"""Codecs as decisions: against enumeration, never worse than without, under the guard, with a bound that holds."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from cost_models.costs import CostTable, MessageCost, PhaseCost, TableCost
from cost_models.quality import quality_changes
from placement.deadline import Deadline
from placement.evaluation.evaluate import evaluate
from placement.evaluation.group import GroupProblem, server_links
from placement.plan import DP, Shard, Sync, Tag
from placement.planfile import load_plan, save_plan
from placement.search import guard as guards
from placement.search.compression import _Chooser, choose, solve_coded
from placement.search.guard import MOST_SPARSE, QUALITY_LOSS, Guard, is_sparse
from placement.search.job import solve
from placement.search.options import SolveOptions
from placement.tagging.limits import Limits
from placement.tagging.nets import Contracted
from placement.tagging.solve import solve_group
from problem.cluster import Cluster
from problem.errors import BadInput
from problem.expand import expand_model
from problem.graph import Graph, Kind, Operator
from problem.model import EmbeddingTable, Model
from problem.schema import ModelSpec
from tests.instances import linear, node, nodes, op_cost

LIMITS = Limits(deterministic_seconds=2.0, rounds=10)
#: Codecs for tests of the method, whatever was measured.
CUTS, ROUNDED, REDUCED = ("bf16", "dct-mp:0.1"), ("bf16", "rowwise8"), ("bf16", "dct-dp:0.05:10")


def _problem(seed: int, nic: float | None = None, *, free: bool = False) -> GroupProblem:
    """Two towers of rectified layers and a table on two or three ranks, whose network is slow more often than not.

    ``free``: messages take neither core time nor latency.
    """
    draw = random.Random(seed)
    rectified = {
        name: replace(linear(name, source, width, parameters), activation="relu")
        for name, source, width, parameters in (
            ("left", "x", draw.choice([64, 256]), draw.choice([1000, 50_000])),
            ("right", "x", draw.choice([64, 256]), draw.choice([1000, 50_000])),
        )
    }
    width = 16 + sum(op.width for op in rectified.values())
    graph = Graph(
        (
            Operator("x", Kind.DENSE_INPUT, (), 32),
            *rectified.values(),
            Operator("t", Kind.LOOKUP, (), 16, table="t"),
            Operator("all", Kind.CONCAT, ("left", "right", "t"), width),
            linear("logit", "all", 1, width + 1),
            Operator("loss", Kind.LOSS, ("logit",), 1),
        )
    )
    model = Model("towers", graph, (EmbeddingTable("t", 100, 16),), batch=32)
    ops = {op.name: op_cost(draw.choice([1e-5, 1e-4, 1e-3])) for op in graph if op.kind is not Kind.LOOKUP}
    table, message = (
        TableCost(PhaseCost(1e-6), PhaseCost(1e-6)),
        MessageCost() if free else MessageCost(1e-6, 2e-10, 1e-6, 2e-10, 3e-7, 5e-7),
    )
    costs = CostTable(32, ops, {"t": table}, message, 1e-6, 1e-6, 2e-10, 2e-10, "tiny", 1e9)
    count, rate = draw.choice([2, 2, 3]), nic or draw.choice([2e6, 2e7, 2e8, 1e10])
    shards = (Shard("t", 0, 0, 100),)
    servers = server_links(model, 32, (node("ps0", cores=8, nic_bytes_per_second=8 * rate),), shards, costs)
    machines = nodes(count, cores=2, nic_bytes_per_second=rate, latency_seconds=0.0 if free else 1e-5)
    pins: dict[str, Tag] = {"all": DP, "logit": DP}
    return GroupProblem(model, costs, machines, 32, draw.choice([1, 4]), count, pins, servers)


def _offers(problem: GroupProblem) -> dict[str, tuple[str, ...]]:
    towers = dict.fromkeys(("left", "right"), CUTS)
    return towers | {"x": ("bf16",), "t": ("bf16",), "pooled": ROUNDED, "push": ROUNDED, "allreduce": REDUCED}


def _placements(problem: GroupProblem) -> Iterator[dict[str, Tag]]:
    fixed: dict[str, Tag] = {op.name: DP for op in problem.model.graph if op.kind is not Kind.LOOKUP}
    places = [DP, *range(problem.size)]
    for left, right in product(places, places):
        yield {**fixed, "left": left, "right": right}


def _choices(problem: GroupProblem, tags: Mapping[str, Tag]) -> Iterator[dict[str, str]]:
    """All choices of codecs, for the edges that a placement has."""
    cut = {name for name in ("left", "right") if tags[name] != DP}
    used = {"pooled", "push", *({"x"} if cut else ()), *cut}
    used |= {"allreduce"} if problem.ranks > 1 else set()
    offers = {edge: ("fp32", *names) for edge, names in _offers(problem).items() if edge in used}
    for names in product(*offers.values()):
        yield {edge: name for edge, name in zip(offers, names, strict=True) if name != "fp32"}


def _optimum(problem: GroupProblem) -> float:
    """Shortest step over all placements and codecs (sparse ones at two operators at most, of which there are two)."""
    return min(
        evaluate(replace(problem, codecs=codecs), tags).seconds
        for tags in _placements(problem)
        for codecs in _choices(problem, tags)
    )


def _against_enumeration(seeds: range) -> tuple[list[float], list[float]]:
    """Optimum over what taking turns finds, and the bound, which must not be above it, over the optimum."""
    found, bounds = [], []
    for seed in seeds:
        problem = _problem(seed)
        solution, best = solve_coded(Contracted(problem), _offers(problem), LIMITS, 0.0), _optimum(problem)
        assert solution.bound_seconds <= best * (1 + 1e-6)
        found.append(best / solution.seconds)
        bounds.append(solution.bound_seconds / best)
    return found, bounds


def test_taking_turns_reaches_the_optimum_of_small_instances() -> None:
    """An instance: at least 99 % of the best of all placements with all codecs, and a bound as close that none beats."""
    reached, bounds = _against_enumeration(range(1))
    assert min(reached) >= 0.99
    assert min(bounds) >= 0.99  # with all edges open it is 0.92


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_taking_turns_reaches_the_optimum_of_many_small_instances() -> None:
    """The same for 60 instances."""
    reached, bounds = _against_enumeration(range(60))
    exact = sum(r >= 1 - 1e-6 for r in reached)
    print(
        f"optimum reached: {min(reached):.4f} at worst, {exact} of {len(reached)} exactly; bound {min(bounds):.4f} of it"
    )
    assert min(reached) >= 0.99
    assert min(bounds) >= 0.95


@pytest.mark.parametrize("seed", range(4))
def test_the_integer_program_counts_decided_codecs(seed: int) -> None:
    """With codecs given, the proven optimum is that of all placements, each evaluated with these codecs."""
    draw, problem = random.Random(seed), _problem(seed)
    offers = _offers(problem)
    problem = replace(problem, codecs={edge: draw.choice(("fp32", *names)) for edge, names in offers.items()})
    found = solve_group(Contracted(problem), LIMITS)
    best = min(evaluate(problem, tags).seconds for tags in _placements(problem))
    assert found.seconds == pytest.approx(best, rel=1e-9)
    assert found.bound_seconds <= best * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_codecs_never_make_a_plan_worse(seed: int) -> None:
    """With codecs on offer the step is at most as long as without, and it is what the evaluator says of tags and codecs."""
    problem = _problem(seed)
    plain = solve_group(Contracted(problem), LIMITS)
    found = solve_coded(Contracted(problem), _offers(problem), LIMITS, 0.0)
    assert found.tags is not None
    assert found.seconds <= plain.seconds
    assert evaluate(replace(problem, codecs=found.codecs), found.tags).seconds == found.seconds


def test_no_codec_is_chosen_on_a_fast_network_and_some_on_a_slow_one() -> None:
    """Where messages are nearly free, encoding costs more than it saves; at 2 MB/s the group more than doubles its speed."""
    fast, slow = _problem(3, nic=1e12, free=True), _problem(3, nic=2e6)
    found = solve_coded(Contracted(fast), _offers(fast), LIMITS, 0.0)
    assert found.codecs == {}
    plain, found = solve_group(Contracted(slow), LIMITS), solve_coded(Contracted(slow), _offers(slow), LIMITS, 0.0)
    assert found.codecs
    assert found.seconds < 0.5 * plain.seconds


def test_codecs_that_change_nothing_are_left_out() -> None:
    """Taking any chosen codec away makes the step longer."""
    problem = _problem(5, nic=2e6)
    tags: dict[str, Tag] = {op.name: DP for op in problem.model.graph if op.kind is not Kind.LOOKUP}
    codecs = choose(problem, tags | {"left": 1}, _offers(problem))
    assert codecs
    chosen = evaluate(replace(problem, codecs=codecs), tags | {"left": 1}).seconds
    for edge in codecs:
        fewer = {key: name for key, name in codecs.items() if key != edge}
        assert evaluate(replace(problem, codecs=fewer), tags | {"left": 1}).seconds > chosen


@pytest.mark.parametrize("seed", range(12))
def test_an_open_problem_promises_no_less_than_any_codecs(seed: int) -> None:
    """With every edge open, loads, memory and path of a placement are at most those under any choice of codecs."""
    draw, problem = random.Random(seed), _problem(seed)
    tags = draw.choice(list(_placements(problem)))
    least = evaluate(replace(problem, open_codecs=_offers(problem)), tags)
    choices = list(_choices(problem, tags))
    for codecs in (*draw.sample(choices, min(20, len(choices))), {}):
        value = evaluate(replace(problem, codecs=codecs), tags)
        assert least.latency_seconds <= value.latency_seconds * (1 + 1e-12)
        for low, load in zip(least.loads, value.loads, strict=True):
            assert all(a <= b * (1 + 1e-12) for a, b in zip(low.resources, load.resources, strict=True))


def test_no_more_sparse_cuts_than_were_measured() -> None:
    """Four towers behind a slow network: two of them are thinned out, the others rounded at most."""
    towers = [replace(linear(f"tower{i}", "x", 256, 50_000), activation="relu") for i in range(4)]
    names = tuple(op.name for op in towers)
    graph = Graph(
        (
            Operator("x", Kind.DENSE_INPUT, (), 4),
            *towers,
            Operator("all", Kind.CONCAT, names, 1024),
            Operator("loss", Kind.LOSS, ("all",), 1),
        )
    )
    costs = CostTable(32, {op.name: op_cost(1e-5) for op in graph}, kind="tiny", flops_per_core_second=1e9)
    problem = GroupProblem(Model("towers", graph), costs, nodes(2, nic_bytes_per_second=1e6), 32, 4, 2)
    tags: dict[str, Tag] = dict.fromkeys((op.name for op in graph), DP) | dict.fromkeys(names, 0)
    codecs = choose(problem, tags, dict.fromkeys(names, CUTS))
    assert set(codecs) == set(names)
    assert sum(is_sparse(name) for name in codecs.values()) == MOST_SPARSE


def test_the_guard_goes_by_the_worse_end_of_what_was_measured() -> None:
    """By default no codec whose interval ends above 0.1 %; with 1 % more; never one that was not measured at a place."""
    model = _problem(0).model
    for loss in (QUALITY_LOSS, 0.01):
        offers = Guard(loss=loss).offers(model, algorithm="push", decided={})
        for edge, names in offers.items():
            for name in names:
                found = guards.measurements(edge, name, model)
                assert all(one is not None and one.high <= 100 * loss for one in found)
    strict, wide = (Guard(loss=loss).allowed("left", model) for loss in (QUALITY_LOSS, 0.01))
    assert "dct-mp:0.1" in wide
    assert "dct-mp:0.1" not in strict
    assert Guard(("sketch:0.9",), 1.0).allowed("left", model) == ()
    assert len(Guard(loss=1e9).allowed("allreduce", model)) == len(
        [one for one in quality_changes() if one.place == "allreduce"]
    )


def test_the_guard_says_how_long_the_runs_were() -> None:
    """What a codec may cost stands beside the lengths of the runs in which that was measured."""
    assert "up to 0.3 % of quality at each edge" in Guard(loss=0.003).said()
    assert "in runs of 600 to 3,000 steps" in Guard(loss=0.003).said()


def test_sparse_codecs_are_for_rectified_layers() -> None:
    """Elements are left out where that was measured: not of inputs, tables or sums that are negative as well."""
    model = _problem(0).model
    allowed = {edge: Guard(loss=1.0).allowed(edge, model) for edge in ("left", "x", "t", "all")}
    assert any(map(is_sparse, allowed["left"]))
    assert not any(is_sparse(name) for edge in ("x", "t", "all") for name in allowed[edge])


def _job(rate: float) -> tuple[Model, Cluster]:
    """A small model, and six machines on a network of so many bytes per second."""
    tables = ({"name": "t", "rows": 1000, "pooling_factor": 2.0},)
    spec = ModelSpec(
        name="m",
        dense_features=4,
        bottom_mlp=(64, 32),
        top_mlp=(256, 256, 1),
        embedding_dim=32,
        tables=tables,
        batch=64,
    )
    model = expand_model(spec, "test")
    return model, Cluster("slow", tuple(node(f"m{i}", cores=2, nic_bytes_per_second=rate) for i in range(6)))


def test_a_search_chooses_codecs_and_its_plan_file_keeps_them(tmp_path: Path) -> None:
    """On a network of 3 MB/s the plan names codecs that the guard allows, does more than without, within the bound; what a
    plan file gives back is the same plan, and a second search finds it again."""
    model, cluster = _job(3e6)
    options = SolveOptions(hogwild=2, time_limit_seconds=20.0, group_size=2, max_replicas=1, servers=2)
    plain = solve(model, cluster, options=options)
    found = solve(model, cluster, options=replace(options, guard=Guard(loss=0.01)))
    assert found.plan.codecs
    offers = Guard(loss=0.01).offers(model, algorithm="easgd", decided={})
    assert all(name in offers[edge] for edge, name in found.plan.codecs.items())
    assert plain.objective < found.objective <= found.bound * (1 + 1e-9)
    save_plan(tmp_path / "plan.json", found, found.costs)
    assert load_plan(tmp_path / "plan.json").plan == found.plan
    again = solve(model, cluster, options=replace(options, guard=Guard(loss=0.01)))
    assert again.plan == found.plan
    assert again.objective == found.objective


def test_decided_codecs_are_counted_by_the_search() -> None:
    """A codec that the user puts on the all-reduce makes the predicted speed, and the bound holds for it."""
    model, cluster = _job(3e6)
    options = SolveOptions(hogwild=2, time_limit_seconds=20.0, group_size=2, max_replicas=1, servers=2)
    plain = solve(model, cluster, options=options)
    found = solve(model, cluster, options=replace(options, codecs={"allreduce": "bf16", "pooled": "bf16"}))
    assert found.plan.codecs == {"allreduce": "bf16", "pooled": "bf16"}
    assert plain.objective < found.objective <= found.bound * (1 + 1e-9)


def test_what_an_exchange_can_take_goes_by_the_sync_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    """DCT-DP on what is not pushed, and rounding of what is, are refused before anything is solved, and not offered."""
    model, cluster = _job(3e6)
    for algorithm, codec in (("easgd", "dct-dp:0.1"), ("push", "bf16")):
        with pytest.raises(BadInput, match="codec of exchange"):
            solve(model, cluster, options=SolveOptions(sync_algorithm=algorithm, codecs={"exchange": codec}))  # type: ignore[arg-type]
    named = Guard(("dct-dp:0.1", "bf16"))
    monkeypatch.setattr(Guard, "allowed", lambda self, edge, model: self.names)
    offered = [named.offers(model, algorithm=name, decided={})["exchange"] for name in ("easgd", "ma", "bmuf", "push")]
    assert offered == [("bf16",)] * 3 + [("dct-dp:0.1",)]
    problem = replace(_problem(0), groups=2, sync=Sync(algorithm="push"), sync_servers=(node("sync0"),))
    pushed = replace(problem, codecs={"exchange": "dct-dp:0.1"})
    tags: dict[str, Tag] = {op.name: DP for op in problem.model.graph if op.kind is not Kind.LOOKUP}
    assert evaluate(pushed, tags).loads[0].tx_seconds < evaluate(problem, tags).loads[0].tx_seconds


@pytest.mark.parametrize(("hogwild", "most"), [(1, 21), (1000, 2)])
def test_bug_taking_codecs_away_judged_a_placement_for_every_edge(hogwild: int, most: int) -> None:
    """100 layers on two nodes, a codec on each: as many judgements as allowed where all gain, two where none does."""
    layers = [linear(f"v{i}", f"v{i - 1}" if i else "x", 64, 10) for i in range(100)]
    graph = Graph((Operator("x", Kind.DENSE_INPUT, (), 64), *layers, Operator("loss", Kind.LOSS, ("v99",), 1)))
    costs = CostTable(4, {op.name: op_cost(1e-3) for op in graph}, kind="tiny", flops_per_core_second=1e9)
    problem = GroupProblem(Model("chain", graph, batch=4), costs, nodes(2), 4, hogwild, ranks=1)
    tags: dict[str, Tag] = {"x": DP, "loss": DP} | {op.name: i % 2 for i, op in enumerate(layers)}
    offers = {op.name: ("bf16",) for op in layers}
    chooser = _Chooser(problem, tags, offers, Deadline())
    chooser.left = chooser.most = 20
    codecs = chooser.pruned(dict.fromkeys(offers, "bf16"))
    assert len(chooser.known) <= most
    assert len(codecs) == (100 if hogwild == 1 else 0)


def test_bug_codecs_of_an_edge_were_all_judged_after_the_end() -> None:
    """A descent ends with the evaluation during which time runs out; it went on through all codecs of the edge."""
    problem, now = _problem(5, nic=2e6), [0.0]
    tags: dict[str, Tag] = {op.name: DP for op in problem.model.graph if op.kind is not Kind.LOOKUP}
    chooser = _Chooser(problem, tags | {"left": 1}, _offers(problem), Deadline(3.5, lambda: now[0], lambda: now[0]))
    judged = chooser.evaluation

    def second(codecs: Mapping[str, str]):
        now[0] += 1.0
        return judged(codecs)

    chooser.evaluation = second  # type: ignore[method-assign]
    chooser.descend({})
    assert now[0] == 4.0
