"""A run that begins late is the run that begins at 0, to the nanosecond; numbers of groups and machines decide nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from placement.plan import Plan, Shard, Sync
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
    plan: Plan, level: str, conditions: Conditions = UNDISTURBED, variation: float = 0.02, begin_ns: int = 0
) -> Observer:
    """Run 16 steps."""
    settings = {"conditions": conditions, "begin_ns": begin_ns, **LEVELS[level]}
    scenario = stage(transform(plan), make_costs(MODEL), Sharing.NODE, variation, Folding(merged=True), **settings)
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


@pytest.mark.parametrize("level", LEVELS)
def test_servers_in_another_order_get_their_messages_in_another_order_and_no_more(level):
    """A rank sends to its servers in the order of the plan: figures differ by no more than that makes."""
    plan = plan_of(1)
    shards = tuple(replace(shard, server=1 - shard.server) for shard in plan.shards)
    other = replace(plan, servers=plan.servers[::-1], shards=shards)
    first, second = (run(job, level, variation=0.0).rates()[0] for job in (plan, other))
    assert second == pytest.approx(first, rel=0.02)
