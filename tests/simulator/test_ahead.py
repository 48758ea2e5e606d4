"""What spares events changes nothing: workers that go ahead of the clock, meetings that are foretold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placement.plan import Sync
from programs.transform import transform
from simulator import meetings
from simulator import scenario as staging
from simulator.fidelity import Fidelity
from simulator.folding import Folding
from simulator.machines import Sharing
from simulator.observer import Observer
from simulator.report import check_laws
from tests.simulator.instances import chain_model, make_costs, make_plan, table

MODEL = chain_model(2, [table(name) for name in ("a", "b")], parameters=5_000)


def run(cores: int, hogwild: int = 3, fidelity: Fidelity = Fidelity.FIFO) -> Observer:
    """Two groups of two ranks that meet, with as many cores a machine; their servers have 8."""
    plan = make_plan(
        MODEL, groups=2, nodes=2, ranks=2, hogwild=hogwild, servers=2, sync_servers=1, sync=Sync("background", 3)
    )
    groups = tuple(tuple(replace(node, cores=cores) for node in group) for group in plan.groups)
    plan = replace(plan, groups=groups, servers=tuple(replace(node, cores=8) for node in plan.servers))
    costs, folding = make_costs(MODEL), Folding(merged=True)
    found = staging.stage(transform(plan), costs, Sharing.NODE, 0.02, folding, merge=True, fidelity=fidelity)
    observer = Observer(found, 30, 5, False)
    observer.run()
    check_laws(observer)
    return observer


def told(observer: Observer) -> list[object]:
    """Ends of all steps, splits of time, and what was served in the window and at the end."""
    runners = [(runner.done, runner.split, runner.factors) for runner in observer.scenario.runners]
    windows = [(found.time_ns, found.served) for found in (*observer.window(), observer.take_snapshot())]
    return [runners, windows]


@pytest.mark.parametrize("fidelity", [Fidelity.FIFO, Fidelity.FLUID])
def test_workers_ahead_of_the_clock_do_the_same(fidelity, monkeypatch):
    """With a core for each worker a step has at least one event less; every instant, split and counter is the same."""
    ahead = run(cores=8, fidelity=fidelity)
    assert all(rank.own_core is not None for rank in ahead.scenario.ranks())
    monkeypatch.setattr(staging, "give_cores", lambda *_: None)
    behind = run(cores=8, fidelity=fidelity)
    assert told(ahead) == told(behind)
    steps = sum(runner.step for runner in ahead.scenario.ranks())
    assert ahead.scenario.engine.events <= behind.scenario.engine.events - steps


def test_nobody_goes_ahead_who_may_have_to_wait_for_a_core():
    """Three threads and a shadow worker on two cores queue."""
    observer = run(cores=2)
    assert all(runner.own_core is None for runner in observer.scenario.runners)


@pytest.mark.parametrize("cores", [2, 8])
def test_meetings_that_are_foretold_end_when_the_last_arrives(cores, monkeypatch):
    """One event for a meeting or one for each message: the same to the nanosecond."""
    foretold = run(cores)
    monkeypatch.setattr(meetings, "FifoNetwork", type(None))
    delivered = run(cores)
    assert told(foretold) == told(delivered)
    assert foretold.scenario.engine.events < delivered.scenario.engine.events
