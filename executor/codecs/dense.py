"""Formats that send every element: ``fp32``, ``fp16``, ``bf16``, and rows quantised to 8, 4, 2 or 1 bit.

A quantised row is laid out as Caffe2's ``FloatToFusedRandRowwiseQuantized``: a byte with the number of bits, a byte with
the number of unused places in the data, minimum and maximum in float32, then the data. A row of n elements is divided into
8 / bits segments of ceil(n bits / 8) elements; byte i holds element i of every segment, the first segment in the lowest
bits. Levels are minimum + j (maximum - minimum) / (2^bits - 1); an element goes to one of the two next to it with
probabilities that make it right on average, in steps of 2^-16. Unlike Caffe2 nothing is added to the distance of two levels:
its 1e-8 is larger than many gradients. Levels and places between them are computed in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

from cost_models.codecs import HALF, ROW_HEADER, ROWWISE_BITS, Codec
from executor.arrays import Floats
from executor.codecs.wire import Bytes, require_finite

_HEADER = int(ROW_HEADER.value)
#: Bits of an element's place between two levels, as many as decide about its rounding.
_FRACTION = 16
#: Elements that are worked on together: 512 KiB of float64.
_BLOCK = 65536
#: Elements that are brought to half precision together: 64 KiB.
_HALF_BLOCK = 16384


def encode_dense(codec: Codec, values: Floats, draw: np.random.Generator) -> Bytes:
    """Return the message of a tensor.

    Parameters
    ----------
    codec : Codec
        ``fp32``, ``fp16``, ``bf16`` or ``rowwise...``.
    values : ndarray of float32, shape (rows, cols)
        The tensor.
    draw : Generator
        Decides the rounding of ``rowwise...``; no other codec draws.

    Returns
    -------
    ndarray of uint8
        Exactly ``cost_models.codecs.Message(rows, cols, codec).bytes`` long.

    Raises
    ------
    NotFinite
        A value is not finite. (A finite one above 65,504 becomes infinite in fp16, and shows in the next loss.)
    """
    require_finite(values, str(codec))
    if codec in ROWWISE_BITS:
        return _quantise(values, ROWWISE_BITS[codec], draw)
    if codec in HALF:
        half = to_fp16(values) if codec is Codec.FP16 else to_bf16(values)
        return half.reshape(-1).view(np.uint8)
    return values.reshape(-1).view(np.uint8).copy()


def decode_dense(codec: Codec, wire: Bytes, out: Floats) -> None:
    """Write a message of :func:`encode_dense` into ``out``, (rows, cols)."""
    if codec in ROWWISE_BITS:
        _dequantise(wire.reshape(len(out), -1), ROWWISE_BITS[codec], out)
    elif codec is Codec.FP16:
        np.take(_fp16_values(), wire.view(np.uint16).reshape(out.shape), out=out, mode="clip")
    elif codec is Codec.BF16:
        from_bf16(wire.view(np.uint16).reshape(out.shape), out)
    else:
        out[...] = wire.view(np.float32).reshape(out.shape)


def to_fp16(values: Floats) -> npt.NDArray[np.uint16]:
    """Return the bits of float32 numbers, none of them NaN, in half precision: rounded to nearest, ties to even.

    The same as NumPy's conversion, which takes 25 times as long for numbers below 2^-14 (most gradients), because it
    raises an underflow for each. Normal numbers are rounded in integers; those below are added to 1/2, whose last bit is
    2^-24, the smallest step of half precision (F. Giesen, float_to_half_fast3_rtne).
    """
    flat, out = values.reshape(-1), np.empty(values.size, np.uint16)
    for begin in range(0, flat.size, _HALF_BLOCK):
        bits = flat[begin : begin + _HALF_BLOCK].view(np.uint32)
        magnitude = bits & np.uint32(0x7FFFFFFF)
        found = magnitude >> np.uint32(13)
        found &= np.uint32(1)
        found += magnitude
        found += np.uint32(0xC8000FFF)  # exponent - 112, and just less than half of what is cut off
        found >>= np.uint32(13)
        small = (magnitude.view(np.float32) + np.float32(0.5)).view(np.uint32)
        small -= np.uint32(0x3F000000)
        np.copyto(found, small, where=magnitude < np.uint32(0x38800000))  # 2^-14
        found[magnitude >= np.uint32(0x47800000)] = 0x7C00  # 65,536: infinity
        found |= (bits >> np.uint32(16)) & np.uint32(0x8000)
        out[begin : begin + _HALF_BLOCK] = found
    return out.reshape(values.shape)


@cache
def _fp16_values() -> Floats:
    """Every number of half precision by its bits: looking one up takes no longer for small ones."""
    return np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)


def to_bf16(values: Floats) -> npt.NDArray[np.uint16]:
    """Return the upper halves of float32 numbers, rounded to nearest, ties to even."""
    bits = values.view(np.uint32)
    rounded = (bits >> np.uint32(16)) & np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    return (rounded >> np.uint32(16)).astype(np.uint16)


def from_bf16(halves: npt.NDArray[np.uint16], out: Floats) -> None:
    """Write bf16 numbers into float32 ``out`` of the same shape, exactly."""
    np.left_shift(halves, np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)


def _quantise(values: Floats, bits: int, draw: np.random.Generator) -> Bytes:
    rows, cols = values.shape
    per_byte, top = 8 // bits, 2**bits - 1
    segment = -(-cols // per_byte)
    low, high = values.min(axis=1, keepdims=True), values.max(axis=1, keepdims=True)
    wire = np.zeros((rows, _HEADER + segment), np.uint8)
    wire[:, 0], wire[:, 1] = bits, per_byte * segment - cols
    wire[:, 2:6], wire[:, 6:10] = low.view(np.uint8), high.view(np.uint8)
    words = draw.integers(0, 2**64, -(-values.size // 4), np.uint64)  # 16 random bits for each element
    noise = words.view(np.uint16)[: values.size].reshape(values.shape)
    padded = np.zeros((rows, per_byte * segment), np.uint8)
    for part in _blocks(rows, cols):
        shares = _shares(values[part], low[part], high[part], top)
        shares += noise[part]
        np.right_shift(shares, _FRACTION, out=padded[part, :cols], casting="unsafe")
        for place in range(per_byte):
            wire[part, _HEADER:] |= padded[part, place * segment : (place + 1) * segment] << np.uint8(place * bits)
    return wire.reshape(-1)


def _blocks(rows: int, cols: int) -> Iterator[slice]:
    """Cut rows into blocks whose float64 copies stay in a core's cache: two to five times as fast as all at once."""
    step = max(1, _BLOCK // max(1, cols))
    return (slice(begin, begin + step) for begin in range(0, rows, step))


def _shares(values: Floats, low: Floats, high: Floats, top: int) -> npt.NDArray[np.int32]:
    """Return where elements lie between level 0 and level ``top``, in units of 2^-16 of a level's distance, rounded."""
    most, wide = top << _FRACTION, low.astype(np.float64)
    span = high - wide
    shares = values - wide
    shares *= np.divide(most, span, out=np.zeros_like(span), where=span > 0)
    shares += 0.5
    found = shares.astype(np.int32)
    return np.minimum(found, np.int32(most), out=found)


def _dequantise(wire: Bytes, bits: int, out: Floats) -> None:
    cols, top = out.shape[1], 2**bits - 1
    data, segment = wire[:, _HEADER:], wire.shape[1] - _HEADER
    low, high = (np.ascontiguousarray(wire[:, at : at + 4]).view(np.float32).astype(np.float64) for at in (2, 6))
    for part in _blocks(len(out), segment):
        for place in range(8 // bits):
            target = out[part, place * segment : min(cols, (place + 1) * segment)]
            level = data[part, : target.shape[1]] >> np.uint8(place * bits) & np.uint8(top)
            share = level / top
            found = high[part] * share
            np.subtract(1.0, share, out=share)
            share *= low[part]
            found += share
            target[...] = found  # exact at both ends
