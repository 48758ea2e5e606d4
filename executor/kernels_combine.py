"""Kernels without parameters: dense input, concatenation, pairwise-dot and factorization-machine interaction, the loss.

Knows shapes only; the contract is ``kernels.Kernel``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from executor.arrays import Floats, UnsupportedModel
from problem.graph import Operator

#: Elements between two features' planes beyond B * D, so that rows of a power-of-two stride do not share a cache set.
_PLANE_PADDING = 16


class DenseInputKernel:
    """The dense features of the batch, passed on; no gradient goes back."""

    def forward(self, inputs: Sequence[Floats], params: Floats) -> Floats:
        """Return the one input."""
        del params
        return inputs[0]

    def backward(
        self, d_output: Floats, inputs: Sequence[Floats], params: Floats, grads: Floats, needs: Sequence[bool]
    ) -> list[Floats | None]:
        """Return [None]."""
        del d_output, inputs, params, grads, needs
        return [None]


class ConcatKernel:
    """Inputs side by side.

    Parameters
    ----------
    op : Operator
        CONCAT.
    input_widths : sequence of int
        Widths, whose sum is ``op.width``.
    batch : int
        Samples per call (B).
    dtype : data type
        Type of every buffer.

    Raises
    ------
    UnsupportedModel
        If the widths do not add up.
    """

    def __init__(self, op: Operator, input_widths: Sequence[int], batch: int, dtype: npt.DTypeLike) -> None:
        if sum(input_widths) != op.width:
            raise UnsupportedModel(f"operator {op.name!r}: width {op.width}, its inputs have {sum(input_widths)}")
        ends = np.cumsum(input_widths).tolist()
        self._columns = [slice(end - width, end) for end, width in zip(ends, input_widths, strict=True)]
        self._output = np.empty((batch, op.width), dtype)
        self._d_inputs = [np.empty((batch, width), dtype) for width in input_widths]

    def forward(self, inputs: Sequence[Floats], params: Floats) -> Floats:
        """Return the inputs side by side, (B, sum of widths)."""
        del params
        return np.concatenate(inputs, axis=1, out=self._output)

    def backward(
        self, d_output: Floats, inputs: Sequence[Floats], params: Floats, grads: Floats, needs: Sequence[bool]
    ) -> list[Floats | None]:
        """Return each input's columns of ``d_output``."""
        del inputs, params, grads
        for columns, d_input, needed in zip(self._columns, self._d_inputs, needs, strict=True):
            if needed:
                np.copyto(d_input, d_output[:, columns])
        return [d_input if needed else None for d_input, needed in zip(self._d_inputs, needs, strict=True)]


class InteractionKernel:
    """DLRM's dot interaction: the first input beside the dot products of all pairs of inputs.

    Pairs (i, j), j < i, in the order of facebookresearch/dlrm (``interact_features``): the strict lower triangle, row
    by row. The inputs are kept feature-major, (F, B, D), so that an input or a gradient is one contiguous plane.
    The product leaves out the first row and the last column of the Gram matrix, which the triangle does not need; the
    two operands then differ, which keeps NumPy from calling ``syrk``, two to five times slower on such small matrices.

    Parameters
    ----------
    op : Operator
        INTERACTION of width D + F (F - 1) / 2.
    input_widths : sequence of int
        F times the same width D.
    batch : int
        Samples per call (B).
    dtype : data type
        Type of every buffer.

    Raises
    ------
    UnsupportedModel
        If widths differ or the output has another width.
    """

    def __init__(self, op: Operator, input_widths: Sequence[int], batch: int, dtype: npt.DTypeLike) -> None:
        count, dim = len(input_widths), input_widths[0] if input_widths else 0
        pairs = count * (count - 1) // 2
        if len(set(input_widths)) != 1 or op.width != dim + pairs:
            raise UnsupportedModel(
                f"operator {op.name!r}: width {op.width}; {count} inputs of one width D give D + {pairs}, "
                f"but they have {list(input_widths)}"
            )
        self._dim = dim
        self._features, by_sample = _planes(count, batch, dim, dtype)
        self._rows, self._columns = by_sample[:, 1:], by_sample[:, :-1].transpose(0, 2, 1)
        self._by_sample = by_sample
        self._gram = np.empty((batch, max(0, count - 1), max(0, count - 1)), dtype)
        self._dots = np.empty((batch, pairs), dtype)
        self._output = np.empty((batch, op.width), dtype)
        self._d_features, self._d_by_sample = _planes(count, batch, dim, dtype)
        self._d_gram = np.empty((batch, count, count), dtype)
        self._triangle, self._symmetric = _pair_indices(count, dim)

    def forward(self, inputs: Sequence[Floats], params: Floats) -> Floats:
        """Return first input and dots, (B, D + F (F - 1) / 2)."""
        del params
        for plane, values in zip(self._features, inputs, strict=True):
            np.copyto(plane, values)
        np.matmul(self._rows, self._columns, out=self._gram)
        gram = self._gram.reshape(len(self._gram), -1)
        np.take(gram, self._triangle, axis=1, out=self._dots, mode="clip")
        self._output[:, : self._dim] = inputs[0]
        self._output[:, self._dim :] = self._dots
        return self._output

    def backward(
        self, d_output: Floats, inputs: Sequence[Floats], params: Floats, grads: Floats, needs: Sequence[bool]
    ) -> list[Floats | None]:
        """Return the gradients of all inputs, each (B, D)."""
        del inputs, params, grads
        flat = self._d_gram.reshape(len(self._d_gram), -1)
        np.take(d_output, self._symmetric, axis=1, out=flat, mode="clip")
        flat[:, :: len(self._features) + 1] = 0.0
        np.matmul(self._d_gram, self._by_sample, out=self._d_by_sample)
        self._d_features[0] += d_output[:, : self._dim]
        return [plane if needed else None for plane, needed in zip(self._d_features, needs, strict=True)]


