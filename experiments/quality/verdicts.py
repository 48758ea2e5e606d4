"""What the training studies say of the DCT paper's tables: printed points and orderings, judged by intervals.

A point is *harmless* if even the worse end of its interval is at most :data:`HARMLESS`, *harmful* if the better end is above
0, else *open*; printed points, which have no interval, are harmless up to :data:`PRINTED_NOISE`. An ordering of two points
*holds* if one is worse by more than both intervals' half-widths taken together (root of the sum of squares: cells of one
seed are paired, so this asks for more than is needed), is *contradicted* if it is better by so much, else *open*. Works on
rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Rows = Sequence[Mapping[str, Any]]

#: Percent. The guard's limit, and the printed differences between runs that the paper calls equal (its Table 1: 0.02 %).
HARMLESS, PRINTED_NOISE = 0.1, 0.02


@dataclass(frozen=True)
class Ordering:
    """A printed ordering.

    Parameters
    ----------
    table : str
        Of the DCT paper.
    worse, better : tuple of str and float
        Family and share dropped of two points.
    """

    table: str
    worse: tuple[str, float]
    better: tuple[str, float]

    def __str__(self) -> str:
        worse, better = (f"{family} {100 * dropped:g} %" for family, dropped in (self.worse, self.better))
        return f"{self.table}: {worse} is worse than {better}"


_ONE, _TWO, _LAPLACE = "DCT-MP, one cut", "DCT-MP, two cuts", "DCT-MP, one cut, Laplace"
_DP, _HYBRID, _SKETCH, _TOP = "DCT-DP", "hybrid, two cuts", "sketch of activations", "top-k of their gradient"
#: Those whose printed losses differ by more than the printed noise.
ORDERINGS = (
    Ordering("Table 1", (_ONE, 0.98), (_ONE, 0.90)),
    Ordering("Table 1", (_TWO, 0.95), (_TWO, 0.75)),
    Ordering("Table 1", (_TWO, 0.95), (_ONE, 0.95)),
    Ordering("Table 1 and 6", (_ONE, 0.98), (_LAPLACE, 0.98)),
    Ordering("Table 2", (_DP, 0.995), (_DP, 0.98)),
    Ordering("Table 3", (_HYBRID, 0.95), (_HYBRID, 0.75)),
    Ordering("Table 2 and 3", (_HYBRID, 0.95), (_DP, 0.95)),
    Ordering("Table 7", (_SKETCH, 0.90), (_SKETCH, 0.50)),
    Ordering("Table 8", (_TOP, 0.90), (_TOP, 0.50)),
    Ordering("Table 7 and 8", (_SKETCH, 0.50), (_TOP, 0.50)),
)


def judged(row: Mapping[str, Any]) -> str:
    """Return whether a row is harmless, harmful or open."""
    if row["high"] <= HARMLESS:
        return "harmless"
    return "harmful" if row["low"] > 0 else "open"


def printed(row: Mapping[str, Any]) -> str:
    """Return whether the paper's point is harmless or harmful; empty if it printed none."""
    if row["published"] is None:
        return ""
    return "harmless" if row["published"] <= PRINTED_NOISE else "harmful"


def ordered(ordering: Ordering, rows: Rows) -> str | None:
    """Return whether an ordering holds, is contradicted or open; None if the rows do not have both points."""
    found = {(row["family"], row["dropped"]): row for row in rows}
    if ordering.worse not in found or ordering.better not in found:
        return None
    worse, better = found[ordering.worse], found[ordering.better]
    apart = worse["change"] - better["change"]
    unsure = math.hypot(*((row["high"] - row["low"]) / 2 for row in (worse, better)))
    if abs(apart) <= unsure:
        return f"open ({apart:+.2f} % +- {unsure:.2f})"
    return f"{'holds' if apart > 0 else 'contradicted'} ({apart:+.2f} % +- {unsure:.2f})"


def verdict_text(rows: Rows) -> str:
    """Return points and orderings as text."""
    lines = [f"{'family':36} {'dropped':>7} {'change of the loss, %':>24} {'printed':>8}  ours / printed"]
    for row in rows:
        found = f"{row['change']:+.2f} ({row['low']:+.2f} to {row['high']:+.2f})"
        other = "" if row["published"] is None else f"{row['published']:+.2f}"
        said = " / ".join(word for word in (judged(row), printed(row)) if word)
        lines.append(f"{row['family']:36} {100 * row['dropped']:6g}% {found:>24} {other:>8}  {said}")
    checked = [(ordering, ordered(ordering, rows)) for ordering in ORDERINGS]
    return "\n".join([*lines, "", *(f"{ordering}: {verdict}" for ordering, verdict in checked if verdict is not None)])
