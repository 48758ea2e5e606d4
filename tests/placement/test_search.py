"""The search for a plan: group size, servers, groups, bounds, refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cost_models.roofline import roofline_costs
from placement.errors import ConstraintsConflict, DoesNotFit, NothingFound, PlacementError
from placement.evaluation.evaluate import evaluate
from placement.evaluation.group import GroupProblem
from placement.explain import explain, problem_of
from placement.plan import DP
from placement.result import PlacementResult
from placement.search.bounds import Bounds
from placement.search.diagnose import no_fit
from placement.search.job import solve
from placement.search.options import SolveOptions
from placement.search.shapes import Shape
from placement.tagging.candidates import resolve_pins
from placement.tagging.nets import Contracted
from problem.cluster import Cluster, Node
from problem.errors import BadInput
from problem.expand import expand_model
from problem.graph import Graph, Kind, Operator, Work
from problem.model import EmbeddingTable, Model
from problem.schema import ModelSpec
from tests.instances import node, nodes

QUICK = SolveOptions(max_replicas=4, time_limit_seconds=30)


def _model(tables: int = 4, rows: int = 10_000, pooling: float = 1.0, batch: int = 64) -> Model:
    """A small DLRM."""
    spec = ModelSpec(
        name="small",
        dense_features=13,
        bottom_mlp=(64, 16),
        top_mlp=(256, 128, 1),
        embedding_dim=16,
        interaction="dot",
        batch=batch,
        tables=[{"name": f"t{i}", "rows": rows, "pooling_factor": pooling} for i in range(tables)],
    )
    return expand_model(spec, "test")


def _solve(model: Model, machines: tuple[Node, ...], options: SolveOptions = QUICK) -> PlacementResult:
    return solve(
        model, Cluster("test", machines), lambda batch, machine: roofline_costs(model, batch, machine), options
    )


def _fixed(sizes: list[int], component: str = "") -> Model:
    """Imported operators of the given bytes, 1 ms each, in a chain."""
    ops = [
        Operator(
            f"op{i}",
            Kind.FIXED,
            (f"op{i - 1}",) if i else (),
            0,
            size // 4,
            forward=Work(seconds_per_sample=1e-3),
            component=component,
        )
        for i, size in enumerate(sizes)
    ]
    return Model("fixed", Graph(tuple(ops)), batch=1)


def test_plan_is_complete_and_predicts_its_own_value() -> None:
    """The plan places everything, and evaluating it again gives the objective."""
    result = _solve(_model(), nodes(6))
    value = evaluate(problem_of(result.plan, result.costs), result.plan.tags)
    assert value.fits
    assert value.samples_per_second == pytest.approx(result.objective, rel=1e-12)
    assert result.objective <= result.bound
    assert result.gap == pytest.approx((result.bound - result.objective) / result.bound)
    assert result.status == "optimal"


def test_no_baseline_is_better() -> None:
    """The plan is at least as good as every baseline at every group size that was solved."""
    result = _solve(_model(), nodes(7))
    best = result.best_baseline
    assert best is not None
    assert best.samples_per_second is not None
    assert result.objective >= best.samples_per_second


def test_max_replicas_makes_groups_larger() -> None:
    """With few replicas allowed, a large cluster is used by groups of several nodes."""
    result = _solve(_model(batch=512), nodes(12), SolveOptions(max_replicas=2))
    assert len(result.plan.groups) <= 2
    assert result.plan.group_size > 1


def test_curve_covers_every_group_size_and_holds_the_best() -> None:
    """Each group size has a bound no lower than what was found there; the best of them is the plan's."""
    result = _solve(_model(), nodes(6))
    assert [point.group_size for point in result.curve] == [1, 2, 3, 4, 5]
    found = [point.samples_per_second for point in result.curve if point.samples_per_second is not None]
    assert max(found) == pytest.approx(result.objective)
    assert all(point.bound >= (point.samples_per_second or 0) for point in result.curve)
    pruned = [point for point in result.curve if point.status == "pruned"]
    assert all(point.bound <= result.objective * 1.0051 for point in pruned)


