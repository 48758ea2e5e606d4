"""Groups that average among themselves: evaluator, integer program and local search agree; searches need no sync server."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from cost_models.costs import MessageCost
from cost_models.network import all_reduce_bytes
from placement.evaluation.evaluate import evaluate
from placement.evaluation.group import GroupProblem, near_neighbours
from placement.explain import problem_of, rate_of
from placement.plan import Sync
from placement.planfile import plan_from_json, plan_to_json
from placement.tagging.nets import Contracted
from placement.tagging.solve import solve_group
from problem.errors import BadInput
from programs.transform import transform
from simulator.simulate import simulate
from tests.instances import exhaustive, node, nodes, random_group
from tests.placement.test_evaluate import _dlrm
from tests.placement.test_quick_loads import _drawn
from tests.placement.test_search import QUICK, _model, _solve
from tests.simulator.instances import chain_model, make_costs, make_plan


def averaging(seed: int) -> GroupProblem:
    """A random group (``tests.instances``) of two to five that average, now and then on one host with the next one."""
    problem, draw = random_group(seed), random.Random(f"average {seed}")
    sync = Sync("background", draw.choice([1, 3]), 1.0, draw.choice(["ma", "bmuf"]))
    near = tuple((True, True) for _ in problem.nodes) if draw.random() < 0.2 else ()
    return replace(problem, groups=draw.randint(2, 5), sync=sync, sync_servers=(), near=near)


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 200), marks=pytest.mark.slow)])
def test_exhaustive_search_equals_the_integer_program(seeds: range) -> None:
    """On random groups that average the solver finds and proves what trying everything finds."""
    for seed in seeds:
        best, _ = exhaustive(problem := averaging(seed))
        found = solve_group(Contracted(problem))
        if best == float("inf"):
            assert found.infeasible, seed
        else:
            assert found.seconds == pytest.approx(best, rel=1e-6), seed
            assert found.bound_seconds <= best * (1 + 1e-9), seed
            assert found.within(1e-5), seed


def test_quick_loads_are_those_of_the_evaluator() -> None:
    """On 100 random groups: memory always, bytes on NICs where no host is shared."""
    for seed in range(100):
        problem = averaging(seed)
        loads = _drawn(problem, seed)
        exact = evaluate(problem, loads.tags()).loads[: problem.size]
        assert loads.total[-1] == pytest.approx([load.memory_needed for load in exact], rel=1e-9), seed
        if not (problem.one_host or problem.hosts_mixed):
            assert loads.seconds[2] == pytest.approx([load.tx_seconds for load in exact], rel=1e-9), seed
            assert loads.seconds[3] == pytest.approx([load.rx_seconds for load in exact], rel=1e-9), seed


@pytest.mark.parametrize("seed", range(8))
def test_loads_are_those_of_the_programs(seed: int) -> None:
    """Bytes of a node are those of its Average, but for what fills up chunks and shares, divided by the steps between two;
    core-seconds are those of its messages, additions and the rule. No machine but trainers and embedding servers works."""
    draw = random.Random(seed)
    size, groups = draw.randint(1, 3), draw.randint(2, 4)
    plan, costs = _dlrm(draw, ranks := draw.randint(1, size), size, groups)
    plan = replace(plan, sync_servers=(), sync=Sync(gap=4, alpha=1.0, algorithm="ma"))
    alone = evaluate(problem_of(replace(plan, groups=plan.groups[:1], sync=None), costs), plan.tags)
    found, often = evaluate(problem_of(plan, costs), plan.tags), 1 / (4 * plan.hogwild)
    assert {load.role for load in found.loads} == {"group", "server"}
    ends = costs.message.send(0, 1) + costs.message.receive(0, 1)
    for index, step in transform(plan).shadows.items():
        rounds = 2 * (groups - 1)
        sent = rounds * step.chunk_bytes + step.shared_bytes * len(step.peers)
        extra = found.loads[index].tx_seconds - alone.loads[index].tx_seconds
        spare = 4 * (rounds + len(step.peers)) * 2
        assert extra * 1e9 == pytest.approx(often * sent, abs=often * spare)
        adds = rounds * step.chunk_bytes + sum(step.taken_bytes)
        seconds = (rounds + len(step.peers)) * ends + costs.sum_seconds_per_byte * adds
        seconds += (costs.message.send_seconds_per_byte + costs.message.receive_seconds_per_byte) * sent
        seconds += 2 * costs.exchange_seconds_per_byte * step.bytes
        busy = found.loads[index].core_seconds["sync"]
        assert busy == pytest.approx(often * seconds, rel=0.02, abs=often * 1e-7 * spare)
    assert ranks <= size


@pytest.mark.parametrize("groups", [2, 4, 7])
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_evaluator_predicts_the_simulated_step(groups: int, ranks: int) -> None:
    """Thread 0 stops every step for the ring and for what ranks pass on: predicted and simulated steps are the same."""
    model = chain_model(2, parameters=126_000)
    message = MessageCost(2e-6, 1e-10, 3e-6, 1e-10)
    costs = make_costs(model, message=message, sum_seconds_per_byte=1e-10, exchange_seconds_per_byte=2e-10)
    plan = make_plan(model, nodes=ranks, ranks=ranks, groups=groups, sync=Sync("foreground", 1, 1.0, "ma"))
    predicted = evaluate(problem_of(plan, costs), plan.tags).latency_seconds
    simulated = groups * ranks * plan.batch / simulate(plan, costs, steps=20, variation=0.0).samples_per_second
    assert predicted == pytest.approx(simulated, rel=0.01)


def test_more_groups_do_not_make_an_average_longer_by_more_than_twice() -> None:
    """A node sends 2 (G - 1) / G of its parameters: from 2 to 100 groups less than twice as much, which is what servers of
    all groups would get."""
    model = chain_model(2, parameters=126_000)
    plans = [make_plan(model, groups=groups, sync=Sync("background", 1, 1.0, "ma")) for groups in (2, 100)]
    sent = [evaluate(problem_of(plan, make_costs(model)), plan.tags).loads[0].tx_seconds for plan in plans]
    assert sent == pytest.approx([all_reduce_bytes(8 * 126_000, 2) / 1e9, all_reduce_bytes(8 * 126_000, 100) / 1e9])


def test_groups_on_one_host_average_without_a_nic() -> None:
    """Whether counterparts share a host is looked up for the next group and the one before; then no byte is on a NIC."""
    same, other = node("a", host="one"), node("b", host="two")
    assert near_neighbours(((same,), (same,)), 0) == ((True, True),)
    assert near_neighbours(((same,), (same,), (other,)), 0) == ((True, False),)
    assert near_neighbours(((same,), (other,)), 0) == ()
    plan = make_plan(chain_model(2), groups=2, sync=Sync("background", 1, 1.0, "ma"), changes={"host": "one"})
    assert evaluate(problem_of(plan, costs := make_costs(plan.model)), plan.tags).loads[0].tx_seconds == 0.0
    assert rate_of(plan, costs) > 0


@pytest.mark.parametrize("algorithm", ["ma", "bmuf"])
def test_a_search_needs_no_sync_server(algorithm: Any) -> None:
    """Averages of several groups are planned without sync servers, on all machines; with as many as are asked for; the plan
    file says which; EASGD does not start from such a plan as it is."""
    options = replace(QUICK, max_replicas=3, group_size=2, servers=1, sync_algorithm=algorithm)
    result = _solve(_model(batch=512), nodes(7), options)
    plan = result.plan
    assert plan.ring
    assert len(plan.groups) == 3
    assert result.objective == pytest.approx(rate_of(plan, result.costs), rel=1e-6)
    assert plan_from_json(plan_to_json(plan), "file").ring
    through = _solve(_model(batch=512), nodes(7), replace(options, sync_servers=1)).plan
    assert (len(through.sync_servers), len(through.groups), through.ring) == (1, 2, False)
    other = _solve(_model(batch=512), nodes(7), replace(options, sync_algorithm="easgd", warm_start=plan)).plan
    assert not other.ring


def test_only_averages_do_without_sync_servers() -> None:
    """Asked for none, EASGD has one group; rounding what is exchanged needs a server, which is said before solving."""
    options = replace(QUICK, max_replicas=3, group_size=2, servers=1)
    assert len(_solve(_model(batch=512), nodes(7), replace(options, sync_servers=0)).plan.groups) == 1
    with pytest.raises(BadInput, match=r"codec of exchange = 'bf16': with ma without sync servers: fp32"):
        _solve(_model(), nodes(5), replace(options, sync_algorithm="ma", codecs={"exchange": "bf16"}))
