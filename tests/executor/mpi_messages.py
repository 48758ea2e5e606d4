"""Two ranks of a test: the first sends messages of several layouts, the second checks what arrives, and that channels end.

Usage: ``mpiexec -n 2 python -m tests.executor.mpi_messages``; the exit code is 0 if all is well.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from executor.clock import Clock, ClockKind
from executor.errors import PeerGone
from executor.frame import PART_BYTES, Frame, Layout
from executor.mpi import Unwatched, finish, leave_no_names, library
from executor.mpi_transport import MpiChannel, mpi_channel
from executor.transport import Link

TURNS = 5
LARGE: Layout = [((3 * PART_BYTES // 400, 100), np.float32), ((7,), np.int32)]
LAYOUTS: tuple[Layout, ...] = (
    (),
    [((2, 3), np.float32), ((1,), np.int32)],
    LARGE,
    [((1,), np.int32), ((90,), np.uint8)],
)


def message(layout: Layout, turn: int) -> list[np.ndarray[Any, Any]]:
    """Return arrays that differ from turn to turn; those of bytes are not full."""
    draws = np.random.default_rng(turn)
    found = [draws.integers(0, 100, shape).astype(dtype) for shape, dtype in layout]
    return [array[: len(array) - turn] if array.dtype == np.uint8 else array for array in found]


def send_all(channel: MpiChannel, layout: Layout, clock: Clock) -> None:
    """Send every turn's message; what was sent is overwritten at once."""
    for turn in range(TURNS):
        arrays = message(layout, turn)
        channel.send(arrays, clock, Unwatched())
        for array in arrays:
            array.fill(0)
    channel.end(Unwatched())


def receive_all(channel: MpiChannel, layout: Layout, clock: Clock) -> None:
    """Receive every turn's message and the end; raises AssertionError for anything else."""
    for turn in range(TURNS):
        for found, expected in zip(channel.receive(clock, Unwatched()), message(layout, turn), strict=True):
            np.testing.assert_array_equal(found, expected)
    try:
        channel.receive(clock, Unwatched())
    except PeerGone:
        return
    raise AssertionError("a message behind the last")


def main() -> None:
    """Send or receive; an error of one rank ends both."""
    comm, clock = library().COMM_WORLD, Clock(ClockKind.WALL, time.perf_counter())
    leave_no_names(comm)  # however this ends
    assert len(Frame(LARGE).parts) > 2
    try:
        for tag, layout in enumerate(LAYOUTS):
            channel = mpi_channel(comm, 0, 1, tag, layout, Link())
            (receive_all if comm.rank else send_all)(channel, layout, clock)
            channel.close(Unwatched())
    except AssertionError as error:
        print(error, flush=True)
        comm.Abort(1)
    finish()


if __name__ == "__main__":
    main()
