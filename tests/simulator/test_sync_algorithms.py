"""What the rules of synchronisation cost: averages wait for the slowest group, compressed pushes send less."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placement.plan import Sync
from programs.transform import transform
from simulator.conditions import Conditions
from simulator.simulate import simulate
from tests.simulator.instances import BATCH, US, chain_model, make_costs, make_plan

CHAIN, STEP, SYNCED = chain_model(2), 72, {"groups": 2, "sync_servers": 1}


def rate(plan, level="fluid", **conditions) -> float:
    """Samples per second without variation."""
    costs = make_costs(plan.model, exchange_seconds_per_byte=1e-9)
    settings = {"variation": 0.0, "steps": 60, "fidelity": level, "conditions": Conditions(**conditions)}
    return simulate(plan, costs, **settings).samples_per_second


def test_a_foreground_average_by_hand():
    """Every second step two groups send 4000 bytes: 2 + 8 + 5, server 2 x 9, back 8 + 5 + 3 + 4 = 53 us, 26.5 a step."""
    plan = make_plan(CHAIN, **SYNCED, sync=Sync("foreground", 2, 1.0, "ma"))
    assert rate(plan) == pytest.approx(2 * BATCH / ((STEP + 26.5) * US), rel=1e-3)


@pytest.mark.parametrize("rule", ["ma", "bmuf"])
def test_the_bound_knows_that_an_average_waits_for_all(rule):
    """The closed form takes the answers of all groups, so it is between the fluid rate and 15 % above."""
    plan = make_plan(CHAIN, **SYNCED, sync=Sync("foreground", 2, 1.0, rule))
    assert 1.0 <= rate(plan, "bound") / rate(plan) < 1.15


@pytest.mark.parametrize(("rule", "slowed"), [("ma", 0.5), ("bmuf", 0.5), ("easgd", 0.75), ("push", 0.75)])
@pytest.mark.parametrize("level", ["fifo", "fluid"])
def test_a_slow_group_holds_up_averages_only(rule, slowed, level):
    """One of two groups at half speed: in the foreground averages make both as slow, the others leave one as it was."""
    plan = make_plan(CHAIN, **SYNCED, sync=Sync("foreground", 5, 1.0, rule))
    assert rate(plan, level, slow_nodes={"g1n0": 2.0}) / rate(plan, level) == pytest.approx(slowed, abs=0.06)


def test_a_background_average_waits_beside_the_threads():
    """Beside a group at half speed the fast one trains on at full speed, and its exchanges are twice as many steps apart."""
    plan = make_plan(CHAIN, **SYNCED, sync=Sync("background", 4, 1.0, "ma"))
    costs = make_costs(CHAIN)
    result = simulate(plan, costs, steps=80, variation=0.0, conditions=Conditions(slow_nodes={"g1n0": 2.0}))
    alone = replace(plan, sync=Sync("background", 4))
    free = simulate(alone, costs, steps=80, variation=0.0, conditions=Conditions(slow_nodes={"g1n0": 2.0}))
    assert result.samples_per_second == pytest.approx(free.samples_per_second, rel=0.01)
    assert free.average_sync_gap == pytest.approx(4, abs=0.1)
    assert 5 < result.average_sync_gap < 6.5


def test_a_compressed_push_sends_fewer_bytes_and_takes_less_time():
    """A twentieth of 300,000 elements, with their positions, is sent instead of all: faster where the NIC is slow, slower
    where it is fast; a new threshold every time is slower than one for a thousand."""
    model = chain_model(2, parameters=300_000)
    fast = make_plan(model, **SYNCED, sync=Sync("foreground", 1, 1.0, "push"))
    slow = make_plan(model, **SYNCED, sync=Sync("foreground", 1, 1.0, "push"), changes={"nic_bytes_per_second": 1e8})

    def pushed(codec, plan=slow):
        return replace(plan, codecs={"exchange": codec})

    step = transform(pushed("dct-dp:0.05:1000")).shadows[0]
    assert 0.05 * step.exchange_bytes[0] < step.request_bytes(0) < 0.09 * step.exchange_bytes[0]
    dense, rare, often = rate(slow), rate(pushed("dct-dp:0.05:1000")), rate(pushed("dct-dp:0.05:1"))
    assert often < rare
    assert rare > dense
    assert rate(pushed("dct-dp:0.05:1000", fast)) < rate(fast)
