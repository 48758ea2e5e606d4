"""``hiertrain sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hiertrain.output import emit, progress


def command(
    file: Annotated[Path, typer.Argument(help="Sweep file (.toml): lists under [grid], settings under [do].")],
    out: Annotated[
        Path, typer.Option("--out", help="Folder for rows.csv and manifest.json; an earlier sweep goes on.")
    ],
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Plan and simulate every combination of a grid; interrupted sweeps go on where they stopped.

    Example: hiertrain sweep grid.toml --out out/sweep --jobs 2
    """
    from experiments.sweep import load_sweep, run_sweep

    sweep = load_sweep(file)
    with progress("sweeping") as watch:
        rows = run_sweep(sweep, out, jobs=jobs, watch=watch)
    failed = sum(row["status"] == "failed" for row in rows)
    emit(as_json, {"rows": rows}, lambda: f"{len(rows)} scenarios, {failed} failed; rows in {out / 'rows.csv'}")
