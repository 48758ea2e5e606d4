"""Dense kernels: gradients against finite differences in float64, special shapes, errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from executor.arrays import Floats, UnsupportedModel
from executor.kernels import by_distinct_input, make_kernel
from problem.graph import Kind, Operator
from tests.executor.tiny import cross, linear, numerical_gradient

BATCH = 7

CASES = [
    pytest.param(linear("fc", "a", 5, 4), [5], id="linear-relu"),
    pytest.param(linear("fc", "a", 5, 4, "none"), [5], id="linear-none"),
    pytest.param(linear("fc", "a", 5, 1, "none"), [5], id="linear-one-output"),
    pytest.param(linear("fc", "a", 5, 1, "relu"), [5], id="linear-relu-one-output"),
    pytest.param(Operator("cat", Kind.CONCAT, ("a", "b", "c"), 6), [3, 1, 2], id="concat"),
    pytest.param(Operator("dots", Kind.INTERACTION, ("a", "b", "c"), 6), [3, 3, 3], id="interaction"),
    pytest.param(Operator("dots", Kind.INTERACTION, ("a",), 3), [3], id="interaction-of-one"),
    pytest.param(Operator("fm", Kind.FM, ("a", "b", "c"), 6), [3, 3, 3], id="fm"),
    pytest.param(Operator("fm", Kind.FM, ("a", "b"), 2), [1, 1], id="fm-of-two"),
    pytest.param(cross("x", ("a", "b"), 4, 2), [4, 4], id="cross"),
]


def drawn(op: Operator, widths: Sequence[int], dtype: type = np.float64) -> tuple[list[Floats], Floats, Floats]:
    """Inputs, parameters and a gradient of the output, drawn for an operator."""
    draw = np.random.default_rng(3)
    inputs = [draw.normal(size=(BATCH, width)).astype(dtype) for width in widths]
    return inputs, draw.normal(size=op.parameters).astype(dtype), draw.normal(size=(BATCH, op.width)).astype(dtype)


@pytest.mark.parametrize(("op", "widths"), CASES)
def test_backward_is_the_numerical_gradient(op: Operator, widths: list[int]) -> None:
    """Gradients of every input and every parameter equal central differences of <output, d_output> in float64."""
    inputs, params, d_output = drawn(op, widths)
    kernel, probe = (make_kernel(op, widths, BATCH, np.float64) for _ in range(2))
    grads = np.full(op.parameters, np.nan)
    kernel.forward(inputs, params)
    gradients = kernel.backward(d_output, inputs, params, grads, [True] * len(inputs))

    def objective() -> float:
        return float(np.sum(probe.forward(inputs, params) * d_output))

    for gradient, values in zip(gradients, inputs, strict=True):
        np.testing.assert_allclose(gradient, numerical_gradient(objective, values), rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(grads, numerical_gradient(objective, params), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(("op", "widths"), CASES)
def test_float32_agrees_with_float64_and_leaves_its_arguments_alone(op: Operator, widths: list[int]) -> None:
    """The float32 kernel gives the float64 kernel's output and gradients to rounding, and changes no input."""
    results = []
    for dtype in (np.float32, np.float64):
        inputs, params, d_output = drawn(op, widths, np.float32)
        arrays = [array.astype(dtype) for array in (*inputs, params, d_output)]
        copies = [array.copy() for array in arrays]
        kernel, grads = make_kernel(op, widths, BATCH, dtype), np.zeros(op.parameters, dtype)
        output = kernel.forward(arrays[:-2], arrays[-2])
        gradients = kernel.backward(arrays[-1], arrays[:-2], arrays[-2], grads, [True] * len(widths))
        for array, copy in zip(arrays, copies, strict=True):
            np.testing.assert_array_equal(array, copy)
        results.append([output, grads, *gradients])
    for narrow, wide in zip(*results, strict=True):
        assert narrow.dtype == np.float32
        np.testing.assert_allclose(narrow, wide, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("op", "widths"), CASES)
def test_gradients_that_are_not_wanted_are_none(op: Operator, widths: list[int]) -> None:
    """Only the wanted inputs get a gradient; the parameters get theirs all the same."""
    inputs, params, d_output = drawn(op, widths)
    kernel = make_kernel(op, widths, BATCH, np.float64)
    kernel.forward(inputs, params)
    wanted, some = np.zeros(op.parameters), np.zeros(op.parameters)
    kernel.backward(d_output, inputs, params, wanted, [True] * len(widths))
    needs = [index % 2 == 1 for index in range(len(widths))]
    gradients = kernel.backward(d_output, inputs, params, some, needs)
    assert [gradient is not None for gradient in gradients] == needs
    np.testing.assert_array_equal(some, wanted)


def test_interaction_is_the_loop_of_dlrm() -> None:
    """The output is the first input, then the dots of pairs (i, j < i) row by row, as facebookresearch/dlrm has them."""
    op, widths = Operator("dots", Kind.INTERACTION, ("a", "b", "c", "d"), 3 + 6), [3] * 4
    inputs, params, _ = drawn(op, widths)
    output = make_kernel(op, widths, BATCH, np.float64).forward(inputs, params)
    dots = [np.sum(inputs[i] * inputs[j], axis=1) for i in range(4) for j in range(i)]
    np.testing.assert_allclose(output, np.column_stack([inputs[0], *dots]), rtol=1e-12)


