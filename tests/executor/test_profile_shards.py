"""What every shard of a table takes: the proportion by which it is found, and that a profile's tables are left alone."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.costs import PhaseCost, TableCost
from cost_models.profile import signature
from executor.data.synthetic import SyntheticStream
from executor.loopback import Loopback
from executor.profile_shards import every_shard, shard_measurements
from executor.profiler import in_context_plan
from placement.plan import Shard
from placement.tables.shares import shard_cost
from problem.local import this_node
from problem.model import EmbeddingTable
from tests.executor.tiny import dlrm, tables

SECONDS = {"lookup": 8.0, "update": 16.0}


def test_the_shard_that_was_measured_is_predicted_as_measured() -> None:
    """Half a table at 7 of its 8 us, none of it at 3: every shard takes 6, so that the formula gives the half its 7."""
    part = every_shard(8.0, 7.0, 3.0, 0.5)
    assert part == 6 / 8
    cost = TableCost(PhaseCost(8.0), PhaseCost(), PhaseCost(8.0 * part))
    assert shard_cost(cost, EmbeddingTable("t", 2, 16), Shard("t", 0, 0, 1)).lookup.core_seconds == 7.0


@pytest.mark.parametrize(
    ("part", "share", "expected"),
    [(2.0, 0.5, 3 / 8), (9.0, 0.5, 1.0), (8.0, 1.0, 3 / 8), (3.0, 0.0, 3 / 8)],
    ids=["cheaper than its share", "dearer than the table", "all ids", "no ids"],
)
def test_a_shard_takes_no_less_than_one_without_ids_and_no_more_than_the_table(
    part: float, share: float, expected: float
) -> None:
    """Whatever the clock says of a table of 8 us, 3 without ids; a shard that tells nothing counts as one without."""
    assert every_shard(8.0, part, 3.0, share) == expected


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_shards_are_measured_on_views_and_no_row_changes(optimizer: str) -> None:
    """Both phases of each table come out between nothing and the whole, and rows are the same to the bit after it."""
    model = dlrm([3, 4], tables(2, 9, 4, optimizer=optimizer), [1])
    loop = Loopback(in_context_plan(model, 8, this_node()), SyntheticStream(model, 0), 6)
    before = [held.rows.copy() for held in loop.state.rows if held is not None]
    whole = {(signature(table), phase): seconds for table in model.tables for phase, seconds in SECONDS.items()}
    found = list(shard_measurements(loop, whole))  # type: ignore[arg-type]
    assert [m.phase for m in found] == ["shard_lookup"] * 2 + ["shard_update"] * 2
    assert all(0 < m.seconds <= SECONDS[m.phase.removeprefix("shard_")] for m in found)
    assert all(np.array_equal(held.rows, old) for held, old in zip(loop.state.rows, before, strict=True) if held)
