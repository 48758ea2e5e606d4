"""Updates of dense parameters, in place on flat buffers.

Works through the buffer in pieces that stay in the cache with their scratch, so that a step allocates next to nothing
and gradients are left as they were. Knows nothing of what the elements mean.
"""

from __future__ import annotations

import numpy as np

from executor import native
from executor.arrays import Floats, UnsupportedModel
from executor.kernels_rows import ADAGRAD_EPS

#: Elements per piece: 64 KiB of float32, so that parameters, gradient, state and scratch fit a core's L2 cache.
_PIECE = 16384


def update_dense(optimizer: str, params: Floats, state: Floats, grads: Floats, learning_rate: float) -> None:
    """Apply a gradient to flat parameters in place, by the rule of ``optimizer``.

    Parameters
    ----------
    optimizer : str
        ``sgd`` or ``adagrad``.
    params, grads : ndarray of float32, shape (elements,)
        Parameters, changed; and their gradient, not changed.
    state : ndarray of float32
        Accumulators of adagrad, (elements,), changed; not read for sgd.
    learning_rate : float
        Step of the optimizer.

    Raises
    ------
    UnsupportedModel
        If there is no such optimizer.
    """
    match optimizer:
        case "sgd":
            apply_dense_sgd(params, grads, learning_rate)
        case "adagrad":
            apply_dense_adagrad(params, state, grads, learning_rate)
        case _:
            raise UnsupportedModel(f"optimizer {optimizer!r}: dense parameters have sgd, adagrad")


def apply_dense_sgd(params: Floats, grads: Floats, learning_rate: float) -> None:
    """Params -= learning_rate * grads; both (elements,)."""
    if native.available():
        native.descend(params, grads, learning_rate)
        return
    scratch = np.empty(min(_PIECE, len(params)), np.float32)
    for begin in range(0, len(params), _PIECE):
        piece = params[begin : begin + _PIECE]
        step = scratch[: len(piece)]
        np.multiply(grads[begin : begin + _PIECE], np.float32(learning_rate), out=step)
        piece -= step


def apply_dense_adagrad(params: Floats, state: Floats, grads: Floats, learning_rate: float) -> None:
    """State += grads^2; params -= learning_rate * grads / (sqrt(state) + eps), as ``torch.optim.Adagrad``."""
    scratch = np.empty((2, min(_PIECE, len(params))), np.float32)
    for begin in range(0, len(params), _PIECE):
        span = slice(begin, begin + _PIECE)
        gradient, total = grads[span], state[span]
        step, root = scratch[:, : len(gradient)]
        np.multiply(gradient, gradient, out=step)
        total += step
        np.sqrt(total, out=root)
        root += np.float32(ADAGRAD_EPS)
        np.multiply(gradient, np.float32(learning_rate), out=step)
        step /= root
        params[span] -= step
