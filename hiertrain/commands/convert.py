"""``hiertrain convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hiertrain.output import emit, progress, table
from problem.errors import BadInput


def command(
    source: Annotated[str | None, typer.Argument(metavar="IN", help="Plan, model, cluster or placement.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write.")] = None,
    to: Annotated[str | None, typer.Option(help="Format to write; default: by the ending of --out.")] = None,
    form: Annotated[str | None, typer.Option("--format", help="Format of IN; default: by its content.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Machines, for the placement of another tool.")] = None,
    model: Annotated[str | None, typer.Option(help="Model, for a placement that does not describe its tables.")] = None,
    costs: Annotated[Path | None, typer.Option(help="Kineto trace, for the durations of an execution trace.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the formats that are read.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write a model, a cluster or a plan in another format.

    Example: hiertrain convert plan.json --to torchrec --out sharding_plan.json
    """
    if show_list:
        from problem.formats.registry import FORMATS

        rows = [(form.name, ", ".join(form.becomes), form.what) for form in FORMATS if form.readers]
        emit(as_json, {"formats": [row[0] for row in rows]}, lambda: table(("format", "becomes", "what"), rows))
        return
    if source is None or out is None:
        raise BadInput("convert", "IN" if source is None else "--out", None, "a file to read, and --out for the result")
    from hiertrain.converting import Request, convert

    with progress("converting"):
        read, written = convert(Request(source, out, to, cluster, model, costs), form)
    document = {"read": read, "written": written, "out": str(out)}
    emit(as_json, document, lambda: f"{read} {source} written as {written} to {out}")
