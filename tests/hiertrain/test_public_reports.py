"""What people hit in tools like this one, tried as a user would; the list is in ``tests/public_reports.md``."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import hiertrain as ht
from placement.explain import problem_of
from placement.tagging.baselines import baselines
from placement.tagging.nets import Contracted
from tests.hiertrain.test_edge_cases import hiertrain

ROOT = Path(__file__).resolve().parents[2]


def graph_file(path: Path, *operators: dict) -> Path:
    """Write an operator graph of a batch of four."""
    path.write_text(json.dumps({"format": "hiertrain-graph/1", "name": "g", "batch": 4, "operators": operators}))
    return path


def test_a_plan_is_not_slower_than_simple_rules_when_both_are_simulated() -> None:
    """The search is held to its word by the simulator: no rule with the same groups and servers is faster by more than the
    solver's gap and what the evaluator leaves out (2 %)."""
    model, cluster = ht.load_model("demo"), ht.load_cluster("fb-1s-18c:4")
    options = ht.SolveOptions(hogwild=1, group_size=3, time_limit_seconds=5.0)
    result = ht.solve(model, cluster, lambda batch, node: ht.roofline(model, batch, node), options)
    rules = baselines(Contracted(problem_of(result.plan, result.costs)))
    tags = [result.plan.tags, *(rule.tags for rule in rules if not rule.reason)]
    speeds = [
        ht.simulate(replace(result.plan, tags=one), result.costs, steps=8, variation=0.0).samples_per_second
        for one in tags
    ]
    assert len(speeds) == 6
    assert speeds[0] >= 0.98 * max(speeds)


def test_operators_without_cost_are_planned_and_simulated_to_the_end(tmp_path: Path) -> None:
    """Nothing takes any time, for a thousand steps: both end, and no figure is without a number."""
    free = {"forward_seconds": 0, "output_bytes": 0}
    path = graph_file(tmp_path / "g.json", {"name": "a", **free}, {"name": "b", "inputs": ["a"], **free})
    plan = tmp_path / "plan.json"
    assert hiertrain("solve", path, "--cluster", "fb-1s-18c:2", "--out", plan).returncode == 0
    done = hiertrain("simulate", plan, "--steps", "1000", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout, parse_constant=pytest.fail)["samples_per_second"] > 0


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "-1", "1e400"])
def test_times_that_are_no_times_are_refused(value: str, tmp_path: Path) -> None:
    """NaN, infinite and negative seconds of an operator: one line with file, operator and field."""
    path = graph_file(tmp_path / "g.json", {"name": "a", "forward_seconds": 7.5, "output_bytes": 0})
    path.write_text(path.read_text().replace("7.5", value))
    done = hiertrain("solve", path, "--cluster", "fb-1s-18c:1")
    assert done.returncode == 2
    assert "g.json: operators[0](a).forward_seconds" in done.stderr.splitlines()[-1]


def test_ctrl_c_keeps_the_best_plan_and_stdout_parses(tmp_path: Path) -> None:
    """Ctrl-C in a search of minutes: exit code 130 within seconds, one JSON document on stdout, a plan file that loads."""
    draw, names = random.Random(1), [f"op{i}" for i in range(120)]
    operators = [
        {
            "name": name,
            "inputs": draw.sample(names[max(0, i - 6) : i], min(i, 2)),
            "forward_seconds": draw.uniform(1e-4, 1e-2),
            "backward_seconds": draw.uniform(1e-4, 1e-2),
            "output_bytes": draw.randint(1, 10**6),
            "parameter_bytes": draw.randint(1, 10**9),
        }
        for i, name in enumerate(names)
    ]
    path, out = graph_file(tmp_path / "g.json", *operators), tmp_path / "plan.json"
    options = [
        "--cluster",
        "fb-1s-18c:8",
        "--hogwild",
        "1",
        "--gap",
        "0",
        "--time-limit",
        "300",
        "--out",
        str(out),
        "--json",
    ]
    command = [sys.executable, "-m", "hiertrain", "solve", str(path), *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stderr is not None
            while "latency" not in process.stderr.readline():
                pass
            time.sleep(2.0)
            process.send_signal(signal.SIGINT)
            printed, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    assert json.loads(printed)["interrupted"] is True
    assert "the best plan so far is kept" in errors
    assert ht.load_plan(out).plan.tags


SCRIPT = """
import multiprocessing
multiprocessing.set_start_method("{method}")
import hiertrain as ht
model, cluster = ht.load_model("demo"), ht.load_cluster("local:2")
options = ht.SolveOptions(hogwild=1, batch=4, time_limit_seconds=1.0)
plan = ht.solve(model, cluster, lambda batch, node: ht.roofline(model, batch, node), options).plan
print("steps", len(ht.execute(plan, ht.RunOptions(steps=2)).losses[0]))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_an_unguarded_script_runs_whatever_the_start_method(method: str) -> None:
    """A script on stdin without a guard for ``__main__`` trains once, and ends: no hang, no storm of processes."""
    script, environment = SCRIPT.format(method=method), {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-"]
    done = subprocess.run(
        command, input=script, capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.stdout == "steps 2\n", done.stderr
