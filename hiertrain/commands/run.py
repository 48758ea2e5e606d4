"""``hiertrain run``."""

from __future__ import annotations

import os
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hiertrain.output import emit, progress, say, table
from problem.errors import BadInput
from problem.units import format_throughput
from problem.whole_file import check_target

if TYPE_CHECKING:
    from executor.guard import Badge
    from executor.run import RunResult
    from experiments.training import Outcome
    from placement.plan import Plan
    from placement.planfile import LoadedPlan


#: Processes for each core of this host above which a run is warned of.
CROWD = 50


class ClockName(StrEnum):
    """Clock of the throughput."""

    WALL = "wall"
    CPU = "cpu"
    PACED = "paced"


class Backend(StrEnum):
    """How workers run and talk."""

    PROCESSES = "processes"
    MPI = "mpi"


class Format(StrEnum):
    """Format of a click log."""

    AUTO = "auto"
    CRITEO = "criteo"
    CSV = "csv"
    PARQUET = "parquet"
    SLOTS = "slots"


def command(
    plan: Annotated[Path, typer.Argument(help="Plan file, from hiertrain solve.")],
    steps: Annotated[int, typer.Option(min=2, help="Batches of every thread.")] = 100,
    backend: Annotated[
        Backend, typer.Option(help="Processes of this machine, or ranks of mpiexec, one for each worker.")
    ] = Backend.PROCESSES,
    clock: Annotated[ClockName, typer.Option(help="Clock of the throughput.")] = ClockName.CPU,
    nic_rate: Annotated[
        str, typer.Option(help="Hold messages back (wall clock): 1Gb/s for every node, or 'plan': the plan's NICs.")
    ] = "",
    data: Annotated[Path | None, typer.Option(help="Click log to train on; default: synthetic clicks.")] = None,
    eval_data: Annotated[Path | None, typer.Option(help="Click log to measure the trained model with.")] = None,
    data_format: Annotated[Format, typer.Option(help="Format of click logs; auto: as the file looks.")] = Format.AUTO,
    hash_ids: Annotated[bool, typer.Option("--hash-ids", help="Hash ids to rows; otherwise they are rows.")] = False,
    label: Annotated[str, typer.Option(help="Column of the labels; default: label, click, clk or target.")] = "",
    dense_columns: Annotated[
        str, typer.Option(help="Columns of the dense features, with commas between; default: all left over.")
    ] = "",
    epochs: Annotated[
        int, typer.Option(min=0, help="Read the data so often and end; 0: --steps, round and round.")
    ] = 0,
    trace: Annotated[Path | None, typer.Option(help="Write the timeline for Perfetto to this file.")] = None,
    hang_seconds: Annotated[
        float, typer.Option(min=0.1, help="Seconds without progress of a worker that end the run.")
    ] = 60.0,
    checkpoint: Annotated[Path | None, typer.Option(help="Folder to save the run in; the end is saved too.")] = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between two checkpoints.")] = 1000,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint, if there is one.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the workers by MPI rank, and train nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Train a plan for real: on this machine, one process per worker, or under mpiexec on many.

    Example: hiertrain run plan.json --steps 200 --data clicks.tsv

    Example: mpiexec -n 6 hiertrain run plan.json --backend mpi
    """
    from executor.data.files import DataOptions
    from executor.guard import guarded
    from experiments.training import Checkpoints, Data, train, train_ranks
    from placement.planfile import load_plan

    if dry_run:
        _emit_ranks(load_plan(plan).plan, as_json)
        return
    saved = Checkpoints(checkpoint, checkpoint_every, resume)
    chosen = "" if data_format is Format.AUTO else str(data_format)
    options = DataOptions(chosen, hash_ids, label, tuple(filter(None, dense_columns.split(","))))
    logs = Data(data, options, epochs, eval_data)

    throttled = bool(nic_rate)

    def as_rank(badge: Badge) -> None:
        loaded = _load(plan, nic_rate)
        outcome = train_ranks(badge, loaded.plan, loaded.costs, steps, str(clock), logs, hang_seconds, saved, throttled)
        if outcome is not None:
            _emit(outcome, backend, trace, as_json)

    if backend is Backend.MPI:
        guarded(as_rank, hang_seconds)
        return
    check_target(trace)
    loaded = _load(plan, nic_rate)
    _warn(loaded.plan)
    with progress("training") as watch:
        outcome = train(loaded.plan, loaded.costs, steps, str(clock), logs, hang_seconds, watch, saved, throttled)
    _emit(outcome, backend, trace, as_json)


def _warn(plan: Plan) -> None:
    """Say so where a plan for a cluster is run on one host, which cannot end soon."""
    from executor.run_mpi import crew_of
    from programs.transform import transform

    processes, cores = len(crew_of(transform(plan))), os.cpu_count() or 1
    if processes > CROWD * cores:
        say(f"{processes:,} processes on {cores} cores: a step takes long (--dry-run lists them)")


def _load(path: Path, nic_rate: str) -> LoadedPlan:
    """Read a plan file; its nodes get NICs of a rate, if one is given."""
    from experiments.training import with_nics
    from placement.planfile import load_plan
    from problem.units import parse_rate

    loaded = load_plan(path)
    if nic_rate in {"", "plan"}:
        return loaded
    try:
        rate = parse_rate(nic_rate)
    except ValueError:
        raise BadInput("run", "nic_rate", nic_rate, "a rate such as 1Gb/s, or plan") from None
    return replace(loaded, plan=with_nics(loaded.plan, rate))


def _emit_ranks(plan: Plan, as_json: bool) -> None:
    from executor.run_mpi import crew_of, machine_of
    from programs.transform import transform

    rows = [
        {"rank": rank, "worker": worker.name, "machine": machine_of(worker), "node": worker.node.name}
        for rank, worker in enumerate(crew_of(transform(plan)))
    ]
    headers = ("rank", "worker", "machine", "node")
    document = {"ranks": len(rows), "workers": rows}
    emit(as_json, document, lambda: table(headers, [[str(row[name]) for name in headers] for row in rows]))


def _emit(outcome: Outcome, backend: Backend, trace: Path | None, as_json: bool) -> None:
    if trace is not None:
        from simulator.perfetto import write_trace

        write_trace(trace, outcome.result.timeline)
    document = {**outcome.to_json_dict(), "backend": str(backend)}
    emit(as_json, document, lambda: _text(outcome.result, document))


def _text(result: RunResult, document: dict[str, Any]) -> str:
    quality = document["normalized_entropy"]
    what = "ranks" if document["backend"] == Backend.MPI else "processes"
    lines = [
        f"measured    {format_throughput(result.samples_per_second)} samples/s on the {result.clock} clock, "
        f"{format_throughput(result.wall_samples_per_second)} on the wall",
        f"workers     {len(result.workers)} {what}, {document['steps'] - result.first_step} steps",
        f"loss        {document['first_loss']:.4f} at first, {document['loss']:.4f} in the end",
        f"quality     normalised entropy {quality:.4f} ({document['evaluated_on']})" if quality is not None else "",
        _held_out(document["held_out"]),
        *(f"note: {note}" for note in result.notes),
    ]
    return "\n".join(line for line in lines if line)


def _held_out(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    auc = "not defined" if found["auc"] is None else f"{found['auc']:.4f}"
    return (
        f"            log loss {found['loss']:.4f}, accuracy {found['accuracy']:.4f}, AUC {auc}, "
        f"base rate {found['base_rate']:.4f}, {found['samples']:,} samples"
    )
