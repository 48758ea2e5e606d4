"""Figures: drawn from rows alone, refused by name, listed with their questions."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.figures import FIGURES, draw, make_figure, write_rows
from experiments.questions import group_size, modern, wide
from experiments.validation import CALIBRATION, Validation, ValidationRow, models, plans_of
from problem.errors import BadInput
from programs.transform import transform
from programs.verify import verify

CHANGES = [
    {"family": family, "dropped": d, "change": 0.1, "low": -0.1, "high": 0.3, "published": published}
    for family, d, published in (("control", 0.0, None), ("DCT-DP", 0.9, -0.04), ("DCT-DP", 0.95, None))
]


def trace(value: float) -> list[dict[str, float]]:
    """Two points of a reading."""
    return [{"step": step, "value": value, "low": value / 2, "high": 2 * value} for step in (100, 200)]


BUSY = [{"what": f"trainer {x}, % busy", "published": 50, "ours": x, "other": 9} for x in (10, 60)]
ROWS = {
    "validation": [
        {"model": "m", "plan": "a", "measured": 1e3, "predicted": 1.1e3, "calibrated": 1.0e3},
        {"model": "n", "plan": "b", "measured": 2e3, "predicted": 2.1e3, "calibrated": 2.0e3},
    ],
    "eight-plans": [
        {"plan": "a", "workers": 2, "ratio": 1.03, "least": 1.01, "most": 1.06},
        {"plan": "b", "workers": 4, "ratio": 0.99, "least": 0.95, "most": 1.0},
    ],
    "paced": [
        {"plan": "a", "workers": 2, "ratio": 1.001, "conclusive": True},
        {"plan": "b", "workers": 4, "ratio": 0.99, "conclusive": False},
    ],
    "trainers": [{"architecture": "x", "machines": n, "simulated": 1e3 * n, "replicas": n} for n in (2, 4)],
    "group-size": [{"group_size": k, "all data-parallel": 1e3 * k, "bound": 2e3 * k} for k in (1, 2)],
    "literature": [
        {"anchor": "a", "what": "x", "deviation": deviation, "tolerance": 0.1, "met": deviation < 0.1}
        for deviation in (0.05, 0.3)
    ],
    **dict.fromkeys(("dct-mp", "dct-dp", "dct-ablations"), CHANGES),
    "dct-mp-conditions": [
        CHANGES[0] | {"task": task, "steps": 1500, "cell": cell, "windows": "5 4 3 2 1 1 1 1"}
        for task in ("reference", "Adagrad")
        for cell in ("bottom cut", "top cut")
    ],
    "dct-mp-length": [
        CHANGES[0] | {"task": task, "steps": steps, "cell": cell, "seeds": 1 + (cell == "two cuts")}
        for task in ("reference", "paper's layers")
        for cell in ("one cut", "two cuts")
        for steps in (500, 1000)
    ],
    "exchange-codecs": [
        {"codecs": f"exchange={codec}", "wire": wire, "change": 0.1, "low": 0, "high": 0.2}
        for codec, wire in (("bf16", 0.5), ("rowwise4", 0.13))
    ],
    "dct-gradient-thresholds": [
        row | {"dropped": name} for name in ("0.5", "0.99", "weibull shape") for row in trace(0.4)
    ],
    "dct-cut-thresholds": [
        row | {"dropped": "0.9", "mode": mode} for mode in ("without DCT-MP", "with DCT-MP") for row in trace(0.2)
    ],
    "dct-laplace": [row | {"target": target} for target in ("0.25", "0.1") for row in trace(0.2)],
    "ablation": [
        {"part": name, "speed_up": x, "replicas": 4, "group_size": 1, "servers": 2}
        for name, x in (("a", 1.0), ("b", 2.0))
    ],
    **dict.fromkeys(("utilisation", "dct-time"), BUSY),
    "features": [
        {"dense_features": n, "sparse_features": 4, "batch": 100, "published": n / 64, "ours": n / 60}
        for n in (64, 256)
    ],
    "mlp-width": [{"mlp": "64^2", "published": 2.0, "ours": 2.1}, {"mlp": "64^3", "published": 1.0, "ours": 0.9}],
    "sync-gap": [{"trainers": n, "sync_servers": 1, "mode": "background", "sync_gap": n / 2} for n in (2, 4)],
    "replicas": [
        {
            "rate": rate,
            "scaling": "none",
            "machines": n,
            "group_size": k,
            "ranks": k,
            "replicas": n // k,
            "change": n,
            "low": n - 1,
            "high": n + 1,
        }
        for rate in (0.1, 0.4)
        for k, n in ((1, 1), (1, 4), (4, 4), (4, 8))
    ],
    "heuristics": [{"model": "m", "round robin": 1e3, "greedy": None, "ILP": 2e3, "bound": 2e3}],
}


@pytest.mark.parametrize("name", list(FIGURES))
def test_every_figure_is_drawn_from_its_rows(name: str, tmp_path: Path) -> None:
    """Rows alone give CSV, PNG and SVG, with units on both axes where there are numbers."""
    write_rows(ROWS[name], tmp_path, name)
    draw(FIGURES[name], ROWS[name], tmp_path)
    assert (tmp_path / f"{name}.png").stat().st_size > 5000
    assert "</svg>" in (tmp_path / f"{name}.svg").read_text()
    with (tmp_path / f"{name}.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(ROWS[name])


def test_an_unknown_figure_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    """A mistyped name is answered with the figure that was probably meant; nothing is written."""
    with pytest.raises(BadInput, match="group-size"):
        make_figure("groupsize", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_validation_plans_are_valid_and_at_least_24_are_held_out() -> None:
    """Every validation plan transforms and verifies; each model has its calibration plan and enough others."""
    held_out = 0
    for model in models():
        plans = plans_of(model)
        for plan in plans:
            verify(transform(plan))
        assert [plan.name for plan in plans].count(CALIBRATION) == 1
        held_out += len(plans) - 1
    assert held_out >= 24


def test_the_summary_counts_held_out_rows_only() -> None:
    """Calibration rows and short iterations are not summed up; errors are relative to the measurement."""

    def row(plan: str, role: str, calibrated: float, measured: float) -> ValidationRow:
        return ValidationRow("m", plan, 2, 3, calibrated, measured, calibrated, 0.01, role, "", (measured,) * 2)

    found = Validation(
        (
            row("a", "held out", 102.0, 100.0),
            row("b", "held out", 190.0, 200.0),
            row("c", "held out", 300.0, 300.0),
            row("d", "calibration", 500.0, 100.0),
            row("e", "short", 900.0, 100.0),
        )
    )
    summary = found.summary()
    assert summary["plans"] == 3
    assert summary["median_error"] == pytest.approx(0.02)
    assert summary["largest_error"] == pytest.approx(0.05)
    assert summary["kendall_tau"] == pytest.approx(1.0)


@pytest.mark.slow
def test_both_kinds_of_parallelism_beat_either_alone_where_the_network_is_narrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In groups of four on machines whose cores outrun their NICs the ILP's plan beats all-DP and every MP heuristic."""
    assert len(modern(12).nodes) == 12
    assert any(op.name.endswith("_b3") for op in wide().graph)
    monkeypatch.setattr("experiments.questions.GROUP_SIZES", (4,))
    rows = {row["group_size"]: row for row in group_size(lambda news: None)}
    best = max(rows[4]["all data-parallel"], rows[4]["best model-parallel heuristic"])
    assert rows[4]["data and model parallel (ILP)"] > 1.2 * best
    assert rows[4]["simulated"] > 1.1 * best


def test_bug_a_search_that_ctrl_c_cut_short_made_a_row(monkeypatch):
    """``figure`` took the best plan so far as its answer and went on; now the interruption ends the figure."""
    monkeypatch.setattr("experiments.planning.solve", lambda *asked: SimpleNamespace(interrupted=True))
    with pytest.raises(KeyboardInterrupt):
        group_size(lambda news: None)
