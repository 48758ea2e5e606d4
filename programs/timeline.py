"""The timeline: what both interpreters return. When each instruction of each worker started and ended.

The simulator fills it with predicted times, the executor with measured ones (of whichever clock was asked for), so that
the two can be laid side by side and a difference blamed on a part. Seconds, from the start of the job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from programs.instructions import AllReduce, Compute, Instruction, Lookup, Metric, NextBatch, Recv, Reduce, Send, Update

#: What a second can be spent on.
PARTS = ("compute", "embedding", "message", "allreduce", "update", "sync", "other", "waiting")


def part_of(instruction: Instruction) -> str:
    """Return the part of :data:`PARTS` that an instruction's time is booked under."""
    match instruction:
        case Compute() | Reduce():
            return "compute"
        case Lookup():
            return "embedding"
        case Send() | Recv():
            return "message"
        case AllReduce():
            return "allreduce"
        case Update(shards=()):
            return "update"
        case Update():
            return "embedding"
        case NextBatch() | Metric():
            return "other"
        case _:
            return "sync"


@dataclass(frozen=True)
class WorkerTimeline:
    """Times of one worker.

    Parameters
    ----------
    worker, node : str
        Names of the worker and of its machine.
    role : str
        ``rank``, ``node``, ``server``, ``shadow`` or ``sync``.
    instructions : tuple of Instruction
        The worker's program.
    starts, ends : ndarray of float64, shape (steps, instructions)
        Seconds. For a Recv the interval includes the wait.
    busy : ndarray of float64, shape (steps, instructions)
        Core-seconds used inside the interval.
    """

    worker: str
    node: str
    role: str
    instructions: tuple[Instruction, ...]
    starts: npt.NDArray[np.float64]
    ends: npt.NDArray[np.float64]
    busy: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Timeline:
    """Times of all workers of a job."""

    workers: tuple[WorkerTimeline, ...]

    def ranks(self) -> Iterator[WorkerTimeline]:
        """Workers that read batches."""
        return (worker for worker in self.workers if worker.role == "rank")

    def samples_per_second(self, batch: int, warmup: int) -> float:
        """Samples per second of the whole job, steps before ``warmup`` left out.

        Sum over ranks' threads of batch * steps / (end of the last step - end of the last warm-up step).
        """
        rate = 0.0
        for worker in self.ranks():
            done = worker.ends[:, -1]
            begin = done[warmup - 1] if warmup else worker.starts[0, 0]
            rate += batch * (len(done) - warmup) / (done[-1] - begin)
        return rate

    def seconds_per_step(self, role: str, warmup: int) -> dict[str, float]:
        """Mean seconds per step and worker of a role, by part of :data:`PARTS`.

        Busy core-seconds by part; what is left of the instructions' intervals is ``waiting``.
        """
        total = dict.fromkeys(PARTS, 0.0)
        workers = [worker for worker in self.workers if worker.role == role]
        for worker in workers:
            for index, instruction in enumerate(worker.instructions):
                busy = float(worker.busy[warmup:, index].mean())
                total[part_of(instruction)] += busy
                total["waiting"] += float((worker.ends - worker.starts)[warmup:, index].mean()) - busy
        return {part: max(0.0, seconds) / max(1, len(workers)) for part, seconds in total.items()}
