"""Sweeps: every combination once, resumable, failures as rows."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from experiments.launch import command_of, mpiexec
from experiments.sweep import Sweep, evaluate_scenario, key_of, load_sweep, run_sweep
from problem.errors import BadInput

ROOT = Path(__file__).resolve().parents[2]
TOML = """
[grid]
model = ["demo"]
cluster = ["fb-1s-18c:3", "fb-1s-18c:4"]
hogwild = [2, 4]
max_rows = [1000]

[do]
steps = 6
time_limit = 5
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """A sweep of four scenarios."""
    path = tmp_path / "sweep.toml"
    path.write_text(TOML)
    return load_sweep(path)


def test_every_combination_is_a_scenario_with_a_key_of_its_own(sweep: Sweep) -> None:
    """Two lists of two make four scenarios; keys are distinct and depend on the scenario alone."""
    scenarios = list(sweep.scenarios())
    keys = [key_of(scenario, sweep.do) for scenario in scenarios]
    assert len(set(keys)) == len(scenarios) == 4
    assert keys == [key_of(dict(reversed(s.items())), sweep.do) for s in scenarios]


def test_a_sweep_writes_rows_and_manifest_and_computes_nothing_twice(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All four rows are there, planned and simulated; a second call evaluates nothing and changes no row."""
    rows = run_sweep(sweep, tmp_path / "out")
    assert [row["status"] for row in rows] == ["done"] * 4
    assert all(row["simulated_samples_per_second"] > 0 for row in rows)
    with (tmp_path / "out" / "rows.csv").open(newline="") as file:
        assert [row["key"] for row in csv.DictReader(file)] == [row["key"] for row in rows]
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["rows"] == 4
    monkeypatch.setattr("experiments.sweep.evaluate_scenario", None)
    assert run_sweep(sweep, tmp_path / "out") == rows


def test_an_interrupted_sweep_keeps_its_rows_and_goes_on(sweep: Sweep, tmp_path: Path) -> None:
    """Interrupted after the first row: the row is kept in rows.csv, and the next call adds the other three."""
    seen: list[str] = []

    def interrupt(news: str) -> None:
        seen.append(news)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, tmp_path / "out", watch=interrupt)
    kept = (tmp_path / "out" / "rows.jsonl").read_text().splitlines()
    assert 1 <= len(kept) < 4
    assert (tmp_path / "out" / "rows.csv").exists()
    rows = run_sweep(sweep, tmp_path / "out")
    assert len(rows) == 4
    assert (tmp_path / "out" / "rows.jsonl").read_text().splitlines()[: len(kept)] == kept


@pytest.mark.timeout(60)
@pytest.mark.skipif(not mpiexec(), reason="needs mpiexec")
def test_ranks_give_the_rows_of_processes(sweep: Sweep, tmp_path: Path) -> None:
    """Two ranks that evaluate and one that hands out: the same rows but for the seconds; training is refused in one line."""
    pytest.importorskip("mpi4py", reason="needs mpi4py")
    expected = run_sweep(sweep, tmp_path / "out", jobs=2)
    command = command_of("mpi", 3, "hiertrain", "sweep", str(tmp_path / "sweep.toml"), "--mpi", "--json", "--out")
    done = subprocess.run([*command, str(tmp_path / "ranks")], cwd=ROOT, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)["rows"]
    assert [_untimed(row) for row in rows] == [_untimed(row) for row in expected]
    (tmp_path / "sweep.toml").write_text(TOML + "run = true\n")
    refused = subprocess.run([*command, str(tmp_path / "no")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode
    assert refused.stderr.count("do.run") == 1


def _untimed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if "seconds" not in name.split("_")[-1]}


def test_a_line_that_was_cut_off_is_computed_again(sweep: Sweep, tmp_path: Path) -> None:
    """A row that a kill left half written is not lost: its scenario is evaluated anew."""
    rows = run_sweep(sweep, tmp_path / "out")
    path = tmp_path / "out" / "rows.jsonl"
    path.write_text(path.read_text()[:-40])
    again = run_sweep(sweep, tmp_path / "out")
    assert [row["key"] for row in again] == [row["key"] for row in rows]


def test_a_failed_scenario_is_a_row_with_its_reason(sweep: Sweep) -> None:
    """A model that there is not fails its scenario only, with the reason in the row."""
    scenario = {**next(sweep.scenarios()), "model": "no-such-model"}
    row = evaluate_scenario(scenario, sweep.do)
    assert row["status"] == "failed"
    assert "no-such-model" in row["reason"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (TOML.replace("hogwild", "hogwold"), "hogwild"),
        (TOML.replace("[2, 4]", "[]"), "hogwild"),
        (TOML.replace("[2, 4]", "[0]"), "hogwild"),
        (TOML.replace('model = ["demo"]', ""), "model"),
        ("grid = 3", "grid"),
        (TOML.replace('["demo"]', '"demo"'), "model = 'demo': must be a list"),
    ],
)
def test_bad_sweep_files_are_refused(text: str, word: str, tmp_path: Path) -> None:
    """An unknown key, an empty list, a value out of range: refused naming the field."""
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=word):
        load_sweep(path)
