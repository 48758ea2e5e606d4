"""``hiertrain run``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hiertrain.output import emit, progress

if TYPE_CHECKING:
    from executor.run import RunResult


class ClockName(StrEnum):
    """Clock of the throughput."""

    WALL = "wall"
    CPU = "cpu"
    PACED = "paced"


def command(
    plan: Annotated[Path, typer.Argument(help="Plan file, from hiertrain solve.")],
    steps: Annotated[int, typer.Option(min=2, help="Batches of every thread.")] = 100,
    clock: Annotated[ClockName, typer.Option(help="Clock of the throughput.")] = ClockName.CPU,
    data: Annotated[Path | None, typer.Option(help="Click log in a Criteo layout; default: synthetic clicks.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write the timeline for Perfetto to this file.")] = None,
    hang_seconds: Annotated[float, typer.Option(min=0.1, help="End the run when a worker hangs for so long.")] = 60.0,
    checkpoint: Annotated[Path | None, typer.Option(help="Folder to save the run in; the end is saved too.")] = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between two checkpoints.")] = 1000,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint, if there is one.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Train a plan for real on this machine, one process per worker.

    Example: hiertrain run plan.json --steps 200 --data clicks.tsv
    """
    from experiments.training import Checkpoints, train
    from placement.planfile import load_plan

    loaded = load_plan(plan)
    saved = Checkpoints(checkpoint, checkpoint_every, resume)
    with progress("training") as watch:
        outcome = train(loaded.plan, loaded.costs, steps, str(clock), data, hang_seconds, watch, saved)
    if trace is not None:
        from simulator.perfetto import write_trace

        write_trace(trace, outcome.result.timeline)
    document = {**outcome.to_json_dict(), "backend": "processes"}
    emit(as_json, document, lambda: _text(outcome.result, document))


def _text(result: RunResult, document: dict[str, Any]) -> str:
    quality = document["normalized_entropy"]
    lines = [
        f"measured    {result.samples_per_second:,.0f} samples/s on the {result.clock} clock, "
        f"{result.wall_samples_per_second:,.0f} on the wall",
        f"workers     {len(result.workers)} processes, {document['steps'] - result.first_step} steps",
        f"loss        {document['first_loss']:.4f} at first, {document['loss']:.4f} in the end",
        f"quality     normalised entropy {quality:.4f} ({document['evaluated_on']})" if quality is not None else "",
        *(f"note: {note}" for note in result.notes),
    ]
    return "\n".join(line for line in lines if line)
