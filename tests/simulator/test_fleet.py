"""A prediction in fleet words, and what removing the bottleneck would give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hiertrain.simulation_text import simulation_text
from placement.plan import Sync
from simulator.conditions import Checkpoints, Conditions, NodeLoss
from simulator.fleet import FLEET, PARTS, fleet, shares
from simulator.relief import relieve
from simulator.result import SPLIT
from simulator.simulate import simulate
from tests.simulator.instances import US, chain_model, make_costs, make_plan, table

CHAIN = chain_model(2)


def relief_of(plan, costs=None, conditions=Conditions(), **settings):  # noqa: B008 (immutable)
    """The prediction, and the job without its bottleneck."""
    costs = costs or make_costs(plan.model)

    def run(changed, now):
        return simulate(changed, costs, conditions=now, **({"steps": 40, "variation": 0.0} | settings))

    result = run(plan, conditions)
    return result, relieve(plan, costs, conditions, result, run)


def test_machines_by_role():
    """Trainers and both kinds of server; mean between least and most; the footprint is that of parameters and buffers."""
    plan = make_plan(chain_model(2, (table(),)), groups=2, servers=1, sync_servers=1, sync=Sync("background", 2))
    result = simulate(plan, make_costs(plan.model), steps=20, conditions=Conditions(slow_nodes={"g1n0": 2.0}))
    found = fleet(plan, result)
    assert set(found) == {"trainer", "ps"}
    assert all(set(of_role) == set(FLEET) for of_role in found.values())
    cpu = found["trainer"]["cpu"]
    busy = [result.node_utilization[name]["cpu"] for name in ("g0n0", "g1n0")]
    assert (cpu.mean, cpu.least, cpu.most) == (pytest.approx(sum(busy) / 2), min(busy), max(busy))
    assert 0 < found["trainer"]["memory"].mean < 0.01


def test_parts_of_a_step_are_all_of_it():
    """Every part of the split belongs to one share, and the shares add up to 1."""
    assert sorted(part for parts in PARTS.values() for part in parts) == sorted(SPLIT)
    plan = make_plan(CHAIN, nodes=2, tags={"layer1": 1})
    found = shares(simulate(plan, make_costs(CHAIN), steps=20))
    assert sum(found.values()) == pytest.approx(1.0)
    assert found["exposed communication"] > 0
    assert found["synchronisation"] == 0


def test_cores_that_bind_are_taken_away():
    """Six threads on two cores: with cores without limit three times as much."""
    _, relief = relief_of(make_plan(CHAIN, hogwild=6))
    assert relief.change == "cores of the trainers without limit"
    assert relief.gain == pytest.approx(2.0, abs=0.05)
    assert "its own work" in relief.then


def test_a_nic_that_binds_is_taken_away():
    """Many threads with a cut over a slow NIC: a fast one gives more, and something else binds."""
    plan = make_plan(CHAIN, nodes=2, tags={"layer1": 1}, hogwild=24, changes={"nic_bytes_per_second": 2e7, "cores": 32})
    result, relief = relief_of(plan)
    assert "NIC" in result.bottleneck
    assert relief.change == "NICs of the trainers without limit"
    assert relief.gain > 0.5


@pytest.mark.parametrize(
    ("plan", "costs", "conditions", "change"),
    [
        (make_plan(CHAIN), {}, {}, "cores of the trainers twice as fast"),
        (make_plan(CHAIN, nodes=2, tags={"layer1": 1}), {"factor": 0.01}, {}, "a network that takes no time"),
        (
            make_plan(CHAIN, groups=2, sync_servers=1, sync=Sync("foreground", 1)),
            {"exchange_seconds_per_byte": 1e-7},
            {},
            "no exchange between groups",
        ),
        (make_plan(CHAIN), {}, {"reader_batches_per_second": 2000.0}, "readers that are never late"),
        (
            make_plan(CHAIN),
            {},
            {"losses": (NodeLoss("g0n0", 500 * US, 0.0, 0.1),), "checkpoints": Checkpoints(400 * US)},
            "no losses and checkpoints",
        ),
    ],
)
def test_the_largest_part_of_a_step_is_taken_away(plan, costs, conditions, change):
    """Where no resource binds: own work, wire, exchange, readers and recovery each have their relief, which helps."""
    _, relief = relief_of(plan, make_costs(CHAIN, **costs), Conditions(**conditions), warmup=0)
    assert relief.change == change
    assert relief.gain > 0


def test_servers_that_answer_at_once():
    """A slow server is what a lone session waits for: without it a step is its own work and the wire."""
    plan = make_plan(chain_model(2, (table(),)), servers=1)
    _, relief = relief_of(plan, conditions=Conditions(slow_nodes={"ps0": 30.0}))
    assert relief.change == "embedding servers that answer at once"
    assert relief.gain > 1.0


def test_the_part_that_is_done_is_told():
    """From a hundredth to all of it, rising, at most a hundred times; and it changes nothing."""
    told: list[float] = []
    plan = make_plan(CHAIN, hogwild=3)
    result = simulate(plan, make_costs(CHAIN), steps=200, progress=told.append)
    assert told == sorted(told)
    assert 50 < len(told) <= 100
    assert told[-1] == 1.0
    assert result.samples_per_second == simulate(plan, make_costs(CHAIN), steps=200).samples_per_second


def test_a_machine_of_two_roles_is_a_trainer():
    """A node that trains and serves stands with the trainers."""
    plan = make_plan(chain_model(2, (table(),)), servers=1)
    both = replace(plan, servers=(plan.groups[0][0],))
    assert set(fleet(both, simulate(both, make_costs(plan.model), steps=20))) == {"trainer"}


def test_an_interval_is_printed_only_where_there_is_one():
    """A closed form has no interval (nan was printed), and what is left of one without variation is rounding: 0."""
    plan, costs = make_plan(CHAIN), make_costs(CHAIN)
    closed = simulate(plan, costs, fidelity="bound")
    assert "samples/s (closed form)\n" in simulation_text(plan, closed, None)
    steady = replace(simulate(plan, costs, variation=0.0), ci95=3.4e-13)
    assert "(95 % interval +- 0)\n" in simulation_text(plan, steady, None)
