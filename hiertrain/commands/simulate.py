"""``hiertrain simulate``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hiertrain.output import emit, progress, table

if TYPE_CHECKING:
    from simulator.result import SimulationResult


class Level(StrEnum):
    """How closely time is followed."""

    AUTO = "auto"
    BOUND = "bound"
    FIFO = "fifo"
    FLUID = "fluid"


class Cores(StrEnum):
    """Who shares cores in the simulation."""

    NODE = "node"
    NONE = "none"
    HOST = "host"


def command(
    plan: Annotated[Path, typer.Argument(help="Plan file, from hiertrain solve.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps of every thread.")] = 60,
    cores: Annotated[
        Cores | None, typer.Option(help="Threads share their node's cores, none, or their host's.")
    ] = None,
    fidelity: Annotated[Level, typer.Option(help="Closed form, first come first served, or fair shares.")] = Level.AUTO,
    faults: Annotated[Path | None, typer.Option(help="File of stragglers, slow nodes, racks, failures.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write the timeline for Perfetto to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Predict throughput, utilisation and bottleneck of a plan.

    Example: hiertrain simulate plan.json --trace timeline.json
    """
    from placement.planfile import load_plan
    from simulator.conditions import UNDISTURBED
    from simulator.conditions_file import load_conditions
    from simulator.machines import Sharing
    from simulator.perfetto import write_trace
    from simulator.simulate import simulate

    loaded = load_plan(plan)
    with progress("simulating"):
        result = simulate(
            loaded.plan,
            loaded.costs,
            steps=steps,
            sharing=Sharing(cores) if cores is not None else None,
            record=trace is not None,
            fidelity=str(fidelity),
            conditions=load_conditions(faults) if faults is not None else UNDISTURBED,
        )
    if trace is not None and result.timeline is not None:
        write_trace(trace, result.timeline)
    emit(as_json, result.to_json_dict(), lambda: _text(result))


def _text(result: SimulationResult) -> str:
    resources = ("cpu", "memory_bandwidth", "nic_tx", "nic_rx")
    used = [
        (role, *(f"{100 * found.get(resource, 0.0):.0f} %" for resource in resources))
        for role, found in result.utilization.items()
    ]
    split = ", ".join(f"{name.replace('_', ' ')} {1e3 * s:.2f} ms" for name, s in result.time_split.items() if s > 0)
    lines = [
        f"predicted   {result.samples_per_second:,.0f} samples/s (95 % interval +- {result.ci95:,.0f})",
        f"bottleneck  {result.bottleneck}",
        f"rank's step {split}",
        "",
        table(("busy", "cpu", "memory bandwidth", "nic tx", "nic rx"), used),
        "",
        *(f"happened: {sentence}" for sentence in result.happened),
        *(f"left out: {sentence}" for sentence in result.left_out),
    ]
    return "\n".join(lines)
