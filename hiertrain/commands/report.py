"""``hiertrain report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hiertrain.output import emit, progress
from problem.whole_file import check_target


def command(
    plan: Annotated[Path, typer.Argument(help="Plan file, from hiertrain solve.")],
    out: Annotated[Path, typer.Option("--out", help="HTML file to write.")] = Path("plan.html"),
    steps: Annotated[int, typer.Option(min=5, help="Steps of every thread, simulated and run.")] = 20,
    measure: Annotated[bool, typer.Option("--measure", help="Run the plan on this machine, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write a page about a plan: machines and operators, timelines, group sizes, what would change it.

    Example: hiertrain report plan.json --out plan.html
    """
    from executor.run import RunOptions, run
    from experiments.report.page import ReportInput, write_report
    from placement.planfile import load_plan
    from simulator.simulate import simulate

    check_target(out)
    loaded = load_plan(plan)
    with progress("simulating") as tell:
        simulated = simulate(loaded.plan, loaded.costs, steps=steps, record=True)
        if measure:
            tell("running the plan")
        measured = run(loaded.plan, RunOptions(steps=steps)) if measure else None
        write_report(out, ReportInput(loaded, simulated, measured))
    document = {
        "page": str(out),
        "bytes": out.stat().st_size,
        "simulated": simulated.samples_per_second,
        "measured": measured.samples_per_second if measured else None,
    }
    emit(as_json, document, lambda: f"{out}: {out.stat().st_size:,} bytes, opens in any browser")
