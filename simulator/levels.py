"""One plan at every level: what each predicts, how far it is from the closest one, what it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cost_models.costs import CostTable
from placement.plan import Plan
from simulator.fidelity import Fidelity
from simulator.result import SimulationResult
from simulator.simulate import simulate


@dataclass(frozen=True)
class Level:
    """A prediction of one level; ``gap`` is how much it is above the most detailed one that was run."""

    fidelity: Fidelity
    result: SimulationResult
    gap: float


def compare_levels(
    plan: Plan,
    costs: CostTable,
    levels: tuple[Fidelity, ...] = (Fidelity.BOUND, Fidelity.FIFO, Fidelity.FLUID),
    **settings: Any,
) -> tuple[Level, ...]:
    """Simulate a plan at several levels.

    Parameters
    ----------
    plan, costs
        As for :func:`simulator.simulate.simulate`.
    levels : tuple of Fidelity
        From coarse to fine; the last is what the others are compared with.
    **settings
        Further settings of ``simulate``; no timeline is kept.
    """
    results = [simulate(plan, costs, **{**settings, "fidelity": level, "record": False}) for level in levels]
    finest = results[-1].samples_per_second
    return tuple(
        Level(result.fidelity, result, result.samples_per_second / finest - 1.0)
        if finest
        else Level(level, result, 0.0)
        for level, result in zip(levels, results, strict=True)
    )


def levels_text(levels: tuple[Level, ...]) -> str:
    """Return a table of the levels: throughput with interval, gap, steps, events and seconds."""
    lines = [f"{'level':6} {'samples/s':>14} {'+-':>10} {'gap':>8} {'steps':>6} {'events':>10} {'seconds':>8}"]
    for level in levels:
        found = level.result
        lines.append(
            f"{level.fidelity:6} {found.samples_per_second:14,.0f} {found.ci95:10,.0f} {level.gap:+8.1%} "
            f"{found.steps:6} {found.events:10,} {found.wall_seconds:8.2f}"
        )
    return "\n".join(lines)
