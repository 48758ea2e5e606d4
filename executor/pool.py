"""Where the sessions of a run take their batches: some are read before it begins, the rest ahead of need by a thread.

Which batch a step gets does not depend on who reads it or when: batch ``i * sessions + s`` of the stream is the i-th of
session s. Before the workers fork, batches are read until they take :data:`LIMIT_BYTES` or :data:`LIMIT_SECONDS` have gone;
a run that needs more reads them in its ranks, each in a thread that stays a few batches ahead, so that readers are decoupled
from trainers. (The virtual clocks count the time of the trainer's own thread alone.) Every batch is checked: kernels do not
check bounds. A stream that ends gives short batches, or none, at its end: :func:`data.batch.fill` makes them whole, and
the mean is taken over the samples that the ranks of a group have together.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, replace

from executor.data.batch import Batch, Finite, Stream, check_batch, fill
from problem.model import Model

#: Memory that batches read before a run may take, and the time that reading them may.
LIMIT_BYTES = 1 << 28
LIMIT_SECONDS = 1.0
#: How far a thread reads ahead: so many batches, and so many bytes (but at least two batches).
AHEAD_BATCHES, AHEAD_BYTES = 64, 1 << 25


@dataclass(frozen=True)
class BatchPool:
    """Batches of all sessions.

    Parameters
    ----------
    stream : Stream
        Where they come from.
    model : Model
        What they are for.
    batch, sessions : int
        Samples per batch, sessions of the job.
    ranks, hogwild : int
        Ranks of a group, threads of a rank: sessions are numbered by group, then rank, then thread.
    first_step, first_batch : int
        Number of the first step, and of the first batch that no step has read.
    ready : tuple of Batch or None
        The first batches, read already; None where they are those of other processes.
    """

    stream: Stream
    model: Model
    batch: int
    sessions: int
    ranks: int = 1
    hogwild: int = 1
    first_step: int = 0
    first_batch: int = 0
    ready: tuple[Batch | None, ...] = ()

    def take(self, session: int, step: int) -> Batch:
        """Return the batch of a session's step, read now if it was not before."""
        place = (step - self.first_step) * self.sessions + session
        found = self.ready[place] if place < len(self.ready) else None
        return self.read(session, step) if found is None else found

    def read(self, session: int, step: int) -> Batch:
        """Read and check the batch of a session's step.

        Raises
        ------
        BadInput
            The batch does not fit the model, or an id lies outside its table.
        """
        begin = self.first_batch + (step - self.first_step) * self.sessions
        found = fill(self.stream.batch(begin + session, self.batch), self.batch)
        check_batch(found, self.model)
        if not isinstance(self.stream, Finite):
            return found
        group, thread = session // (self.ranks * self.hogwild), session % self.hogwild
        peers = (begin + (group * self.ranks + rank) * self.hogwild + thread for rank in range(self.ranks))
        return replace(found, mean_over=sum(self.stream.samples(peer, self.batch) for peer in peers))

    def reader(self, session: int, steps: range) -> Reader:
        """Return what gives a session the batches of some steps, in order."""
        return Reader(self, session, steps)


class Reader:
    """Batches of a session, step after step; those that are not ready are read by a thread that starts with the first step.

    Parameters
    ----------
    pool : BatchPool
        Where they come from.
    session : int
        Number of the session.
    steps : range
        The steps, each of which is asked for once, in order.
    """

    def __init__(self, pool: BatchPool, session: int, steps: range) -> None:
        self._pool, self._session = pool, session
        ready = pool.first_step + len(pool.ready) // pool.sessions
        self._late = range(max(steps.start, ready), steps.stop)
        self._queue: queue.Queue[Batch | Exception] | None = None

    def __call__(self, step: int) -> Batch:
        """Return the batch of a step; raises what went wrong while it was read."""
        if self._late and self._queue is None:
            self._start()
        if step not in self._late or self._queue is None:
            return self._pool.take(self._session, step)
        found = self._queue.get()
        if isinstance(found, Exception):
            raise found
        return found

    def _start(self) -> None:
        size = max((batch.nbytes for batch in self._pool.ready[:1] if batch is not None), default=AHEAD_BYTES)
        self._queue = queue.Queue(max(2, min(AHEAD_BATCHES, AHEAD_BYTES // max(1, size))))
        threading.Thread(target=self._read, args=(self._queue,), name="reader", daemon=True).start()

    def _read(self, filled: queue.Queue[Batch | Exception]) -> None:
        try:
            for step in self._late:
                filled.put(self._pool.read(self._session, step))
        except Exception as error:  # raised where the batch is needed
            filled.put(error)


def read_ahead(
    stream: Stream,
    model: Model,
    batch: int,
    sessions: int,
    steps: int,
    limit_bytes: int = LIMIT_BYTES,
    *,
    ranks: int = 1,
    hogwild: int = 1,
    first_step: int = 0,
    first_batch: int = 0,
    only: int | None = None,
) -> BatchPool:
    """Read the first batches of a run; at least those of one step.

    Parameters
    ----------
    stream : Stream
        Where they come from.
    model : Model
        What they are for.
    batch, sessions, steps : int
        Samples per batch, sessions of the job, steps of the run.
    limit_bytes : int
        Memory they may take.
    ranks, hogwild, first_step, first_batch : int
        As in :class:`BatchPool`.
    only : int, optional
        The one session whose batches are read.

    Raises
    ------
    BadInput
        A batch does not fit the model, or an id lies outside its table.
    """
    pool = BatchPool(stream, model, batch, sessions, ranks, hogwild, first_step, first_batch)
    ready: list[Batch | None] = []
    size, end = 0, time.perf_counter() + LIMIT_SECONDS
    for step in range(first_step, first_step + steps):
        if ready and (size >= limit_bytes or time.perf_counter() > end):
            break
        found = [pool.read(s, step) if only in {None, s} else None for s in range(sessions)]
        size += sum(one.nbytes for one in found if one is not None)
        ready += found
    return replace(pool, ready=tuple(ready))
