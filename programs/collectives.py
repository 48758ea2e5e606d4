"""How an all-reduce is cut: one definition for both interpreters.

Inside a group, direct: the buffer is cut into R slices, one a rank; in the first phase each rank sends slice j to rank j,
which adds the R slices in rank order; in the second phase it sends the sum to all others. Each rank sends and receives
2 (R - 1) / R of the buffer in 2 (R - 1) messages, as a ring all-reduce does, but in two message latencies instead of
2 (R - 1) (Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, 2005, section 4).

Between groups, a ring of G (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009) 117-124): the buffer is cut into G
equal chunks. In each of G - 1 rounds everybody sends the next one a chunk and adds what comes from the one before; chunk c
is then summed at c, in the order c + 1, c + 2, .., c. In G - 1 more rounds the sums go round. Each sends 2 (G - 1) chunks,
which takes 2 (G - 1) (latency + chunk / rate), and talks to two others only.
"""

from __future__ import annotations

from dataclasses import dataclass

from problem.graph import FLOAT_BYTES


def slices(total_bytes: int, ranks: int) -> tuple[int, ...]:
    """Cut a float32 buffer into one slice per rank, as equal as whole elements allow; returns their bytes."""
    elements, extra = divmod(total_bytes // FLOAT_BYTES, ranks)
    return tuple((elements + (rank < extra)) * FLOAT_BYTES for rank in range(ranks))


def ring_chunk(elements: int, groups: int) -> int:
    """Elements of each chunk of a ring: all are equal, so the last ones may be filled up."""
    return -(-elements // groups)


@dataclass(frozen=True, slots=True)
class RingRound:
    """One round of a ring: the chunk that is sent to the next, and the one that comes from the one before."""

    sends: int
    takes: int


def ring_rounds(me: int, groups: int) -> tuple[tuple[RingRound, ...], tuple[RingRound, ...]]:
    """Rounds of number ``me`` of a ring: first those in which what comes is added, then those in which it is kept."""
    adds = tuple(RingRound((me - k - 1) % groups, (me - k - 2) % groups) for k in range(groups - 1))
    keeps = tuple(RingRound((me - k) % groups, (me - k - 1) % groups) for k in range(groups - 1))
    return adds, keeps
