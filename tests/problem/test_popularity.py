"""Which rows are read how often: by hand, against sums, and against what the stream draws and shards measure."""

from dataclasses import replace

import numpy as np
import pytest

from executor.data import SyntheticStream
from placement.plan import Shard
from placement.tables.shares import row_share
from problem.model import EmbeddingTable
from problem.popularity import Mixture, Popularity, popularity
from tests.executor.tiny import dlrm

TABLE = EmbeddingTable("t", 1000, 4, 4.0, skew=1.2)


def test_shares_by_hand():
    """A histogram, ranked rows and rows in any order: shares of the first half."""
    assert Popularity(10, 0.0, (3.0, 1.0)).below(5) == pytest.approx(0.75)
    assert Popularity(10, 1.0).below(5) == pytest.approx(np.log(6) / np.log(11))
    assert row_share(TABLE, 0, 500) == pytest.approx(0.5)
    assert row_share(replace(TABLE, ranked=True), 0, 1000) == 1.0


def test_rows_are_found_by_their_share():
    """row_at is the last row below which there is no more than a share, for a mixture of two laws too."""
    read = Mixture([Popularity(100, 0.0), Popularity(100, 0.0, (1.0, 0.0))], [1.0, 3.0])
    assert read.row_at(0.875 / 2) == 25
    assert read.row_at(1.0) == 100
    assert read.row_at(0.0) == 0


@pytest.mark.parametrize("changes", [{"ranked": True}, {"histogram": (0.7, 0.1, 0.2)}])
def test_measured_ids_of_shards_are_the_planned_shares(changes):
    """Of 40,000 ids drawn, each of four row shards gets the share that the plan counts with, to 1 %, and ranges that are cut
    by popularity get a quarter each where ranges of equal size do not."""
    table = replace(TABLE, **changes)
    ids = SyntheticStream(dlrm([3, 4], [table], [1]), 3).batch(0, 10000).ids["t"]
    read = Mixture([popularity(table)], [1.0])
    edges = [0, *(read.row_at(i / 4) for i in range(1, 4)), table.rows]
    for cut in (edges, [0, 250, 500, 750, 1000]):
        shards = [Shard("t", i, cut[i], cut[i + 1]) for i in range(4)]
        planned = [row_share(table, s.row_begin, s.row_end) for s in shards]
        measured = [float(np.mean((ids >= s.row_begin) & (ids < s.row_end))) for s in shards]
        assert measured == pytest.approx(planned, abs=0.01)
        assert (max(planned) > 0.4) is (cut is not edges)
