"""Compiled kernels against NumPy and SciPy: the same bits, on every width of row and on bags of every length."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from executor import native
from executor.data import SyntheticStream
from executor.kernels import make_kernel
from executor.kernels_rows import Read, update_rows
from executor.kernels_sparse import pool
from executor.kernels_update import update_dense
from executor.oracle import Oracle
from executor.parameters import TableRows, allocate_rows
from problem.graph import Kind, Operator
from problem.model import EmbeddingTable
from tests.executor.tiny import dlrm, tables

ROWS, BATCH, LENGTH = 300, 40, 7
#: One vector, a part of one, several, more than a block and what is left of it.
WIDTHS = [1, 3, 8, 16, 61, 64, 128, 129, 300]


@pytest.fixture(autouse=True)
def _switch_back() -> Iterator[None]:
    """Every test leaves the switch as it was; without llvmlite there is nothing to compare."""
    if native._llvm is None:
        pytest.skip("llvmlite, the optional extra 'fast', is not installed")
    before = native.use(True)
    yield
    native.use(before)


def both(action: object) -> tuple[bytes, bytes]:
    """What an action that returns an array gives compiled and without."""
    results = []
    for wanted in (True, False):
        native.use(wanted)
        results.append(np.ascontiguousarray(action()).tobytes())  # type: ignore[operator]
    return results[0], results[1]


def drawn(dim: int, short: bool) -> tuple[TableRows, np.ndarray, np.ndarray, np.ndarray]:
    """A part of a table, ids inside and outside of it (short bags and empty ones too), weights, a gradient."""
    draw = np.random.default_rng(dim)
    held = TableRows(
        EmbeddingTable("t", ROWS, dim), 0, draw.standard_normal((ROWS, dim), np.float32), np.zeros(0, np.float32)
    )
    ids = draw.integers(-1 if short else 0, ROWS + (40 if short else 0), (BATCH, LENGTH)).astype(np.int32)
    ids[: 3 if short else 0] = -1
    weights = draw.standard_normal((BATCH, LENGTH), np.float32)
    return held, ids, weights, draw.standard_normal((BATCH, dim), np.float32)


@pytest.mark.parametrize("dim", WIDTHS)
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("how", ["sum", "mean", "weighted"])
def test_pooling_has_the_bits_of_numpy(dim: int, short: bool, how: str) -> None:
    """Pooled rows are the same with compiled loops and without, signs of zeros included."""
    held, ids, weights, _ = drawn(dim, short)
    held.rows[: ROWS // 2] = -0.0

    def pooled() -> np.ndarray:
        out = np.full((BATCH, dim), np.nan, np.float32)
        pool(held.rows, 0, ids, out, weights if how == "weighted" else None, mean=how == "mean")
        return out

    compiled, plain = both(pooled)
    assert compiled == plain


@pytest.mark.parametrize("dim", WIDTHS)
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
@pytest.mark.parametrize("weighted", [False, True])
def test_updates_have_the_bits_of_numpy(dim: int, optimizer: str, weighted: bool) -> None:
    """Updated rows and their state are the same with compiled loops and without, ids that occur often included."""
    source, ids, weights, gradient = drawn(dim, True)
    ids[:, 0] = 5

    def updated() -> np.ndarray:
        held = allocate_rows(EmbeddingTable("t", ROWS, dim, optimizer=optimizer), 0, ROWS)
        held.rows[...] = source.rows
        for _ in range(2):
            update_rows(held, [Read(ids, gradient, weights if weighted else None)], 0.3)
        return np.concatenate([held.rows.ravel(), held.state.ravel()])

    compiled, plain = both(updated)
    assert compiled == plain


@pytest.mark.parametrize("dim", WIDTHS)
@pytest.mark.parametrize("cut", [(0, 100), (100, 210), (210, ROWS), (5, 5)])
@pytest.mark.parametrize("weighted", [False, True])
def test_shards_have_the_bits_of_numpy(dim: int, cut: tuple[int, int], weighted: bool) -> None:
    """A range of rows pools and updates what it holds, with the same bits; weights of other rows may be infinite."""
    source, ids, weights, gradient = drawn(dim, True)
    weights[(ids < cut[0]) | (ids >= cut[1])] = np.inf
    given = weights if weighted else None

    def trained() -> np.ndarray:
        held = TableRows(source.table, cut[0], source.rows[slice(*cut)].copy(), source.state)
        out = np.full((BATCH, dim), np.nan, np.float32)
        pool(held.rows, cut[0], ids, out, given)
        update_rows(held, [Read(ids, gradient, given)], 0.3)
        return np.concatenate([out, held.rows])

    compiled, plain = both(trained)
    assert compiled == plain
    assert np.isfinite(np.frombuffer(compiled, np.float32)).all()


@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("width", [1, 5, 64, 200])
def test_linear_layers_have_the_bits_of_numpy(activation: str, width: int) -> None:
    """Bias and ReLU in one pass give what two passes give; what is not a number stays so."""
    draw = np.random.default_rng(0)
    op = Operator("x", Kind.LINEAR, ("in",), width, parameters=14 * width, activation=activation)
    params, values = (
        draw.standard_normal(op.parameters).astype(np.float32),
        draw.standard_normal((33, 13)).astype(np.float32),
    )
    values[7] = np.nan
    compiled, plain = both(lambda: make_kernel(op, [13], 33).forward([values], params))
    assert compiled == plain
    assert np.isnan(np.frombuffer(compiled, np.float32).reshape(33, width)[7]).all()


@pytest.mark.parametrize("count", [0, 1, 17, 40_000])
def test_dense_sgd_has_the_bits_of_numpy(count: int) -> None:
    """A step of SGD is a multiplication and a subtraction, each rounded, in both."""
    draw = np.random.default_rng(count)
    start, grads = draw.standard_normal((2, count), np.float32)

    def stepped() -> np.ndarray:
        params = start.copy()
        update_dense("sgd", params, np.zeros(0, np.float32), grads, 0.37)
        return params

    compiled, plain = both(stepped)
    assert compiled == plain


def test_training_has_the_bits_of_numpy() -> None:
    """Losses of a whole model are the same to the bit, step for step."""
    model = dlrm([13, 32, 16], tables(3, 300, 16, pooling_factor=3), [32, 16, 1])
    stream = SyntheticStream(model, 0)

    def losses() -> np.ndarray:
        oracle = Oracle(model)
        return np.array([oracle.step(stream.batch(step, 64)) for step in range(8)])

    compiled, plain = both(losses)
    assert compiled == plain
