"""Formats that send every element: layout, rounding, and what they cannot represent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.codecs import ROWWISE_BITS, Codec, Message
from executor.arrays import generator
from executor.codecs.dense import decode_dense, encode_dense, from_bf16, to_bf16, to_fp16
from executor.errors import NotFinite

DENSE = [Codec.FP32, Codec.FP16, Codec.BF16, *ROWWISE_BITS]
ROWWISE = list(ROWWISE_BITS)
finite = st.floats(-(2.0**99), 2.0**99, width=32)


def there_and_back(codec: Codec, values: np.ndarray, key: int = 0) -> np.ndarray:
    """What arrives."""
    out = np.full_like(values, np.nan)
    decode_dense(codec, encode_dense(codec, values, generator(0, "test", key)), out)
    return out


def test_the_documented_row_of_caffe2() -> None:
    """FloatToFusedRandRowwiseQuantized, 2 bits, [0.3, -1.4, -0.6, 0.9, 1.0]: tail 3, levels -1.4, -0.6, 0.2, 1.0; 0.3 goes
    to 0.2 with probability 7/8, -1.4, -0.6 and 1.0 stay; places in the bytes as its source puts them."""
    values = np.array([[0.3, -1.4, -0.6, 0.9, 1.0]], np.float32)
    levels = np.array([-1.4, -0.6, 0.2, 1.0])
    found = np.empty((4000, 5), np.float32)
    for key in range(len(found)):
        wire = encode_dense(Codec.ROWWISE2, values, generator(1, "caffe2", key))
        assert len(wire) == 12
        assert list(wire[:2]) == [2, 3]
        assert wire[2:10].view(np.float32).tolist() == [np.float32(-1.4), np.float32(1.0)]
        decode_dense(Codec.ROWWISE2, wire, found[key : key + 1])
        level = np.abs(found[key, :, None] - levels).argmin(axis=1)
        # segments of two elements: byte 0 holds elements 0, 2 and 4, byte 1 elements 1 and 3
        assert wire[10] == level[0] | level[2] << 2 | level[4] << 4
        assert wire[11] == level[1] | level[3] << 2
    np.testing.assert_allclose(np.abs(found[:, :, None] - levels).min(axis=2), 0, atol=1e-7)
    share = (np.abs(found[:, 0] - 0.2) < 1e-6).mean()
    assert abs(share - 7 / 8) < 4 * np.sqrt(7 / 64 / 4000)
    np.testing.assert_array_equal(found[:, 1], np.float32(-1.4))
    np.testing.assert_allclose(found[:, 2], -0.6, rtol=1e-6)
    np.testing.assert_array_equal(found[:, 4], np.float32(1.0))


@pytest.mark.parametrize("codec", ROWWISE)
def test_rounding_is_right_on_average(codec: Codec) -> None:
    """The mean of 4,000 messages of one row is the row, within five standard errors of a level's distance; so it is for
    gradients of 1e-9, which Caffe2's 1e-8 would flatten."""
    for scale in (1.0, 1e-9):
        values = scale * np.random.default_rng(3).standard_normal((1, 40)).astype(np.float32)
        values = values.astype(np.float32)
        rows = np.repeat(values, 4000, axis=0)
        gap = float(values.max() - values.min()) / (2 ** ROWWISE_BITS[codec] - 1)
        error = np.abs(there_and_back(codec, rows).mean(axis=0, dtype=np.float64) - values[0])
        assert error.max() < 5 * 0.5 * gap / np.sqrt(4000)


@given(st.sampled_from(ROWWISE), st.lists(st.lists(finite, min_size=9, max_size=9), min_size=1, max_size=4))
def test_rows_stay_between_their_neighbouring_levels(codec: Codec, rows: list[list[float]]) -> None:
    """Whatever the row: everything lands at most one level's distance away and inside the row's range; minimum and maximum
    are exact."""
    values = np.array(rows, np.float32)
    found = there_and_back(codec, values).astype(np.float64)
    low, high = values.min(axis=1, keepdims=True), values.max(axis=1, keepdims=True)
    gap = (high.astype(np.float64) - low) / (2 ** ROWWISE_BITS[codec] - 1)
    assert (np.abs(found - values) <= gap * (1 + 1e-5) + np.abs(values) * 1e-6).all()
    assert (found >= low).all()
    assert (found <= high).all()
    for column in (values.argmin(axis=1), values.argmax(axis=1)):
        every = np.arange(len(values))
        np.testing.assert_array_equal(found[every, column], values[every, column])


