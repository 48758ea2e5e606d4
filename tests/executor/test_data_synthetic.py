"""The synthetic click stream: reproducible, power-law ids, labels from the planted model."""

from __future__ import annotations

import numpy as np
import pytest

from executor.data import SyntheticStream
from executor.data.batch import dense_width
from executor.data.synthetic import BASE_RATE
from problem.graph import Graph, Kind, Operator
from problem.model import EmbeddingTable, Model
from tests.executor.tiny import dlrm, linear, tables

MODEL = dlrm([5, 4], [*tables(2, 1000, 4, pooling_factor=3), EmbeddingTable("one", 1, 4)], [1])


def test_a_batch_depends_on_its_index_alone() -> None:
    """Batch 5 is the same from a fresh stream, after other batches and in another order; other indices differ."""
    stream = SyntheticStream(MODEL, 4)
    stream.batch(0, 32)
    first, again, other = stream.batch(5, 32), SyntheticStream(MODEL, 4).batch(5, 32), stream.batch(6, 32)
    np.testing.assert_array_equal(first.dense, again.dense)
    np.testing.assert_array_equal(first.labels, again.labels)
    for name, ids in first.ids.items():
        np.testing.assert_array_equal(ids, again.ids[name])
    assert not np.array_equal(first.dense, other.dense)
    assert not np.array_equal(first.dense, SyntheticStream(MODEL, 5).batch(5, 32).dense)


def test_shapes_and_types_are_those_of_the_model() -> None:
    """Dense (B, F) float32, ids (B, L) contiguous int32 inside each table, labels 0 or 1."""
    batch = SyntheticStream(MODEL).batch(0, 64)
    assert (batch.dense.shape, batch.dense.dtype) == ((64, 5), np.float32)
    assert (batch.labels.shape, batch.labels.dtype) == ((64,), np.float32)
    assert set(np.unique(batch.labels)) == {0.0, 1.0}
    for table in MODEL.tables:
        ids = batch.ids[table.name]
        assert (ids.shape, ids.dtype) == ((64, table.ids_per_sample), np.int32)
        assert ids.flags.c_contiguous
        assert 0 <= ids.min() <= ids.max() < table.rows


def test_bags_have_the_lengths_and_weights_of_their_table() -> None:
    """Lengths from 0 to the most, with the mean of the table; -1 behind the last id; weights only where they are used."""
    bags = {"pooling_factor": 1.5, "max_ids": 4}
    found = [EmbeddingTable("w", 50, 4, pooling="weighted", **bags), EmbeddingTable("m", 50, 4, pooling="mean", **bags)]
    batch = SyntheticStream(dlrm([5, 4], found, [1])).batch(0, 2000)
    for name in ("w", "m"):
        used = batch.ids[name] >= 0
        lengths = used.sum(axis=1)
        assert set(lengths) == {0, 1, 2, 3, 4}
        assert abs(lengths.mean() - 1.5) < 0.1
        np.testing.assert_array_equal(used, np.arange(4) < lengths[:, None])
        assert batch.ids[name].min() == -1
    assert set(batch.weights) == {"w"}
    assert (batch.weights["w"].shape, batch.weights["w"].dtype) == ((2000, 4), np.float32)


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 1.05, 2.0])
def test_popularity_follows_the_power_law(skew: float) -> None:
    """The share of the most popular rows is the integral of x^-skew over their ranks, within sampling error."""
    rows, size = 500, 50_000
    model = dlrm([1, 4], [EmbeddingTable("t", rows, 4, skew=skew)], [1])
    counts = np.bincount(SyntheticStream(model, 1).batch(0, size).ids["t"][:, 0], minlength=rows)
    edges = np.arange(1, rows + 2, dtype=np.float64)
    mass = np.log(edges) if skew == 1.0 else (edges ** (1 - skew) - 1) / (1 - skew)
    expected = np.diff(mass) / mass[-1]
    found = np.sort(counts)[::-1] / size
    for head in (1, 10, 100):
        share = expected[:head].sum()
        slack = 5 * np.sqrt(share * (1 - share) / size) + (0.03 if skew == 0.0 else 0.003)  # sorting favours luck
        assert found[:head].sum() == pytest.approx(share, abs=slack)


def test_popular_rows_are_spread_over_the_table() -> None:
    """Each quarter of the rows takes between a sixth and a third of the look-ups of the ranks beyond the hottest few,
    so that row ranges on different servers share the load."""
    model = dlrm([1, 4], [EmbeddingTable("t", 10_000, 4)], [1])
    ids = SyntheticStream(model, 1).batch(0, 50_000).ids["t"]
    counts = np.bincount(ids[:, 0], minlength=10_000)
    counts[np.argsort(counts)[-8:]] = 0
    quarters = counts.reshape(4, -1).sum(axis=1) / counts.sum()
    assert np.all((quarters > 1 / 6) & (quarters < 1 / 3))


def test_every_row_can_be_drawn() -> None:
    """Ranks are scattered by a permutation: uniform ids reach all rows of a table whose size is not prime."""
    model = dlrm([1, 4], [EmbeddingTable("t", 60, 4, skew=0.0)], [1])
    assert len(np.unique(SyntheticStream(model).batch(0, 3000).ids["t"])) == 60


def test_planted_model_is_predictable_but_not_trivial() -> None:
    """The base rate is the stated one, and the planted model's own NE lies between 0.55 and 0.75."""
    model = dlrm([13, 4], tables(8, 10_000, 4), [1])
    stream = SyntheticStream(model, 0)
    labels = np.concatenate([stream.batch(index, 512).labels for index in range(40)])
    assert labels.mean() == pytest.approx(BASE_RATE, abs=0.02)
    assert 0.55 < stream.bayes_normalized_entropy(40, 512) < 0.75


def test_models_without_tables_or_without_dense_features_have_a_stream() -> None:
    """The planted logit makes do with the signals there are."""
    loss = Operator("loss", Kind.LOSS, ("fc",), 1)
    dense = Graph((Operator("dense", Kind.DENSE_INPUT, width=3), linear("fc", "dense", 3, 1, "none"), loss))
    table = EmbeddingTable("t", 10, 3)
    sparse = Graph((Operator("t", Kind.LOOKUP, (), 3, table="t"), linear("fc", "t", 3, 1, "none"), loss))
    for model, width in ((Model("d", dense), 3), (Model("s", sparse, (table,)), 0)):
        batch = SyntheticStream(model).batch(0, 256)
        assert dense_width(model) == batch.dense.shape[1] == width
        assert len(batch) == 256
        assert 0.1 < batch.labels.mean() < 0.5
