"""Messages in memory: what is copied in comes out, part by part or at the length that coded arrays have."""

from __future__ import annotations

import numpy as np
import pytest

from executor.frame import PART_BYTES, PARTS, CodedFrame, Frame, copier

ARRAYS = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([7], np.int32)]
CODED = [np.array([5], np.int32), np.arange(5, dtype=np.uint8), np.arange(9, dtype=np.uint8)]
CODED_LAYOUT = [((1,), np.int32), ((100,), np.uint8), ((9,), np.uint8)]


def travel(frame: Frame) -> Frame:
    """Another frame of the same bytes, as a receiver has it when it has taken in all parts."""
    found = Frame([(view.shape, view.dtype.type) for view in frame.arrays()])
    for theirs, mine in zip(found.parts, frame.parts, strict=True):
        theirs.memory[...] = mine.memory
    return found


def assert_arrays(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Equal shapes, types and values."""
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_a_small_message_is_one_part_with_its_times() -> None:
    """Shapes, types and values come out, behind them clock and arrival; arrays begin at multiples of eight bytes."""
    frame = Frame([((2, 3), np.float32), ((1,), np.int32)])
    (part,) = frame.parts
    part.fill(ARRAYS)
    frame.times[0], frame.times[1] = 3.5, 4.5
    assert len(part.memory) == 24 + 8 + 16
    there = travel(frame)
    assert_arrays(there.arrays(), ARRAYS)
    assert there.times.tolist() == [3.5, 4.5]


def test_a_message_without_arrays_has_its_times_alone() -> None:
    """A turn that is passed on."""
    (part,) = Frame([]).parts
    part.fill([])
    assert len(part.memory) == 16


def test_a_large_message_is_cut_between_rows_and_whole_again() -> None:
    """Parts cover the buffer without gap or overlap and keep to their size; what was copied part by part, also
    from arrays that are not contiguous, is what a receiver of all parts has."""
    rows, width = 1000, 300
    frame = Frame([((rows, width), np.float32), ((5,), np.int32), ((3 * PART_BYTES // 4,), np.float32)])
    arrays = [
        np.arange(rows * 2 * width, dtype=np.float32).reshape(rows, -1)[:, width:],
        np.arange(5, dtype=np.int32),
        np.arange(3 * PART_BYTES // 4, dtype=np.float32),
    ]
    for part in frame.parts:
        part.fill(arrays)
    sizes = [len(part.memory) for part in frame.parts]
    assert sum(sizes) == len(frame.buffer)
    assert len(sizes) > 5
    assert max(sizes) <= PART_BYTES + 16
    begins = [part.memory.__array_interface__["data"][0] for part in frame.parts]
    assert np.diff(begins).tolist() == sizes[:-1]
    assert_arrays(travel(frame).arrays(), arrays)


def test_a_message_of_any_size_has_few_parts() -> None:
    """Parts grow with it."""
    frame = Frame([((1 << 24,), np.float32)] * 3)
    assert PARTS // 2 <= len(frame.parts) <= PARTS


def test_rows_that_are_larger_than_a_part_are_parts() -> None:
    """A row is never cut; what follows is a part of its own."""
    frame = Frame([((3, PART_BYTES), np.float32), ((2,), np.float32)])
    assert [len(part.memory) for part in frame.parts] == [4 * PART_BYTES] * 3 + [8 + 16]


def test_a_coded_message_is_as_long_as_its_arrays() -> None:
    """Arrays of bytes that are not full make the message shorter, and say by how much; without arrays it is its times."""
    frame = CodedFrame(CODED_LAYOUT)
    message, unused = frame.pack(CODED)
    assert (len(message), unused, len(frame.empty)) == (16 + 3 * 8 + 8 + 8 + 16, 95, 16)
    there = CodedFrame(CODED_LAYOUT)
    there.buffer[: len(message)] = message
    assert_arrays(there.arrays(), CODED)


def test_copies_keep_to_the_layout() -> None:
    """Full arrays into their places, shorter ones of bytes into the begin of theirs, and as many arrays as places."""
    places = [np.zeros(shape, dtype) for shape, dtype in CODED_LAYOUT]
    assert copier(CODED_LAYOUT)(places, CODED) == 95
    assert_arrays([places[0], places[1][:5], places[2]], CODED)
    copy, targets = copier([((2, 3), np.float32), ((1,), np.int32)]), [np.zeros_like(array) for array in ARRAYS]
    assert copy(targets, ARRAYS) == 0
    assert_arrays(targets, ARRAYS)
    with pytest.raises(ValueError, match="1 arrays in a message of 2"):
        copy(targets, ARRAYS[:1])
