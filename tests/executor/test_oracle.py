"""The oracle: gradients of whole models, order of sums, learning, determinism."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from executor.data import Batch, SyntheticStream
from executor.metrics import normalized_entropy
from executor.oracle import Oracle
from problem.errors import BadInput
from problem.graph import Kind
from problem.model import EmbeddingTable, Model
from tests.executor.tiny import dcn, dlrm, numerical_gradient, tables

Values = dict[str, np.ndarray]

MODELS = [
    pytest.param(dlrm([3, 6, 4], tables(2, 9, 4, pooling_factor=2), [5, 1]), id="dlrm"),
    pytest.param(dcn(3, EmbeddingTable("t0", 9, 4), 2), id="dcn"),
]


def plain_loss(model: Model, values: Values, batch: Batch) -> float:
    """The model's mean loss written down plainly in float64, embeddings as products with one-hot counts."""
    tensors: Values = {}
    for op in model.graph:
        inputs = [tensors[name] for name in op.inputs]
        if op.kind is Kind.DENSE_INPUT:
            tensors[op.name] = batch.dense.astype(np.float64)
        elif op.kind is Kind.LOOKUP:
            counts = np.stack([np.bincount(bag, minlength=len(values[op.table])) for bag in batch.ids[op.table]])
            tensors[op.name] = counts @ values[op.table]
        elif op.kind is Kind.LINEAR:
            linear = inputs[0] @ values[f"{op.name}/weight"] + values[f"{op.name}/bias"]
            tensors[op.name] = np.maximum(linear, 0) if op.activation == "relu" else linear
        elif op.kind is Kind.CONCAT:
            tensors[op.name] = np.hstack(inputs)
        elif op.kind is Kind.CROSS:
            down, up, bias = (values[f"{op.name}/{part}"] for part in ("down", "up", "bias"))
            tensors[op.name] = inputs[0] * (inputs[1] @ down @ up + bias) + inputs[1]
        elif op.kind is Kind.INTERACTION:
            pairs = [np.sum(inputs[i] * inputs[j], 1)[:, None] for i in range(len(inputs)) for j in range(i)]
            tensors[op.name] = np.hstack([inputs[0], *pairs])
        else:
            p = 1 / (1 + np.exp(-inputs[0][:, 0]))
            return float(-np.mean(batch.labels * np.log(p) + (1 - batch.labels) * np.log(1 - p)))
    raise AssertionError


def values_of(oracle: Oracle) -> Values:
    """All parameters in float64, by operator/name and by table."""
    dense = {
        f"{op}/{name}": view.astype(np.float64)
        for op in oracle.parameters.operators
        for name, view in oracle.parameters.views(op).items()
    }
    return dense | {name: held.rows.astype(np.float64) for name, held in oracle.tables.items()}


@pytest.mark.parametrize("model", MODELS)
def test_one_step_is_gradient_descent_on_the_plain_model(model: Model) -> None:
    """A step moves every parameter and every row by -rate times the numerical gradient of a plain float64 model."""
    oracle, batch = Oracle(model, seed=3), SyntheticStream(model, 1).batch(0, 12)
    before = values_of(oracle)

    def loss() -> float:
        return plain_loss(model, before, batch)

    expected = {name: array - model.learning_rate * numerical_gradient(loss, array) for name, array in before.items()}
    assert oracle.step(batch) == pytest.approx(loss(), rel=1e-6)
    after = values_of(oracle)
    assert after.keys() == expected.keys()
    for name, array in after.items():
        np.testing.assert_allclose(array, expected[name], rtol=2e-6, atol=2e-7, err_msg=name)


def test_bug_one_id_in_the_whole_batch_has_the_dense_gradient() -> None:
    """Every sample of the batch looks up one row: the row gets the sum of all gradients, not one of them."""
    model = dlrm([3, 4], tables(2, 9, 4), [1])
    drawn = SyntheticStream(model, 1).batch(0, 64)
    batch = Batch(drawn.dense, {name: np.full_like(ids, 5) for name, ids in drawn.ids.items()}, drawn.labels)
    oracle = Oracle(model)
    before = values_of(oracle)
    gradient = numerical_gradient(lambda: plain_loss(model, before, batch), before["t1"])
    oracle.step(batch)
    np.testing.assert_allclose(values_of(oracle)["t1"], before["t1"] - 0.1 * gradient, rtol=2e-6, atol=2e-7)


def test_partial_sums_change_the_order_of_additions_only() -> None:
    """Consumers' gradients of a tensor are added in the groups asked for: (a + b) + c and a + (b + c) differ in
    rounding alone, and the grouping that equals the default order gives the default's bits."""
    model = dcn(30, EmbeddingTable("t0", 9, 40), 5)
    batch = SyntheticStream(model, 1).batch(0, 200)
    consumers = model.graph.consumers["x0"]
    assert consumers == ("cross0", "cross1", "deep")
    orders = {
        "default": None,
        "same": [["deep", "cross1", "cross0"]],
        "groups": [["deep"], ["cross1", "cross0"]],
    }
    found = {}
    for name, order in orders.items():
        oracle = Oracle(model, partial_sums=None if order is None else {"x0": order})
        oracle.backward(batch)
        found[name] = oracle.d_outputs["x0"].copy()
    np.testing.assert_array_equal(found["default"], found["same"])
    assert not np.array_equal(found["default"], found["groups"])
    np.testing.assert_allclose(found["groups"], found["default"], rtol=1e-4, atol=1e-8)


