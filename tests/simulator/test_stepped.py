"""Fair shares in time steps: the same rates, and messages late by at most two time steps at each stage."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from placement.plan import Sync
from programs.transform import transform
from simulator import simulate as front
from simulator.engine import Engine
from simulator.folding import Folding
from simulator.links import max_min_rates
from simulator.machines import Sharing
from simulator.observer import Observer
from simulator.report import check_laws, left_out
from simulator.scenario import stage
from simulator.stepped import SteppedNetwork
from simulator.time_steps import TimeSteps, fair_rates
from simulator.usage import utilization
from tests.simulator.instances import chain_model, make_costs, make_plan, table

TABLES = ("a", "b", "c")
MODEL = chain_model(2, [table(name) for name in TABLES])


def run(plan, stepped: bool, costs=None) -> Observer:
    """Run a plan at level fluid, in time steps or not."""
    scenario = stage(
        transform(plan),
        costs or make_costs(MODEL),
        Sharing.NODE,
        0.02,
        Folding(merged=True),
        merge=True,
        time_steps=100 if stepped else 0,
    )
    assert isinstance(scenario.network, SteppedNetwork) is stepped
    observer = Observer(scenario, 40, 10, False)
    observer.run()
    check_laws(observer)
    return observer


@pytest.mark.parametrize("seed", range(8))
def test_rates_are_max_min_fair_among_those_that_want_more(seed):
    """Random activities, each with a link of its own of what it wants: the rates are those of progressive filling."""
    rng = Random(seed)
    capacity = [rng.uniform(1, 10) for _ in range(6)]
    flows = [(rng.randrange(3), 3 + rng.randrange(3)) for _ in range(30)]
    wanted = [rng.choice([1e9, rng.uniform(0.01, 1)]) for _ in flows]
    own = [(*path, 6 + index, 1) for index, path in enumerate(flows)]
    expected = max_min_rates(own, [*capacity, *wanted])
    link, other = np.array(flows).T
    assert fair_rates(link, other, np.array(wanted), np.array(capacity)) == pytest.approx(expected)


def test_no_activity_ends_early_nor_two_steps_late():
    """Two at once, then two alone: each ends when it would with fair shares, or up to two time steps later."""
    engine, ends = Engine(), {}
    steps = TimeSteps(
        engine, np.array([1.0, np.inf]), 100, lambda n, at: ends.update(zip(n.tolist(), at.tolist(), strict=True))
    )
    for number, (begin, work) in enumerate([(0, 1000.0), (0, 1000.0), (5010, 33.0), (5020, 0.0)]):
        engine.at(begin, lambda job: steps.add(0, 1, job[1], np.inf, job[2], np.array([job[0]])), (number, work, begin))
    engine.run()
    fair = [2000, 2000, 5043, 5020]
    assert all(0 <= ends[number] - end <= 200 for number, end in enumerate(fair))
    assert steps.served()[0] == pytest.approx(2033.0)


def test_a_session_alone_is_late_by_two_time_steps_a_stage_at_most():
    """Request, service, answer: a step is as long as with every message worked out, or up to six time steps longer."""
    plan = make_plan(MODEL, servers=3, changes={"cores": 4})
    exact, stepped = (run(plan, which) for which in (False, True))
    times = [125e9 / observer.rates()[0] for observer in (exact, stepped)]
    assert -20.0 <= times[1] - times[0] <= 6 * stepped.scenario.network.step_ns


@pytest.mark.parametrize(
    ("ranks", "hogwild", "speed"),
    [pytest.param(3, 2, 1e9, id="cores"), pytest.param(2, 4, 2e8, id="network", marks=pytest.mark.slow)],
)
def test_time_steps_and_messages_agree(ranks, hogwild, speed):
    """A step is at most ten time steps longer, to the intervals, and a sample asks the same of every resource."""
    changes = {"nic_bytes_per_second": speed}
    plan = make_plan(MODEL, nodes=ranks, ranks=ranks, hogwild=hogwild, servers=3, changes=changes)
    exact, stepped = (run(plan, which) for which in (False, True))
    (one, ci), (other, ci_other) = exact.rates(), stepped.rates()
    late = 10 * stepped.scenario.network.step_ns * one / (ranks * hogwild * 125e9)
    assert -(ci + ci_other) <= one - other <= late * one + ci + ci_other
    assert max(ci, ci_other, late) < 0.08 * one
    used = [utilization(*observer.window(), observer.scenario.machines) for observer in (exact, stepped)]
    for node, found in used[0].items():
        asked = {name: part * other / one for name, part in found.items()}
        assert used[1][node] == pytest.approx(asked, rel=0.05, abs=0.01)
    assert any("two such steps late" in said for said in left_out(stepped.scenario, 40, 40))


@pytest.mark.parametrize(("affordable", "record", "groups"), [(10**9, False, 2), (0, False, 4), (0, True, 2)])
def test_more_groups_stand_for_all_in_time_steps(affordable, record, groups, monkeypatch):
    """Of 8 alike groups two are followed message by message (a timeline needs that), four where time steps are used."""
    monkeypatch.setattr(front, "BUDGET", 0)
    monkeypatch.setattr(front, "AFFORDABLE", affordable)
    monkeypatch.setattr(front, "TIME_STEPS", 50)
    plan = make_plan(MODEL, groups=8, servers=2, sync_servers=1, sync=Sync("background", 3))
    found = front.simulate(plan, make_costs(MODEL), steps=12, precision=0, fidelity="fluid", record=record)
    said = " ".join(found.left_out)
    assert f"simulated: {groups} for 8" in said
    assert ("two such steps late" in said) is (groups == 4)


def test_memory_of_servers_that_binds_holds_messages_up():
    """Lookups that keep the servers' memory for 40 us and a core for 8: a session alone waits for the memory."""
    costs = make_costs(MODEL)
    tables = {
        name: replace(cost, lookup=replace(cost.lookup, traffic_bytes=2e4)) for name, cost in costs.tables.items()
    }
    plan, costs = make_plan(MODEL, servers=3, changes={"cores": 4}), replace(costs, tables=tables)
    slow = tuple(replace(node, memory_bandwidth_bytes_per_second=5e8) for node in plan.servers)
    exact, stepped, fast = (
        run(job, which, costs)
        for job, which in ((replace(plan, servers=slow), False), (replace(plan, servers=slow), True), (plan, True))
    )
    times = [125e9 / observer.rates()[0] for observer in (exact, stepped, fast)]
    assert -20.0 <= times[1] - times[0] <= 6 * stepped.scenario.network.step_ns
    assert times[1] - times[2] == pytest.approx(32e3, abs=6 * stepped.scenario.network.step_ns)
