"""Dynamic Communication Thresholding as the paper has it, its corner cases, and what it was compared with."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.codecs import Codec
from executor.arrays import generator
from executor.codecs.ablations import Sketch, TopK
from executor.codecs.dct import CutCodec, CutSettings, GradientCodec, GradientSettings, Rule, forget
from executor.codecs.selection import kept_of, laplace, largest, reaching, thresholds
from executor.codecs.wire import sparse_bytes
from executor.errors import NotFinite

N = 1000
PLACES = [Codec.COO32, Codec.IDX16, Codec.BITMASK]


def weibull(elements: int, seed: int = 0) -> np.ndarray:
    """Gradients as in figure 2 of the paper: |g| is Weibull with shape 0.452 and scale 1.75e-4."""
    draw = np.random.default_rng(seed)
    return (1.75e-4 * draw.weibull(0.452, elements) * draw.choice([-1, 1], elements)).astype(np.float32)


def sent(codec: GradientCodec, gradient: np.ndarray, step: int) -> np.ndarray:
    """What arrives of a step's gradient."""
    out = np.full(len(gradient), np.nan, np.float32)
    codec.decode(codec.encode(gradient, step, generator(0, "test", step)), out)
    return out


# ---- selection


def test_k_kept_of_n() -> None:
    """A share is rounded up to whole elements; 10 % of 1,000 is 100 in spite of binary fractions."""
    assert [kept_of(1000, keep) for keep in (0.1, 0.0501, 1e-9, 1.0)] == [100, 51, 1, 1000]


@given(st.integers(1, 60), st.integers(0, 60), st.integers(0, 2**32 - 1))
def test_largest_keeps_exactly_k(cols: int, count: int, seed: int) -> None:
    """With many ties and zeros: exactly k elements of a row, or all that are not 0; none that is left out is larger."""
    count = min(count, cols)
    values = np.random.default_rng(seed).integers(-2, 3, (5, cols)).astype(np.float32)
    mask = largest(values, count)
    for row, kept in zip(values, mask, strict=True):
        assert kept.sum() == min(count, np.count_nonzero(row))
        assert np.abs(row[kept]).min(initial=np.inf) >= np.abs(row[~kept]).max(initial=0)


def test_of_equal_elements_those_to_the_left_are_kept() -> None:
    """A tie at the threshold is broken by position, so that both ends and all runs agree."""
    values = np.array([[1, -3, 1, 2, -1, 1]], np.float32)
    assert largest(values, 4)[0].tolist() == [True, True, True, True, False, False]
    assert reaching(values, thresholds(values, 4))[0].tolist() == [True] * 6


def test_thresholds_of_none_and_of_all() -> None:
    """k = 0 is reached by nothing, k = n by all that is not 0."""
    values = np.array([[1, 0, -2], [0, 0, 0]], np.float32)
    assert not reaching(values, thresholds(values, 0)).any()
    np.testing.assert_array_equal(reaching(values, thresholds(values, 3)), values != 0)


# ---- DCT-DP


@pytest.mark.parametrize("wire", PLACES)
def test_dct_dp_is_algorithm_1(wire: Codec) -> None:
    """Fifty steps against the algorithm written out with a sort, a threshold every 7 steps: what is sent and what is
    remembered are the same to the bit."""
    codec = GradientCodec(GradientSettings(0.05, wire, every=7), N)
    error, tau = np.zeros(N, np.float32), 0.0
    for step in range(50):
        gradient = weibull(N, step)
        total = gradient + error
        if step % 7 == 0:
            tau = np.sort(np.abs(total))[N - 50]  # counted from 0: floor(N * 0.95)
        expected = np.where(np.abs(total) >= tau, total, np.float32(0))
        error = total - expected
        np.testing.assert_array_equal(sent(codec, gradient, step), expected)
        np.testing.assert_array_equal(codec.error, error)
        assert codec.threshold == tau