def test_partial_sums_must_name_every_consumer() -> None:
    """A grouping that forgets a consumer would silently lose its gradient; it is refused."""
    model = dcn(3, EmbeddingTable("t0", 9, 4), 2)
    with pytest.raises(ValueError, match=r"partial sums of 'x0'.*cross0, cross1, deep"):
        Oracle(model, partial_sums={"x0": [["cross0"], ["deep"]]})


def test_row_ranges_of_single_ids_change_no_bit() -> None:
    """With one id per sample the partial sums of row ranges are the embedding and zeros: training gives the same bits;
    with several ids it agrees to rounding."""
    for pooling, exact in ((1, True), (4, False)):
        model = dlrm([3, 4], tables(2, 50, 4, pooling_factor=pooling), [8, 1])
        stream = SyntheticStream(model, 1)
        whole, cut = Oracle(model), Oracle(model, blocks={"t0": [(0, 7, (0, 4)), (7, 7, (0, 4)), (7, 50, (0, 4))]})
        for index in range(3):
            whole.step(stream.batch(index, 32))
            cut.step(stream.batch(index, 32))
        for name, held in whole.tables.items():
            np.testing.assert_allclose(cut.tables[name].rows, held.rows, rtol=0 if exact else 1e-4, atol=1e-7 * pooling)


def test_several_batch_sizes_share_the_parameters() -> None:
    """Evaluation in batches of another size leaves training as it was and sees the trained parameters."""
    model = dlrm([3, 4], tables(2, 50, 4), [8, 1])
    stream = SyntheticStream(model, 1)
    quiet, watched = Oracle(model), Oracle(model)
    losses = []
    for oracle, watch in ((quiet, False), (watched, True)):
        for index in range(3):
            loss = oracle.step(stream.batch(index, 32))
            if watch:
                oracle.evaluate([stream.batch(9, 5), stream.batch(10, 7)])
        losses.append(loss)
    assert losses[0] == losses[1]
    batch = stream.batch(20, 6)
    probabilities = quiet.predict(batch)
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-quiet.logits(batch))), rtol=1e-5)
    metrics = quiet.evaluate([batch])
    assert metrics.samples == 6
    assert metrics.loss == pytest.approx(quiet.backward(batch), rel=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "table_optimizer", "rate"),
    [("sgd", "sgd", 0.5), ("adagrad", "adagrad", 0.05), ("adagrad", "rowwise_adagrad", 0.05)],
)
def test_training_learns_the_planted_model(optimizer: str, table_optimizer: str, rate: float) -> None:
    """On the synthetic stream the progressive NE of 200 batches of 256 goes clearly below 1, the held-out NE further."""
    small = tables(4, 2000, 8, optimizer=table_optimizer)
    model = dlrm([8, 32, 8], small, [32, 1], learning_rate=rate, optimizer=optimizer)
    stream, oracle = SyntheticStream(model, 0), Oracle(model)
    batches = [stream.batch(index, 256) for index in range(200)]
    loss = float(np.mean([oracle.step(batch) for batch in batches]))
    progressive = normalized_entropy(loss, float(np.mean([batch.labels.mean() for batch in batches])))
    held_out = oracle.evaluate(stream.batch(1000 + index, 256) for index in range(20))
    bayes = stream.bayes_normalized_entropy(40, 256)
    assert bayes < held_out.normalized_entropy < progressive < 0.93
    assert held_out.auc > 0.7


@pytest.mark.parametrize(
    ("break_batch", "expected"),
    [
        (lambda b: Batch(b.dense[:, :2], b.ids, b.labels), r"dense = \(4, 2\).*\(4, 3\)"),
        (lambda b: Batch(b.dense, b.ids | {"t1": b.ids["t1"] * 0 - 1}, b.labels), r"ids.t1\[0, 0\] = -1.*0 to 49"),
        (lambda b: Batch(b.dense, {"t0": b.ids["t0"]}, b.labels), r"ids.t1 = None.*\(4, 1\)"),
        (lambda b: Batch(b.dense, b.ids | {"t1": b.ids["t1"].astype(np.int64)}, b.labels), "ids.t1.*int64.*int32"),
        (lambda b: Batch(b.dense, b.ids | {"t1": b.ids["t1"] + np.int32(50)}, b.labels), r"ids.t1\[0, 0\].*0 to 49"),
        (lambda b: Batch(b.dense, b.ids | {"t1": b.ids["t1"] - np.int32(50)}, b.labels), r"ids.t1\[0, 0\].*0 to 49"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(break_batch: Callable[[Batch], Batch], expected: str) -> None:
    """Wrong shapes and ids outside their table are one line of bad input, not a crash in C."""
    model = dlrm([3, 4], tables(2, 50, 4), [8, 1])
    with pytest.raises(BadInput, match=expected):
        Oracle(model).step(break_batch(SyntheticStream(model, 1).batch(0, 4)))


def test_same_seed_same_bits_whatever_the_hash_seed() -> None:
    """Two processes with different PYTHONHASHSEED train to the same loss and rows."""
    code = (
        "from tests.executor.tiny import dlrm, tables; from executor.oracle import Oracle;"
        "from executor.data import SyntheticStream; m = dlrm([3, 4], tables(3, 50, 4), [8, 1]); o = Oracle(m, 2);"
        "s = SyntheticStream(m, 1); print([o.step(s.batch(i, 16)) for i in range(3)], o.tables['t2'].rows.sum())"
    )
    root = Path(__file__).resolve().parents[2]
    printed = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=root,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