def test_fm_is_the_loop_over_pairs() -> None:
    """The output is the first input, then the sum over pairs of their products, element by element."""
    op, widths = Operator("fm", Kind.FM, ("a", "b", "c", "d"), 6), [3] * 4
    inputs, params, _ = drawn(op, widths)
    output = make_kernel(op, widths, BATCH, np.float64).forward(inputs, params)
    pairs = sum(inputs[i] * inputs[j] for i in range(4) for j in range(i))
    np.testing.assert_allclose(output, np.column_stack([inputs[0], pairs]), rtol=1e-12)


def test_a_cross_layer_fed_one_tensor_twice_sums_both_gradients() -> None:
    """With x0 = x the gradient of the one distinct input is that of both positions together."""
    op = cross("x", ("a", "a"), 4, 2)
    (values, _), params, d_output = drawn(op, [4, 4])
    kernel, probe = (make_kernel(op, [4, 4], BATCH, np.float64) for _ in range(2))
    kernel.forward([values, values], params)
    gradients = kernel.backward(d_output, [values, values], params, np.zeros(op.parameters), [True, True])
    expected = numerical_gradient(lambda: float(np.sum(probe.forward([values, values], params) * d_output)), values)
    total = by_distinct_input(op, gradients)
    assert list(total) == ["a"]
    np.testing.assert_allclose(total["a"], expected, rtol=1e-7, atol=1e-8)


def test_loss_gradient_is_numerical_and_scaled_by_the_caller() -> None:
    """With scale 1 / B the gradient is that of the mean loss; with 1 / (2 B) half of it."""
    op = Operator("loss", Kind.LOSS, ("z",), 1)
    draw = np.random.default_rng(0)
    logits, labels = draw.normal(size=(BATCH, 1)) * 3, (draw.random(BATCH) < 0.5).astype(np.float64)
    kernel, nothing = make_kernel(op, [1], BATCH, np.float64), np.zeros(0)
    expected = numerical_gradient(lambda: float(kernel.forward([logits, labels], nothing)[0]), logits)
    for ranks in (1, 2):
        scale = np.array([1.0 / (BATCH * ranks)])
        (d_logits,) = kernel.backward(scale, [logits, labels], nothing, nothing, [True])
        np.testing.assert_allclose(d_logits, expected / ranks, rtol=1e-6, atol=1e-9)


def test_loss_stays_finite_for_extreme_logits() -> None:
    """Logits of +-1e4 give finite losses and gradients of 0 or +-1, without a warning."""
    op = Operator("loss", Kind.LOSS, ("z",), 1)
    logits = np.array([[1e4], [1e4], [-1e4], [-1e4]], np.float32)
    labels = np.array([1, 0, 1, 0], np.float32)
    kernel, nothing = make_kernel(op, [1], 4), np.zeros(0, np.float32)
    assert kernel.forward([logits, labels], nothing)[0] == pytest.approx(5e3)
    (d_logits,) = kernel.backward(np.ones(1, np.float32), [logits, labels], nothing, nothing, [True])
    np.testing.assert_array_equal(d_logits, [[0.0], [1.0], [-1.0], [0.0]])


def test_nan_reaches_the_loss() -> None:
    """A NaN in an input is not hidden by the ReLU, so that the supervisor can see it."""
    op = linear("fc", "a", 2, 3)
    output = make_kernel(op, [2], 1).forward([np.full((1, 2), np.nan, np.float32)], np.ones(9, np.float32))
    assert np.isnan(output).all()


@pytest.mark.parametrize(
    ("op", "widths", "expected"),
    [
        (linear("fc", "a", 5, 4), [6], "takes one input of width 5"),
        (Operator("fc", Kind.LINEAR, ("a",), 4, parameters=23), [5], "has 23 parameters"),
        (Operator("fc", Kind.LINEAR, ("a",), 2, parameters=6, activation="gelu"), [2], "activation 'gelu'"),
        (Operator("cat", Kind.CONCAT, ("a", "b"), 6), [3, 2], "width 6, its inputs have 5"),
        (Operator("dots", Kind.INTERACTION, ("a", "b"), 4), [3, 2], "inputs of one width"),
        (Operator("dots", Kind.INTERACTION, ("a", "b"), 9), [3, 3], "width 9"),
        (Operator("fm", Kind.FM, ("a", "b"), 6), [3, 2], "inputs of one width"),
        (Operator("fm", Kind.FM, ("a", "b"), 3), [3, 3], "width 3"),
        (cross("x", ("a", "b"), 4, 2), [4, 3], "two inputs of width 4"),
        (Operator("loss", Kind.LOSS, ("z",), 1), [2], "one logit per sample"),
        (Operator("f", Kind.FIXED, ("z",), 1), [2], "no dense kernel for kind fixed"),
        (Operator("t", Kind.LOOKUP, (), 1), [], "no dense kernel for kind lookup"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(op: Operator, widths: list[int], expected: str) -> None:
    """A kernel that cannot be made says which operator and what is wrong."""
    with pytest.raises(UnsupportedModel, match=f"operator '{op.name}'.*{expected}") as caught:
        make_kernel(op, widths, 2)
    assert caught.value.exit_code == 2
