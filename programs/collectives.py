"""How an all-reduce is cut: one definition for both interpreters.

Direct all-reduce of R ranks: the buffer is cut into R slices; in the first phase each rank sends slice j to rank j,
which adds the R slices in rank order; in the second phase it sends the sum to all others. Each rank sends and receives
2 (R - 1) / R of the buffer in 2 (R - 1) messages, as a ring all-reduce does, but in two message latencies instead of
2 (R - 1) (Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, 2005, section 4).
"""

from __future__ import annotations

from problem.graph import FLOAT_BYTES


def slices(total_bytes: int, ranks: int) -> tuple[int, ...]:
    """Cut a float32 buffer into one slice per rank, as equal as whole elements allow; returns their bytes."""
    elements, extra = divmod(total_bytes // FLOAT_BYTES, ranks)
    return tuple((elements + (rank < extra)) * FLOAT_BYTES for rank in range(ranks))
