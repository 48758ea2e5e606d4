"""What a node remembers between averages of all groups: its copy of the centre, and block momentum.

Both lie in the order of the pieces that the node averages (``programs.instructions.Average``), so that they go round all
groups as they are. Knows nothing of messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from executor.arrays import BufferFactory, Floats
from executor.parameters import Parameters
from placement.plan import Plan
from problem.graph import FLOAT_BYTES
from programs.exchanges import exchanges
from programs.instructions import Average, Piece


@dataclass(frozen=True)
class AverageMemory:
    """What a node remembers between averages, in the order of the pieces, filled up to whole chunks.

    Parameters
    ----------
    step : Average
        The average.
    centre : ndarray, shape (groups * chunk,)
        The node's copy of the centre.
    velocity : ndarray, shape (groups * chunk,)
        Block momentum, for ``bmuf``; else (0,).
    """

    step: Average
    centre: Floats
    velocity: Floats

    def read(self, values: Floats, into: Parameters) -> None:
        """Copy the centre or block momentum, piece by piece, into parameters."""
        for piece, part in split(self.step.pieces, values):
            into.flat(piece.op)[piece.begin : piece.end] = part

    def write(self, values: Floats, source: Parameters) -> None:
        """Take the centre or block momentum from parameters."""
        for piece, part in split(self.step.pieces, values):
            part[...] = source.flat(piece.op)[piece.begin : piece.end]


def split(pieces: Iterable[Piece], values: Floats) -> Iterator[tuple[Piece, Floats]]:
    """Yield each piece with its part of (elements,) values."""
    begin = 0
    for piece in pieces:
        yield piece, values[begin : begin + piece.elements]
        begin += piece.elements


def allocate_averages(
    plan: Plan, memory: Mapping[tuple[int, int], BufferFactory]
) -> dict[tuple[int, int], AverageMemory]:
    """Return zeroed memory for every node that averages, out of that of its machine; nothing with sync servers."""
    if not plan.ring:
        return {}
    found, momentum = {}, plan.sync is not None and plan.sync.algorithm == "bmuf"
    steps = {node: step for node, step in exchanges(plan).items() if isinstance(step, Average)}
    for (group, node), give in memory.items():
        if node in steps:
            elements = len(plan.groups) * steps[node].chunk_bytes // FLOAT_BYTES
            velocity = give("averages.velocity", elements * momentum)
            found[group, node] = AverageMemory(steps[node], give("averages.centre", elements), velocity)
    return found
