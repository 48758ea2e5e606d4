"""The rows of ``hiertrain bench``, and the process that runs HiGHS."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.public_bench import BenchOptions, bench
from hiertrain.cli import app
from placement.public import mip
from placement.public.mip import Program, solve
from problem.errors import BadInput
from tests.problem.test_public_graphs import LAYER, MSR, NODE

MILLISECONDS = {**NODE, "size": 1}


@pytest.fixture
def profiles(tmp_path):
    """A folder with one profile of two layers, 3 ms each."""
    text = LAYER.format("n1", "A", "0.0") + LAYER.format("n2", "B", "0.0") + "\tn1 -- n2\n"
    (tmp_path / "tiny.txt").write_text(text)
    return tmp_path


def test_rows_as_json(profiles):
    """The command prints one document with a row for each instance."""
    result = CliRunner().invoke(app, ["bench", "pipedream", str(profiles), "--only", "n=4", "--json"])
    (row,) = json.loads(result.stdout)["rows"]
    assert list(row) == ["instance", "value", "bound", "gap", "seconds", "published"]
    assert row["instance"] == "tiny n=4"
    assert row["value"] == row["bound"] == pytest.approx(0.0015, rel=1e-4)
    assert row["published"] is None


def test_rows_as_table(profiles):
    """Without --json it is a table, a dash where nothing is published."""
    result = CliRunner().invoke(app, ["bench", "pipedream", str(profiles), "--only", "n=16"])
    assert result.stdout.splitlines()[0].split() == ["instance", "value", "bound", "gap", "s", "published"]
    assert result.stdout.splitlines()[2].endswith("-")


def test_msr_rows_beside_known_values(tmp_path):
    """Throughput and latency instances are found by folder; known values stand in a file beside it."""
    folder = tmp_path / "msr"
    for kind in ("throughput", "latency"):
        path = folder / f"{kind}-inputs" / "LayerGraphs"
        path.mkdir(parents=True)
        nodes = [{"id": i, **MILLISECONDS} for i in range(2)]
        (path / "two.json").write_text(json.dumps({**MSR, "nodes": nodes}))
    known = {"throughput": {"LayerGraphs/two": {"best_found": 2.0, "contiguous_optimum": 3.0}}}
    (tmp_path / "msr_best_known.json").write_text(json.dumps(known))
    rows = list(bench("msr", folder, BenchOptions(seconds=1.0)))
    assert [row.instance for row in rows] == ["throughput LayerGraphs/two", "latency LayerGraphs/two"]
    assert [row.value for row in rows] == [2.0, 2.0]
    assert [row.published for row in rows] == [2.0, None]
    (row,) = bench("msr", folder, BenchOptions(contiguous=True))
    assert (row.value, row.published) == (2.0, 3.0)


def test_unknown_suites_and_empty_folders_are_refused(tmp_path):
    """An unknown suite, and a folder without its instances, end in one line that says what is allowed."""
    with pytest.raises(BadInput, match="one of msr, pipedream, piper"):
        list(bench("iopddl", tmp_path, BenchOptions()))
    with pytest.raises(BadInput, match="a folder with instances of piper"):
        list(bench("piper", tmp_path, BenchOptions()))


def knapsack() -> Program:
    """Least cost of at least 3 units: items of 2, 2 and 1 units that cost 3, 2 and 2."""
    program = Program()
    columns = [program.column(cost, integer=True) for cost in (3.0, 2.0, 2.0)]
    program.row(dict(zip(columns, (2.0, 2.0, 1.0), strict=True)), low=3.0)
    return program


def market_split() -> Program:
    """Forty items to be halved exactly in five measures at once: out of reach for branch and bound."""
    random, program = np.random.default_rng(0), Program()
    columns = [program.column(integer=True) for _ in range(40)]
    for _ in range(5):
        weights = random.integers(0, 100, len(columns)).astype(float)
        half = float(weights.sum() // 2)
        program.row(dict(zip(columns, weights.tolist(), strict=True)), low=half, high=half)
    return program


def test_highs_solves_and_bounds():
    """The optimum and its bound come back, from a start as well; an infeasible program has an infinite bound."""
    outcome = solve(knapsack(), 5.0)
    assert outcome.bound == pytest.approx(4.0)
    assert outcome.solution == pytest.approx([0.0, 1.0, 1.0])
    assert solve(knapsack(), 5.0, start=np.array([1.0, 1.0, 0.0])).bound == pytest.approx(4.0)
    program = knapsack()
    program.row({0: 1.0}, low=2.0)
    assert solve(program, 5.0).bound == np.inf


def test_an_overdue_solver_is_ended():
    """When HiGHS does not come back in time its process is ended, nothing is claimed, and the next program is solved."""
    late = mip.worker().ask((market_split(), {"time_limit": 1e9}, None), seconds=0.2)
    assert late.solution is None
    assert late.bound == -np.inf
    assert mip.worker()._process is None
    assert solve(knapsack(), 5.0).bound == pytest.approx(4.0)


def test_a_dead_solver_is_replaced():
    """A process that died is replaced by a new one."""
    solve(knapsack(), 5.0)
    mip.worker()._process.kill()
    mip.worker()._process.wait()
    assert solve(knapsack(), 5.0).solution is None
    assert solve(knapsack(), 5.0).bound == pytest.approx(4.0)
