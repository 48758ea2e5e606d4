"""Local search: quick loads are those of the evaluator, and moves of clusters find what no baseline has."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from cost_models.roofline import roofline_costs
from experiments.autoctr import autoctr_model
from placement.deadline import Deadline
from placement.evaluation.evaluate import evaluate
from placement.evaluation.group import GroupProblem
from placement.plan import DP
from placement.tagging.baselines import baselines
from placement.tagging.descent import Descent, descend
from placement.tagging.limits import Limits
from placement.tagging.nets import Contracted
from placement.tagging.quick_loads import EVERYWHERE, QuickLoads, places_of
from placement.tagging.solve import proves, solve_group
from tests.instances import nodes, random_group

GIB = 2**30


def _drawn(problem: GroupProblem, seed: int) -> QuickLoads:
    """A random placement, after a few random moves."""
    data, draw = Contracted(problem), random.Random(seed)
    places = [
        draw.randint(-1, problem.size - 1)
        if item.fixed is None
        else (EVERYWHERE if item.fixed == DP else int(item.fixed))
        for item in data.items
    ]
    loads = QuickLoads(data, places)
    for _ in range(3):
        if data.free:
            loads.move([draw.choice(data.free)], draw.randint(-1, problem.size - 1))
    return loads


def _codecs(problem: GroupProblem, draw: random.Random) -> dict[str, str]:
    """Codecs at random on all edges."""
    cuts = ("fp32", "bf16", "rowwise4", "dct-mp:0.25", "sketch:0.5")
    found = {op.name: draw.choice(cuts) for op in problem.model.graph}
    return found | {"pooled": "rowwise8", "push": "bf16", "allreduce": draw.choice(("fp32", "fp16", "dct-dp:0.1:10"))}


def test_quick_loads_are_those_of_the_evaluator() -> None:
    """On 200 random groups, every other with codecs: memory and traffic always, cores with one group, NICs where no host is
    shared."""
    for seed in range(200):
        problem = random_group(seed)
        if seed % 2:
            problem = replace(problem, codecs=_codecs(problem, random.Random(seed)))
        loads = _drawn(problem, seed)
        exact = evaluate(problem, loads.tags()).loads[: problem.size]
        memory, seconds = loads.total[-1], loads.seconds
        assert memory == pytest.approx([load.memory_needed for load in exact], rel=1e-9), seed
        assert seconds[1] == pytest.approx([load.memory_seconds for load in exact], rel=1e-9), seed
        if problem.groups == 1:
            assert seconds[0] == pytest.approx([load.cores_seconds for load in exact], rel=1e-9), seed
        if not (problem.one_host or problem.hosts_mixed):
            assert seconds[2] == pytest.approx([load.tx_seconds for load in exact], rel=1e-9), seed
            assert seconds[3] == pytest.approx([load.rx_seconds for load in exact], rel=1e-9), seed


def test_scores_of_places_are_those_after_moving_there() -> None:
    """On 100 random groups: judging two items in every place says what moving them there does, and changes nothing."""
    for seed in range(100):
        loads, draw = _drawn(random_group(seed), seed), random.Random(seed)
        if not loads.data.free:
            continue
        items = sorted({draw.choice(loads.data.free) for _ in range(2)})
        for item in items:
            loads.move([item], EVERYWHERE)
        places = list(range(EVERYWHERE, loads.size))
        before, found = loads.total.copy(), loads.scores(items, places, 2)
        assert (loads.total == before).all()
        for place, score in zip(places, found, strict=True):
            loads.move(items, place)
            assert score == pytest.approx(loads.score(2), rel=1e-9, abs=1e-6), (seed, place)


def _branches(size: int, batch: int = 512, threads: int = 16, **changes: float) -> Contracted:
    """A group for a model of 300 linear layers in 60 branches."""
    model = autoctr_model(operators=300, branches=60, tables=4)
    machines = nodes(size, **({"memory_bytes": 64 * GIB} | changes))
    return Contracted(GroupProblem(model, roofline_costs(model, batch, machines[0]), machines, batch, threads, size))


def test_clusters_leave_the_ranks_when_the_network_is_narrow() -> None:
    """With NICs of 2 MB/s a descent from all-DP takes less than half the step of the best baseline, evaluated exactly."""
    group = _branches(3, nic_bytes_per_second=2e6)
    rows = baselines(group)
    tags = descend(group, rows[0].tags, Deadline())
    assert evaluate(group.problem, tags).seconds < 0.5 * min(row.evaluation.seconds for row in rows)
    assert {*tags.values()} > {DP}


def test_memory_that_no_rank_has_is_found_elsewhere() -> None:
    """Where a copy of everything on each rank does not fit, a descent ends with a placement that does, and is fast."""
    whole = baselines(_branches(4, 8, 2))[0]
    needed = max(load.memory_needed for load in whole.evaluation.loads)
    group = _branches(4, 8, 2, memory_bytes=int(0.6 * needed))
    rows = baselines(group)
    assert not rows[0].evaluation.fits
    found = evaluate(group.problem, descend(group, rows[0].tags, Deadline()))
    assert found.fits
    assert found.seconds < min(row.evaluation.seconds for row in rows if row.evaluation.fits)


def test_descent_never_ends_above_its_start() -> None:
    """The norm that a descent minimises does not rise, whatever the kicks."""
    group = _branches(3)
    loads = QuickLoads(group, places_of(group, baselines(group)[2].tags))
    descent = Descent(loads, [(index,) for index in group.free], doublings=3)
    before = descent.value
    descent.run(600)
    assert loads.score(3) <= before


@pytest.mark.parametrize("spread", [True, False])
def test_no_node_hosts_what_alone_takes_too_long(spread: bool) -> None:
    """Where the network is narrow items leave the ranks, but not the layer that takes a node longer than the limit."""
    group = _branches(3, nic_bytes_per_second=2e6)
    start = dict.fromkeys((op for item in group.items for op in item.ops), DP)
    heavy = max(group.free, key=lambda index: group.work[index].work.core_seconds)
    limit = 0.9 * QuickLoads(group, places_of(group, start)).alone([heavy]).min()
    tags = descend(group, start, Deadline(), limit_seconds=limit, spread=spread)
    assert tags[group.items[heavy].ops[0]] == DP
    assert {*tags.values()} > {DP}


def test_same_seed_same_descent() -> None:
    """Two searches of a large group give the same placement and the same bound, which is above the floor."""
    group = _branches(3, nic_bytes_per_second=2e6)
    assert not proves(group)
    first, second = (solve_group(group, Limits(descents=1, looks=0), floor_seconds=1e-6) for _ in range(2))
    assert first.tags == second.tags
    assert 1e-6 < first.bound_seconds == second.bound_seconds <= first.seconds
