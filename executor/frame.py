"""Messages in memory: arrays of a layout, copied to where a transport takes them from.

A message of fixed length lies in parts that are filled, and may be sent, one after the other: of a large one the receiver
takes in the first while the sender still copies the next, which then is in its cache. A coded message, whose arrays of
bytes need not be full, is as long as they are, and one part. Knows nothing of channels.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32] | npt.NDArray[np.int32] | npt.NDArray[np.uint8]
Bytes = npt.NDArray[np.uint8]
#: Shape and element type of each array of a message.
Layout = Sequence[tuple[tuple[int, ...], type[np.float32] | type[np.int32] | type[np.uint8]]]

#: Most bytes of a part, unless one row has more: a second-level cache of 1 MiB holds it while more is written.
PART_BYTES = 1 << 19
#: Most parts (but for such rows), each then larger: MPICH takes twice to ten times as long for 128 sends under way.
PARTS = 32
_ALIGNMENT = 8
_HUGE_PAGE = 1 << 21
#: Bytes of the clock of a message and of its arrival.
_TIMES = 2 * 8


def is_coded(layout: Layout) -> bool:
    """Whether a message has arrays of bytes, which need not be full."""
    return any(dtype is np.uint8 for _, dtype in layout)


def copier(layout: Layout) -> Callable[[Sequence[Array], Sequence[Array]], int]:
    """Return what copies arrays into their places in a message of a layout, and returns the bytes left over.

    It raises ValueError if there are more arrays or fewer.
    """
    return _copy_coded if is_coded(layout) else _copy_full


def _copy_full(targets: Sequence[Array], arrays: Sequence[Array]) -> int:
    if len(targets) != len(arrays):  # strict=True of a zip takes twice as long as the copy of 1 KB
        raise ValueError(f"{len(arrays)} arrays in a message of {len(targets)}")
    for number, array in enumerate(arrays):
        targets[number][...] = array  # less than half the time of np.copyto, which counts for many small tensors
    return 0


def _copy_coded(targets: Sequence[Array], arrays: Sequence[Array]) -> int:
    unused = 0
    for target, array in zip(targets, arrays, strict=True):
        if target.dtype == np.uint8:
            target[: len(array)] = array
            unused += len(target) - len(array)
        else:
            target[...] = array
    return unused


@dataclass(frozen=True)
class Part:
    """A stretch of a message's memory.

    Parameters
    ----------
    memory : ndarray of uint8
        The stretch.
    pieces : tuple
        What is copied there: number of the array, which of its rows (None: all), and where to.
    """

    memory: Bytes
    pieces: tuple[tuple[int, slice | None, Any], ...]

    def fill(self, arrays: Sequence[Array]) -> None:
        """Copy the arrays' rows in."""
        for number, rows, target in self.pieces:
            target[...] = arrays[number] if rows is None else arrays[number][rows]


class Frame:
    """A message of fixed length: its arrays, then its times.

    Parameters
    ----------
    layout : Layout
        Arrays of the message.
    """

    def __init__(self, layout: Layout) -> None:
        sizes = _sizes(layout)
        self.buffer: Bytes = _memory(sum(map(_aligned, sizes)) + _TIMES)
        #: Clock of the message and its arrival (in a throttled transport).
        self.times = self.buffer[-_TIMES:].data.cast("d")
        self._views = list(_cut(self.buffer, layout, sizes))
        self.parts = tuple(self._in_parts())

    def arrays(self) -> list[Any]:
        """Return the arrays of the message that is in the buffer, in place."""
        return self._views

    def _in_parts(self) -> Iterator[Part]:
        """Cut the buffer between rows, wherever the next would make a part too large; the times go with the last."""
        begin, at, pieces = 0, 0, list[tuple[int, slice | None, Any]]()
        most = max(PART_BYTES, 2 * len(self.buffer) // PARTS)
        for number, view in enumerate(self._views):
            for rows, target in _pieces(view, most):
                if pieces and at + target.nbytes - begin > most:
                    yield Part(self.buffer[begin:at], tuple(pieces))
                    begin, pieces = at, []
                pieces.append((number, rows, target))
                at += target.nbytes
            at = _aligned(at)
        yield Part(self.buffer[begin:], tuple(pieces))


class CodedFrame:
    """A coded message: its times, the lengths of its arrays, the arrays, one behind the other.

    Parameters
    ----------
    layout : Layout
        Arrays of a full message.
    """

    def __init__(self, layout: Layout) -> None:
        sizes = _sizes(layout)
        self._layout, self._begin = layout, _TIMES + _ALIGNMENT * len(layout)
        self._full_bytes = sum(sizes)
        self.buffer: Bytes = _memory(self._begin + sum(map(_aligned, sizes)))
        #: Clock of the message and its arrival (in a throttled transport).
        self.times = self.buffer[:_TIMES].data.cast("d")
        self._lengths = self.buffer[_TIMES : self._begin].view(np.int64)
        self.parts = (Part(self.buffer, ()),)

    @property
    def empty(self) -> Bytes:
        """A message without arrays."""
        return self.buffer[:_TIMES]

    def pack(self, arrays: Sequence[Array]) -> tuple[Bytes, int]:
        """Copy arrays in; returns the bytes to send and how many bytes of arrays the message is short of."""
        sizes = [array.nbytes for array in arrays]
        self._lengths[:] = sizes
        _copy_full(list(self._cut(sizes)), arrays)
        return self.buffer[: self._begin + sum(map(_aligned, sizes))], self._full_bytes - sum(sizes)

    def arrays(self) -> list[Any]:
        """Return the arrays of the message that is in the buffer, in place."""
        return list(self._cut(self._lengths.tolist()))

    def _cut(self, sizes: Sequence[int]) -> Iterator[Any]:
        return _cut(self.buffer[self._begin :], self._layout, sizes)


def _memory(size: int) -> Bytes:
    """Return zeroed memory, in huge pages where it fills one: messages of 8 and 16 MiB then take 10 to 30 % less time."""
    if size < _HUGE_PAGE:
        return np.zeros(size, np.uint8)
    memory = mmap.mmap(-1, -(-size // _HUGE_PAGE) * _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # not Linux; a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, count=size)


def _sizes(layout: Layout) -> list[int]:
    return [int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for shape, dtype in layout]


def _cut(memory: Bytes, layout: Layout, sizes: Sequence[int]) -> Iterator[Any]:
    """Yield arrays of so many bytes, one behind the other; those of bytes may be shorter than the layout's."""
    at = 0
    for size, (shape, dtype) in zip(sizes, layout, strict=True):
        flat = memory[at : at + size].view(dtype)
        yield flat if dtype is np.uint8 else flat.reshape(shape)
        at += _aligned(size)


def _pieces(view: Array, most: int) -> Iterator[tuple[slice | None, Array]]:
    """Cut an array between rows into pieces of at most so many bytes, if it has more (None: the whole array)."""
    if view.nbytes <= most:
        yield None, view
        return
    rows = max(1, most // view[0].nbytes)
    for begin in range(0, len(view), rows):
        yield slice(begin, begin + rows), view[begin : begin + rows]


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
