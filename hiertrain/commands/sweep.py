"""``hiertrain sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hiertrain.output import emit, progress
from problem.errors import BadInput

if TYPE_CHECKING:
    from concurrent.futures import Executor


def command(
    file: Annotated[Path, typer.Argument(help="Sweep file (.toml): lists under [grid], settings under [do].")],
    out: Annotated[
        Path, typer.Option("--out", help="Folder for rows.csv and manifest.json; an earlier sweep goes on.")
    ],
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    mpi: Annotated[bool, typer.Option("--mpi", help="Under mpiexec: the first rank hands out, the others do.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Plan and simulate every combination of a grid; interrupted sweeps go on where they stopped.

    Example: hiertrain sweep grid.toml --out out/sweep --jobs 2

    Example: mpiexec -n 9 hiertrain sweep grid.toml --out out/sweep --mpi
    """
    if not mpi:
        _sweep(file, out, as_json, jobs)
        return
    from executor.mpi import rank_pool

    with rank_pool() as found:
        if found is not None:
            pool, ranks = found
            _sweep(file, out, as_json, ranks, pool)


def _sweep(file: Path, out: Path, as_json: bool, jobs: int, pool: Executor | None = None) -> None:
    from experiments.sweep import load_sweep, run_sweep

    sweep = load_sweep(file)
    if pool is not None and sweep.do.run:
        raise BadInput(file, "do.run", True, "false with --mpi: a rank cannot start the processes of a run")
    with progress("sweeping") as watch:
        rows = run_sweep(sweep, out, jobs=jobs, watch=watch, pool=pool)
    failed = sum(row["status"] == "failed" for row in rows)
    emit(as_json, {"rows": rows}, lambda: f"{len(rows)} scenarios, {failed} failed; rows in {out / 'rows.csv'}")
