"""Measures what messages between two processes of this machine take of their ends, and what sums of arrays take.

Messages are timed as a step meets them: between two of them each process overwrites as much memory as it is told a step
touches, because a program that finds itself and its data in the first caches sends a message in a third of the time that it
takes with all of that in the last. This module knows bytes and tensors, nothing of models.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_models.profile import MessagePoint
from executor.arrays import Floats, add_into
from executor.clock import Clock, ClockKind
from executor.frame import Array, Layout
from executor.state import Record
from executor.supervisor import supervise
from executor.transport import Channel, keep_only, shared_array
from problem.local import this_node
from programs.workers import Worker

#: Bytes and tensors of the messages that are timed: parameters and activations are one or few, pooled rows many.
MESSAGES = (
    (1 << 10, 1),
    (1 << 14, 1),
    (1 << 14, 16),
    (1 << 16, 8),
    (1 << 18, 1),
    (1 << 18, 32),
    (1 << 20, 1),
    (1 << 20, 8),
    (1 << 20, 32),
    (1 << 22, 1),
)
#: Overwriting more than this evicts no more: a third-level cache.
MOST_TOUCHED_BYTES = 32 << 20


def trimmed_mean(seconds: npt.NDArray[np.float64]) -> float:
    """Mean of the middle 80 % of the values: steady against interrupts, yet not blind to what is usually slow."""
    ordered = np.sort(seconds)
    cut = len(ordered) // 10
    return float(ordered[cut : len(ordered) - cut].mean())


def _sweep(touched_bytes: float) -> Floats:
    """Return what is overwritten before each measurement."""
    return np.zeros(int(touched_bytes) // 4, np.float32)


def measure_messages(
    messages: Sequence[tuple[int, int]], touched_bytes: float, repetitions: int = 18
) -> list[MessagePoint]:
    """Time messages between two processes, in turn; each end overwrites some memory before each.

    Parameters
    ----------
    messages : sequence of (int, int)
        Bytes and tensors of each.
    touched_bytes : float
        What is overwritten; more than :data:`MOST_TOUCHED_BYTES` makes no difference.
    repetitions : int
        Times that each is sent; the first two are not counted.

    Returns
    -------
    list of MessagePoint
        Receiving includes bringing the bytes into the receiver's cache, which the kernel that reads them would pay.
    """
    layouts: list[Layout] = [[((size // 4 // n,), np.float32) for _ in range(n)] for size, n in messages]
    there = [Channel("sender", "receiver", layout) for layout in layouts]
    back = Channel("receiver", "sender", ())
    times = shared_array((repetitions, len(messages), 3), np.float64)  # of sending, of receiving, of adding
    columns = {"sender": times[:, :, :1], "receiver": times[:, :, 1:]}
    records = {name: Record(_nobody(name), range(1)) for name in columns}
    ends = {name: set[int]().union(*(one.ends(name)[0] for one in (*there, back))) for name in columns}
    everything = set[int]().union(*(one.ends("")[1] for one in (*there, back)))

    def work(name: str, turns: Sequence[_Sender] | Sequence[_Receiver]) -> None:
        keep_only(ends[name], everything)
        clock = Clock(ClockKind.CPU, 0.0)
        for repetition, index in np.ndindex(times.shape[:2]):
            columns[name][repetition, index] = turns[index](clock, records[name])

    sweep = _sweep(touched_bytes)
    senders = [_Sender(one, back, layout, sweep) for one, layout in zip(there, layouts, strict=True)]
    receivers = [_Receiver(one, back, layout, sweep) for one, layout in zip(there, layouts, strict=True)]
    tasks = {
        "sender": functools.partial(work, "sender", senders),
        "receiver": functools.partial(work, "receiver", receivers),
    }
    supervise(tasks, records, started=functools.partial(keep_only, set(), everything))
    points = []
    for index, (size, tensors) in enumerate(messages):
        send, receive, add = (trimmed_mean(times[2:, index, column]) for column in range(3))
        points.append(MessagePoint(float(size), send, receive, tensors, touched_bytes, add))
    return points


def _nobody(name: str) -> Worker:
    return Worker(name, this_node(), "rank", 0, 0, 0, None, ())


class _Sender:
    """Writes the tensors, sweeps its cache as the kernels in between would, looks them up and sends: that is timed."""

    def __init__(self, there: Channel, back: Channel, layout: Layout, sweep: Floats) -> None:
        self.there, self.back, self.sweep = there, back, sweep
        self.tensors: dict[str, Any] = {
            f"tensor {i}": np.zeros(shape, dtype) for i, (shape, dtype) in enumerate(layout)
        }

    def __call__(self, clock: Clock, record: Record) -> tuple[float, ...]:
        for array in self.tensors.values():
            np.add(array, 1, out=array)
        self.sweep += 1.0
        clock.begin()
        self.there.send([self.tensors[name] for name in self.tensors], clock, record)
        clock.lap()
        used = clock.used
        self.back.receive(clock, record)
        return (used,)


class _Receiver:
    """Touches what it will add to, sweeps its cache, receives, reads the payload twice, adds it.

    The second reading is warm: the difference is the message's. The adding finds the payload warm, and the rest cold.
    """

    def __init__(self, there: Channel, back: Channel, layout: Layout, sweep: Floats) -> None:
        self.there, self.back, self.sweep = there, back, sweep
        self.totals: list[Any] = [np.zeros(shape, dtype) for shape, dtype in layout]
        self.seen = 0.0

    def __call__(self, clock: Clock, record: Record) -> tuple[float, ...]:
        for total in self.totals:
            np.add(total, 1, out=total)
        self.sweep += 1.0
        clock.begin()
        payload = self.there.receive(clock, record)
        clock.lap()
        taking = clock.used
        cold = self._read(payload, clock)
        warm = self._read(payload, clock)
        adding = sum(self._add(total, array, clock) for total, array in zip(self.totals, payload, strict=True))
        self.back.send([], clock, record)
        return taking + max(0.0, cold - warm), adding

    def _add(self, total: Any, array: Any, clock: Clock) -> float:
        clock.begin()
        add_into(total, [total, array])
        clock.lap()
        return clock.used

    def _read(self, payload: Sequence[Array], clock: Clock) -> float:
        clock.begin()
        self.seen += sum(float(array.sum()) for array in payload)
        clock.lap()
        return clock.used


def measure_exchange(touched_bytes: float, elements: int = 1 << 18, repetitions: int = 24) -> float:
    """Return the seconds per byte of an elastic update, mean of the trainer's and the server's part."""
    a, b = np.ones(elements, np.float32), np.ones(elements, np.float32)
    sweep, clock = _sweep(touched_bytes), Clock(ClockKind.CPU, 0.0)

    def timed(action: Callable[[], object]) -> float:
        seconds = []
        for _ in range(repetitions):
            sweep.__iadd__(1.0)
            clock.begin()
            action()
            clock.lap()
            seconds.append(clock.used)
        return trimmed_mean(np.array(seconds)) / a.nbytes

    adding = timed(lambda: np.add(a, b, out=a))
    serving = timed(lambda: np.subtract(a, (a - b) * np.float32(0.1), out=a))
    return (adding + serving) / 2
