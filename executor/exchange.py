"""The instructions that need several workers at once: all-reduce, updates in rank order, and the exchange of groups.

All sums are taken in a fixed order (rank order, server order), so synchronous runs repeat to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.arrays import Floats
from executor.clock import Clock
from executor.parameters import Parameters
from executor.pushing import Pusher
from executor.state import Record
from executor.transport import Line
from executor.wiring import Label, Wiring, copies_at, node_of
from problem.graph import FLOAT_BYTES
from programs.collectives import slices
from programs.instructions import AllReduce, SyncStep
from programs.workers import Worker


@dataclass(frozen=True)
class Endpoint:
    """A worker's hands on its channels.

    Parameters
    ----------
    worker : Worker
        Who.
    wiring : Wiring
        All channels.
    clock : Clock
        The worker's clock.
    record : Record
        Where it notes that it waits.
    """

    worker: Worker
    wiring: Wiring
    clock: Clock
    record: Record

    def channel(self, label: Label) -> Line:
        """Channel by label."""
        return self.wiring.channels[label]

    def send(self, label: Label, arrays: Sequence[Any] = ()) -> None:
        """Send one message."""
        self.channel(label).send(arrays, self.clock, self.record)

    def receive(self, label: Label) -> list[Any]:
        """Receive one message; its arrays stay valid until the next of the channel."""
        return self.channel(label).receive(self.clock, self.record)


def cut(buffer: Floats, instruction: AllReduce, ranks: int) -> list[Floats]:
    """Return the slice of each rank of the gradients (elements,) of an all-reduce (see ``programs.collectives``)."""
    ends = np.cumsum([0, *(size // FLOAT_BYTES for size in slices(instruction.bytes, ranks))])
    return [buffer[ends[rank] : ends[rank + 1]] for rank in range(ranks)]


def all_reduce(end: Endpoint, parts: Sequence[Floats]) -> None:
    """Sum slices, one for each rank, over the ranks of the group in place."""
    me, mine = end.worker, parts[end.worker.rank]
    others = [rank for rank in range(len(parts)) if rank != me.rank]
    for rank in others:
        end.send(("scatter", me.group, me.thread, me.rank, rank), [parts[rank]])
    received = [end.receive(("scatter", me.group, me.thread, rank, me.rank))[0] for rank in others]
    sum_in_order(received[: me.rank], mine, received[me.rank :])
    for rank in others:
        end.send(("gather", me.group, me.thread, me.rank, rank), [mine])
    for rank in others:
        parts[rank][...] = end.receive(("gather", me.group, me.thread, rank, me.rank))[0]


def sum_in_order(before: Sequence[Floats], mine: Floats, after: Sequence[Floats]) -> None:
    """Add arrays from left to right into ``mine``; sums on the way to it are taken in the first of those ``before`` it."""
    for part in before[1:]:
        np.add(before[0], part, out=before[0])
    for part in (*before[:1], *after):
        np.add(mine, part, out=mine)


def in_rank_order(end: Endpoint, action: Callable[[], None]) -> None:
    """Run ``action`` when all copies of the place have arrived, one copy after the other; go on together."""
    me, place = end.worker, end.worker.place
    assert place is not None
    copies = copies_at(end.wiring.job.plan, me.group, place, end.wiring.workers)
    key, ranks = (me.group, str(place)), [copy.rank for copy in copies]
    if me.rank == ranks[0]:
        for rank in ranks[1:]:
            end.receive(("arrive", *key, rank))
    else:
        end.send(("arrive", *key, me.rank))
        end.receive(("turn", *key, me.rank - 1))
    action()
    if me.rank != ranks[-1]:
        end.send(("turn", *key, me.rank))
        end.receive(("go", *key, me.rank))
    else:
        for rank in ranks[:-1]:
            end.send(("go", *key, rank))


def exchange(end: Endpoint, step: SyncStep, parameters: Parameters, pusher: Pusher, number: int) -> None:
    """Take part in exchange ``number`` (from 0) between groups: push, add the difference that the answers make, pass it on.

    What is pushed and what an answer is, ``executor.pushing`` knows; what the servers do, ``executor.centre``.
    """
    me = end.worker
    servers = [s for s, names in enumerate(step.exchange) if names]
    differences: dict[str, Floats] = {}
    for server in servers:
        end.send(("push", me.name, server), pusher.message(step.exchange[server], number))
    for server in servers:
        answers = end.receive(("pull", me.name, server))
        for name, answer in zip(step.exchange[server], answers, strict=True):
            differences[name] = pusher.difference(name, answer)
    for name, difference in differences.items():
        parameters.flat(name)[...] += difference
    for follower in step.followers:
        end.send(("follow", me.group, follower), [differences[name] for name in step.forward])
    if step.follow:
        received = end.receive(("follow", me.group, node_of(me)))
        for name, difference in zip(step.follow, received, strict=True):
            parameters.flat(name)[...] += difference
