"""The command line: what it prints, what it refuses, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hiertrain import cli
from hiertrain.commands.compare import names
from tests import shared_memory
from tests.hiertrain.test_edge_cases import hiertrain

COMMANDS = ("demo", "profile", "solve", "simulate", "run", "compare", "explain", "sweep", "figure", "presets")
SMALL = ("--cluster", "local:2", "--hogwild", "1", "--batch", "32", "--max-rows", "500")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small plan with two ranks and an operator on the other node, costs from the roofline."""
    path = tmp_path_factory.mktemp("cli") / "plan.json"
    done = hiertrain("solve", "demo", *SMALL, "--max-replicas", "1", "--pin", "top_1=1", "--out", path)
    assert done.returncode == 0, done.stderr
    return path


def test_help_names_every_command() -> None:
    """``--help`` lists the commands that there are."""
    text = hiertrain("--help").stdout
    assert all(
        f"\n  {name}" in text
        for name in ["demo", "profile", "solve", "simulate", "run", "compare", "explain", "presets"]
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["solve", "demo", "--batch", "-5"], "solve: --batch = '-5': greater than or equal to 1"),
        (
            ["simulate", "p", "--fidelity", "fine"],
            "simulate: --fidelity = 'fine': one of 'auto', 'bound', 'fifo', 'fluid'",
        ),
        (
            ["solve", "demo", "--clutser", "x"],
            "solve: No such option: --clutser (Possible options: --cluster, --costs)",
        ),
        (["solv"], "No such command 'solv'. Did you mean 'solve'?"),
    ],
)
def test_a_slip_on_the_command_line_is_told_in_one_line(
    arguments: list[str], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong value, option or command is one line with what was given and what is allowed, no usage around it."""
    monkeypatch.setattr(sys, "argv", ["hiertrain", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"hiertrain: {line}")


def test_version() -> None:
    """``--version`` prints the version."""
    assert hiertrain("--version").stdout == "hiertrain 0.1.0\n"


def test_presets_are_listed_with_sources() -> None:
    """All nine public models and the clusters are there, each with the source of its numbers."""
    found = json.loads(hiertrain("presets", "--json").stdout)["presets"]
    names = {preset["name"] for preset in found}
    assert {"dlrm-kaggle", "dlrm-terabyte", "mlperf-dlrm-dcnv2", "rm1", "rm2", "rm3", "m1", "m2", "m3"} <= names
    assert {"local", "fb-1s-18c", "fb-2s"} <= names
    assert all(preset["source"] for preset in found)


def test_solve_prints_the_promised_keys_and_a_plan_that_loads(plan: Path) -> None:
    """The JSON of ``solve`` has the keys that outsiders rely on; its value does not exceed its bound."""
    done = hiertrain("solve", "demo", *SMALL, "--json")
    found = json.loads(done.stdout)
    promised = "status group_size groups replicas samples_per_second samples_per_second_bound gap solve_seconds"
    assert set(promised.split()) | {"bottleneck", "curve"} <= set(found)
    assert found["samples_per_second"] <= found["samples_per_second_bound"] * (1 + 1e-9)
    assert json.loads(plan.read_text())["plan"]["tags"]["top_1"] == 1


def test_simulate_prints_the_promised_keys_and_writes_a_trace(plan: Path, tmp_path: Path) -> None:
    """The JSON of ``simulate`` has the keys that outsiders rely on; the trace is Perfetto's."""
    done = hiertrain("simulate", plan, "--json", "--trace", tmp_path / "trace.json")
    found = json.loads(done.stdout)
    promised = "samples_per_second ci95 utilization bottleneck events simulated_seconds wall_seconds"
    assert set(promised.split()) <= set(found)
    assert set(found["utilization"]["trainer"]) == {"cpu", "memory_bandwidth", "nic_tx", "nic_rx"}
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


@pytest.mark.parametrize("clock", ["cpu", "wall", "paced"])
def test_run_prints_the_promised_keys_on_every_clock(plan: Path, clock: str) -> None:
    """The JSON of ``run`` has the keys that outsiders rely on, whichever clock it keeps."""
    done = hiertrain("run", plan, "--steps", "10", "--clock", clock, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"samples_per_second", "loss", "normalized_entropy", "steps", "workers", "backend"} <= set(found)
    assert found["samples_per_second"] > 0
    assert found["backend"] == "processes"


def test_explain_names_what_binds_and_prints_programs(plan: Path) -> None:
    """``explain`` shows loads, what-ifs and where everything is; with ``--programs`` the text of every place."""
    printed = hiertrain("explain", plan).stdout
    assert "####" in printed
    assert "no help alone" in printed or "what would help most" in printed
    assert all(name in printed.partition("what is where")[2] for name in ("bottom_0", "top_1", "interaction"))
    assert "Compute top_1 forward" in hiertrain("explain", plan, "--programs").stdout


def test_compare_lays_prediction_beside_measurement(plan: Path) -> None:
    """``compare`` gives a row per plan with predicted, measured and ratio, and the blame by part."""
    done = hiertrain("compare", plan, "--rounds", "1", "--steps", "5", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["plan"] == plan.stem
    assert row["predicted"] > 0
    assert row["measured"] > 0
    assert set(row["blame"]) >= {"compute", "embedding", "message", "allreduce", "update", "sync", "waiting"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["solve", "dlrm-kagle", "--cluster", "local"], ["dlrm-kagle", "dlrm-kaggle"]),
        (["solve", "demo", "--cluster", "fb-1s:3"], ["fb-1s", "presets"]),
        (["solve", "demo", "--cluster", "local:0"], ["local:0"]),
        (["solve", "demo"], ["--cluster"]),
        (["solve", "demo", "--cluster", "local:2", "--group-size", "x"], ["--group-size", "auto"]),
        (["solve", "demo", "--cluster", "local:2", "--pin", "top_1"], ["--pin", "OPERATOR"]),
        (["solve", "demo", "--cluster", "local:2", "--pin", "nothing=1"], ["nothing"]),
        (["solve", "demo", "--cluster", "local:2", "--costs", "absent.json"], ["absent.json"]),
        (["simulate", "absent.json"], ["absent.json"]),
        (["run", "absent.json"], ["absent.json"]),
    ],
)
def test_bad_input_gives_one_line_and_exit_code_2(arguments: list[str], words: list[str]) -> None:
    """Bad input: exit code 2, the last line names what is wrong and what is allowed, no traceback."""
    done = hiertrain(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr.splitlines()[-1] for word in words)


