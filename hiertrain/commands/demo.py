"""``hiertrain demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from executor.coretype import settle
from hiertrain.commands.compare import to_text
from hiertrain.commands.solve import to_text as solved
from hiertrain.output import emit, progress


def command(
    out: Annotated[Path, typer.Option("--out", help="Folder for plans, timeline, rows and picture.")] = Path(
        "out/demo"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of measuring and running in turn.")] = 5,
    steps: Annotated[int, typer.Option(min=5, help="Batches of every thread in each run.")] = 30,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Do the whole job on this machine: measure, plan, transform, simulate, run, compare.

    Example: hiertrain demo --out out/demo
    """
    with progress("looking for the fastest kernels of OpenBLAS"):
        settle(measured=True)
    from experiments.demo import demo

    with progress("demo") as watch:
        found = demo(out, rounds=rounds, steps=steps, watch=watch)
    emit(
        as_json,
        found.to_json_dict(),
        lambda: f"{solved(found.chosen)}\n\n{to_text(found.comparisons)}\n\nfiles and picture in {out}",
    )
