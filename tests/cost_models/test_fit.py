"""The fits: exact recovery, never negative, monotone, and honest held-out errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.fit import (
    fit_measured,
    fit_nonnegative,
    held_out_errors,
    interpolate,
    interpolation_errors,
    residual,
)

curves = st.dictionaries(st.integers(1, 10_000), st.floats(0, 10), min_size=2, max_size=6)


def test_interpolation_is_exact_at_the_measured_batches() -> None:
    """A measured batch gives back what was measured, also the only one."""
    assert [interpolate([64, 256, 1024], [1.0, 3.0, 5.0], b) for b in (64, 256, 1024)] == [1.0, 3.0, 5.0]
    assert interpolate([64], [1.0], 64) == 1.0


def test_interpolation_recovers_a_line_everywhere() -> None:
    """Seconds = 2 + 3 b, measured at three batches, come back between and beyond them."""
    batches = [64, 256, 1024]
    for batch in (1, 100, 500, 5000):
        assert interpolate(batches, [2 + 3 * b for b in batches], batch) == pytest.approx(2 + 3 * batch)


def test_interpolation_is_linear_between_neighbours_only() -> None:
    """With a bend at 256 both sides keep their own slope."""
    assert interpolate([64, 256, 1024], [1.0, 1.0, 5.0], 160) == 1.0
    assert interpolate([64, 256, 1024], [1.0, 1.0, 5.0], 640) == 3.0


def test_extrapolation_below_never_goes_under_the_seconds_per_sample() -> None:
    """A steep first piece would cross zero: one sample then costs a 64th of 64 samples, not less than nothing."""
    assert interpolate([64, 128], [1.0, 10.0], 1) == pytest.approx(1 / 64)


def test_extrapolation_above_does_not_follow_a_fall() -> None:
    """When noise made the largest batch the cheaper one, larger ones cost as much, not ever less."""
    assert interpolate([64, 128], [2.0, 1.0], 10_000) == 1.0


@given(curves, st.integers(1, 100_000))
def test_interpolated_seconds_are_never_negative(curve: dict[int, float], batch: int) -> None:
    """Whatever was measured, no batch takes less than no time."""
    batches = sorted(curve)
    assert interpolate(batches, [curve[b] for b in batches], batch) >= 0


@given(curves, st.integers(1, 100_000), st.integers(1, 100_000))
def test_interpolation_rises_with_the_batch_if_the_measurements_do(curve: dict[int, float], one: int, two: int) -> None:
    """Increasing measurements give increasing seconds at any two batches."""
    batches, seconds = sorted(curve), sorted(curve.values())
    low, high = sorted((one, two))
    assert interpolate(batches, seconds, low) <= interpolate(batches, seconds, high) * (1 + 1e-12)


@pytest.mark.parametrize(("batches", "batch"), [([], 1), ([2, 2], 1), ([3, 1], 2), ([64], 65)])
def test_interpolation_refuses_what_it_cannot_do(batches: list[int], batch: int) -> None:
    """No points, unsorted points, and another batch than the only one are refused."""
    with pytest.raises(ValueError, match="measured"):
        interpolate(batches, [1.0] * len(batches), batch)


def test_interpolation_errors_leave_out_inner_points() -> None:
    """On a line they vanish; a point 10 % above its neighbours' line is missed by 1/11; ends are not predicted."""
    assert interpolation_errors([1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0]) == pytest.approx([0, 0])
    assert interpolation_errors([1, 2, 3], [1.0, 2.2, 3.0]) == pytest.approx([-1 / 11])
    assert interpolation_errors([1, 3], [1.0, 2.0]) == []
    assert interpolation_errors([1, 2, 3], [0.0, 0.0, 0.0]) == []


