"""A run that begins late is the run that begins at 0, to the nanosecond; numbers of groups and machines decide nothing."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import programs.transform
from cost_models.costs import CostTable
from placement.plan import Plan, Shard, Sync
from problem.graph import Graph, Kind, Operator
from problem.model import Model
from programs.transform import transform
from simulator.conditions import UNDISTURBED, Checkpoints, Conditions, NodeLoss
from simulator.fidelity import Fidelity
from simulator.folding import Folding
from simulator.machines import Sharing
from simulator.observer import Observer
from simulator.report import check_laws, timeline
from simulator.scenario import stage
from simulator.usage import utilization
from tests.simulator.instances import chain_model, make_costs, make_plan, table

MODEL = chain_model(3, [table("a"), table("b")])
SPLIT = [Shard("a", 0, 0, 30), Shard("a", 1, 30, 100), Shard("b", 1, 0, 100)]
LATE_NS = 10**18 + 1  # 1e9 seconds: 31 years
LEVELS: dict[str, dict[str, Any]] = {
    "fifo": {"fidelity": Fidelity.FIFO},
    "fifo, fans": {"fidelity": Fidelity.FIFO, "merge": True},
    "fluid": {},
    "fluid, time steps": {"merge": True, "time_steps": 50},
}
CONDITIONS = {
    "undisturbed": UNDISTURBED,
    "disturbed": Conditions(
        reader_batches_per_second=9000.0,
        slow_nodes={"g0n1": 1.3},
        losses=(NodeLoss("g1n0", 2e-3, detect_seconds=1e-4, restart_seconds=1e-3),),
        checkpoints=Checkpoints(1.7e-3),
    ),
}


def plan_of(groups: int) -> Plan:
    """Groups of two ranks with two threads, shards of unlike size, a background exchange."""
    machines = {"nodes": 2, "ranks": 2, "groups": groups, "servers": 2, "sync_servers": 2, "hogwild": 2}
    return make_plan(MODEL, shards=SPLIT, sync=Sync("background", gap=3), **machines)


def run(
    plan: Plan,
    level: str,
    conditions: Conditions = UNDISTURBED,
    variation: float = 0.02,
    begin_ns: int = 0,
    costs: CostTable | None = None,
) -> Observer:
    """Run 16 steps."""
    settings = {"conditions": conditions, "begin_ns": begin_ns, **LEVELS[level]}
    scenario = stage(
        transform(plan), costs or make_costs(MODEL), Sharing.NODE, variation, Folding(merged=True), **settings
    )
    observer = Observer(scenario, 16, 4, not settings.get("merge", False))
    observer.run()
    check_laws(observer)
    return observer


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("conditions", CONDITIONS)
def test_a_run_that_begins_after_31_years_is_the_same_shifted(level, conditions):
    """Begin and end of every step and instruction, parts of the time and utilisations at 1e9 s are those at 0."""
    first, late = (run(plan_of(2), level, CONDITIONS[conditions], begin_ns=begin) for begin in (0, LATE_NS))
    for one, other in zip(first.scenario.runners, late.scenario.runners, strict=True):
        for name in ("begun", "done", "ends"):
            assert [time + LATE_NS for time in getattr(one, name)] == getattr(other, name)
        assert one.split == other.split
    assert late.scenario.engine.now == first.scenario.engine.now + LATE_NS
    assert late.rates() == first.rates()
    used = [utilization(*observer.window(), observer.scenario.machines) for observer in (first, late)]
    assert used[0] == used[1]
    if first.record:
        for one, other in zip(timeline(first.scenario).workers, timeline(late.scenario).workers, strict=True):
            assert np.array_equal(one.ends, other.ends)


@pytest.mark.parametrize("variation", [0.0, 0.02])
@pytest.mark.parametrize("level", LEVELS)
def test_numbers_of_groups_and_machines_decide_nothing(level, variation):
    """Groups in another order, so machines and links too: what every node does and when, and all figures, are the same."""
    plan = plan_of(3)
    order = (2, 0, 1)
    other = replace(plan, groups=tuple(plan.groups[g] for g in order))
    first, second = (run(job, level, variation=variation) for job in (plan, other))
    by_name = [
        {(r.worker.node.name, r.worker.rank, r.worker.thread, r.worker.role): r for r in o.ranks}
        for o in (first, second)
    ]
    for key, runner in by_name[0].items():
        assert by_name[1][key].done == runner.done
        assert by_name[1][key].split == runner.split
    assert first.rates() == second.rates()
    used = [utilization(*observer.window(), observer.scenario.machines) for observer in (first, second)]
    assert used[0] == used[1]


def branches(draw: Random | None) -> Model:
    """Three branches of unlike size, joined at the top, their operators listed in an order that is drawn."""
    ops = [Operator("dense", Kind.DENSE_INPUT, width=2)]
    for index in range(3):
        ops.append(Operator(f"x{index}", Kind.LINEAR, ("dense",), 2, 500 + 100 * index))
        ops.append(Operator(f"y{index}", Kind.LINEAR, (f"x{index}",), 2, 500))
    ops += [Operator("top", Kind.LINEAR, ("y0", "y1", "y2"), 2, 500), Operator("loss", Kind.LOSS, ("top",), 1)]
    if draw:
        draw.shuffle(ops)
    return Model("branches", Graph(tuple(ops)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("tags", [{}, {"x1": 1, "y1": 1}], ids=["all DP", "a branch on another node"])
def test_the_order_in_which_branches_are_listed_decides_no_step(tags, level):
    """Operators in another order, and the messages and links between them: every step of every rank ends when it did."""
    settings = {"nodes": 2, "ranks": 1 if tags else 2, "groups": 2, "sync_servers": 1, "hogwild": 2, "tags": tags}

    def ends(draw: Random | None) -> list[list[int]]:
        model = branches(draw)
        observer = run(make_plan(model, sync=Sync("background", gap=3), **settings), level, costs=make_costs(model))
        return [rank.done for rank in observer.ranks]

    expected = ends(None)
    orders = [Random(seed) for seed in range(4)]
    assert len({tuple(op.name for op in branches(Random(seed)).graph) for seed in range(4)}) > 1
    assert all(ends(draw) == expected for draw in orders)


def test_branches_that_wait_for_others_are_part_of_the_program_in_their_order():
    """A rank runs branches in the order of the file. If one of three that read tables is on another node, a step is shortest
    with that one first: its inputs leave before the rank is busy. The order of the others changes nothing."""

    def rate(*order: int) -> float:
        ops = [Operator("dense", Kind.DENSE_INPUT, width=2)]
        ops += [Operator(name, Kind.LOOKUP, width=2, table=name) for name in "abc"]
        for index in order:
            ops.append(Operator(f"x{index}", Kind.LINEAR, ("dense", "abc"[index]), 2, 500))
            ops.append(Operator(f"y{index}", Kind.LINEAR, (f"x{index}",), 2, 500))
        ops += [Operator("top", Kind.LINEAR, ("y0", "y1", "y2"), 2, 500), Operator("loss", Kind.LOSS, ("top",), 1)]
        model = Model("branches", Graph(tuple(ops)), tuple(table(name) for name in "abc"))
        plan = make_plan(model, nodes=2, servers=2, tags={"x1": 1, "y1": 1})
        return float(run(plan, "fifo", variation=0.0, costs=make_costs(model)).rates()[0])

    assert rate(1, 0, 2) == rate(1, 2, 0)
    assert rate(2, 0, 1) == rate(0, 2, 1)
    assert rate(1, 0, 2) / rate(0, 1, 2) == pytest.approx(1.17, abs=0.01)
    assert rate(1, 0, 2) / rate(0, 2, 1) == pytest.approx(1.43, abs=0.01)


@pytest.mark.parametrize("level", LEVELS)
def test_the_order_of_a_file_decides_nothing_where_operators_have_one_order(level):
    """A chain behind two tables, its operators, tables and features listed in any order: the same to the nanosecond."""
    plan, expected = plan_of(2), None
    for seed in (0, 3):
        ops, draw = list(MODEL.graph), Random(seed)
        if seed:
            draw.shuffle(ops)
        other = replace(plan, model=replace(MODEL, graph=Graph(tuple(ops)), tables=MODEL.tables[:: -1 if seed else 1]))
        found = [(rank.done, rank.split) for rank in run(other, level).ranks]
        expected = expected or found
        assert found == expected


@pytest.mark.parametrize("level", LEVELS)
def test_servers_in_another_order_get_their_messages_in_another_order_and_no_more(level, monkeypatch):
    """A rank sends to its servers, one after the other, in the order of the plan, which is part of its program: who is asked
    first answers first. Figures differ by no more than that makes; asked in the old order, they are the same."""
    plan = plan_of(1)
    shards = tuple(replace(shard, server=1 - shard.server) for shard in plan.shards)
    other = replace(plan, servers=plan.servers[::-1], shards=shards)
    first, second = (run(job, level, variation=0.0).rates()[0] for job in (plan, other))
    assert second == pytest.approx(first, rel=0.02)
    builder = vars(programs.transform)["_SessionBuilder"]
    build = builder.__init__

    def asks_backwards(self: Any, *of: Any) -> None:
        build(self, *of)
        self.servers.reverse()

    monkeypatch.setattr(builder, "__init__", asks_backwards)
    assert run(other, level, variation=0.0).rates()[0] == first