@pytest.mark.parametrize("codec", DENSE)
@pytest.mark.parametrize("value", [0.0, 0.5, -3.0])
def test_constant_rows_arrive_exactly(codec: Codec, value: float) -> None:
    """Rows of one value, zero included, have no distance between levels; every codec gives them back."""
    values = np.full((3, 11), value, np.float32)
    np.testing.assert_array_equal(there_and_back(codec, values), values)


@pytest.mark.parametrize("codec", ROWWISE)
def test_the_same_key_gives_the_same_bytes(codec: Codec) -> None:
    """Rounding depends on seed, channel and step alone."""
    values = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)

    def wire(*key: int | str) -> bytes:
        return encode_dense(codec, values, generator(7, "codec", *key)).tobytes()

    assert wire("n0>n1:x", 3) == wire("n0>n1:x", 3)
    assert len({wire("n0>n1:x", 3), wire("n0>n1:x", 4), wire("n0>n1:y", 3)}) == 3


def test_bf16_rounds_to_nearest_and_ties_to_even() -> None:
    """1 + 2^-8 lies between 1 and 1 + 2^-7 and goes to 1; 1 + 3 * 2^-8 goes up to 1 + 2^-6; a little more than a tie goes
    up; signs and zeros stay; the largest float32 becomes infinite."""
    given_values = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 - 2**-8, 0.0, -0.0], np.float32)
    out = np.empty_like(given_values)
    from_bf16(to_bf16(given_values), out)
    assert out.tolist() == [1.0, 1 + 2**-6, 1 + 2**-7, -1.0, 0.0, 0.0]
    assert np.signbit(out).tolist() == [False, False, False, True, False, True]
    top = np.array([np.finfo(np.float32).max], np.float32)
    assert to_bf16(top).tolist() == [0x7F80]


@given(st.lists(finite, min_size=1, max_size=50))
def test_bf16_is_off_by_at_most_one_part_in_256(values: list[float]) -> None:
    """Half a unit in the last of its 8 bits; what is a bf16 number already comes back as it is."""
    array = np.array([values], np.float32)
    found = there_and_back(Codec.BF16, array)
    assert (np.abs(found - array) <= np.abs(array) * 2.0**-8 + 1e-38).all()
    np.testing.assert_array_equal(there_and_back(Codec.BF16, found), found)


def test_fp16_is_numpys_and_overflows_to_infinity() -> None:
    """Half precision rounds as NumPy does; 1e5 is beyond it and becomes infinite, which the next loss will show."""
    values = np.array([[0.1, -2.5, 1e5, 6e-8]], np.float32)
    np.testing.assert_array_equal(there_and_back(Codec.FP16, values)[0, :2], values[0, :2].astype(np.float16))
    assert np.isinf(there_and_back(Codec.FP16, values)[0, 2])


def test_fp16_rounds_as_numpy_does_at_every_number() -> None:
    """All finite numbers of half precision, the middles between neighbours (ties to even), what lies just beside them,
    numbers at random, and the last that are rounded down to the largest: the same bits."""
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = halves[np.isfinite(halves)]
    middles = ((finite[:-1].astype(np.float64) + finite[1:]) / 2).astype(np.float32)
    beside = [np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf)]
    drawn = np.random.default_rng(1).integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    last = np.array([65519.996, 65520.0, 65536.0, -65520.0, 3e38], np.float32)
    for values in (finite, middles, *beside, drawn[np.isfinite(drawn)], last):
        with np.errstate(over="ignore", under="ignore"):
            expected = values.astype(np.float16)
        np.testing.assert_array_equal(to_fp16(values), expected.view(np.uint16))
        back = np.empty_like(values[None])
        decode_dense(Codec.FP16, to_fp16(values).view(np.uint8), back)
        np.testing.assert_array_equal(back[0], expected.astype(np.float32))


@pytest.mark.parametrize("codec", DENSE)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_is_refused(codec: Codec, wrong: float) -> None:
    """NaN and infinity end the run instead of spoiling a row's range."""
    values = np.ones((4, 100), np.float32)
    values[2, 50] = wrong
    with pytest.raises(NotFinite, match=f"{codec}: a value to be compressed is not finite"):
        encode_dense(codec, values, generator(0, "test"))


@given(st.sampled_from(DENSE), st.integers(1, 20), st.integers(1, 70))
def test_dense_bytes_are_the_cost_models(codec: Codec, rows: int, cols: int) -> None:
    """Whatever the shape."""
    values = np.random.default_rng(0).standard_normal((rows, cols)).astype(np.float32)
    assert len(encode_dense(codec, values, generator(0, "test"))) == Message(rows, cols, codec).bytes