def test_debug_shows_the_traceback() -> None:
    """With ``--debug``, wherever it stands, an error comes with its traceback."""
    assert "Traceback" in hiertrain("simulate", "absent.json", "--debug").stderr


def test_a_plan_without_an_operator_is_refused(plan: Path, tmp_path: Path) -> None:
    """A plan file from which an operator or a shard was taken is refused, naming file and operator or table."""
    for part, name in (("tags", "top_1"), ("shards", "C3")):
        document = json.loads(plan.read_text())
        if part == "tags":
            del document["plan"]["tags"][name]
        else:
            document["plan"]["shards"] = [s for s in document["plan"]["shards"] if s["table"] != name]
        (tmp_path / "broken.json").write_text(json.dumps(document))
        done = hiertrain("simulate", tmp_path / "broken.json")
        assert done.returncode == 2
        assert "broken.json" in done.stderr
        assert name in done.stderr


def test_a_profile_of_another_machine_is_refused(tmp_path: Path) -> None:
    """Costs measured on one machine do not pass silently for another: refused, both machines named."""
    assert (
        hiertrain("profile", "demo", "--max-rows", "200", "--quick", "--out", tmp_path / "costs.json").returncode == 0
    )
    options = ["--cluster", "fb-1s-18c:4", "--max-rows", "200", "--costs", tmp_path / "costs.json"]
    done = hiertrain("solve", "demo", *options)
    assert done.returncode == 2
    assert "fb-1s-18c" in done.stderr
    assert hiertrain("solve", "demo", *options, "--foreign-costs", "--time-limit", "5").returncode == 0


def children_of(pid: int) -> list[int]:
    """Processes whose parent is ``pid``."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def started_run(plan: Path) -> subprocess.Popen[str]:
    """Start a long run and wait until its workers are there."""
    command = [sys.executable, "-m", "hiertrain", "run", str(plan), "--steps", "3000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while len(children_of(process.pid)) < 5 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return process


def is_gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("sign", "code", "word"), [(signal.SIGKILL, 4, "SIGKILL"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_killed_worker_or_ctrl_c_ends_the_run_cleanly(plan: Path, sign: int, code: int, word: str) -> None:
    """Kill -9 of a worker: exit code 4 within 5 s and the worker's name; Ctrl-C: 130. No process or shared memory left."""
    shared = shared_memory.names()
    process = started_run(plan)
    workers = children_of(process.pid)
    try:
        os.kill(workers[1] if sign == signal.SIGKILL else process.pid, sign)
        began = time.monotonic()
        _, errors = process.communicate(timeout=30)
        assert time.monotonic() - began < 5
        assert process.returncode == code
        assert word in errors
        assert ("worker g0/" in errors) == (sign == signal.SIGKILL)
        assert all(is_gone(worker) for worker in workers)
        assert not shared_memory.left_since(shared)
    finally:
        process.kill()
        process.communicate()


def test_explain_against_an_earlier_plan(plan: Path) -> None:
    """``explain --against`` prints throughput of both and what moves; a plan does not differ from itself."""
    printed = hiertrain("explain", plan, "--against", plan).stdout
    assert "(1.00)" in printed
    assert "0 bytes" in printed
    assert "nothing is different" in printed


@pytest.mark.parametrize(
    ("command", "option"), [("solve", "--out"), ("simulate", "--trace"), ("run", "--trace"), ("profile", "--out")]
)
def test_a_file_that_cannot_be_written_is_refused_before_any_work(
    command: str, option: str, plan: Path, tmp_path: Path
) -> None:
    """A folder as file to write: one line that names it and nothing else, so nothing was computed in vain."""
    about = {"solve": ["demo", *SMALL], "profile": ["demo"]}.get(command, [plan])
    done = hiertrain(command, *about, option, tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"hiertrain: {tmp_path}: file = '{tmp_path}': a file to write, not a folder\n"


def test_a_batch_beyond_all_bounds_is_refused() -> None:
    """A batch of twenty digits was an internal error."""
    done = hiertrain("solve", "demo", "--cluster", "local:2", "--batch", "9" * 20)
    assert done.returncode == 2
    assert "--batch" in done.stderr


def test_bug_compared_plans_of_one_model_had_one_name() -> None:
    """Rows were all called as the model is; now as the files are, by their whole paths where names are the same."""
    assert names([Path("a/here.json"), Path("dp.json")]) == ["here", "dp"]
    assert names([Path("a/plan.json"), Path("b/plan.json")]) == ["a/plan.json", "b/plan.json"]
