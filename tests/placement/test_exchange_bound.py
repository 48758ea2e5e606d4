"""What a group exchanges at least, and how many shards tables need at a level of load."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from cost_models.constants import Constant
from placement.evaluation.evaluate import evaluate
from placement.plan import DP, Tag
from placement.search.bounds import Bounds
from placement.search.options import SolveOptions
from placement.search.shapes import Shape
from placement.tables.shard_bounds import ShardCurve, TableNeeds
from placement.tables.shard_state import Sharding
from placement.tagging.candidates import tags_of
from placement.tagging.exchange_bound import least_cut, least_exchange
from placement.tagging.nets import Contracted
from problem.model import Model
from tests.instances import nodes, random_group, two_layers
from tests.placement.test_search import _model, _solve


def test_least_exchange_by_hand() -> None:
    """Two layers: the wide one's tensors of 4 bytes are cheaper to exchange than its 4 MB of parameters."""
    found = least_exchange(Contracted(two_layers()))
    assert found.sent_bytes == pytest.approx(2 * 4 + 4, rel=1e-6)  # ``small`` all-reduced, the input sent and no more
    assert found.core_seconds == 0.0


@pytest.mark.parametrize("seed", range(25))
def test_no_placement_exchanges_less_than_the_cut(seed: int) -> None:
    """Every placement of a random group sends, and handles, at least what the minimum cut says for each rank but one."""
    problem = random_group(seed)
    data = Contracted(problem)
    least, free = least_exchange(data), [data.items[index] for index in data.free]
    fixed = {item.name: item.fixed for item in data.items if item.fixed is not None}
    choices: list[Tag] = [DP, *range(problem.size)]
    for drawn in product(choices, repeat=min(3, len(free))):
        names = [item.name for item in free]
        chosen = dict(zip(names, (*drawn, *[drawn[-1]] * len(names)), strict=False)) if drawn else {}
        loads = evaluate(problem, tags_of(data.items, fixed | chosen)).loads[: problem.size]
        handled = sum(load.core_seconds["message"] + load.core_seconds["allreduce"] for load in loads)
        others, fast = problem.ranks - 1, min(problem.slowdown)
        additions = sum(load.core_seconds["compute"] for load in loads)
        assert handled + additions >= others * least.core_seconds * fast * (1 - 1e-9)
        if len({node.host for node in problem.machines}) == len(problem.machines):
            sent = sum(
                load.tx_seconds * node.nic_bytes_per_second for load, node in zip(loads, problem.nodes, strict=True)
            )
            assert sent >= others * least.sent_bytes * (1 - 1e-9)


def test_least_cut_takes_the_cheaper_side() -> None:
    """An item that costs little is data-parallel; one that costs much is cut off where its nets cost less."""
    data = Contracted(two_layers())
    count = len(data.items)
    assert least_cut(data, [0.0] * count, [5.0] * len(data.nets)) == 0.0
    assert least_cut(data, [9.0] * count, [0.0] * len(data.nets)) == 0.0


def test_shards_at_a_level_by_hand() -> None:
    """A table of 8 s of work in 4 shards takes 2 s each: below that, and what each costs, there is a fifth, with its ids."""
    model = _model(tables=1, rows=100, pooling=200.0)
    bounds = Bounds(model, _solve(model, nodes(3)).costs, 64, 1, {}, local=False)
    needs = TableNeeds(Sharding(model, 64, (), bounds.costs, 1, local=False, columns=True))
    needs.each, needs.whole = np.full((1, 4), 1.0), np.full((1, 4), 9.0)
    curve = ShardCurve(needs, np.ones(4), np.array([10]), 8)
    assert [curve.more_ids_bytes(level) for level in (9.0, 8.9, 5.0, 4.9, 3.0, 2.9)] == [0, 10, 10, 20, 30, 40]


def _unlike() -> Model:
    """A small DLRM of four tables, the first of which is read 400 times as much as the others."""
    model = _model()
    first = replace(model.tables[0], pooling_factor=400.0)
    return replace(model, tables=(first, *model.tables[1:]))


@pytest.mark.parametrize(
    ("least_saved", "gain", "shapes"),
    [(1e9, 0.9, ((1, 2), (1, 4), (2, 4))), (-1e9, 1.0, ((2, 4),))],
    ids=["all ids", "ids sent apart"],
)
def test_bounds_of_unlike_tables_hold_for_what_is_solved(
    monkeypatch: pytest.MonkeyPatch, least_saved: float, gain: float, shapes: tuple[tuple[int, int], ...]
) -> None:
    """One table is read much: the joint bound promises no more than the quick one, less where each shard gets all its ids;
    never less than a plan does."""
    monkeypatch.setattr("cost_models.routing.LEAST_SAVED", Constant(least_saved, "bytes", "test"))
    model = _unlike()
    for size, servers in shapes:
        options = SolveOptions(servers=servers, group_size=size, max_replicas=1, time_limit_seconds=30, hogwild=2)
        result = _solve(model, nodes(7, nic_bytes_per_second=5e6, memory_bandwidth_bytes_per_second=1e8), options)
        plan = result.plan
        bounds = Bounds(model, result.costs, plan.batch, plan.hogwild, {}, local=False)
        quick = bounds.quick(Shape(size, plan.groups, plan.servers, plan.sync_servers, plan.ranks))
        refined = bounds.refine(quick)
        assert bounds.rate(refined) <= gain * bounds.rate(quick)
        assert result.objective <= bounds.rate(refined) * (1 + 1e-9)
