"""How few cuts balance equal tables over equal servers.

A table that is on s servers costs the ranks s requests and s answers, so cuts are not free, yet without them n tables
load P servers unevenly. Take the bipartite graph of tables and the servers that hold their rows: a connected part with
t tables and p servers has at least t + p - 1 shards (a tree), and filling its servers one after the other, cutting
where one is full (McNaughton's wrap-around rule, 1959), needs no more. So the fewest shards with at most ``per_server``
tables' work on a server are n + sum (p - 1) over the best split into parts: a knapsack over part sizes.
"""

from __future__ import annotations

from functools import lru_cache
from math import floor

import numpy as np
import numpy.typing as npt

#: A part of the split: number of tables, number of servers.
Part = tuple[int, int]
Ints = npt.NDArray[np.int64]


@lru_cache(maxsize=4096)
def fewest_cuts(tables: int, servers: int, per_server: float) -> tuple[Part, ...] | None:
    """Return the split of equal tables into parts that needs fewest cuts.

    Parameters
    ----------
    tables, servers : int
        How many there are; not all servers need be used.
    per_server : float
        Tables' work that a server may take; may be below 1.

    Returns
    -------
    tuple of (int, int) or None
        Tables and servers of each part; a part of p servers has p - 1 cuts. None if the servers cannot take all.
    """
    room = np.array([floor(p * per_server + 1e-9) for p in range(servers + 1)])
    if room[-1] < tables:
        return None
    held = np.full((servers + 1, servers + 1), -1, dtype=np.int64)  # parts, servers -> most tables
    last = np.zeros_like(held)
    held[0, 0] = 0
    for parts in range(1, servers + 1):
        for p in range(1, servers + 1):
            before = held[parts - 1, : servers + 1 - p]
            now = np.where(before >= 0, before + room[p], -1)
            better = now > held[parts, p:]
            held[parts, p:][better] = now[better]
            last[parts, p:][better] = p
    enough = [(used - parts, used, parts) for parts, used in zip(*np.nonzero(held >= tables), strict=True)]
    _, used, parts = min((int(cuts), int(used), int(parts)) for cuts, used, parts in enough)
    return _trace(last, room, tables, used, parts)


def _trace(last: Ints, room: Ints, tables: int, used: int, parts: int) -> tuple[Part, ...]:
    """Walk back through the knapsack, giving each part as many tables as it holds."""
    found, left = [], tables
    for number in range(parts, 0, -1):
        p = int(last[number, used])
        taken = min(left, int(room[p]))
        left, used = left - taken, used - p
        if taken:
            found.append((taken, p))
    return tuple(found)


def cut_count(parts: tuple[Part, ...]) -> int:
    """Return the number of cuts of a split."""
    return sum(servers - 1 for _, servers in parts)


def candidates(tables: int, servers: int) -> list[float]:
    """Return the values of ``per_server`` at which the fewest cuts can change, smallest (perfect balance) first."""
    values = {t / p for t in range(1, tables + 1) for p in range(1, servers + 1)}
    return sorted(value for value in values if value * servers >= tables * (1 - 1e-12))
