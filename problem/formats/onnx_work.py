"""Flops of ONNX operators, from the shapes of inputs and output; the formulas are those of the ONNX operator definitions.

A multiply-add is two flops. What is not listed is element-wise, or moves data: one flop an element of its output.
"""

from __future__ import annotations

from math import prod
from typing import Any


def forward_flops(node: Any, inputs: list[list[int]], output: list[int]) -> float:
    """Return the flops of the forward pass of a node, for the whole batch of the file.

    Parameters
    ----------
    node : NodeProto
        The operator.
    inputs : list of list of int
        Shape of each input, empty where it is not known.
    output : list of int
        Shape of the first output.
    """
    elements = float(prod(output))
    match node.op_type:
        case "Conv" | "ConvTranspose" if len(inputs) > 1 and inputs[1]:
            return 2 * elements * prod(inputs[1][1:])  # weights (M, C / group, kernel)
        case "Gemm" if inputs[0]:
            return 2 * elements * inputs[0][0 if _attribute(node, "transA") else -1]
        case "MatMul" if inputs[0]:
            return 2 * elements * inputs[0][-1]
        case "MaxPool" | "AveragePool":
            return elements * prod(_kernel(node))
        case _:
            return elements


def _attribute(node: Any, name: str) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), 0)


def _kernel(node: Any) -> list[int]:
    return next((list(attribute.ints) for attribute in node.attribute if attribute.name == "kernel_shape"), [1])
