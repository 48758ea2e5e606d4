"""Sweeps: a grid of scenarios, planned, simulated and (if asked for) run; one row each.

A sweep file is TOML: lists under ``[grid]``, one setting each under ``[do]``; every combination of the lists is a scenario.
A scenario's row is written the moment it is known, under a key made from the scenario alone, so that an interrupted sweep
goes on where it stopped: nothing is computed twice and nothing is lost. A scenario that fails is a row with its reason.
Results are rows.csv and manifest.json; plots are made from the rows by others.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import hashlib
import io
import itertools
import json
import multiprocessing
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from cost_models.checked_json import write_json
from cost_models.roofline import roofline_costs
from executor.supervisor import die_with
from experiments.training import train
from placement.result import PlacementResult
from placement.search.job import solve
from placement.search.options import SolveOptions
from problem.cluster import Cluster
from problem.cluster_io import load_cluster
from problem.documents import read_document
from problem.errors import HiertrainError
from problem.model import Model
from problem.readers import load_model, with_max_rows
from problem.schema import Schema, validate
from problem.units import parse_rate
from problem.whole_file import made_folder
from simulator.simulate import simulate

Count = Literal["auto"] | Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
T = TypeVar("T")
OneOrMore = Annotated[tuple[T, ...], Field(min_length=1)]


class Grid(Schema):
    """The lists of a sweep; every combination is a scenario. ``auto`` leaves a value to the solver or the model.

    Groups have all their nodes as ranks (``all``) unless told otherwise.
    """

    model: OneOrMore[str] = Field(description="a list of models")
    cluster: OneOrMore[str] = Field(description="a list of clusters")
    batch: OneOrMore[Count] = ("auto",)
    hogwild: OneOrMore[Count] = ("auto",)
    group_size: OneOrMore[Count] = ("auto",)
    ranks: OneOrMore[Literal["all"] | Count] = ("all",)
    max_replicas: OneOrMore[Annotated[int, Field(ge=1)]] = (15,)
    nic_gbps: OneOrMore[Literal["auto"] | Positive] = ("auto",)
    sync_gap: OneOrMore[Annotated[int, Field(ge=1)]] = (8,)
    sync_mode: OneOrMore[Literal["background", "foreground"]] = ("background",)
    sync_algorithm: OneOrMore[Literal["easgd", "ma", "bmuf", "push"]] = ("easgd",)
    max_rows: OneOrMore[Count] = ("auto",)
    seed: OneOrMore[int] = (0,)


class Do(Schema):
    """What is done with each scenario: ``simulate`` and ``run`` its plan, with so many ``steps`` each.

    ``time_limit`` (seconds) and ``gap`` (relative) end each search.
    """

    simulate: bool = True
    run: bool = False
    steps: Annotated[int, Field(ge=5)] = 30
    time_limit: Positive = 20.0
    gap: Annotated[float, Field(ge=0)] = 0.01


class Sweep(Schema):
    """A sweep file."""

    grid: Grid = Field(description="the lists of the sweep")
    do: Do = Do()

    def scenarios(self) -> Iterator[dict[str, Any]]:
        """Yield every combination of the grid's lists, the last list fastest."""
        lists = self.grid.model_dump()
        for values in itertools.product(*lists.values()):
            yield dict(zip(lists, values, strict=True))


def load_sweep(path: Path) -> Sweep:
    """Read a sweep file.

    Raises
    ------
    BadInput
        The file cannot be read, or a key or value is not allowed.
    """
    return validate(Sweep, read_document(path))