def test_pruning_loses_nothing() -> None:
    """Solving each group size alone finds nothing better than the search over all of them, within the gap."""
    model, machines = _model(pooling=20.0), nodes(6)
    result = _solve(model, machines)
    for size in range(1, 6):
        alone = _solve(model, machines, replace(QUICK, group_size=size))
        assert alone.objective <= result.bound * (1 + 1e-9)


def test_bounds_hold_for_what_is_solved() -> None:
    """A shape's quick and refined bounds are never below what the solver then finds for it."""
    model = _model(tables=3, pooling=60.0)
    for servers in (1, 2, 3, 4, 5):
        result = _solve(model, nodes(7), replace(QUICK, servers=servers))
        plan = result.plan
        bounds = Bounds(model, result.costs, plan.batch, plan.hogwild, {}, local=False)
        quick = bounds.quick(Shape(plan.group_size, plan.groups, plan.servers, plan.sync_servers, plan.ranks))
        assert result.objective <= bounds.rate(bounds.refine(quick)) * (1 + 1e-9)
        assert bounds.rate(bounds.refine(quick)) <= bounds.rate(quick) * (1 + 1e-12)


def test_elp_limit_holds() -> None:
    """No plan exceeds the example-level parallelism that was allowed."""
    result = _solve(_model(), nodes(8), replace(QUICK, hogwild=2, max_elp=600, gap=0.01))
    assert result.plan.elp <= 600


def test_group_size_ranks_and_servers_can_be_given() -> None:
    """Options that fix group size, ranks and the number of servers are respected."""
    options = replace(QUICK, group_size=3, ranks=2, servers=2, sync_servers=1)
    plan = _solve(_model(), nodes(9), options).plan
    assert (plan.group_size, plan.ranks, len(plan.servers)) == (3, 2, 2)


def test_graph_without_tables_needs_no_server() -> None:
    """An imported graph uses all machines for training."""
    result = _solve(_fixed([4, 4]), nodes(2), SolveOptions(max_replicas=1))
    assert result.plan.servers == ()
    assert result.plan.group_size == 2


def test_server_nodes_serve_and_trainer_nodes_train() -> None:
    """Machines with a role keep to it."""
    machines = (*nodes(3, role="trainer"), node("a", role="server"), node("b", role="server"))
    plan = _solve(_model(), machines).plan
    assert {n.role for group in plan.groups for n in group} == {"trainer"}
    assert {n.role for n in (*plan.servers, *plan.sync_servers)} == {"server"}


def test_one_machine_trains_and_serves() -> None:
    """A cluster of one machine has a plan: it is trainer and embedding server at once, and its loads add up."""
    result = _solve(_model(), nodes(1))
    assert result.plan.servers[0].name == result.plan.groups[0][0].name
    assert {load.node for load in result.evaluation.loads} == {"n0"}


def test_tables_that_fill_every_machine_are_served_by_the_trainers() -> None:
    """Where the tables need all machines, the trainers serve; the big table is cut over all four of them."""
    big = 7 * 10**8 // 64
    model = replace(_model(tables=1), tables=(EmbeddingTable("t0", big, 16),))
    machines = nodes(4, memory_bytes=2 * 10**8)
    result = _solve(model, machines, replace(QUICK, hogwild=1))
    assert {n.name for n in result.plan.servers} <= {n.name for group in result.plan.groups for n in group}
    assert len({shard.server for shard in result.plan.shards}) == 4


def test_unusable_machines_are_left_out() -> None:
    """A machine without memory or without a NIC takes no part."""
    machines = (*nodes(4), node("noram", memory_bytes=0), node("nonet", nic_bytes_per_second=0.0))
    plan = _solve(_model(), machines).plan
    used = {n.name for n in (*plan.servers, *plan.sync_servers, *(n for group in plan.groups for n in group))}
    assert not used & {"noram", "nonet"}


