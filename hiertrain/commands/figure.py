"""``hiertrain figure``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hiertrain.output import emit, progress, table
from problem.errors import BadInput


def command(
    name: Annotated[str | None, typer.Argument(help="Figure, or all; see --list.")] = None,
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
        raise BadInput("figure", "name", name, f"all, or one of {', '.join(FIGURES)}")
    made = {}
    for each in FIGURES if name == "all" else (name,):
        with progress(each) as watch:
            made[each] = make_figure(each, out, watch)
        if not as_json:
            print(_said(each, made[each], out), flush=True)
    if as_json:
        emit(as_json, {"rows": made[name]} if name != "all" else {"figures": made}, str)


def _said(name: str, rows: list[dict[str, Any]], out: Path) -> str:
    """Return what a figure has to say, and where its files are."""
    from experiments.figures import FIGURES

    say = FIGURES[name].say
    where = f"{len(rows)} rows in {out / name}.csv, drawn in {out / name}.png and .svg"
    return f"{say(rows)}\n\n{where}" if say else where
