"""The convert command: every kind of input, every output, and the first errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hiertrain.cli import app
from placement.planfile import load_plan
from problem.cluster_io import load_cluster
from problem.readers import load_model
from tests.problem.shared import SHARED, needs_shared

TABLES = "name,rows,dim,pooling_factor\na,1000,4,2\nb,50,4,1\n"


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Run the command line; returns exit code, stdout and stderr."""
    result = CliRunner().invoke(app, ["convert", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan file of a placement of two tables on two machines."""
    (tmp_path / "tables.csv").write_text(TABLES)
    shards = "table,server,row_begin,row_end,column_begin,column_end\na,0,0,600,0,4\na,1,600,1000,0,4\nb,1,0,50,0,4\n"
    (tmp_path / "shards.csv").write_text(shards)
    out = tmp_path / "plan.json"
    options = ["--cluster", "fb-1s-18c:2", "--model", tmp_path / "tables.csv", "--out", out]
    code, _, error = run(tmp_path / "shards.csv", *options)
    assert code == 0, error
    return out


def test_a_placement_becomes_a_plan(plan: Path) -> None:
    """Shards of a CSV on two machines: a plan that says the same, of the model that was named."""
    loaded = load_plan(plan).plan
    assert [(shard.table, shard.server, shard.rows) for shard in loaded.shards] == [
        ("a", 0, 600),
        ("a", 1, 400),
        ("b", 1, 50),
    ]
    assert (loaded.ranks, len(loaded.servers), loaded.model.table["a"].pooling_factor) == (2, 2, 2.0)


@pytest.mark.parametrize(
    ("name", "to", "expect"),
    [
        ("t.json", "torchrec", "sharding_spec"),
        ("m.json", "map", "world_size"),
        ("p.json", "plan", "hiertrain-plan/1"),
        ("s.csv", None, "row_begin"),
        ("d.dot", None, "digraph"),
        ("d.svg", None, "<svg"),
        ("l.json", "perfetto", "traceEvents"),
    ],
)
def test_a_plan_becomes(plan: Path, name: str, to: str | None, expect: str) -> None:
    """Each output is written, by the format asked for or by the ending."""
    out = plan.parent / name
    code, stdout, error = run(plan, "--out", out, *(["--to", to] if to else []), "--json")
    assert code == 0, error
    assert json.loads(stdout)["out"] == str(out)
    assert expect in out.read_text()


def test_a_plan_becomes_chakra_traces(plan: Path) -> None:
    """A trace for each machine under a common prefix, and each is read again."""
    code, _, error = run(plan, "--out", plan.parent / "job.et")
    assert code == 0, error
    assert [len(load_model(plan.parent / f"job.{i}.et").graph) > 5 for i in range(2)] == [True, True]


def test_models_and_clusters_become_ours(tmp_path: Path) -> None:
    """A list of tables becomes a model TOML, a preset too, node lists a cluster TOML: all read back equal."""
    (tmp_path / "tables.csv").write_text(TABLES)
    assert run(tmp_path / "tables.csv", "--out", tmp_path / "m.toml")[0] == 0
    assert load_model(tmp_path / "m.toml") == load_model(tmp_path / "tables.csv")
    assert run("dlrm-kaggle", "--out", tmp_path / "k.toml")[0] == 0
    assert load_model(tmp_path / "k.toml") == load_model("dlrm-kaggle")
    (tmp_path / "hosts.txt").write_text("n[01-03]\n")
    source = f"{tmp_path / 'hosts.txt'},cores=4,memory=8GiB,nic_gbps=10"
    assert run(source, "--out", tmp_path / "c.toml")[0] == 0
    assert load_cluster(tmp_path / "c.toml").nodes == load_cluster(source).nodes


@needs_shared
def test_an_execution_trace_takes_its_durations(tmp_path: Path) -> None:
    """With a Kineto trace the graph that is written holds the measured seconds."""
    folder = SHARED / "inputs" / "traces" / "pytorch_et" / "dlrm_8rank"
    options = ["--costs", folder / "kineto_worker0.json", "--out", tmp_path / "g.json"]
    code, _, error = run(folder / "dlrm_eg_0.json", *options)
    assert code == 0, error
    assert load_model(tmp_path / "g.json").graph["aten::linear [0]"].forward.seconds_per_sample > 0


def test_formats_are_listed() -> None:
    """``--list`` names every format that is read and what it becomes."""
    code, stdout, _ = run("--list")
    assert code == 0
    assert "simgrid" in stdout
    assert "placement" in stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "convert: IN = None"),
        (["demo"], "convert: --out = None"),
        (["demo", "--out", "x.json"], "known by their shapes"),
        (["demo", "--out", "none/x.toml"], "existing folder"),
        (["demo", "--out", "x.toml", "--to", "modle"], "did you mean model"),
        (["nothing.csv", "--out", "x.toml"], "No such file"),
        (["tables.csv", "--format", "table", "--out", "x.toml"], "did you mean tables"),
        (["shards.csv", "--out", "x.json"], "--cluster = None"),
        (["clicks.tsv", "--out", "x.toml"], "run --data"),
    ],
)
def test_errors_are_one_line(arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be converted ends with code 2 and one line, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables.csv").write_text(TABLES)
    (tmp_path / "shards.csv").write_text("table,server,row_begin,row_end,column_begin,column_end\na,0,0,1,0,4\n")
    (tmp_path / "clicks.tsv").write_text("\t".join(["0"] * 40) + "\n")
    code, _, error = run(*arguments)
    assert code == 2
    assert words in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("x.*"))
