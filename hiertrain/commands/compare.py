"""``hiertrain compare``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hiertrain.output import emit, progress, table
from problem.units import format_throughput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.compare import Comparison


def command(
    plans: Annotated[list[Path], typer.Argument(help="Plan files, from hiertrain solve.")],
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of measuring and running in turn.")] = 5,
    steps: Annotated[int, typer.Option(min=5, help="Batches of every thread in each run.")] = 30,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Lay prediction and measurement side by side, on this machine, with the blame by part.

    Example: hiertrain compare plan-a.json plan-b.json
    """
    from experiments.compare import compare
    from placement.planfile import load_plan

    loaded = [replace(load_plan(path).plan, name=name) for path, name in zip(plans, names(plans), strict=True)]
    with progress("comparing") as watch:
        found = compare(loaded, rounds=rounds, steps=steps, watch=watch)
    emit(as_json, to_json(found), lambda: to_text(found))


def names(plans: Sequence[Path]) -> list[str]:
    """Return what to call plans: their files' names, whole paths where those are not distinct."""
    stems = [path.stem for path in plans]
    return stems if len(set(stems)) == len(stems) else [str(path) for path in plans]


def to_json(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return the rows of a comparison, ready for ``json.dumps``."""
    from experiments.compare import misranked

    return {"rows": [found.to_json_dict() for found in comparisons], "misranked": list(misranked(comparisons))}


def to_text(comparisons: Sequence[Comparison]) -> str:
    """Return the tables of a comparison."""
    from experiments.compare import misranked

    rows = [
        (
            found.plan.name,
            format_throughput(found.middle("predicted")),
            format_throughput(found.middle("measured")),
            f"{found.ratio:.2f}",
            f"{min(found.ratios):.2f}-{max(found.ratios):.2f}",
            f"{1e3 * found.step_seconds:.1f}",
            format_throughput(found.middle("wall_predicted")),
            format_throughput(found.middle("wall_measured")),
        )
        for found in comparisons
    ]
    head = [
        "samples/s (cpu clock)",
        "predicted",
        "measured",
        "ratio",
        "range",
        "ms/step",
        "wall: predicted",
        "measured",
    ]
    wrong = list(misranked(comparisons))
    verdict = "agree" if not wrong else "disagree on " + ", ".join(f"{a} and {b}" for a, b in wrong)
    lines = [table(head, rows), "", f"rankings by prediction and by measurement (differences above 10 %): {verdict}"]
    lines += [f"wall clock of {c.plan.name}: {c.wall_verdict}" for c in comparisons if c.wall_verdict]
    return "\n".join([*lines, "", _blame(comparisons)])


def _blame(comparisons: Sequence[Comparison]) -> str:
    """Where the difference comes from: predicted > measured, by part."""
    parts = list(comparisons[0].blame())
    rows = [
        (found.plan.name, *(f"{1e3 * a:.2f} > {1e3 * b:.2f}" for a, b in found.blame().values()))
        for found in comparisons
    ]
    return table(["ms per rank step, predicted > measured", *parts], rows)
