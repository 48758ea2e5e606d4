"""Embedding rows: pooling and updates against dense one-hot references, shards, duplicates, the fallback."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from executor import kernels_sparse, native
from executor.arrays import Floats, Ids, UnsupportedModel
from executor.kernels_rows import Read, update_rows
from executor.kernels_sparse import coalesce, pool
from executor.parameters import TableRows, allocate_rows
from problem.model import EmbeddingTable

ROWS, DIM, BATCH, LENGTH, RATE = 23, 5, 16, 3, 0.25
OPTIMIZERS = ["sgd", "adagrad", "rowwise_adagrad"]


def drawn(length: int = LENGTH) -> tuple[Ids, Floats]:
    """Ids with many duplicates and a gradient of the pooled embeddings."""
    draw = np.random.default_rng(1)
    ids = (draw.random((BATCH, length)) ** 3 * ROWS).astype(np.int32)
    return ids, draw.normal(size=(BATCH, DIM)).astype(np.float32)


def one_hot(ids: Ids) -> np.ndarray:
    """How often each bag holds each row, (B, rows)."""
    return np.stack([np.bincount(bag, minlength=ROWS) for bag in ids]).astype(np.float64)


def whole(optimizer: str) -> TableRows:
    """A table, with non-zero optimizer state."""
    held = allocate_rows(EmbeddingTable("t", ROWS, DIM, optimizer=optimizer), 0, ROWS)
    held.initialise(7)
    held.state[...] = np.random.default_rng(2).random(held.state.shape)
    return held


def shard(held: TableRows, begin: int, end: int) -> TableRows:
    """A copy of a range of rows."""
    state = held.state[begin:end] if held.state.size else held.state
    return TableRows(held.table, begin, held.rows[begin:end].copy(), state.copy())


def reference(held: TableRows, ids: Ids, d_pooled: Floats) -> tuple[np.ndarray, np.ndarray]:
    """Rows and state after the update, in float64, from the dense gradient one_hot^T d_pooled."""
    gradient = one_hot(ids).T @ d_pooled.astype(np.float64)
    rows, state = held.rows.astype(np.float64), held.state.astype(np.float64)
    touched = np.unique(ids)
    if held.table.optimizer == "sgd":
        rows[touched] -= RATE * gradient[touched]
    elif held.table.optimizer == "adagrad":
        state[touched] += gradient[touched] ** 2
        rows[touched] -= RATE * gradient[touched] / (np.sqrt(state[touched]) + 1e-10)
    else:
        state[touched] += np.mean(gradient[touched] ** 2, axis=1)
        rows[touched] -= RATE * gradient[touched] / (np.sqrt(state[touched])[:, None] + 1e-8)
    return rows, state


@pytest.fixture(params=["native", "scipy", "numpy"])
def _primitive(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with compiled loops (where llvmlite is there), with SciPy's private primitives and with NumPy alone."""
    monkeypatch.setattr(native, "_enabled", request.param == "native")
    if request.param == "numpy":
        monkeypatch.setattr(kernels_sparse, "_sparsetools", None)


