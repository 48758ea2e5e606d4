"""Simulating one for many: what may be folded, and that it changes nothing where it is exact."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models.costs import MessageCost
from placement.plan import Plan, Sync
from programs.transform import transform
from simulator.folding import UNFOLDED, Folding, groups_fold, primitives_per_step, ranks_fold, strongest
from simulator.machines import Sharing
from simulator.observer import Observer
from simulator.scenario import stage
from tests.simulator.instances import BATCH, US, chain_model, make_costs, make_plan, table

MODEL = chain_model(2, [table("a"), table("b")], parameters=1250)
FREE = MessageCost()


def samples_per_second(plan: Plan, folding: Folding, variation: float = 0.0, **costs) -> float:
    """Throughput of the whole job, without variation unless said."""
    scenario = stage(transform(plan), make_costs(plan.model, **costs), Sharing.NODE, variation, folding)
    observer = Observer(scenario, 90 if variation else 30, 10, False)
    observer.run()
    return observer.rates()[0] * folding.copies


@pytest.mark.parametrize("ranks", [2, 4, 5])
@pytest.mark.parametrize("folded", [False, True])
def test_merged_all_reduce_takes_the_closed_form(ranks, folded):
    """One message per rank and phase takes 2 (latency + (R - 1) / R bytes / rate), as the slices do; folded as well."""
    model = chain_model(2, parameters=1250)
    folding = Folding(ranks=ranks if folded else 1, merged=True)
    found = samples_per_second(make_plan(model, nodes=ranks, ranks=ranks), folding, message=FREE)
    extra = 2 * (5 + (ranks - 1) / ranks * 10)
    assert found == pytest.approx(ranks * BATCH / ((72 + extra) * US), rel=1e-4)


def test_merged_all_reduce_costs_the_same_core_time():
    """Two ranks: the slice is the message, so merging changes nothing, messages and sums with their core time."""
    plan = make_plan(MODEL, nodes=2, ranks=2, servers=2, hogwild=3)
    assert samples_per_second(plan, Folding(merged=True), sum_seconds_per_byte=1e-9) == pytest.approx(
        samples_per_second(plan, UNFOLDED, sum_seconds_per_byte=1e-9), rel=1e-6
    )


@pytest.mark.parametrize("hogwild", [1, 3])
def test_one_rank_stands_for_all(hogwild):
    """Four ranks on two servers: one of them with a quarter of the servers is as fast as all four, within 0.1 %."""
    plan = make_plan(MODEL, nodes=4, ranks=4, servers=2, hogwild=hogwild)
    whole = samples_per_second(plan, Folding(merged=True), message=FREE)
    assert samples_per_second(plan, strongest(plan, Sharing.NODE), message=FREE) == pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize("hogwild", [1, 3])
def test_slices_and_merged_messages_agree(hogwild):
    """A merged phase receives its R - 1 slices after the last has come; slices may have received all but that one by then.

    So a step takes longer by no more than the core time of receiving R - 2 slices in each of the two phases, 3 us each and
    half as much again where three threads share two cores, and it is never shorter.
    """
    plan = make_plan(MODEL, nodes=4, ranks=4, servers=2, hogwild=hogwild)
    slices, merged = (samples_per_second(plan, folding) for folding in (UNFOLDED, Folding(merged=True)))
    step, longer = (4 * hogwild * BATCH / rate for rate in (slices, merged))
    assert step < longer <= step + 2 * (4 - 2) * 3 * US * max(1.0, hogwild / 2)


@pytest.mark.parametrize(("hogwild", "apart"), [(1, 1e-5), (3, 1e-3)])
def test_merging_work_changes_nothing(hogwild, apart):
    """Successive work as one job ends when it ended before (ties on shared cores apart); the run has fewer events."""
    plan, runs = make_plan(MODEL, nodes=2, ranks=2, servers=2, hogwild=hogwild, tags={"layer1": 1}), []
    for merge in (False, True):
        scenario = stage(transform(plan), make_costs(MODEL), Sharing.NODE, 0.0, merge=merge)
        observer = Observer(scenario, 20, 5, False)
        observer.run()
        runs.append((scenario.engine.now, scenario.engine.events))
    (time, events), (merged_time, merged_events) = runs
    assert merged_time == pytest.approx(time, rel=apart)
    assert merged_events < 0.8 * events


def test_the_leader_stands_for_all_ranks_of_all_groups():
    """Three groups of four with background sync: the leader of one, with its part of the servers, is within 3 % of all."""
    plan = make_plan(
        MODEL, nodes=4, ranks=4, groups=3, servers=2, sync_servers=1, hogwild=3, sync=Sync("background", gap=4)
    )
    folding = strongest(plan, Sharing.NODE)
    assert folding == Folding(groups=3, ranks=4, merged=True)
    whole = samples_per_second(plan, Folding(merged=True), message=FREE)
    assert samples_per_second(plan, folding, message=FREE) == pytest.approx(whole, rel=0.03)


def test_one_rank_waits_for_the_slowest_of_those_it_stands_for():
    """Steps of eight ranks vary by 10 %, which costs 7 % and more; unfolded and folded agree within 3 %."""
    plan = make_plan(chain_model(4), nodes=8, ranks=8)
    folding = strongest(plan, Sharing.NODE)
    whole = samples_per_second(plan, Folding(merged=True), variation=0.1, message=FREE)
    assert samples_per_second(plan, folding, variation=0.1, message=FREE) == pytest.approx(whole, rel=0.03)
    assert samples_per_second(plan, folding, message=FREE) > 1.07 * whole


def test_which_groups_fold():
    """Alike groups that meet at servers only do; foreground sync and another kind of machine forbid it."""
    plan = make_plan(MODEL, groups=3, servers=1, sync_servers=1, sync=Sync("background", gap=4))
    assert groups_fold(plan, Sharing.NODE)
    assert strongest(plan, Sharing.NODE) == Folding(groups=3, merged=True)
    assert not groups_fold(replace(plan, sync=Sync("foreground", gap=4)), Sharing.NODE)
    (other,) = plan.groups[1]
    assert not groups_fold(replace(plan, groups=(plan.groups[0], (replace(other, cores=9),))), Sharing.NODE)


def test_which_ranks_fold():
    """Alike ranks with all operators DP do; an MP operator, a node that is no rank or another kind of node forbid it."""
    plan = make_plan(MODEL, nodes=3, ranks=3, servers=1)
    assert ranks_fold(plan, Sharing.NODE)
    assert not ranks_fold(plan, Sharing.NONE)
    assert not ranks_fold(make_plan(MODEL, nodes=3, ranks=3, servers=1, tags={"layer1": 1}), Sharing.NODE)
    assert not ranks_fold(make_plan(MODEL, nodes=3, ranks=2, servers=1), Sharing.NODE)
    first, second, third = plan.groups[0]
    slow = replace(third, flops_per_core_second=5e8)
    assert not ranks_fold(replace(plan, groups=((first, second, slow),)), Sharing.NODE)


def test_the_count_of_primitives_is_that_of_the_staged_programs():
    """The count that decides about folding is the number of primitives that unfolded programs become."""
    plan = make_plan(MODEL, nodes=3, ranks=3, servers=2, hogwild=2, tags={"layer1": 1})
    scenario = stage(transform(plan), make_costs(MODEL), Sharing.NODE, 0.0)
    assert primitives_per_step(transform(plan)) == sum(len(runner.flat) for runner in scenario.runners)


def test_the_more_groups_are_simulated_the_nearer_to_all_of_them():
    """Twelve groups that queue at servers: one in the place of all is 10 % low and more, two 6 % at most, four 2 %."""
    plan = make_plan(MODEL, groups=12, servers=4, sync_servers=1, hogwild=3, sync=Sync("background", gap=4))
    one = strongest(plan, Sharing.NODE)
    whole = samples_per_second(plan, Folding(merged=True), 0.02, message=FREE)
    off = [samples_per_second(plan, one.with_groups(plan, k), 0.02, message=FREE) / whole - 1 for k in (1, 2, 4)]
    assert off[0] < -0.1
    assert off[1:] == [pytest.approx(0, abs=0.06), pytest.approx(0, abs=0.02)]


def test_several_groups_of_a_number_that_they_do_not_divide():
    """Two groups that stand for three have two thirds of the servers; no more are simulated than there are."""
    plan = make_plan(MODEL, groups=3, servers=1, sync_servers=1, hogwild=3, sync=Sync("background", gap=4))
    folding = strongest(plan, Sharing.NODE).with_groups(plan, 2)
    assert folding == Folding(groups=1.5, merged=True)
    assert folding.simulated_groups(plan) == 2
    assert strongest(plan, Sharing.NODE).with_groups(plan, 5).groups == 1
