"""Batches of a whole run, read ahead of it: readers are decoupled from trainers and never the bottleneck.

Drawn or parsed before the workers fork, which then only read; when they would take more than a limit, the pool is shorter
than the run and is gone through again (``cycled`` says so).
"""

from __future__ import annotations

from dataclasses import dataclass

from executor.data.batch import Batch, Stream, check_batch
from problem.model import Model

#: Memory that a run's batches may take.
LIMIT_BYTES = 1 << 28


@dataclass(frozen=True)
class BatchPool:
    """Batches of all sessions.

    Parameters
    ----------
    batches : tuple of Batch
        Batch ``i * sessions + s`` is the i-th of session s.
    sessions : int
        Number of sessions.
    cycled : bool
        Whether batches are gone through again.
    first_step : int
        Number of the first step.
    """

    batches: tuple[Batch, ...]
    sessions: int
    cycled: bool
    first_step: int = 0

    def take(self, session: int, step: int) -> Batch:
        """Return the batch of a session's step."""
        return self.batches[((step - self.first_step) * self.sessions + session) % len(self.batches)]


def read_ahead(
    stream: Stream,
    model: Model,
    batch: int,
    sessions: int,
    steps: int,
    limit_bytes: int = LIMIT_BYTES,
    *,
    first_step: int = 0,
    first_batch: int = 0,
) -> BatchPool:
    """Read the batches of a run and check them: kernels do not check bounds.

    Where the stream is gone through again depends on the limit alone, so that a run that goes on from a checkpoint
    reads what the unbroken one would.

    Parameters
    ----------
    stream : Stream
        Where they come from.
    model : Model
        What they are for.
    batch, sessions, steps : int
        Samples per batch, sessions of the job, steps of the run.
    limit_bytes : int
        Memory they may take; at least one step is read.
    first_step, first_batch : int
        Number of the first step, and of the first batch of the stream that no step has read.

    Raises
    ------
    BadInput
        A batch does not fit the model, or an id lies outside its table.
    """
    affordable = sessions * max(1, limit_bytes // max(1, stream.batch(0, batch).nbytes * sessions))
    begin, needed = first_batch % affordable, steps * sessions
    batches = tuple(stream.batch((begin + i) % affordable, batch) for i in range(min(needed, affordable)))
    for found in batches:
        check_batch(found, model)
    return BatchPool(batches, sessions, first_batch + needed > affordable, first_step)
