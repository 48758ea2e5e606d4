"""``hiertrain simulate``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hiertrain.output import emit, progress_bar
from problem.whole_file import check_target

if TYPE_CHECKING:
    from placement.plan import Plan
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
        Cores | None,
        typer.Option(
            help="Threads share their node's cores, none, or their host's; default: none for local:N, else node."
        ),
    ] = None,
    fidelity: Annotated[Level, typer.Option(help="Closed form, first come first served, or fair shares.")] = Level.AUTO,
    faults: Annotated[Path | None, typer.Option(help="File of stragglers, slow nodes, racks, failures.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write the timeline for Perfetto to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Predict throughput, utilisation and bottleneck of a plan.

    Example: hiertrain simulate plan.json --trace timeline.json
    """
    from hiertrain.simulation_text import simulation_json, simulation_text
    from placement.planfile import load_plan
    from simulator.conditions import UNDISTURBED, Conditions
    from simulator.conditions_file import load_conditions
    from simulator.machines import Sharing
    from simulator.perfetto import write_trace
    from simulator.relief import relieve
    from simulator.simulate import simulate

    check_target(trace)
    loaded, disturbed = load_plan(plan), load_conditions(faults) if faults is not None else UNDISTURBED
    settings: dict[str, Any] = {"steps": steps, "fidelity": str(fidelity)}
    settings["sharing"] = Sharing(cores) if cores is not None else None

    def simulated(changed: Plan, conditions: Conditions, **more: Any) -> SimulationResult:
        with progress_bar("simulating") as watch:
            return simulate(changed, loaded.costs, conditions=conditions, progress=watch, **settings, **more)

    result = simulated(loaded.plan, disturbed, record=trace is not None)
    relief = relieve(
        loaded.plan, loaded.costs, disturbed, result, lambda other, now: simulated(other, now, record=False)
    )
    if trace is not None and result.timeline is not None:
        write_trace(trace, result.timeline)
    emit(
        as_json,
        simulation_json(loaded.plan, result, relief),
        lambda: simulation_text(loaded.plan, result, relief),
    )