def test_slow_machines_serve_and_unlike_groups_are_the_same_mixture() -> None:
    """Two fast, two middling and two slow machines: the slow ones serve, and a fast and a middling one are a group.

    Fast with fast and middling with middling does 1.7 % less, for both share one set of tags.
    """
    pairs = [(node(f"slow{i}", cores=2), node(f"fast{i}", cores=8), node(f"middle{i}", cores=4)) for i in range(2)]
    options = replace(QUICK, group_size=2, servers=1, sync_servers=1, max_replicas=2)
    result = _solve(_model(), tuple(machine for pair in pairs for machine in pair), options)
    assert [[n.cores for n in group] for group in result.plan.groups] == [[8, 4], [8, 4]]
    assert {n.cores for n in (*result.plan.servers, *result.plan.sync_servers)} == {2}
    assert result.objective == pytest.approx(47_731.6, rel=1e-4)
    assert result.gap < 0.01


def test_pins_by_pattern_reach_the_plan() -> None:
    """A pattern pins all operators that match it, and groups are at least as large as the pinned node needs."""
    result = _solve(_model(), nodes(5), replace(QUICK, pins={"top_*": 1}))
    assert result.plan.group_size >= 2
    assert {tag for name, tag in result.plan.tags.items() if name.startswith("top_")} == {1}


def test_pins_that_match_nothing_or_contradict_are_refused() -> None:
    """Unknown names, two tags for one operator, and a pinned input are refused with the operator's name."""
    graph = _model().graph
    with pytest.raises(BadInput, match="nothing"):
        resolve_pins(graph, {"nothing": 1})
    with pytest.raises(ConstraintsConflict, match="top_0"):
        resolve_pins(graph, {"top_0": 1, "top_*": 2})
    with pytest.raises(ConstraintsConflict, match="loss"):
        resolve_pins(graph, {"loss": 1})


def test_component_that_no_node_holds_is_named() -> None:
    """Two operators of 8 GB tied together on nodes of 10 GB: the component is named, with bytes needed and had."""
    with pytest.raises(DoesNotFit, match=r"component 'pair' .*op0, op1") as caught:
        _solve(_fixed([8 * 10**9] * 2, "pair"), nodes(4, memory_bytes=10**10))
    assert caught.value.exit_code == 3
    assert caught.value.needed == pytest.approx(16e9)


def test_pins_that_overfill_a_node_are_named() -> None:
    """Two operators of 8 GB pinned to one node of 10 GB: pins and node are named."""
    with pytest.raises(DoesNotFit, match="op0, op1, pinned"):
        _solve(_fixed([8 * 10**9] * 2), nodes(4, memory_bytes=10**10), replace(QUICK, pins={"op*": 1}))


def test_fits_in_sum_only_is_refused_as_such() -> None:
    """Three operators of 6 GB on two nodes of 10 GB fit in sum but in no assignment, and the message says so."""
    with pytest.raises(DoesNotFit, match="in sum they would fit, messages aside") as caught:
        _solve(_fixed([6 * 10**9] * 3), nodes(2, memory_bytes=10**10))
    assert caught.value.needed == pytest.approx(12e9)


def test_table_that_fits_nowhere_is_named() -> None:
    """A table larger than all servers together is named with its size and the largest server."""
    model = replace(_model(tables=1), tables=(EmbeddingTable("t0", 10**9, 16),))
    with pytest.raises(DoesNotFit, match=r"table 't0' \(64,0.*n"):
        _solve(model, nodes(3))


def test_options_that_leave_no_shape_are_refused() -> None:
    """More ranks than nodes: what may train is said, and the option that is to blame."""
    with pytest.raises(ConstraintsConflict, match=r"3 machines may train.*a plan exists without ranks 9"):
        _solve(_model(), nodes(3), replace(QUICK, ranks=9))