@given(st.floats(0.001, 1), st.integers(256, 600), st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_what_is_sent_and_what_is_kept_make_the_gradient(keep: float, elements: int, seed: int, every: int) -> None:
    """Gradient + old error = sent + new error exactly, in every step, whatever the share; each element is in one of the
    two and 0 in the other."""
    codec, draw = GradientCodec(GradientSettings(keep, every=every), elements), np.random.default_rng(seed)
    for step in range(6):
        gradient, before = draw.standard_normal(elements).astype(np.float32), codec.error.copy()
        found = sent(codec, gradient, step)
        np.testing.assert_array_equal(found + codec.error, gradient + before)
        assert not (found * codec.error).any()


def test_a_threshold_too_high_sends_nothing_until_the_error_reaches_it() -> None:
    """Gradients a third of the stale threshold: nothing, nothing, then all of the sum."""
    codec = GradientCodec(GradientSettings(1.0, every=1000), N)
    signs = np.where(np.arange(N) % 2, 1, -1).astype(np.float32)
    assert (sent(codec, signs, 0) == signs).all()
    small = signs * np.float32(0.375)
    for step in (1, 2):
        assert not sent(codec, small, step).any()
    np.testing.assert_array_equal(sent(codec, small, 3), small * 3)
    assert not codec.error.any()


def test_the_first_thresholds_are_too_low_for_the_error_that_grows() -> None:
    """Noise of one size: as much as planned is sent when a threshold is taken, 4 times as much a step later, when the error
    has been added; with the error grown to its size, intervals send what is planned."""
    codec, draws = GradientCodec(GradientSettings(0.03, every=5), 20_000), np.random.default_rng(0)
    kept = [np.count_nonzero(sent(codec, draws.standard_normal(20_000, np.float32), step)) / 600 for step in range(60)]
    assert kept[::5] == [1.0] * 12
    assert kept[1] > 3.5
    means = np.reshape(kept, (12, 5)).mean(axis=1)
    assert means[0] > 3.0
    assert means[1] > 1.5
    assert 0.9 < means[-2:].mean() < 1.1


def test_gradients_of_mostly_zeros_do_not_send_zeros() -> None:
    """Nine in ten are 0 and half are to be kept, so the threshold is 0: the tenth is sent, not everything."""
    gradient = np.where(np.arange(N) % 10 == 0, weibull(N) + np.float32(1), np.float32(0))
    codec = GradientCodec(GradientSettings(0.5), N)
    wire = codec.encode(gradient, 0, generator(0, "test"))
    assert codec.threshold == 0
    assert len(wire) == sparse_bytes(Codec.COO32, N, 100)
    assert not sent(codec, np.zeros(N, np.float32), 1).any()


def test_small_gradients_are_sent_whole() -> None:
    """255 elements: everything at once, no error, no threshold."""
    codec, gradient = GradientCodec(GradientSettings(0.01), 255), weibull(255)
    np.testing.assert_array_equal(sent(codec, gradient, 0), gradient)
    assert not codec.error.any()
    assert math.isnan(codec.threshold)


def test_threads_share_an_error_buffer() -> None:
    """Two senders with one buffer: the half that one leaves the other sends."""
    buffer = np.zeros(N + 1, np.float32)
    forget(buffer)
    first, second = (GradientCodec(GradientSettings(0.5), N, buffer) for _ in range(2))
    gradient = weibull(N)
    found = sent(first, gradient, 0) + sent(second, np.zeros(N, np.float32), 0)
    np.testing.assert_array_equal(found, gradient)
    assert not buffer[:-1].any()


@pytest.mark.parametrize("drain", ["zero", "flush"])
def test_a_drain_empties_the_error(drain: str) -> None:
    """With a drain in every step the error stays empty: ``flush`` sends all of the gradient, ``zero`` the largest only."""
    codec = GradientCodec(GradientSettings(0.05, drain_every=1, drain=drain), N)  # type: ignore[arg-type]
    gradient = weibull(N)
    found = sent(codec, gradient, 0)
    assert not codec.error.any()
    assert np.count_nonzero(found) == (N if drain == "flush" else 50)


def test_drains_come_as_often_as_asked_and_repeat() -> None:
    """One step in ten of 2,000 on average, at the same steps in every run."""

    gradient = np.where(np.arange(N) < 10, 1000, 1e-3).astype(np.float32)

    def drained() -> list[int]:
        codec = GradientCodec(GradientSettings(0.01, drain_every=10), N)
        steps = []
        for step in range(2000):
            codec.encode(gradient, step, generator(4, "codec", "push", step))
            steps += [step] if not codec.error.any() else []
        return steps

    first = drained()
    assert abs(len(first) - 200) < 5 * math.sqrt(200)
    assert drained() == first


def test_a_resumed_sender_goes_on() -> None:
    """Error and threshold are all that it remembers."""
    settings = GradientSettings(0.05, every=100)
    whole, part = GradientCodec(settings, N), GradientCodec(settings, N)
    for step in range(5):
        whole.encode(weibull(N, step), step, generator(0, "a"))
    part.error[...], part.threshold = whole.error, whole.threshold
    np.testing.assert_array_equal(sent(whole, weibull(N, 5), 5), sent(part, weibull(N, 5), 5))


# ---- DCT-MP


@pytest.mark.parametrize("wire", PLACES)
def test_dct_mp_is_algorithm_2(wire: Codec) -> None:
    """Each sample keeps its 13 largest of 256 activations; the gradient of those, and of no others, comes back; both
    ends have the same mask."""
    draw, settings = np.random.default_rng(2), CutSettings(0.05, wire)
    here, there = CutCodec(settings, 64, 256), CutCodec(settings, 64, 256)
    activations = draw.standard_normal((64, 256)).astype(np.float32)
    received, gradient = np.empty_like(activations), draw.standard_normal((64, 256)).astype(np.float32)
    there.decode_forward(here.encode_forward(activations), received)
    tau = np.sort(np.abs(activations), axis=1)[:, 256 - 13]
    mask = np.abs(activations) >= tau[:, None]
    assert (mask.sum(axis=1) == 13).all()
    np.testing.assert_array_equal(received, np.where(mask, activations, 0))
    np.testing.assert_array_equal(there.mask, mask)
    back = np.empty_like(gradient)
    wire_back = there.encode_backward(gradient)
    here.decode_backward(wire_back, back)
    assert len(wire_back) == 64 * 13 * 4
    np.testing.assert_array_equal(back, np.where(mask, gradient, 0))


def test_rectified_samples_keep_no_zeros() -> None:
    """Samples with 240 of 256 units at 0, and one with all: the threshold of 25 % is 0, 16 and none are kept, not 256."""
    activations = np.zeros((4, 256), np.float32)
    activations[:3, ::16] = np.random.default_rng(0).random((3, 16)) + 0.5
    codec, there = (CutCodec(CutSettings(0.25), 4, 256) for _ in range(2))
    wire = codec.encode_forward(activations)
    assert codec.mask.sum(axis=1).tolist() == [16, 16, 16, 0]
    assert len(wire) == sparse_bytes(Codec.BITMASK, 1024, 48)
    out = np.empty_like(activations)
    there.decode_forward(wire, out)
    np.testing.assert_array_equal(out, activations)


def test_ties_can_be_capped() -> None:
    """256 equal activations of which a quarter is to be kept: all reach the threshold; with a cap the 64 to the left go."""
    equal = np.ones((2, 256), np.float32)
    free, capped = CutCodec(CutSettings(0.25), 2, 256), CutCodec(CutSettings(0.25, cap=True), 2, 256)
    assert free.select(equal).all()
    np.testing.assert_array_equal(capped.select(equal), np.arange(256) < 64 * np.ones((2, 1)))


def test_small_cuts_are_sent_whole() -> None:
    """Fewer than 256 elements, zeros among them: all of them and all of their gradient."""
    activations = np.where(np.arange(60) % 2, 1, 0).astype(np.float32).reshape(5, 12)
    here, there = CutCodec(CutSettings(0.1), 5, 12), CutCodec(CutSettings(0.1), 5, 12)
    out, gradient = np.empty_like(activations), np.arange(60, dtype=np.float32).reshape(5, 12)
    there.decode_forward(here.encode_forward(activations), out)
    np.testing.assert_array_equal(out, activations)
    here.decode_backward(there.encode_backward(gradient), out)
    np.testing.assert_array_equal(out, gradient)


@pytest.mark.parametrize("keep", [0.02, 0.05, 0.25, 0.75])
@pytest.mark.parametrize("rule", [Rule.LAPLACE, Rule.LAPLACE_ONE_SIDED])
def test_a_laplace_threshold_keeps_its_share_of_a_laplace_law(rule: Rule, keep: float) -> None:
    """Where activations follow the law that is fitted, the share is met to a percent of the elements."""
    activations = np.random.default_rng(1).laplace(0.3, 0.7, (200, 256)).astype(np.float32)
    mask = CutCodec(CutSettings(keep, rule=rule), 200, 256).select(activations)
    assert abs(mask.mean() - keep) < 0.01
    if rule is Rule.LAPLACE_ONE_SIDED:
        assert activations[mask].min() >= activations[~mask].max()


def test_one_threshold_of_the_batch_favours_samples_with_large_activations() -> None:
    """A tenth of all elements is kept, the largest: none of a sample whose activations are all small."""
    activations = np.random.default_rng(1).random((20, 256), np.float32) + 0.5
    activations[7] /= 10
    mask = CutCodec(CutSettings(0.1, rule=Rule.BATCH), 20, 256).select(activations)
    assert mask.sum() == 20 * 26
    assert not mask[7].any()
    assert activations[mask].min() >= activations[~mask].max()


def test_the_laplace_quantiles_are_those_of_the_law() -> None:
    """Mean 0, variance 2, so b = 1: t = -ln(keep) two-sided; -ln(2 keep) one-sided, 0 at one half, and all at 1."""
    values = np.array([[-math.sqrt(2), math.sqrt(2)]] * 2)
    assert laplace(values, 0.1, one_sided=False) == (0.0, pytest.approx(-math.log(0.1)))
    one_sided = [laplace(values, keep, one_sided=True)[1] for keep in (0.1, 0.5, 0.9, 1.0)]
    assert one_sided == [pytest.approx(x) for x in (-math.log(0.2), 0.0, math.log(0.2), -math.inf)]


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("value", [0.0, 2.0])
def test_equal_activations_are_all_kept_unless_zero(rule: Rule, value: float) -> None:
    """No rule can tell equal activations apart: all of them are sent, and of zeros none."""
    mask = CutCodec(CutSettings(0.05, rule=rule), 4, 256).select(np.full((4, 256), value, np.float32))
    assert mask.all() == (value != 0)
    assert mask.any() == (value != 0)


# ---- ablations


def test_top_k_sends_exactly_k_with_or_without_feedback() -> None:
    """Row by row, ties included; with feedback sent + new error = input + old error exactly, without it the rest is lost."""
    values = np.random.default_rng(0).integers(-3, 4, (8, 100)).astype(np.float32)
    for feedback in (True, False):
        codec, out = TopK(0.1, 8, 100, feedback=feedback), np.empty_like(values)
        for _ in range(3):
            before = codec.error.copy()
            codec.decode(codec.encode(values), out)
            assert (np.count_nonzero(out, axis=1) == 10).all()
            if feedback:
                np.testing.assert_array_equal(out + codec.error, values + before)
        assert codec.error.any() == feedback


def test_a_sketch_is_right_on_average_and_repeats() -> None:
    """The mean of 2,000 steps is the tensor, within six standard errors; both ends draw the same matrix; bytes are m
    float32 a row; below 256 elements nothing is projected."""
    values = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    here, there = Sketch(0.25, 3, "n0>n1:x"), Sketch(0.25, 3, "n0>n1:x")
    total, out = np.zeros((4, 64)), np.empty_like(values)
    for step in range(2000):
        wire = here.encode(values, step)
        there.decode(wire, out, step)
        total += out
    assert len(wire) == 4 * 16 * 4
    error = np.abs(total / 2000 - values).max()
    assert error < 6 * np.linalg.norm(values, axis=1).max() * math.sqrt(1 / 16 / 2000) * math.sqrt(2)
    here.decode(here.encode(values[:3], 0), out[:3], 0)
    np.testing.assert_array_equal(out[:3], values[:3])


# ---- refusals


def test_gradients_that_are_not_numbers_are_refused() -> None:
    """A NaN reaches no threshold, so it would be dropped unseen: every codec refuses it, forward and back."""
    wrong = np.ones((4, 256), np.float32)
    wrong[1, 7] = np.nan
    cut = CutCodec(CutSettings(0.1), 4, 256)
    attempts = [
        lambda: GradientCodec(GradientSettings(0.1), 1024).encode(wrong.reshape(-1), 0, generator(0, "a")),
        lambda: cut.encode_forward(wrong),
        lambda: cut.encode_backward(wrong),
        lambda: TopK(0.1, 4, 256).encode(wrong),
        lambda: Sketch(0.1, 0, "a").encode(wrong, 0),
    ]
    for attempt in attempts:
        with pytest.raises(NotFinite, match="a value to be compressed is not finite"):
            attempt()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GradientSettings(0.0), r"keep must be in \(0, 1\]"),
        (lambda: GradientSettings(0.1, every=0), "every and drain_every at least 1"),
        (lambda: GradientSettings(0.1, drain_every=0), "every and drain_every at least 1"),
        (lambda: GradientSettings(0.1, Codec.VALUES), "wire = values: allowed are coo32"),
        (lambda: CutSettings(1.5), "keep = 1.5"),
        (lambda: CutSettings(0.1, Codec.BF16), "wire = bf16: allowed are coo32"),
        (lambda: CutSettings(0.1, rule=Rule.LAPLACE, cap=True), "cap needs the exact rule"),
    ],
)
def test_impossible_settings_are_refused(make: object, message: str) -> None:
    """Shares outside (0, 1], distances of no steps, and formats without positions."""
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
