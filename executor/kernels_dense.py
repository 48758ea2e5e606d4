"""Kernels with parameters: fully connected layers and low-rank cross layers.

Knows shapes and matrix products only; the contract is ``kernels.Kernel``. The gradient of a bias is the product with
a row of ones: two to four times as fast as ``sum(axis=0)`` at B = 512 and summed in a fixed order all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from executor import native
from executor.arrays import Floats, UnsupportedModel
from executor.parameters import layout, unflatten
from problem.graph import Operator


class LinearKernel:
    """y = activation(x W + b), activation none or ReLU.

    Parameters
    ----------
    op : Operator
        LINEAR; its input width follows from its number of parameters.
    input_widths : sequence of int
        One width.
    batch : int
        Samples per call (B).
    dtype : data type
        Type of every buffer.

    Raises
    ------
    UnsupportedModel
        If the input does not fit the weights or the activation is unknown.
    """

    def __init__(self, op: Operator, input_widths: Sequence[int], batch: int, dtype: npt.DTypeLike) -> None:
        self._shapes = layout(op)
        inputs = self._shapes[0][1][0]
        if tuple(input_widths) != (inputs,):
            raise UnsupportedModel(f"operator {op.name!r}: takes one input of width {inputs}, has {list(input_widths)}")
        if op.activation not in {"none", "relu"}:
            raise UnsupportedModel(f"operator {op.name!r}: activation {op.activation!r}: allowed are none, relu")
        self._relu = op.activation == "relu"
        self._ones = np.ones(batch, dtype)
        self._output = np.empty((batch, op.width), dtype)
        self._d_linear = np.empty((batch, op.width), dtype)
        self._d_input = np.empty((batch, inputs), dtype)

    def forward(self, inputs: Sequence[Floats], params: Floats) -> Floats:
        """Return y, (B, out)."""
        weight, bias = unflatten(self._shapes, params)
        output = self._output
        np.matmul(inputs[0], weight, out=output)
        if native.available() and output.dtype == np.float32:
            native.add_bias(output, bias, self._relu)
            return output
        output += bias
        if self._relu:
            np.maximum(output, 0.0, out=output)
        return output

    def backward(
        self, d_output: Floats, inputs: Sequence[Floats], params: Floats, grads: Floats, needs: Sequence[bool]
    ) -> list[Floats | None]:
        """Return [dx]; write dW and db."""
        weight, _ = unflatten(self._shapes, params)
        d_weight, d_bias = unflatten(self._shapes, grads)
        d_linear = self._mask(d_output)
        np.matmul(inputs[0].T, d_linear, out=d_weight)
        np.matmul(self._ones, d_linear, out=d_bias)
        if not needs[0]:
            return [None]
        # An outer product through np.multiply is five times as fast as through matmul (512 to 2048 samples).
        product = np.multiply if weight.shape[1] == 1 else np.matmul
        product(d_linear, weight.T, out=self._d_input)
        return [self._d_input]

    def _mask(self, d_output: Floats) -> Floats:
        """Return the gradient before the activation: that of the output where the output is positive."""
        if not self._relu:
            return d_output
        np.greater(self._output, 0.0, out=self._d_linear, casting="unsafe")
        np.multiply(self._d_linear, d_output, out=self._d_linear)
        return self._d_linear


class CrossKernel:
    """y = x0 * ((x V) U + b) + x, the low-rank cross layer of DCN-v2 (Wang et al., WWW 2021, equation 2).

    Parameters
    ----------
    op : Operator
        CROSS; inputs (x0, x), which may be the same tensor.
    input_widths : sequence of int
        Two widths, both ``op.width``.
    batch : int
        Samples per call (B).
    dtype : data type
        Type of every buffer.

    Raises
    ------
    UnsupportedModel
        If the inputs are not two of the operator's width.
    """

    def __init__(self, op: Operator, input_widths: Sequence[int], batch: int, dtype: npt.DTypeLike) -> None:
        self._shapes = layout(op)
        if tuple(input_widths) != (op.width, op.width):
            raise UnsupportedModel(
                f"operator {op.name!r}: takes two inputs of width {op.width}, has {list(input_widths)}"
            )
        self._ones = np.ones(batch, dtype)
        self._inner, self._d_inner = np.empty((2, batch, op.rank), dtype)
        self._gate, self._output, self._d_gate, self._d_first, self._d_second = np.empty((5, batch, op.width), dtype)

    def forward(self, inputs: Sequence[Floats], params: Floats) -> Floats:
        """Return y, (B, width)."""
        down, up, bias = unflatten(self._shapes, params)
        first, second = inputs
        np.matmul(second, down, out=self._inner)
        np.matmul(self._inner, up, out=self._gate)
        self._gate += bias
        np.multiply(first, self._gate, out=self._output)
        self._output += second
        return self._output

    def backward(
        self, d_output: Floats, inputs: Sequence[Floats], params: Floats, grads: Floats, needs: Sequence[bool]
    ) -> list[Floats | None]:
        """Return [dx0, dx]; write dV, dU and db."""
        down, up, _ = unflatten(self._shapes, params)
        d_down, d_up, d_bias = unflatten(self._shapes, grads)
        first, second = inputs
        np.multiply(d_output, first, out=self._d_gate)
        np.matmul(self._inner.T, self._d_gate, out=d_up)
        np.matmul(self._ones, self._d_gate, out=d_bias)
        np.matmul(self._d_gate, up.T, out=self._d_inner)
        np.matmul(second.T, self._d_inner, out=d_down)
        if needs[0]:
            np.multiply(d_output, self._gate, out=self._d_first)
        if needs[1]:
            np.matmul(self._d_inner, down.T, out=self._d_second)
            self._d_second += d_output
        return [self._d_first if needs[0] else None, self._d_second if needs[1] else None]
