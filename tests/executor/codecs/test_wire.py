"""Bytes on the wire: exactly those of the cost model, and nothing is lost on the way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.codecs import SPARSE, Codec, Message
from executor.arrays import generator
from executor.codecs.ablations import Sketch
from executor.codecs.dct import CutCodec, CutSettings, GradientCodec, GradientSettings
from executor.codecs.dense import encode_dense
from executor.codecs.wire import pack, sparse_bytes, unpack

FORMATS = sorted(SPARSE)
WITH_PLACES = sorted(SPARSE - {Codec.VALUES})


def distinct(rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """A tensor (rows, cols) of distinct absolute values above 0, in no order, half of them negative."""
    draw = np.random.default_rng(seed)
    magnitude = (1.0 + draw.permutation(rows * cols)) / (rows * cols)
    return (magnitude * draw.choice([-1.0, 1.0], rows * cols)).astype(np.float32).reshape(rows, cols)


def message_of(codec: Codec, values: np.ndarray, keep: float) -> np.ndarray:
    """What the executor sends: a flat gradient by DCT-DP if there is one row, activations and back by DCT-MP if more."""
    rows, cols = values.shape
    if codec is Codec.SKETCH:
        return Sketch(keep, 0, "test").encode(values, 0)
    if codec not in SPARSE:
        return encode_dense(codec, values, generator(0, "test"))
    if codec is Codec.VALUES:
        cut = CutCodec(CutSettings(keep), rows, cols)
        cut.encode_forward(values)
        return cut.encode_backward(values)
    if rows == 1:
        return GradientCodec(GradientSettings(keep, codec), cols).encode(values[0], 0, generator(0, "test"))
    return CutCodec(CutSettings(keep, codec), rows, cols).encode_forward(values)


SHAPES = [(1, 300), (1, 255), (16, 16), (15, 17), (128, 256), (7, 1001), (3, 5)]
WIDE = [(1, 70_000), (1, 65_536)]  # a sketch of so many columns would draw a matrix of gigabytes, and has no positions


@pytest.mark.parametrize("keep", [0.001, 0.01, 0.05, 0.1, 0.25, 0.4])
@pytest.mark.parametrize(
    ("codec", "rows", "cols"),
    [(codec, *shape) for codec in Codec for shape in SHAPES + (WIDE if codec is not Codec.SKETCH else [])],
)
def test_bytes_on_the_wire_are_those_of_the_cost_model(codec: Codec, rows: int, cols: int, keep: float) -> None:
    """What the executor makes of a tensor without ties has exactly the bytes that the planner counted: every codec,
    gradients of one row and cuts of several, small and large, across the blocks of 16-bit positions."""
    assert len(message_of(codec, distinct(rows, cols), keep)) == Message(rows, cols, codec, keep).bytes


@pytest.mark.parametrize("codec", FORMATS)
def test_what_would_be_longer_than_float32_travels_as_float32(codec: Codec) -> None:
    """Keeping everything takes the 4 bytes an element that no compression takes, not more; zeros where nothing is kept."""
    values = distinct(1, 400)[0]
    mask = np.ones(400, np.bool_)
    assert len(pack(codec, values, mask)) == 1600
    mask[:20] = False
    wire = pack(codec, values, mask)
    assert len(wire) == sparse_bytes(codec, 400, 380) <= 1600
    out = np.full(400, 7, np.float32)
    unpack(codec, wire, out, mask)
    np.testing.assert_array_equal(out, np.where(mask, values, 0))


@given(st.sampled_from(FORMATS), st.integers(256, 3000), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_kept_elements_arrive_where_they_belong(codec: Codec, elements: int, share: float, seed: int) -> None:
    """Any choice of elements, none and all included: the message has the bytes that its number of elements takes, and what
    comes out is the tensor with zeros elsewhere, to the bit."""
    draw = np.random.default_rng(seed)
    values, mask = draw.standard_normal(elements).astype(np.float32), draw.random(elements) < share
    wire = pack(codec, values, mask)
    assert wire.dtype == np.uint8
    assert len(wire) == sparse_bytes(codec, elements, int(mask.sum()))
    out = np.full(elements, np.nan, np.float32)
    unpack(codec, wire, out, mask)
    np.testing.assert_array_equal(out, np.where(mask, values, 0))


@pytest.mark.parametrize("codec", FORMATS)
@pytest.mark.parametrize("kept", [0, 1, 400])
def test_nothing_one_and_all(codec: Codec, kept: int) -> None:
    """The ends of the range: k = 0 sends positions of nothing, k = n everything."""
    values, mask = distinct(1, 400)[0], np.arange(400) < kept
    out = np.ones(400, np.float32)
    unpack(codec, pack(codec, values, mask), out, mask)
    np.testing.assert_array_equal(out, np.where(mask, values, 0))


@pytest.mark.parametrize("places", [(0, 65_535, 65_536, 131_071, 131_072, 199_999), (70_000,), (199_999,), ()])
def test_sixteen_bit_positions_cross_their_blocks(places: tuple[int, ...]) -> None:
    """First and last element of each block of 65,536; blocks without any; four bytes of count for each but the first."""
    values, mask = np.arange(1, 200_001, dtype=np.float32), np.zeros(200_000, np.bool_)
    mask[list(places)] = True
    wire = pack(Codec.IDX16, values, mask)
    assert len(wire) == 6 * len(places) + 4 * 3
    out = np.empty_like(values)
    unpack(Codec.IDX16, wire, out)
    np.testing.assert_array_equal(np.flatnonzero(out), places)
    np.testing.assert_array_equal(out[mask], values[mask])


def test_layout_of_each_format() -> None:
    """256 elements of which numbers 1 and 8 are kept, byte by byte."""
    values, mask = np.zeros(256, np.float32), np.zeros(256, np.bool_)
    values[1], values[8] = 1.0, -2.0
    mask[[1, 8]] = True
    floats = np.array([1.0, -2.0], "<f4").tobytes()
    assert pack(Codec.COO32, values, mask).tobytes() == floats + bytes([1, 0, 0, 0, 8, 0, 0, 0])
    assert pack(Codec.IDX16, values, mask).tobytes() == floats + bytes([1, 0, 8, 0])
    assert pack(Codec.BITMASK, values, mask).tobytes() == floats + bytes([64, 128]) + bytes(30)
    assert pack(Codec.VALUES, values, mask).tobytes() == floats


def test_only_sparse_codecs_have_sparse_bytes() -> None:
    """Asking for the kept elements of bf16 is a mistake of the caller."""
    with pytest.raises(ValueError, match="codec bf16: allowed are coo32"):
        sparse_bytes(Codec.BF16, 1000, 10)


@pytest.mark.parametrize("codec", WITH_PLACES)
def test_small_tensors_travel_whole(codec: Codec) -> None:
    """255 elements go as they are, whatever was chosen."""
    values = distinct(1, 255)[0]
    wire, out = pack(codec, values, np.zeros(255, np.bool_)), np.empty(255, np.float32)
    assert len(wire) == 1020
    unpack(codec, wire, out)
    np.testing.assert_array_equal(out, values)
