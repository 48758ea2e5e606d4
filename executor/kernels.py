"""What every kernel is like, and which kernel an operator gets.

A kernel belongs to one operator and one batch size and owns its work buffers, so that a step allocates next to
nothing. It holds ONE batch in flight: ``backward`` belongs to the latest ``forward``. Kernels know nothing of parameter
storage, messages or placement; embedding tables are the business of ``kernels_sparse``, updates of ``kernels_update``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from executor.arrays import Floats, UnsupportedModel
from executor.kernels_combine import ConcatKernel, DenseInputKernel, FactorizationKernel, InteractionKernel, LossKernel
from executor.kernels_dense import CrossKernel, LinearKernel
from problem.graph import Kind, Operator


class Kernel(Protocol):
    """Forward and backward of one operator for one batch size."""

    def forward(self, inputs: Sequence[Floats], params: Floats) -> Floats:
        """Return the output, (B, width).

        Parameters
        ----------
        inputs : sequence of ndarray
            One for each entry of ``op.inputs``, (B, width of the input). A LOSS takes its labels, (B,), as a second one.
        params : ndarray, shape (op.parameters,)
            Flat parameters, laid out by ``parameters.layout``.

        Returns
        -------
        ndarray
            The kernel's own buffer, valid until the next ``forward``; a DENSE_INPUT returns its input.
        """
        ...

    def backward(
        self, d_output: Floats, inputs: Sequence[Floats], params: Floats, grads: Floats, needs: Sequence[bool]
    ) -> list[Floats | None]:
        """Return the gradients of the inputs and write that of the parameters.

        Parameters
        ----------
        d_output : ndarray, shape (B, width)
            Gradient of the objective with respect to the output; not changed. For a LOSS the scale of the gradient, one
            element: 1 / (samples over which the objective is the mean).
        inputs, params
            As given to ``forward``.
        grads : ndarray, shape (op.parameters,)
            Overwritten with the gradient of the parameters.
        needs : sequence of bool
            For each input whether its gradient is wanted.

        Returns
        -------
        list of ndarray or None
            One for each input, None where not wanted. Each is a buffer of the kernel of its own, which the caller may
            overwrite, valid until the next ``backward``.
        """
        ...


def make_kernel(op: Operator, input_widths: Sequence[int], batch: int, dtype: npt.DTypeLike = np.float32) -> Kernel:
    """Return the kernel of an operator.

    Parameters
    ----------
    op : Operator
        Any operator but a LOOKUP (pooled by ``kernels_sparse.pool``) or a FIXED one.
    input_widths : sequence of int
        Widths of ``op.inputs``, in order.
    batch : int
        Samples per call (B).
    dtype : data type
        float32 to train; float64 lets a test compare gradients with finite differences.

    Raises
    ------
    UnsupportedModel
        If there is no kernel for the operator or for these widths.
    """
    match op.kind:
        case Kind.DENSE_INPUT:
            return DenseInputKernel()
        case Kind.LINEAR:
            return LinearKernel(op, input_widths, batch, dtype)
        case Kind.CONCAT:
            return ConcatKernel(op, input_widths, batch, dtype)
        case Kind.INTERACTION:
            return InteractionKernel(op, input_widths, batch, dtype)
        case Kind.FM:
            return FactorizationKernel(op, input_widths, batch, dtype)
        case Kind.CROSS:
            return CrossKernel(op, input_widths, batch, dtype)
        case Kind.LOSS:
            return LossKernel(op, input_widths, batch, dtype)
        case _:
            raise UnsupportedModel(f"operator {op.name!r}: there is no dense kernel for kind {op.kind}")


def by_distinct_input(op: Operator, gradients: Sequence[Floats | None]) -> dict[str, Floats]:
    """Return the gradients of the distinct inputs of an operator, by name, in order of first appearance.

    ``gradients`` is what ``backward`` returned, one per entry of ``op.inputs``; those of an input that appears several
    times (x0 = x in the first cross layer) are added in that order, into the first. Unwanted ones are left out.
    """
    total: dict[str, Floats] = {}
    for name, gradient in zip(op.inputs, gradients, strict=False):
        if gradient is None:
            continue
        if name in total:
            np.add(total[name], gradient, out=total[name])
        else:
            total[name] = gradient
    return total
