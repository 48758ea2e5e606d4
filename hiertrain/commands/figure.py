"""``hiertrain figure``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hiertrain.output import emit, progress, table
from problem.errors import BadInput


def command(
    name: Annotated[str | None, typer.Argument(help="Figure; see --list.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for rows, PNG and SVG.")] = Path("out/figures"),
    show_list: Annotated[bool, typer.Option("--list", help="List the figures.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Make a figure: its rows, and a picture drawn from them.

    Example: hiertrain figure group-size --out out/figures
    """
    from experiments.figures import FIGURES, make_figure

    if show_list:
        found = [(info.name, info.question, str(info.minutes)) for info in FIGURES.values()]
        emit(as_json, {"figures": [row[0] for row in found]}, lambda: table(("figure", "question", "minutes"), found))
        return
    if name is None:
        raise BadInput("figure", "name", name, f"one of {', '.join(FIGURES)}")
    with progress(name) as watch:
        rows = make_figure(name, out, watch)
    say = FIGURES[name].say
    said = f"{len(rows)} rows in {out / name}.csv, drawn in {out / name}.png and .svg"
    emit(as_json, {"rows": rows}, lambda: f"{say(rows)}\n\n{said}" if say else said)
