"""The CPU test suite of Acun et al. beside ours: features, batch, MLP width; all published points, one scale a figure.

The scenario is ``experiments/scenarios/acun-suite.toml``, unchanged; its published points are normalised, so ours are
multiplied by one factor for each figure, the geometric mean of published over ours. That factor is the only thing fitted.
The same configurations appear in two of their figures with ratios of 0.80 to 1.23: nobody can be nearer than that.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.literature import simulated
from experiments.scenario_file import FOLDER, Scenario, load_scenario

PUBLISHED = Path(__file__).parents[1] / "published" / "acun_cpu.csv"
NOISE = (0.80, 1.23)

Row = dict[str, Any]
Watch = Callable[[str], None]


def features(watch: Watch) -> list[Row]:
    """How do dense features, tables and batch change the rate of one CPU trainer, beside the published suite?"""
    return _scaled(_rows(watch, figure="11"))


def mlp_width(watch: Watch) -> list[Row]:
    """How do width and depth of the MLPs change it, beside the published suite?"""
    return _scaled(_rows(watch, figure="13"))


def _published(figure: str) -> Iterator[dict[str, str]]:
    with PUBLISHED.open() as file:
        lines = [line for line in file if not line.startswith("#")]
    return (row for row in csv.DictReader(lines) if row["figure"] == figure)


def _rows(watch: Watch, figure: str) -> Iterator[Row]:
    scenario = load_scenario(FOLDER / "acun-suite.toml")
    for row in _published(figure):
        name = f"{row['dense_features']}-{row['sparse_features']}, {row['mlp']}, {row['batch']}"
        watch(name)
        ours = simulated(_with_case(scenario, name, row), name).samples_per_second
        sizes = {key: int(row[key]) for key in ("dense_features", "sparse_features", "batch")}
        yield {**sizes, "mlp": row["mlp"], "published": float(row["throughput"]), "ours": ours}


def _with_case(scenario: Scenario, name: str, row: Mapping[str, str]) -> Scenario:
    """Return the scenario with one more case."""
    width, _, depth = row["mlp"].partition("^")
    layers = [int(width)] * int(depth)
    tables = [{"name": "sparse", "count": int(row["sparse_features"]), "rows": 100_000, "pooling_factor": 32}]
    case = {
        "model.dense_features": int(row["dense_features"]),
        "model.tables": tables,
        "model.bottom_mlp": layers,
        "model.top_mlp": [*layers, 1],
        "job.batch": int(row["batch"]),
    }
    return replace(scenario, cases={**scenario.cases, name: case})


def _scaled(rows: Iterator[Row]) -> list[Row]:
    """Return rows with ours in the published scale, and the ratio of the two."""
    found = list(rows)
    scale = exp(fmean(log(row["published"] / row["ours"]) for row in found))
    return [
        {**row, "ours": scale * row["ours"], "ratio": scale * row["ours"] / row["published"], "scale": scale}
        for row in found
    ]
