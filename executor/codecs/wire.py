"""How elements that are kept travel: exact bytes of ``coo32``, ``idx16``, ``bitmask`` and ``values``.

Values come first, so that they are aligned; what says where they belong comes after them:

===========  ==========================================================================================================
``coo32``    k float32, k int32 positions
``idx16``    a uint32 count for each block of 65,536 elements but the first, k float32, k uint16 positions inside a block
``bitmask``  k float32, one bit an element, the first element in the highest bit of the first byte
``values``   k float32; the receiver knows where they belong
===========  ==========================================================================================================

k follows from the length of the message. A tensor of fewer than 256 elements, and one that would take no fewer bytes
than as plain float32, travels as plain float32: a sparse message is always shorter, so the length tells which it is.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_models.codecs import DENSE_BELOW, INDEX_BLOCK, Codec
from executor.arrays import Floats
from executor.errors import NotFinite
from problem.graph import FLOAT_BYTES

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


def require_finite(values: Floats, where: str) -> None:
    """Refuse what is not a number: a threshold would drop it, and hide that the training has diverged.

    Raises
    ------
    NotFinite
        Naming ``where``.
    """
    if not np.isfinite(values).all():
        raise NotFinite(f"{where}: a value to be compressed is not finite")


def is_small(elements: int) -> bool:
    """Whether a tensor is sent as it is, whatever the codec."""
    return elements < DENSE_BELOW.value


def sparse_bytes(codec: Codec, elements: int, kept: int) -> int:
    """Return the bytes of a message of ``kept`` of ``elements`` elements, plain float32 if that is no more.

    With the planned number of kept elements this is ``cost_models.codecs.Message.bytes``.
    """
    size = kept * FLOAT_BYTES + _index_bytes(codec, elements, kept)
    return elements * FLOAT_BYTES if is_small(elements) else min(size, elements * FLOAT_BYTES)


def _index_bytes(codec: Codec, elements: int, kept: int) -> int:
    match codec:
        case Codec.COO32:
            return 4 * kept
        case Codec.IDX16:
            return 2 * kept + 4 * (_blocks(elements) - 1)
        case Codec.BITMASK:
            return -(-elements // 8)
        case Codec.VALUES:
            return 0
        case _:
            raise ValueError(f"codec {codec}: allowed are coo32, idx16, bitmask, values")


def _blocks(elements: int) -> int:
    return -(-elements // INDEX_BLOCK)


def pack(codec: Codec, values: Floats, mask: Mask) -> Bytes:
    """Return the message that carries the chosen elements.

    Parameters
    ----------
    codec : Codec
        One of the four formats.
    values : ndarray of float32, shape (elements,)
        The tensor, flat.
    mask : ndarray of bool, shape (elements,)
        Which elements travel; all of a small tensor do.

    Returns
    -------
    ndarray of uint8
        Exactly :func:`sparse_bytes` long.
    """
    elements = len(values)
    if is_small(elements):
        return values.view(np.uint8).copy()
    positions = np.flatnonzero(mask)
    if sparse_bytes(codec, elements, len(positions)) == elements * FLOAT_BYTES:
        return np.where(mask, values, np.float32(0)).view(np.uint8)
    counts, places = _places(codec, mask, positions)
    return np.concatenate([counts.view(np.uint8), values[positions].view(np.uint8), places.view(np.uint8)])


def _places(
    codec: Codec, mask: Mask, positions: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.generic]]:
    """Return what stands before the values and what stands after them."""
    nothing = np.zeros(0, np.uint32)
    match codec:
        case Codec.COO32:
            return nothing, positions.astype(np.int32)
        case Codec.IDX16:
            counts = np.bincount(positions // INDEX_BLOCK, minlength=_blocks(len(mask)))[1:]
            return counts.astype(np.uint32), (positions % INDEX_BLOCK).astype(np.uint16)
        case Codec.BITMASK:
            return nothing, np.packbits(mask)
        case _:
            return nothing, nothing


def unpack(codec: Codec, wire: Bytes, out: Floats, mask: Mask | None = None) -> None:
    """Write a message of :func:`pack` into ``out`` (elements,), zero where nothing was kept.

    Parameters
    ----------
    codec : Codec
        The format it was packed in.
    wire : ndarray of uint8
        The message.
    out : ndarray of float32, shape (elements,)
        Overwritten.
    mask : ndarray of bool, shape (elements,)
        ``values`` only: which elements travelled.
    """
    if len(wire) == out.nbytes:
        out[...] = wire.view(np.float32)
        return
    out.fill(0.0)
    match codec:
        case Codec.COO32:
            kept = len(wire) // 8
            out[wire[4 * kept :].view(np.int32)] = wire[: 4 * kept].view(np.float32)
        case Codec.IDX16:
            _unpack_blocks(wire, out)
        case Codec.BITMASK:
            bits = -(-len(out) // 8)
            out[np.unpackbits(wire[-bits:], count=len(out)).view(np.bool_)] = wire[:-bits].view(np.float32)
        case _:
            assert mask is not None
            out[mask] = wire.view(np.float32)


def _unpack_blocks(wire: Bytes, out: Floats) -> None:
    """``idx16``: positions count from the start of their block."""
    head = 4 * (_blocks(len(out)) - 1)
    kept = (len(wire) - head) // 6
    counts = wire[:head].view(np.uint32).astype(np.int64)
    blocks = np.repeat(np.arange(len(counts) + 1), [kept - counts.sum(), *counts])
    positions = blocks * INDEX_BLOCK + wire[head + 4 * kept :].view(np.uint16)
    out[positions] = wire[head : head + 4 * kept].view(np.float32)