def synthetic(shapes: int, seed: int = 7) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Features (n, 4) of matrix products over six orders of magnitude, four batches a shape, and exact seconds (n,)."""
    rng = np.random.default_rng(seed)
    m, n = rng.integers(4, 2000, shapes), rng.integers(1, 2000, shapes)
    rows, groups = [], []
    for batch in (64, 256, 1024, 2048):
        rows.append(np.column_stack([np.ones(shapes), 2.0 * batch * m * n, batch * m, batch * n]))
        groups += [f"{a}x{b}" for a, b in zip(m, n, strict=True)]
    x = np.concatenate(rows)
    return x, x @ np.array([2e-6, 1e-11, 0.0, 3e-10]), groups


def test_nonnegative_fit_recovers_exact_coefficients() -> None:
    """Without noise the coefficients come back, the absent one as zero."""
    x, y, _ = synthetic(30)
    assert fit_nonnegative(x, y) == pytest.approx([2e-6, 1e-11, 0.0, 3e-10], rel=1e-6, abs=1e-18)


def test_nonnegative_fit_has_no_negative_coefficient() -> None:
    """A feature that lowers the time gets no credit: its coefficient is zero."""
    x = np.column_stack([np.ones(50), np.linspace(1, 2, 50)])
    coefficients = fit_nonnegative(x, 3 - x[:, 1])
    assert (coefficients >= 0).all()
    assert coefficients[1] == 0


def test_nonnegative_fit_minimises_relative_error() -> None:
    """A microsecond and a second weigh the same: two constants that disagree meet where relative errors balance."""
    coefficient = fit_nonnegative([[1.0], [1.0]], [1e-6, 1.0])[0]
    assert coefficient == pytest.approx((1e6 + 1) / (1e12 + 1))


def test_nonnegative_fit_ignores_a_feature_that_is_always_zero() -> None:
    """A column of zeros (no table larger than the cache) does no harm."""
    assert fit_nonnegative([[1.0, 0.0], [2.0, 0.0]], [1.0, 2.0]) == pytest.approx([1.0, 0.0])


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_nonnegative_fit_refuses_durations_without_a_relative_error(seconds: float) -> None:
    """Zero, negative and non-finite durations are refused."""
    with pytest.raises(ValueError, match="positive and finite"):
        fit_nonnegative([[1.0], [1.0]], [1.0, seconds])


def test_held_out_error_vanishes_when_the_features_are_right() -> None:
    """Exact data: shapes that were left out are predicted exactly."""
    assert np.abs(held_out_errors(*synthetic(20))).max() < 1e-6


def test_held_out_error_sees_noise_and_missing_features() -> None:
    """5 % noise gives about 5 % (median of abs: 0.67 sigma); without the arithmetic feature errors are large."""
    x, y, groups = synthetic(60)
    noisy = y * np.exp(np.random.default_rng(1).normal(0, 0.05, len(y)))
    assert 0.02 < np.median(np.abs(held_out_errors(x, noisy, groups))) < 0.06
    assert np.median(np.abs(held_out_errors(x[:, [0, 2, 3]], y, groups))) > 0.2


def test_held_out_points_of_a_shape_leave_together() -> None:
    """A shape's own cost that no feature explains shows in full, although its other batches were measured."""
    x = np.ones((8, 1))
    y = np.array([1, 1, 1, 1, 1, 1, 2, 2.0])
    errors = held_out_errors(x, y, ["a", "a", "b", "b", "c", "c", "d", "d"])
    assert errors[-2:] == pytest.approx([-0.5, -0.5])


def test_held_out_errors_repeat_and_need_two_shapes() -> None:
    """Same seed, same folds; a single shape has nothing to be held out against."""
    x, y, groups = synthetic(12)
    noisy = y * np.exp(np.random.default_rng(1).normal(0, 0.1, len(y)))
    assert (held_out_errors(x, noisy, groups) == held_out_errors(x, noisy, groups)).all()
    assert held_out_errors(x, y, ["same"] * len(y)).size == 0


def test_a_fit_of_messages_recovers_its_parts() -> None:
    """5 us + 60 us per MB + 1 us per tensor come back from five messages; points of zero seconds are left out."""
    rows = [[1.0, size, tensors] for size, tensors in ((1e3, 1), (1e5, 8), (1e5, 1), (1e6, 32), (1e7, 1))]
    seconds = [5e-6 + 60e-12 * size + 1e-6 * tensors for _, size, tensors in rows]
    assert fit_measured(rows, seconds) == pytest.approx([5e-6, 60e-12, 1e-6])
    assert fit_measured([*rows, [1.0, 5.0, 1.0]], [*seconds, 0.0]) == pytest.approx([5e-6, 60e-12, 1e-6])
    assert fit_measured([[1.0, 1.0], [1.0, 2.0]], [0.0, 0.0]) == [0.0, 0.0]


@given(st.lists(st.tuples(st.floats(1, 1e9), st.floats(1e-9, 10)), min_size=1, max_size=8))
def test_a_fit_of_messages_never_falls_with_the_bytes(points: list[tuple[float, float]]) -> None:
    """Whatever was measured, no part is negative, so a larger message never costs less."""
    fixed, slope = fit_measured([[1.0, size] for size, _ in points], [seconds for _, seconds in points])
    assert fixed >= 0
    assert slope >= 0


def test_residual_summarises_absolute_errors() -> None:
    """Signs do not cancel; no errors, no summary."""
    found = residual([-0.1, 0.1, 0.3])
    assert found is not None
    assert (found.median, found.count) == (pytest.approx(0.1), 3)
    assert str(found) == "median 10.0%, p95 28.0% of 3"
    assert residual([]) is None
