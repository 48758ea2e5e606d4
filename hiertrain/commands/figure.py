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
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=2, help="Runs of each setting (dct- studies); default: 5.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Processes at a time (dct- studies); default: 2.")
    ] = None,
    criteo: Annotated[
        Path | None, typer.Option("--criteo", help="Train a dct- study on a file in Criteo's layout.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--data-limit", min=1, help="Rows of the file to read at most.")] = None,
    held_out: Annotated[
        float, typer.Option("--held-out", help="Share of the rows, the last, to test on.", show_default="1/7")
    ] = 1 / 7,
    passes: Annotated[int, typer.Option("--passes", min=1, help="Times the other rows are read.")] = 1,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Samples of a step on the file.")] = 128,
    table_rows: Annotated[
        int, typer.Option("--table-rows", min=1, help="Rows of each table, to which categories are hashed.")
    ] = 100_000,
    show_list: Annotated[bool, typer.Option("--list", help="List the figures.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Make a figure: its rows, and a picture drawn from them.

    Example: hiertrain figure group-size --out out/figures
    """
    from experiments.figures import FIGURES, make_figure
    from experiments.quality.on_file import CriteoFile
    from experiments.quality.study import Effort

    if show_list:
        found = [(info.name, info.question, str(info.minutes)) for info in FIGURES.values()]
        emit(as_json, {"figures": [row[0] for row in found]}, lambda: table(("figure", "question", "minutes"), found))
        return
    if name is None:
        raise BadInput("figure", "name", name, f"all, or one of {', '.join(FIGURES)}")
    effort = Effort(seeds or Effort.seeds, jobs or Effort.jobs) if seeds or jobs else None
    file = CriteoFile(criteo, limit, held_out, passes, batch, table_rows) if criteo else None
    made = {}
    for each in FIGURES if name == "all" else (name,):
        with progress(each) as watch:
            made[each] = make_figure(each, out, watch, effort, file)
        if not as_json:
            print(_said(each, made[each], out, "-criteo" if file else ""), flush=True)
    if as_json:
        emit(as_json, {"rows": made[name]} if name != "all" else {"figures": made}, str)


def _said(name: str, rows: list[dict[str, Any]], out: Path, ending: str) -> str:
    """Return what a figure has to say, and where its files are."""
    from experiments.figures import FIGURES

    say = FIGURES[name].say
    written = out / f"{name}{ending}"
    where = f"{len(rows)} rows in {written}.csv, drawn in {written}.png and .svg"
    return f"{say(rows)}\n\n{where}" if say else where
