"""``hiertrain bench``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hiertrain.output import emit, progress, table

if TYPE_CHECKING:
    from experiments.public_bench import Row


def command(
    suite: Annotated[str, typer.Argument(help="msr, pipedream or piper.")],
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of the suite's instances, as their repositories have it.")
    ],
    time_limit: Annotated[float, typer.Option(min=0.01, help="Seconds for each instance that has a limit.")] = 60.0,
    contiguous: Annotated[bool, typer.Option("--contiguous", help="msr: contiguous splits, exactly.")] = False,
    only: Annotated[str, typer.Option(help="Only instances whose name contains this.")] = "",
    seed: Annotated[int, typer.Option(help="Seed of the solvers.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Threads of the solvers.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Solve public placement instances in their own objectives, beside the best values known.

    Example: hiertrain bench pipedream profiles --only vgg16
    """
    from experiments.public_bench import BenchOptions, bench

    options = BenchOptions(time_limit, contiguous, only, seed, workers)
    rows: list[Row] = []
    try:
        with progress(f"bench {suite}") as news:
            for row in bench(suite, folder, options):
                rows.append(row)
                news(f"{row.instance}: {row.value:.6g}")
    finally:  # also what was finished before Ctrl-C
        if rows:
            emit(as_json, {"rows": [row.as_dict() for row in rows]}, lambda: _text(rows))


def _text(rows: list[Row]) -> str:
    cells = [
        (
            row.instance,
            f"{row.value:.6g}",
            f"{row.bound:.6g}",
            f"{100 * row.gap:.2f} %",
            f"{row.seconds:.1f}",
            "-" if row.published is None else f"{row.published:.6g}",
        )
        for row in rows
    ]
    return table(("instance", "value", "bound", "gap", "s", "published"), cells)
