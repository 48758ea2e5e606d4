"""Public sets of tables: a production plan of 1,935 tables, and the benchmark sets in TorchRec's cost measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.bench_sharding import GREEDY, Case, greedy, judged, ours, public_set, published_plan, torchrec
from placement.tables.pouring import poured
from placement.tables.shard_bounds import sharding_bound
from placement.tables.sharding import ShardingOptions, shard_tables

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
pytestmark = pytest.mark.skipif(
    not (SHARED / "workloads").exists(), reason="the shared inputs are not beside the repository"
)


def _set(key: str, ranks: int) -> Case:
    return public_set(SHARED, key, key, ranks)


def test_production_plan_is_balanced_within_one_percent() -> None:
    """The 1,935 tables over 96 equal servers: max/mean at most 1.01 (published 1.296), better than all greedy rules."""
    case = published_plan(SHARED)
    row = ours(case, "ours", row_splits=True)
    assert row.largest is not None
    assert row.mean == pytest.approx(1.0036, rel=1e-3)
    assert row.largest <= 1.01 * row.mean
    assert all((other := greedy(case, method)).largest is None or row.largest < other.largest for method in GREEDY)


def test_the_published_plan_is_judged_as_it_judges_itself() -> None:
    """TorchRec's own plan of the 1,935 tables: the busiest rank's cost, from its shards, is 1.296 of the mean."""
    case = published_plan(SHARED)
    (row,) = torchrec(case)
    assert row.largest == pytest.approx(1.3003, rel=1e-3)
    assert row.own == pytest.approx(row.largest, rel=1e-3)
    assert row.own == pytest.approx(1.296 * ours(case, "ours", row_splits=True).mean, rel=1e-3)
    assert not row.lacking


@pytest.mark.parametrize(
    ("key", "ranks", "optimum", "mean"),
    [
        ("200table_100B_hotness20", 64, 0.38707, 0.3013),
        ("180table_70B_hotness80", 64, 0.77414, 0.6573),
        ("dcnv2", 8, 0.04838, 0.01804),
    ],
)
def test_whole_tables_reach_the_known_optimum(key: str, ranks: int, optimum: float, mean: float) -> None:
    """Without row splits the largest load is the proven optimum of the same measure, and is proven again."""
    row = ours(_set(key, ranks), "whole", row_splits=False)
    assert row.mean == pytest.approx(mean, rel=1e-3)
    assert row.largest == pytest.approx(optimum, rel=1e-3)
    assert row.bound == pytest.approx(optimum, rel=1e-3)


@pytest.mark.parametrize(
    ("key", "ranks", "most"), [("200table_100B_hotness20", 64, 0.31), ("dcnv2", 8, 0.019), ("dcnv2", 16, 0.02)]
)
def test_row_splits_do_better_than_any_whole_tables(key: str, ranks: int, most: float) -> None:
    """With row splits, each shard charged for whole pooled rows, the load is far below the best of whole tables."""
    case = _set(key, ranks)
    found = shard_tables(
        case.model, case.batch, case.servers, case.costs, ShardingOptions(0, local=True, deterministic_seconds=0.0)
    )
    assert judged(case, found.shards).load[:, 0].max() == pytest.approx(found.max_load_seconds)
    assert found.bound_seconds <= found.max_load_seconds <= most


def test_tables_larger_than_a_server_get_a_plan() -> None:
    """The seven tables of 446 billion parameters fit on 64 servers by rows, where whole tables fit nowhere."""
    case = _set("7table_470B_hotness20", 64)
    assert ours(case, "whole", row_splits=False).largest is None
    row = ours(case, "ours", row_splits=True)
    assert row.largest is not None
    assert row.mean is not None
    assert row.largest <= 1.05 * row.mean


def test_pouring_stays_below_its_level_and_places_every_row() -> None:
    """A poured sharding holds all rows and is below the load that it was asked to beat."""
    case = _set("dcnv2", 8)
    state = poured(case.empty, sharding_bound(case.empty()), 0.04)
    assert state is not None
    assert state.seconds < 0.04
    assert sum(shard.rows for shard in state.shards()) == sum(table.rows for table in case.model.tables)
