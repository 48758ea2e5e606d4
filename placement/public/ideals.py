"""The sets of blocks that may have run at some moment (ideals of the forward order), as arrays.

Knows how to enumerate them and what the dynamic program needs of each: its weight, its memory, the nets it opens. A net
is open in an ideal that holds some but not all of its pins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placement.public.blocks import Blocks
from placement.public.hypergraph import Floats

WORD_BITS = 64


class TooManyIdeals(Exception):
    """The order has more ideals than asked for; ``limit`` says how many that was."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit:,} ideals")
        self.limit = limit


def enumerate_ideals(size: int, edges: Iterable[tuple[int, int]], limit: int) -> list[int]:
    """Return every ideal as a bit mask, by number of blocks.

    Raises
    ------
    TooManyIdeals
        When there are more than ``limit``.
    """
    before, after = [0] * size, [list[int]() for _ in range(size)]
    for u, v in edges:
        before[v] |= 1 << u
        after[u].append(v)
    level = {0: sum(1 << v for v in range(size) if not before[v])}
    found: list[int] = []
    while level:
        found.extend(level)
        if len(found) > limit:
            raise TooManyIdeals(limit)
        level = _next_level(level, before, after)
    return found


def _next_level(level: dict[int, int], before: Sequence[int], after: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return the ideals with one block more, each with the blocks that may follow it."""
    grown: dict[int, int] = {}
    for ideal, ready in level.items():
        for v in _bits(ready):
            bigger = ideal | 1 << v
            if bigger not in grown:
                opened = sum(1 << w for w in after[v] if not before[w] & ~bigger)
                grown[bigger] = (ready ^ 1 << v) | opened
    return grown


def _bits(mask: int) -> Iterable[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


@dataclass(frozen=True, eq=False)
class Ideals:
    """The ideals of some blocks, sorted so that subsets come first and weights ascend.

    Parameters
    ----------
    words : ndarray of uint64, shape (words, ideals)
        Bit mask of the blocks in each ideal.
    weight : ndarray, shape (ideals,)
        Least load that the blocks cause on either kind of device; non-decreasing.
    accelerator_ms, cpu_ms, size_bytes, cpu_only : ndarray, shape (ideals,)
        Sums over the blocks (of ``cpu_only``: how many).
    pins : ndarray of int16, shape (nets, ideals)
        Pins of each net within each ideal.
    opened_ms : ndarray, shape (ideals,)
        Total cost of the open nets.
    """

    words: NDArray[np.uint64]
    weight: Floats
    accelerator_ms: Floats
    cpu_ms: Floats
    size_bytes: Floats
    cpu_only: Floats
    pins: NDArray[np.int16]
    opened_ms: Floats

    def __len__(self) -> int:
        """Number of ideals."""
        return len(self.weight)


def ideals(found: Blocks, limit: int) -> Ideals:
    """Return the ideals of the blocks.

    Raises
    ------
    TooManyIdeals
        When there are more than ``limit``.
    """
    graph = found.graph
    words = as_words(enumerate_ideals(graph.items, found.edges, limit), graph.items)
    members = members_of(words, graph.items)
    least = np.minimum(graph.accelerator_ms, graph.cpu_ms)
    weight = members @ least
    order = np.lexsort((members.sum(axis=1), np.round(weight, 9)))
    members, words = members[order], words[:, order]
    pins = np.stack([members[:, list(net)].sum(axis=1) for net in graph.nets]).astype(np.int16)
    full = np.array([len(net) for net in graph.nets])[:, None]
    return Ideals(
        words=np.ascontiguousarray(words),
        weight=np.maximum.accumulate(weight[order]),
        accelerator_ms=members @ graph.accelerator_ms,
        cpu_ms=members @ graph.cpu_ms,
        size_bytes=members @ graph.size_bytes,
        cpu_only=members @ graph.cpu_only.astype(float),
        pins=pins,
        opened_ms=((pins > 0) & (pins < full)).T @ graph.net_ms,
    )


def as_words(masks: Sequence[int], size: int) -> NDArray[np.uint64]:
    """Return the bit masks as words, shape (words, masks)."""
    count = -(-size // WORD_BITS)
    raw = b"".join(mask.to_bytes(8 * count, "little") for mask in masks)
    return np.frombuffer(raw, dtype="<u8").reshape(len(masks), count).T.astype(np.uint64)


def members_of(words: NDArray[np.uint64], size: int) -> Floats:
    """Return the indicator matrix, shape (ideals, blocks)."""
    raw = np.ascontiguousarray(words.T).view(np.uint8)
    return np.unpackbits(raw, axis=1, bitorder="little")[:, :size].astype(np.float64)
