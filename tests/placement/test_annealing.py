"""Annealing of large groups: its loads stay exact, and it finds what descents do not."""

from __future__ import annotations

import numpy as np

from placement.deadline import Deadline
from placement.evaluation.evaluate import evaluate
from placement.plan import DP
from placement.tagging.annealing import Annealing, anneal
from placement.tagging.net_loads import EVERYWHERE
from placement.tagging.quick_loads import QuickLoads
from placement.tagging.stretches import MOST_NETS, Chains
from tests.instances import random_group
from tests.placement.test_quick_loads import _branches, _drawn


def test_loads_stay_those_of_the_placement() -> None:
    """On 60 random groups, after hundreds of moves: loads are those worked out anew, and no item is where it may not be."""
    moved = 0
    for seed in range(60):
        loads = _drawn(random_group(seed), seed)
        found = Annealing(loads, seed)
        found.run(400, Deadline())
        at = [EVERYWHERE if place == found.size else place for place in found.at[:-1].tolist()]
        anew, allowed, items = QuickLoads(loads.data, at), loads.data.allowed, found.chains.items.tolist()
        np.testing.assert_allclose(found.total, anew.total, rtol=1e-9, atol=1e-6, err_msg=str(seed))
        assert all(at[i] == loads.at[i] or (DP if at[i] == EVERYWHERE else at[i]) in allowed[i] for i in items), seed
        moved += at != loads.at
    assert moved > 30


def test_same_seed_same_placement() -> None:
    """Annealing by count is a function of its seed."""
    group = _branches(3, nic_bytes_per_second=2e6)
    start = dict.fromkeys((op for item in group.items for op in item.ops), DP)
    assert anneal(group, start, Deadline(), 5, 1) == anneal(group, start, Deadline(), 5, 1)


def test_a_chain_feeds_its_next_item_only() -> None:
    """Items of a chain follow each other by a net with one consumer; items with many nets are in none."""
    group = _branches(3)
    chains = Chains(group)
    feeds = {(net.producer, item) for net in group.nets for item, _ in net.consumers if len(net.consumers) == 1}
    begin, items = chains.begin.tolist(), chains.items.tolist()
    inside = [(items[i - 1], items[i]) for i in range(1, len(items)) if begin[i - 1] == begin[i]]
    assert set(inside) <= feeds
    assert len(inside) > len(items) / 2
    read = {item: sum(item in dict(net.consumers) for net in group.nets) for item in group.free}
    assert all(read[item] <= MOST_NETS for item in items)


def test_annealing_fits_and_is_better() -> None:
    """On a narrow network a short annealing takes less than half of the step of its start, by the exact evaluation."""
    group = _branches(3, nic_bytes_per_second=2e6)
    start = dict.fromkeys((op for item in group.items for op in item.ops), DP)
    found = evaluate(group.problem, anneal(group, start, Deadline(), 50))
    assert found.fits
    assert found.seconds < 0.5 * evaluate(group.problem, start).seconds