@pytest.mark.parametrize("length", [1, LENGTH])
def test_pooling_is_the_one_hot_product(length: int) -> None:
    """The pooled embedding is the dense product of the one-hot counts with the table."""
    ids, _ = drawn(length)
    held, out = whole("sgd"), np.full((BATCH, DIM), np.nan, np.float32)
    pool(held.rows, 0, ids, out)
    np.testing.assert_allclose(out, one_hot(ids) @ held.rows, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("_primitive")
@pytest.mark.parametrize("cuts", [(0, 23), (0, 9, 23), (0, 0, 1, 22, 23)])
def test_pooled_shards_add_up_to_the_table(cuts: tuple[int, ...]) -> None:
    """Sums over row ranges, an empty one among them, add up to the pooled embedding: foreign ids contribute nothing."""
    ids, _ = drawn()
    held, total = whole("sgd"), np.zeros((BATCH, DIM), np.float32)
    for begin, end in pairwise(cuts):
        part = np.full((BATCH, DIM), np.nan, np.float32)
        pool(shard(held, begin, end).rows, begin, ids, part)
        total += part
    np.testing.assert_allclose(total, one_hot(ids) @ held.rows, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("_primitive")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("length", [1, LENGTH])
def test_update_is_the_dense_update(optimizer: str, length: int) -> None:
    """Rows and state after an update equal those of the optimizer fed the dense one-hot gradient; others stay."""
    ids, d_pooled = drawn(length)
    held = whole(optimizer)
    rows, state = reference(held, ids, d_pooled)
    before = held.rows.copy()
    update_rows(held, [Read(ids, d_pooled)], RATE)
    np.testing.assert_allclose(held.rows, rows, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(held.state, state, rtol=1e-5, atol=1e-6)
    untouched = np.setdiff1d(np.arange(ROWS), ids)
    assert len(untouched)
    np.testing.assert_array_equal(held.rows[untouched], before[untouched])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_updated_shards_are_the_updated_table_to_the_bit(optimizer: str) -> None:
    """Each row range fed all ids ends with the bits that the whole table has there."""
    ids, d_pooled = drawn()
    held = whole(optimizer)
    parts = [shard(held, begin, end) for begin, end in ((0, 4), (4, 4), (4, 23))]
    update_rows(held, [Read(ids, d_pooled)], RATE)
    for part in parts:
        update_rows(part, [Read(ids, d_pooled)], RATE)
        rows = slice(part.row_begin, part.row_begin + len(part.rows))
        np.testing.assert_array_equal(part.rows, held.rows[rows])
        if held.state.size:
            np.testing.assert_array_equal(part.state, held.state[rows])


@pytest.mark.usefixtures("_primitive")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_bug_one_id_in_the_whole_batch_keeps_every_gradient(optimizer: str) -> None:
    """``rows[ids] -= g`` keeps one of several updates of a row (numpy/numpy#2821); here all of them count."""
    ids, d_pooled = np.full((BATCH, LENGTH), 4, np.int32), drawn()[1]
    held = whole(optimizer)
    rows, _ = reference(held, ids, d_pooled)
    update_rows(held, [Read(ids, d_pooled)], RATE)
    np.testing.assert_allclose(held.rows, rows, rtol=1e-5, atol=1e-6)


def test_sgd_adds_in_the_order_of_the_batch() -> None:
    """SGD gives the bits of a plain loop over samples and ids."""
    ids, d_pooled = drawn()
    held = whole("sgd")
    expected = held.rows.copy()
    for sample in range(BATCH):
        for row in ids[sample]:
            expected[row] += np.float32(-RATE) * d_pooled[sample]
    update_rows(held, [Read(ids, d_pooled)], RATE)
    np.testing.assert_array_equal(held.rows, expected)


@pytest.mark.usefixtures("_primitive")
def test_coalesce_sums_each_distinct_row_once() -> None:
    """Rows come out ascending, distinct, relative to the range, each with the sum of its gradients."""
    ids, d_pooled = drawn()
    touched, gradient = coalesce(ids, 3, 9, d_pooled)
    expected = np.unique(ids[(ids >= 3) & (ids < 12)])
    np.testing.assert_array_equal(touched + 3, expected)
    np.testing.assert_allclose(gradient, (one_hot(ids).T @ d_pooled)[expected], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("_primitive")
@pytest.mark.parametrize("pooling", ["sum", "mean", "weighted"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_pooling_rules_and_their_updates(pooling: str, optimizer: str) -> None:
    """Bags of every length, empty ones too: pooled by a dense matrix of factors A, the gradient of the rows is A^T d."""
    ids, d_pooled = drawn()
    ids[np.arange(BATCH)[:, None] % (LENGTH + 1) <= np.arange(LENGTH)] = -1
    weights = np.random.default_rng(3).normal(size=ids.shape).astype(np.float32)
    factors = np.zeros((BATCH, ROWS))
    for sample in range(BATCH):
        for place in np.flatnonzero(ids[sample] >= 0):
            share = {"sum": 1.0, "mean": 1 / (ids[sample] >= 0).sum(), "weighted": weights[sample, place]}[pooling]
            factors[sample, ids[sample, place]] += share
    held = allocate_rows(EmbeddingTable("t", ROWS, DIM, optimizer=optimizer, pooling=pooling, max_ids=LENGTH), 0, ROWS)
    held.initialise(7)
    out, before = np.full((BATCH, DIM), np.nan, np.float32), held.rows.astype(np.float64)
    given = weights if pooling == "weighted" else None
    pool(held.rows, 0, ids, out, given, mean=pooling == "mean")
    np.testing.assert_allclose(out, factors @ before, rtol=1e-5, atol=1e-6)
    assert not out[0].any()
    gradient = factors.T @ d_pooled.astype(np.float64)
    if optimizer == "adagrad":
        gradient /= np.abs(gradient) + 1e-10
    elif optimizer == "rowwise_adagrad":
        gradient /= np.sqrt(np.mean(gradient**2, axis=1, keepdims=True)) + 1e-8
    update_rows(held, [Read(ids, d_pooled, given, pooling == "mean")], RATE)
    np.testing.assert_allclose(held.rows, before - RATE * gradient, rtol=1e-4, atol=1e-5)


def test_no_id_in_range_changes_nothing() -> None:
    """A shard that no id of the batch falls into stays as it is, whatever the optimizer."""
    for optimizer in OPTIMIZERS:
        held = whole(optimizer)
        before = held.rows.copy()
        update_rows(held, [Read(np.full((BATCH, 1), ROWS + 5, np.int32), drawn()[1])], RATE)
        np.testing.assert_array_equal(held.rows, before)


def test_unknown_optimizer_is_refused() -> None:
    """A table with an optimizer that there is not is refused; the message says what there is."""
    table = EmbeddingTable("t", 4, 2, optimizer="lion")
    with pytest.raises(UnsupportedModel, match=r"lion.*sgd, adagrad, rowwise_adagrad, adam"):
        allocate_rows(table, 0, 4)
    rows = np.zeros((4, 2), np.float32)
    with pytest.raises(UnsupportedModel, match="lion"):
        update_rows(TableRows(table, 0, rows, rows), [Read(np.zeros((1, 1), np.int32), rows[:1])], RATE)


def strip(held: TableRows, begin: int, end: int) -> TableRows:
    """A copy of some columns, with the state that they would have."""
    state = held.state[..., begin:end] if held.state.ndim > 1 else held.state
    return TableRows(held.table, 0, held.rows[:, begin:end].copy(), state.copy(), held.updates.copy(), begin)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_updated_strips_are_the_updated_table_to_the_bit(optimizer: str) -> None:
    """Each column strip fed its columns of the gradient ends with the bits that the whole table has there, state too."""
    ids, d_pooled = drawn()
    held = whole(optimizer)
    parts = [strip(held, begin, end) for begin, end in ((0, 2), (2, 3), (3, DIM))]
    for _ in range(3):
        update_rows(held, [Read(ids, d_pooled)], RATE)
        for part in parts:
            update_rows(part, [Read(ids, np.ascontiguousarray(d_pooled[:, part.columns]))], RATE)
    for part in parts:
        np.testing.assert_array_equal(part.rows, held.rows[:, part.columns])
        if held.state.size:
            np.testing.assert_array_equal(part.state, held.state[..., part.columns])


def test_rowwise_adagrad_keeps_a_scalar_for_each_strip() -> None:
    """A strip under row-wise adagrad accumulates the mean over its own columns; weighted by width they make the whole's."""
    ids, d_pooled = drawn()
    held = whole("rowwise_adagrad")
    parts = [strip(held, 0, 2), strip(held, 2, DIM)]
    update_rows(held, [Read(ids, d_pooled)], RATE)
    for part in parts:
        update_rows(part, [Read(ids, np.ascontiguousarray(d_pooled[:, part.columns]))], RATE)
    assert not np.array_equal(parts[0].state, parts[1].state)
    mean = sum(part.state * part.rows.shape[1] for part in parts) / DIM
    np.testing.assert_allclose(mean, held.state, rtol=1e-6)


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "adam"])
def test_gradients_of_two_features_add_up(optimizer: str) -> None:
    """Two features that read one table update it like one feature with the ids and gradients of both."""
    ids, d_pooled = drawn()
    held, other = whole(optimizer), whole(optimizer)
    halves = [Read(ids[: BATCH // 2], d_pooled[: BATCH // 2]), Read(ids[BATCH // 2 :, :2], d_pooled[BATCH // 2 :])]
    update_rows(held, halves, RATE)
    padded = ids.copy()
    padded[BATCH // 2 :, 2] = ROWS + 1
    update_rows(other, [Read(padded, d_pooled)], RATE)
    np.testing.assert_allclose(held.rows, other.rows, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(held.state, other.state, rtol=1e-5, atol=1e-6)


def test_lazy_adam_is_that_of_the_reference() -> None:
    """Three updates give torch.optim.SparseAdam's rows: moments of touched rows alone, bias by the updates of the table."""
    held = whole("adam")
    held.state[...] = 0.0
    rows, m, v = held.rows.astype(np.float64), np.zeros((ROWS, DIM)), np.zeros((ROWS, DIM))
    for number in range(1, 4):
        ids, d_pooled = drawn()
        ids = (ids + number) % ROWS
        gradient, touched = one_hot(ids).T @ d_pooled.astype(np.float64), np.unique(ids)
        m[touched] = 0.9 * m[touched] + 0.1 * gradient[touched]
        v[touched] = 0.999 * v[touched] + 0.001 * gradient[touched] ** 2
        step = RATE * np.sqrt(1 - 0.999**number) / (1 - 0.9**number)
        rows[touched] -= step * m[touched] / (np.sqrt(v[touched]) + 1e-8)
        update_rows(held, [Read(ids, d_pooled)], RATE)
    np.testing.assert_allclose(held.rows, rows, rtol=1e-4, atol=1e-5)
    assert held.updates[0] == 3