def key_of(scenario: dict[str, Any], do: Do) -> str:
    """Name of a scenario: the same whenever the same is asked for."""
    text = json.dumps([scenario, do.model_dump()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ---- one scenario


def evaluate_scenario(scenario: dict[str, Any], do: Do) -> dict[str, Any]:
    """Plan a scenario, simulate and run it as asked; returns its row. Never raises what a scenario can cause."""
    row: dict[str, Any] = {"key": key_of(scenario, do), **scenario, "status": "done", "reason": ""}
    try:
        model, cluster = _model(scenario), _cluster(scenario)
        result = solve(model, cluster, functools.partial(roofline_costs, model), _options(scenario, do))
        row |= _planned(result)
        if do.simulate:
            row |= _simulated(result, do.steps)
        if do.run:
            row |= _trained(result, do.steps)
    except HiertrainError as error:
        row |= {"status": "failed", "reason": " ".join(str(error).split())}
    return row


def _model(scenario: dict[str, Any]) -> Model:
    model, rows = load_model(scenario["model"]), scenario["max_rows"]
    return model if rows == "auto" else with_max_rows(model, rows)


def _cluster(scenario: dict[str, Any]) -> Cluster:
    cluster, rate = load_cluster(scenario["cluster"]), scenario["nic_gbps"]
    if rate == "auto":
        return cluster
    bytes_per_second = parse_rate(rate, bare="Gb/s")
    return replace(cluster, nodes=tuple(replace(n, nic_bytes_per_second=bytes_per_second) for n in cluster.nodes))


def _options(scenario: dict[str, Any], do: Do) -> SolveOptions:
    chosen = {name: None if value == "auto" else value for name, value in scenario.items()}
    return SolveOptions(
        batch=chosen["batch"],
        hogwild=chosen["hogwild"],
        group_size=chosen["group_size"],
        ranks=None if scenario["ranks"] == "all" else scenario["ranks"],
        max_replicas=scenario["max_replicas"],
        sync_gap=scenario["sync_gap"],
        sync_mode=scenario["sync_mode"],
        sync_algorithm=scenario["sync_algorithm"],
        seed=scenario["seed"],
        time_limit_seconds=do.time_limit,
        gap=do.gap,
        curve=False,  # rows do not show it
    )


def _planned(result: PlacementResult) -> dict[str, Any]:
    best = result.best_baseline
    return {
        "planned_group_size": result.plan.group_size,
        "groups": len(result.plan.groups),
        "servers": len(result.plan.servers),
        "elp": result.plan.elp,
        "mp_operators": sum(tag != "dp" for tag in result.plan.tags.values()),
        "planned_samples_per_second": result.objective,
        "bound_samples_per_second": result.bound,
        "gap": result.gap,
        "best_baseline": best.name if best else "",
        "baseline_samples_per_second": best.samples_per_second if best else None,
        "bottleneck": result.bottleneck,
        "solve_seconds": result.solve_seconds,
    }


def _simulated(result: PlacementResult, steps: int) -> dict[str, Any]:
    found = simulate(result.plan, result.costs, steps=steps, record=False)
    return {
        "simulated_samples_per_second": found.samples_per_second,
        "ci95": found.to_json_dict()["ci95"],
        "simulated_bottleneck": found.bottleneck,
        "simulate_seconds": found.wall_seconds,
    }


def _trained(result: PlacementResult, steps: int) -> dict[str, Any]:
    outcome = train(result.plan, result.costs, steps).to_json_dict()
    names = ("samples_per_second", "wall_samples_per_second", "loss", "normalized_entropy")
    return {f"measured_{name}": outcome[name] for name in names}


# ---- the whole sweep


def run_sweep(
    sweep: Sweep,
    out: Path,
    *,
    jobs: int = 1,
    watch: Callable[[str], None] | None = None,
    pool: Executor | None = None,
) -> list[dict[str, Any]]:
    """Evaluate all scenarios that have no row yet, and write rows.csv and manifest.json.

    Parameters
    ----------
    sweep : Sweep
        What to do.
    out : Path
        Folder; rows that it holds already are kept.
    jobs : int
        Processes.
    watch : callable, optional
        Told how far the sweep is and how long it may take.
    pool : Executor, optional
        Where scenarios are evaluated, ``jobs`` at once; None: in processes of this machine.

    Returns
    -------
    list of dict
        All rows, in the order of the scenarios.
    """
    made_folder(out)
    scenarios = {key_of(scenario, sweep.do): scenario for scenario in sweep.scenarios()}
    rows = {key: row for key, row in _kept(out).items() if key in scenarios}
    missing = [scenario for key, scenario in scenarios.items() if key not in rows]
    try:
        with contextlib.nullcontext(pool) if pool is not None else _processes(jobs) as chosen:
            for row in _evaluated(missing, sweep.do, chosen, jobs, watch or (lambda news: None)):
                _append(out, row)
                rows[row["key"]] = row
    finally:
        ordered = [rows[key] for key in scenarios if key in rows]
        _write(out, sweep, ordered, len(scenarios))
    return ordered


@contextlib.contextmanager
def _processes(jobs: int) -> Iterator[Executor]:
    """Yield a pool of processes, which end at once when the sweep does not come to its end."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, context, _end_with, (os.getpid(),)) as pool:
        try:
            yield pool
        except BaseException:
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _evaluated(
    scenarios: list[dict[str, Any]], do: Do, pool: Executor, jobs: int, watch: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    began, todo, number = time.monotonic(), iter(scenarios), 0
    pending: set[Future[dict[str, Any]]] = set()
    while True:
        pending |= {pool.submit(evaluate_scenario, s, do) for s in itertools.islice(todo, 2 * jobs - len(pending))}
        if not pending:
            return
        done, pending = wait(pending, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()
        number += len(done)
        left = (time.monotonic() - began) / number * (len(scenarios) - number)
        watch(f"{number} of {len(scenarios)}, about {left:.0f} s left")


def _end_with(parent: int) -> None:
    """A worker has nothing to save: Ctrl-C, and the end of the sweep, end it at once and without words."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _kept(out: Path) -> dict[str, dict[str, Any]]:
    """Rows of an earlier run; a last line that was cut off in writing is left out."""
    path, rows = out / "rows.jsonl", {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            rows[row["key"]] = row
    return rows


def _append(out: Path, row: dict[str, Any]) -> None:
    with (out / "rows.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _write(out: Path, sweep: Sweep, rows: list[dict[str, Any]], scenarios: int) -> None:
    fields = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, fields)
    writer.writeheader()
    writer.writerows(rows)
    partial = out / ".rows.csv.partial"
    partial.write_text(text.getvalue())
    partial.replace(out / "rows.csv")
    manifest = {
        "command": sys.argv,
        "sweep": sweep.model_dump(),
        "scenarios": scenarios,
        "rows": len(rows),
        "failed": sum(row["status"] == "failed" for row in rows),
        "python": platform.python_version(),
        "machine": platform.processor() or platform.machine(),
    }
    write_json(manifest, out / "manifest.json")