def test_a_pin_to_a_node_that_no_group_has_is_named() -> None:
    """An operator pinned to node 7 of three: the pin is named, not only the machines."""
    with pytest.raises(ConstraintsConflict, match=r"a pin to node 7.*a plan exists without pin top_0=7"):
        _solve(_model(), nodes(3), replace(QUICK, pins={"top_0": 7}))


def test_bug_what_was_not_found_in_time_was_called_impossible() -> None:
    """Two operators of 5 GB fit on two nodes of 10 GB: a search that ended without a plan proves nothing, and says so."""
    model = _fixed([5 * 10**9] * 2)
    costs = roofline_costs(model, model.batch, nodes(1)[0])
    group = Contracted(GroupProblem(model, costs, nodes(2, memory_bytes=10**10), model.batch))
    error = no_fit(group, proven=False)
    assert isinstance(error, NothingFound)
    assert "none was proven impossible" in str(error)


def test_short_time_limit_still_gives_a_plan() -> None:
    """With almost no time the first shape's best baseline is returned, with a bound that is no lower."""
    result = _solve(_model(), nodes(12), replace(QUICK, time_limit_seconds=0.0))
    assert result.objective > 0
    assert result.bound >= result.objective


def test_equal_tables_are_cut_only_as_needed() -> None:
    """One heavy table on several servers is cut by rows, and the plan is proven within the gap."""
    result = _solve(_model(tables=2, pooling=200.0), nodes(8))
    assert result.gap <= 0.005
    assert len(result.plan.shards) >= len(result.plan.model.tables)


def test_explanation_agrees_with_the_plan() -> None:
    """The busiest row is what binds, every what-if is an evaluation, and nothing improves by less hardware."""
    result = _solve(_model(), nodes(6))
    found = explain(result.plan, result.costs, result.as_dict())
    assert found.evaluation.samples_per_second == pytest.approx(result.objective)
    assert found.loads[0].seconds == pytest.approx(found.evaluation.step_seconds)
    size = result.plan.group_size
    other = {f"groups of {n}" for n in (size - 1, size + 1)}
    costly = {"Hogwild threads x2", "fp16 for all that is float32", *other}
    assert all(row.ratio >= 1 - 1e-9 for row in found.what_if if row.change not in costly)
    tried = {f"groups of {point.group_size}" for point in result.curve if point.status != "does not fit"}
    assert {row.change for row in found.what_if} & other == tried & other != set()
    assert len(found.curve) == len(result.curve)
    assert set(found.as_dict()) >= {"loads", "what_if", "bottleneck"}


def test_explanation_says_what_fp16_would_bring() -> None:
    """With NICs that bind, half the bytes nearly double the speed; a plan that is fp16 already has nothing to gain."""
    result = _solve(_model(batch=512), nodes(6, nic_bytes_per_second=1e7), replace(QUICK, group_size=2))
    (row,) = [row for row in explain(result.plan, result.costs).what_if if row.change.startswith("fp16")]
    assert 1.3 < row.ratio <= 2.0
    edges = ["pooled", "push", "allreduce", *result.plan.tags]
    half = replace(result.plan, codecs=dict.fromkeys(edges, "fp16"))
    assert not [row for row in explain(half, result.costs).what_if if row.change.startswith("fp16")]


def test_explanation_of_unlike_groups_adds_them_up() -> None:
    """Two groups of unlike speed: what is explained is the plan's own value, not twice that of the faster group."""
    machines = (*nodes(2, cores=8), node("c", cores=4), node("d", cores=4), node("ps", role="server", cores=1))
    options = replace(QUICK, group_size=1, servers=1, sync_servers=1, max_replicas=3)
    result = _solve(_model(), machines, options)
    assert len({n.cores for group in result.plan.groups for n in group}) == 2
    found = explain(result.plan, result.costs)
    assert found.samples_per_second == pytest.approx(result.objective)
    assert found.evaluation.samples_per_second > 1.05 * result.objective


