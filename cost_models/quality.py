"""What codecs cost in quality, as measured: the table that a guard may use.

Measured by training a small DLRM on planted clicks (``experiments.quality``; docs/codecs.md): five seeds, pairs of runs with
and without the codec, loss over the last quarter of a single pass. **One task, one model, short runs:** changes shrink
at first as runs get longer, those of cuts not to nothing (docs/figures.md, dct-mp-length), and another model may do worse. A
codec that was not measured at a place is not known to be harmless.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

#: The measurements.
TABLE = Path(__file__).parent / "data" / "quality.csv"
CUTS = ("bottom cut", "top cut", "two cuts")
FIELDS = ("place", "codec", "steps", "seeds", "wire", "change", "low", "high")


@dataclass(frozen=True, slots=True)
class QualityChange:
    """What a codec did to the normalised entropy at one place.

    Parameters
    ----------
    place : str
        One of :data:`CUTS` (a cut in the bottom MLP, in the top MLP, both at once), ``pooled``, ``push``, ``allreduce``,
        ``exchange``.
    codec : str
        As in a plan.
    steps, seeds : int
        Length of the runs in batches of 128 samples, and pairs of runs.
    wire : float
        Bytes on the wire over those of float32; 1 where they were not counted.
    change, low, high : float
        Relative change in percent, positive is worse: mean, and the ends of its 95 % interval.
    """

    place: str
    codec: str
    steps: int
    seeds: int
    wire: float
    change: float
    low: float
    high: float

    def is_within(self, percent: float) -> bool:
        """Whether even the worse end of the interval is at most so many percent."""
        return self.high <= percent


@cache
def quality_changes() -> tuple[QualityChange, ...]:
    """Return all measurements."""
    with TABLE.open(newline="") as file:
        return tuple(
            QualityChange(
                row["place"],
                row["codec"],
                int(row["steps"]),
                int(row["seeds"]),
                *(float(row[field]) for field in ("wire", "change", "low", "high")),
            )
            for row in csv.DictReader(file)
        )


def measured_lengths() -> tuple[int, int]:
    """Return the steps of the shortest and of the longest runs in which something was measured."""
    lengths = [found.steps for found in quality_changes()]
    return min(lengths), max(lengths)


def quality_change(place: str, codec: str) -> QualityChange | None:
    """Return the measurement of a codec at a place; None if there is none."""
    return next((found for found in quality_changes() if (found.place, found.codec) == (place, codec)), None)


def worst_at_cuts(codec: str) -> QualityChange | None:
    """Return the worst that was measured of a codec at any cut, by the end of its interval; None if nothing was."""
    found = [one for one in quality_changes() if one.place in CUTS and one.codec == codec]
    return max(found, key=lambda one: one.high, default=None)
