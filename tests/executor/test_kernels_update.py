"""Updates of dense parameters."""

from __future__ import annotations

import numpy as np
import pytest

from executor.arrays import UnsupportedModel
from executor.kernels_update import update_dense

SIZE = 40_000  # more than two pieces


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_update_follows_the_rule_and_keeps_the_gradient(optimizer: str) -> None:
    """Every element moves by the optimizer's rule, over all pieces of the buffer; the gradient is left as it was."""
    draw = np.random.default_rng(0)
    params, grads = draw.normal(size=(2, SIZE)).astype(np.float32)
    state = draw.random(SIZE).astype(np.float32)
    total = state.astype(np.float64) + grads.astype(np.float64) ** 2
    step = grads if optimizer == "sgd" else grads / (np.sqrt(total) + 1e-10)
    expected, kept = params - 0.1 * step, grads.copy()
    update_dense(optimizer, params, state, grads, 0.1)
    np.testing.assert_allclose(params, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(grads, kept)
    if optimizer == "adagrad":
        np.testing.assert_allclose(state, total, rtol=1e-6)


def test_adagrad_leaves_elements_without_a_gradient() -> None:
    """A zero gradient on zero state moves nothing and divides nothing by zero."""
    params, state = np.ones(3, np.float32), np.zeros(3, np.float32)
    update_dense("adagrad", params, state, np.zeros(3, np.float32), 0.1)
    np.testing.assert_array_equal(params, 1.0)


@pytest.mark.parametrize("optimizer", ["adam", "rowwise_adagrad"])
def test_other_optimizers_are_refused(optimizer: str) -> None:
    """Dense parameters have SGD and Adagrad only."""
    nothing = np.zeros(0, np.float32)
    with pytest.raises(UnsupportedModel, match=f"{optimizer}.*sgd, adagrad"):
        update_dense(optimizer, nothing, nothing, nothing, 0.1)
