"""Sparse updates of embedding rows by the optimizer of their table, on any range of a table's rows and columns.

The gradients that a batch has for a row are summed first, feature by feature in the model's order and within a feature in
the order of the batch, then the optimizer makes one step for each row that was touched; SGD needs no sum and steps once for
every occurrence of an id, in that order. So an update of a shard gives the bits that the whole table gets there, except
under row-wise adagrad where columns are cut: its scalar for a row is then one for each column shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from executor.arrays import Bags, Floats, Ids, UnsupportedModel
from executor.kernels_sparse import coalesce, scatter, scatter_bags, share_of
from executor.parameters import TABLE_OPTIMIZERS, TableRows

#: Added to the root of an accumulator.
ADAGRAD_EPS = 1e-10  # torch.optim.Adagrad, default eps
ROWWISE_ADAGRAD_EPS = 1e-8  # FBGEMM SplitTableBatchedEmbeddingBags (TorchRec), default eps
#: Decay of the two moments, and what is added to the root of the second: defaults of torch.optim.SparseAdam.
ADAM_BETAS, ADAM_EPS = (0.9, 0.999), 1e-8


class Read(NamedTuple):
    """What one feature contributes to the update of a shard.

    Parameters
    ----------
    ids : ndarray of int32, shape (B, L), or Bags
        Rows of the whole table; those outside the range held are left out.
    d_pooled : ndarray of float32, shape (B, width)
        Gradient of the pooled embeddings, in the columns held.
    weights : ndarray of float32, shape of the ids, optional
        Of a feature that pools by weight: factor of each row.
    mean : bool
        Whether the feature pools by the mean.
    """

    ids: Ids | Bags
    d_pooled: Floats
    weights: Floats | None = None
    mean: bool = False

    @property
    def gradient(self) -> Floats:
        """Gradient of the weighted sum of rows, (B, width)."""
        return self.d_pooled * share_of(self.ids) if self.mean else self.d_pooled


def update_rows(held: TableRows, reads: Sequence[Read], learning_rate: float) -> None:
    """Apply one batch's gradient to rows and optimizer state in place, by the rule of the table's optimizer.

    Parameters
    ----------
    held : TableRows
        Rows of a table, C-contiguous, changed.
    reads : sequence of Read
        What each feature that reads the table contributes, in the model's order.
    learning_rate : float
        Step of the optimizer.

    Raises
    ------
    UnsupportedModel
        If there is no such optimizer.
    """
    match held.table.optimizer:
        case "sgd":
            for read in reads:
                scatter_bags(held.rows, held.row_begin, read.ids, read.gradient, -learning_rate, read.weights)
        case "adagrad":
            apply_adagrad(held, *summed(held, reads), learning_rate)
        case "rowwise_adagrad":
            apply_rowwise_adagrad(held, *summed(held, reads), learning_rate)
        case "adam":
            apply_adam(held, *summed(held, reads), learning_rate)
        case other:
            raise UnsupportedModel(f"optimizer {other!r}: tables have {', '.join(TABLE_OPTIMIZERS)}")


def summed(held: TableRows, reads: Sequence[Read]) -> tuple[Ids, Floats]:
    """Return the rows held that a batch touches, (U,) ascending from 0, and their gradients, (U, width)."""
    count = len(held.rows)
    found = [coalesce(read.ids, held.row_begin, count, read.gradient, read.weights) for read in reads]
    if len(found) == 1:
        return found[0]
    touched = np.concatenate([rows for rows, _ in found])
    gradient = np.concatenate([gradients for _, gradients in found])
    return coalesce(touched[:, None], 0, count, gradient)


def apply_adagrad(held: TableRows, touched: Ids, gradient: Floats, learning_rate: float) -> None:
    """Adagrad with one accumulator per element, state (rows, width).

    With g the gradient of a row: state += g^2, row -= learning_rate * g / (sqrt(state) + eps) (Duchi et al., JMLR 2011;
    eps of ``torch.optim.Adagrad``).
    """
    accumulated = held.state[touched]
    accumulated += gradient * gradient
    held.state[touched] = accumulated
    gradient /= np.sqrt(accumulated) + np.float32(ADAGRAD_EPS)
    scatter(touched, np.full(len(touched), -learning_rate, np.float32), gradient, held.rows)


def apply_rowwise_adagrad(held: TableRows, touched: Ids, gradient: Floats, learning_rate: float) -> None:
    """Adagrad with one accumulator per row and column shard, state (rows,).

    With g the gradient of a row: state += mean of g^2 over the columns held, row -= learning_rate * g / (sqrt(state) + eps)
    (``EXACT_ROWWISE_ADAGRAD`` of FBGEMM, which TorchRec uses, for column shards too).
    """
    accumulated = held.state[touched]
    accumulated += np.einsum("ud,ud->u", gradient, gradient) / np.float32(gradient.shape[1])
    held.state[touched] = accumulated
    factors = np.float32(-learning_rate) / (np.sqrt(accumulated) + np.float32(ROWWISE_ADAGRAD_EPS))
    scatter(touched, factors, gradient, held.rows)


def apply_adam(held: TableRows, touched: Ids, gradient: Floats, learning_rate: float) -> None:
    """Lazy Adam, state (2, rows, width): moments decay in the rows that are touched, and only then.

    With t the updates that the *table* has had, whichever rows they touched, m and v the moments of a row and b, c their
    decays: m = b m + (1 - b) g, v = c v + (1 - c) g^2, row -= learning_rate * sqrt(1 - c^t) / (1 - b^t) * m / (sqrt(v) +
    eps) (``torch.optim.SparseAdam``; Kingma and Ba, ICLR 2015, end of section 2). Threads that update a shard at the same
    time may count once.
    """
    held.updates[0] += 1
    times, (first, second) = int(held.updates[0]), ADAM_BETAS
    mean, square = held.state[0][touched], held.state[1][touched]
    mean += np.float32(1 - first) * (gradient - mean)
    square += np.float32(1 - second) * (gradient * gradient - square)
    held.state[0][touched], held.state[1][touched] = mean, square
    step = learning_rate * (1 - second**times) ** 0.5 / (1 - first**times)
    mean /= np.sqrt(square) + np.float32(ADAM_EPS)
    scatter(touched, np.full(len(touched), -step, np.float32), mean, held.rows)