class _Heard:
    """Remembers news of a search."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.told: list[tuple[float, float]] = []

    def assumed(self, sentences: tuple[str, ...]) -> None:
        assert not self.told
        self.sentences.extend(sentences)

    def standing(self, best: float, bound: float) -> None:
        self.told.append((best, bound))


def test_news_of_a_search_end_with_its_result() -> None:
    """Assumptions come first; values never fall, are never above their bound, and end with the plan's own."""
    heard = _Heard()
    model, cluster = _model(pooling=20.0), Cluster("test", nodes(6))
    result = solve(model, cluster, options=QUICK, news=heard)
    told, values = heard.told, [best for best, _ in heard.told]
    assert tuple(heard.sentences) == result.assumptions
    assert values == sorted(values)
    assert all(best <= bound for best, bound in told)
    assert told[-1] == (result.objective, pytest.approx(result.bound))


def test_assumptions_are_told_once_where_nothing_fits() -> None:
    """Before the search, and not again by the searches that find out which demands are to blame."""
    heard = _Heard()
    with pytest.raises(PlacementError):
        solve(_model(), Cluster("test", nodes(3, memory_bytes=1000)), options=replace(QUICK, group_size=1), news=heard)
    assert len(heard.sentences) == len(set(heard.sentences)) > 0
    assert not heard.told


def test_two_groups_have_sync_servers_and_the_easgd_rate() -> None:
    """Two groups are kept together in the background, every 8 steps, with elastic rate 0.9 / groups."""
    plan = _solve(_model(batch=512), nodes(9), SolveOptions(max_replicas=2, group_size=2)).plan
    assert len(plan.groups) == 2
    assert plan.sync is not None
    assert (plan.sync.mode, plan.sync.gap, plan.sync.alpha) == ("background", 8, 0.45)
    assert plan.sync_servers


SCRIPT = """
import json
from tests.placement.test_search import _model, _solve, QUICK
from tests.instances import nodes
result = _solve(_model(pooling=30.0), nodes(6, nic_bytes_per_second=2e7))
document = result.as_dict()
document.pop("solve_seconds")
print(json.dumps([document, [str(shard) for shard in result.plan.shards]]))
"""


def test_same_seed_same_plan_whatever_the_hash_seed() -> None:
    """Two processes with different hash seeds print the same plan, value, bound and curve."""
    root = Path(__file__).resolve().parents[2]
    printed = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    assert '"dp"' in printed[0]


def test_relabelling_equal_machines_changes_nothing() -> None:
    """Renamed and reordered equal machines give the same objective and bound."""
    one = _solve(_model(), nodes(5))
    other = _solve(_model(), tuple(reversed([n.renamed(f"x{n.name}") for n in nodes(5)])))
    assert other.objective == pytest.approx(one.objective)
    assert other.bound == pytest.approx(one.bound)


def test_all_dp_with_a_fast_network() -> None:
    """With a fast network and few parameters everything is data-parallel."""
    result = _solve(_model(batch=2048), nodes(4, nic_bytes_per_second=1e12))
    assert set(result.plan.tags.values()) == {DP}


def test_interruption_returns_the_best_plan() -> None:
    """Ctrl-C while the solver runs ends the search with the best plan found and a bound that holds."""
    script = """
import os, signal, threading
from placement.search.job import solve
from placement.search.options import SolveOptions
from cost_models.roofline import roofline_costs
from problem.cluster import Cluster
from tests.instances import nodes
from tests.placement.test_search import _model
import placement.tagging.solve as inner
run = inner.run
def hit(*args):
    inner.run = run
    threading.Timer(0.001, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    return run(*args)
inner.run = hit
model = _model()
options = SolveOptions(hogwild=2, gap=0.0, time_limit_seconds=60)
result = solve(model, Cluster("c", nodes(8)), lambda batch, node: roofline_costs(model, batch, node), options)
print(result.interrupted, result.objective > 0, result.bound >= result.objective)
"""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, check=True, text=True)
    assert done.stdout.split() == ["True", "True", "True"]
