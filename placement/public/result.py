"""What solving a public instance gave: a value that an independent judge computed, and a proven bound."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class BenchResult:
    """Value and bound of one instance, in the unit of its objective (lower is better).

    Parameters
    ----------
    instance : str
        Name of the instance.
    value : float
        Objective of the solution, as its judge computed it.
    bound : float
        No solution is below this; equal to ``value`` when the solution is proven optimal.
    seconds : float
        Wall time.
    solution : mapping
        The solution, in the terms of the instance's format.
    """

    instance: str
    value: float
    bound: float
    seconds: float
    solution: dict[str, Any] = field(repr=False)

    @property
    def gap(self) -> float:
        """(value - bound) / value; 0 when proven optimal."""
        return max(0.0, (self.value - self.bound) / self.value) if self.value > 0 else 0.0
