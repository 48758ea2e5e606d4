"""How groups average among themselves: a node's part of an average.

The node's parameters go round all groups (``programs.collectives``), the mean moves its copy of the centre by the rule of
the plan, and the centre its parameters; of DP operators it does so for its part, and tells the other ranks by how much. All
groups get the same sums, so their copies of the centre are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from executor.arrays import Floats
from executor.average_memory import AverageMemory, split
from executor.centre import move_centre
from executor.exchange import Endpoint
from executor.parameters import Parameters
from executor.wiring import node_of
from placement.plan import Plan
from problem.graph import FLOAT_BYTES
from programs.collectives import RingRound, ring_rounds
from programs.instructions import Piece


class Averager:
    """One node's part of the averages of a job.

    Parameters
    ----------
    end : Endpoint
        The worker and its channels.
    plan : Plan
        Says by which rule.
    parameters : Parameters
        The node's copy.
    memory : AverageMemory
        What it remembers.
    """

    def __init__(self, end: Endpoint, plan: Plan, parameters: Parameters, memory: AverageMemory) -> None:
        assert plan.sync is not None
        self._end, self._sync, self._parameters, self._memory = end, plan.sync, parameters, memory
        self._group, self._node, self._groups = end.worker.group, node_of(end.worker), len(plan.groups)
        self._sent, self._difference = np.zeros_like(memory.centre), np.zeros_like(memory.centre)
        self._mean = memory.centre if plan.sync.algorithm == "ma" else np.zeros_like(memory.centre)
        chunk = memory.step.chunk_bytes // FLOAT_BYTES
        self._chunks = [self._mean[k * chunk : (k + 1) * chunk] for k in range(self._groups)]
        self._rounds = ring_rounds(self._group, self._groups)

    def average(self) -> None:
        """Average with the other groups, then tell the other ranks of this one and add what they tell."""
        step, alpha = self._memory.step, np.float32(self._sync.alpha)
        if step.bytes:
            for piece, part in split(step.pieces, self._sent):
                part[...] = self._parameters.flat(piece.op)[piece.begin : piece.end]
            self._mean[...] = self._sent
            self._go_round()
            if self._mean is not self._memory.centre:
                move_centre(self._mean, self._memory.centre, self._memory.velocity, self._sync)
        np.subtract(self._memory.centre, self._sent, out=self._difference)
        self._difference *= alpha
        self._add(step.pieces, self._difference)
        self._pass_on(self._difference[: step.shared_bytes // FLOAT_BYTES])

    def _go_round(self) -> None:
        adds, keeps = self._rounds
        for one in adds:
            self._chunks[one.takes] += self._swap(one)
        self._chunks[self._group] *= np.float32(1.0 / self._groups)
        for one in keeps:
            self._chunks[one.takes][...] = self._swap(one)

    def _swap(self, one: RingRound) -> Floats:
        """Send a chunk to the next group; return that of the one before."""
        before = (self._group - 1) % self._groups
        self._end.send(("ring", self._group, self._node), [self._chunks[one.sends]])
        received: Floats = self._end.receive(("ring", before, self._node))[0]
        return received

    def _pass_on(self, difference: Floats) -> None:
        step = self._memory.step
        for peer in step.peers if step.shared else ():
            self._end.send(("average", self._group, self._node, peer), [difference])
        for peer, pieces in zip(step.peers, step.taken, strict=True):
            if pieces:
                self._add(pieces, self._end.receive(("average", self._group, peer, self._node))[0])

    def _add(self, pieces: Iterable[Piece], difference: Floats) -> None:
        for piece, part in split(pieces, difference):
            self._parameters.flat(piece.op)[piece.begin : piece.end] += part