def _planes(count: int, batch: int, dim: int, dtype: npt.DTypeLike) -> tuple[Floats, Floats]:
    """Return one buffer seen as (F, B, D) with contiguous planes, and as (B, F, D)."""
    memory = np.zeros((count, batch * dim + _PLANE_PADDING), dtype)
    planes = memory[:, : batch * dim].reshape(count, batch, dim)
    return planes, planes.transpose(1, 0, 2)


def _pair_indices(count: int, dim: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the flat indices of pair (i, j) in the product without first row and last column, and the way back.

    The second array, (F * F,), says for each element of the whole Gram matrix which column of the output holds its
    pair; the diagonal, which has none, points at column 0.
    """
    rows, columns = np.tril_indices(count, -1)
    symmetric = np.zeros((count, count), np.intp)
    symmetric[rows, columns] = dim + np.arange(len(rows))
    return (rows - 1) * (count - 1) + columns, (symmetric + symmetric.T).ravel()


class FactorizationKernel:
    """The first input beside the sum of the element-wise products of all pairs, ((sum of v)^2 - sum of v^2) / 2.

    Parameters
    ----------
    op : Operator
        FM of width 2 D.
    input_widths : sequence of int
        F times the same width D.
    batch : int
        Samples per call (B).
    dtype : data type
        Type of every buffer.

    Raises
    ------
    UnsupportedModel
        If widths differ or the output has another width.
    """

    def __init__(self, op: Operator, input_widths: Sequence[int], batch: int, dtype: npt.DTypeLike) -> None:
        dim = input_widths[0] if input_widths else 0
        if len(set(input_widths)) != 1 or op.width != 2 * dim:
            raise UnsupportedModel(
                f"operator {op.name!r}: width {op.width}; inputs of one width D give 2 D, they have {list(input_widths)}"
            )
        self._dim = dim
        self._output = np.empty((batch, op.width), dtype)
        self._sum, self._square = np.empty((2, batch, dim), dtype)
        self._d_inputs = np.empty((len(input_widths), batch, dim), dtype)

    def forward(self, inputs: Sequence[Floats], params: Floats) -> Floats:
        """Return first input and products, (B, 2 D)."""
        del params
        total, square = self._sum, self._square
        products = self._output[:, self._dim :]
        self._output[:, : self._dim] = inputs[0]
        np.copyto(total, inputs[0])
        np.multiply(inputs[0], inputs[0], out=products)
        for values in inputs[1:]:
            total += values
            np.multiply(values, values, out=square)
            products += square
        np.multiply(total, total, out=square)
        np.subtract(square, products, out=products)
        products *= 0.5
        return self._output

    def backward(
        self, d_output: Floats, inputs: Sequence[Floats], params: Floats, grads: Floats, needs: Sequence[bool]
    ) -> list[Floats | None]:
        """Return the gradients of all inputs, each (B, D): (sum - v) * d products, and d first of the first."""
        del params, grads
        d_first, d_products = d_output[:, : self._dim], d_output[:, self._dim :]
        for values, d_input, needed in zip(inputs, self._d_inputs, needs, strict=True):
            if needed:
                np.subtract(self._sum, values, out=d_input)
                np.multiply(d_input, d_products, out=d_input)
        if needs[0]:
            self._d_inputs[0] += d_first
        return [d_input if needed else None for d_input, needed in zip(self._d_inputs, needs, strict=True)]


class LossKernel:
    """Mean binary cross entropy of logits z against labels y in {0, 1}: mean of log(1 + exp(z)) - y z.

    Inputs are the logits, (B, 1), and the labels, (n,): of the first n samples, the others fill the batch up and have
    neither loss nor gradient. The mean is taken in float64 in a fixed order; of no samples it is not a number.

    Parameters
    ----------
    op : Operator
        LOSS.
    input_widths : sequence of int
        One width: 1.
    batch : int
        Samples per call (B).
    dtype : data type
        Type of the gradient's buffer.

    Raises
    ------
    UnsupportedModel
        If the input is not one logit per sample.
    """

    def __init__(self, op: Operator, input_widths: Sequence[int], batch: int, dtype: npt.DTypeLike) -> None:
        if tuple(input_widths) != (1,):
            raise UnsupportedModel(f"operator {op.name!r}: takes one logit per sample, has {list(input_widths)}")
        self._d_logits = np.empty((batch, 1), dtype)

    def forward(self, inputs: Sequence[Floats], params: Floats) -> Floats:
        """Return the mean loss, (1,), in float64."""
        del params
        labels = inputs[1]
        if not len(labels):
            return np.full(1, np.nan)
        logits = inputs[0][: len(labels), 0].astype(np.float64)
        loss: Floats = np.mean(np.logaddexp(0.0, logits) - labels * logits, keepdims=True)
        return loss

    def backward(
        self, d_output: Floats, inputs: Sequence[Floats], params: Floats, grads: Floats, needs: Sequence[bool]
    ) -> list[Floats | None]:
        """Return [d logits] = (sigmoid(z) - y) * d_output, with ``d_output`` the scale 1 / samples of the mean."""
        del params, grads
        if not needs[0]:
            return [None]
        labels, logits = inputs[1], inputs[0]
        self._d_logits[len(labels) :] = 0.0
        d_logits = self._d_logits[: len(labels)]
        np.negative(logits[: len(labels)], out=d_logits)
        np.logaddexp(0.0, d_logits, out=d_logits)
        np.negative(d_logits, out=d_logits)
        np.exp(d_logits, out=d_logits)
        d_logits -= labels[:, None]
        d_logits *= d_output.reshape(())
        return [self._d_logits]
