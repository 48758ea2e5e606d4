"""Options of ``hiertrain solve`` that place tables, start from a plan, and do without machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hiertrain.cli import app
from placement.planfile import load_plan
from problem.errors import HiertrainError

BASE = ["solve", "demo", "--cluster", "fb-1s-18c:5", "--hogwild", "2", "--max-rows", "1000", "--json"]


def _solve(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*BASE, *arguments])


def test_tables_are_pinned_and_kept_apart(tmp_path: Path) -> None:
    """A pinned table is on its server, and tables kept apart share none."""
    plan = tmp_path / "plan.json"
    tables = [table.name for table in load_tables()]
    done = _solve("--table-pin", f"{tables[0]}=1", "--keep-apart", f"{tables[0]},{tables[1]}", "--out", str(plan))
    assert done.exit_code == 0, done.output
    shards = load_plan(plan).plan.shards
    assert {shard.server for shard in shards if shard.table == tables[0]} == {1}
    assert 1 not in {shard.server for shard in shards if shard.table == tables[1]}


def load_tables():
    """Tables of the demo model."""
    from problem.readers import load_model

    return load_model("demo").tables


def test_unlike_groups_are_said_to_share_one_set_of_tags(tmp_path: Path) -> None:
    """Of three fast machines, one slow one and two servers, groups of two are unlike: told once, and kept in the answer."""
    cluster, kinds = tmp_path / "unlike.toml", [("a", 3, 8, "trainer"), ("b", 1, 4, "trainer"), ("s", 2, 8, "server")]
    entry = '[[nodes]]\nnames = "{}[1-{}]"\ncores = {}\nrole = "{}"\nmemory = "8GB"\nnic_gbps = 10\n'
    cluster.write_text('name = "unlike"\n' + "".join(entry.format(*kind) for kind in kinds))
    base = ["solve", "demo", "--max-rows", "1000", "--group-size", "2", "--gap", "0.9", "--json"]
    done = CliRunner().invoke(app, [*base, "--cluster", str(cluster)])
    assert done.exit_code == 0, done.output
    assert done.stderr.count("share one set of tags") == 1
    assert any("share one set of tags" in line for line in json.loads(done.stdout)["assumptions"])


def test_what_is_forbidden_is_in_no_plan(tmp_path: Path) -> None:
    """No top layer is data-parallel, a table is not on server 0, and a kind of machine that is not there is refused."""
    plan, table = tmp_path / "plan.json", load_tables()[0].name
    forbidden = ("--forbid", "top_*=dp", "--table-forbid", f"{table}=0", "--table-forbid", "*=row")
    done = _solve(*forbidden, "--group-size", "2", "--out", str(plan))
    assert done.exit_code == 0, done.output
    found = load_plan(plan).plan
    assert all(tag != "dp" for name, tag in found.tags.items() if name.startswith("top_"))
    assert 0 not in {shard.server for shard in found.shards if shard.table == table}
    assert "kind of" in _solve("--forbid", "top_0=gpu").output


@pytest.mark.parametrize(
    "option",
    [
        ("--table-pin", "x"),
        ("--table-pin", "x=one"),
        ("--forbid", "top_0"),
        ("--table-forbid", "=1"),
        ("--lost-node", "nobody"),
        ("--movement-weight", "inf"),
    ],
)
def test_bad_values_are_named(option: tuple[str, str]) -> None:
    """A value that cannot be read, or a machine that the cluster lacks, is bad input that names the option."""
    done = _solve(*option)
    assert isinstance(done.exception, HiertrainError) or done.exit_code == 2
    assert option[0] in f"{done.exception} {done.output}"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--movement-weight", "1"), "--movement-weight = 1.0: only with --warm-start"),
        (("--movement-weight", "0"), "--movement-weight = 0.0: only with --warm-start"),
        (("--foreign-costs",), "--foreign-costs = True: only with --costs"),
        (("--max-replicas", "1", "--sync-gap", "8"), "--sync-gap = 8: only where there may be several groups"),
        (("--max-replicas", "1", "--sync-servers", "1"), "--sync-servers = 1: only where"),
        (("--max-replicas", "1", "--codec", "exchange=fp16"), "exchange is sent only with several groups"),
        (("--ranks", "1", "--codec", "allreduce=fp16"), "allreduce is sent only with groups of several ranks"),
        (("--group-size", "1", "--codec", "top_0=fp16"), "top_0 is sent only with groups of several nodes"),
        (("--codec", "loss=fp16"), "loss is sent only with an operator whose output another one takes"),
        (("--codec", "top_0=fp16", "--codec", "top_0=bf16"), "one value for 'top_0': it is 'fp16' already"),
        (("--codec", "auto", "--codec", "auto:fp16"), "--codec = 'auto': either that, or auto:fp16"),
        (("--pin", "top_0=0", "--pin", "top_0=1"), "one value for 'top_0': it is 0 already"),
        (("--table-pin", "*=0", "--table-pin", "*=1"), "one value for '*': it is 0 already"),
    ],
)
def test_bug_options_without_effect_were_ignored(options: tuple[str, ...], line: str) -> None:
    """An option that nothing can come of beside the others is refused in a line that names it and what it needs."""
    done = _solve(*options)
    assert done.exit_code == 2
    assert line in done.output


def test_bug_a_warm_start_of_another_model_did_not_name_its_file(tmp_path: Path) -> None:
    """The line begins with the plan file."""
    plan = tmp_path / "plan.json"
    assert _solve("--out", str(plan)).exit_code == 0
    other = CliRunner().invoke(app, ["solve", "dlrm-kaggle", "--cluster", "fb-1s-18c:5", "--warm-start", str(plan)])
    assert f"{plan}: " in other.output


def test_plan_again_after_a_node_is_lost(tmp_path: Path) -> None:
    """From a plan file, without one of its ranks: the new plan does without it and moves nothing."""
    plan = tmp_path / "plan.json"
    assert _solve("--out", str(plan)).exit_code == 0
    lost = load_plan(plan).plan.groups[0][-1].name
    done = _solve("--warm-start", str(plan), "--lost-node", lost, "--movement-weight", "1", "--out", str(plan))
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["moved_bytes"] == 0
    again = load_plan(plan).plan
    assert lost not in {node.name for group in again.groups for node in group} | {n.name for n in again.servers}


def test_plan_file_names_the_machines(tmp_path: Path) -> None:
    """Without --cluster the machines are those of the plan."""
    plan = tmp_path / "plan.json"
    assert _solve("--out", str(plan)).exit_code == 0
    done = CliRunner().invoke(app, ["solve", "demo", "--max-rows", "1000", "--warm-start", str(plan), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["hogwild"] == 2


def _with_stderr(stderr: int) -> str:
    """Plan in a process of its own, its stderr as given; return its stdout."""
    command = [sys.executable, "-m", "hiertrain", *BASE]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=stderr, env=environment, timeout=100, check=True, text=True
    ).stdout


def test_a_terminal_shows_incumbent_bound_and_gap() -> None:
    """With a terminal as stderr, value, bound and gap are shown while the search goes on; stdout holds the result alone."""
    ours, theirs = os.openpty()
    try:
        result = json.loads(_with_stderr(theirs))
        shown = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert f"{result['samples_per_second']:,.0f} samples/s, bound" in shown
    assert "gap" in shown


def test_without_a_terminal_nothing_moves(tmp_path: Path) -> None:
    """With a file as stderr, there is no progress in it, and stdout is the same document but for the time it took."""
    with (tmp_path / "stderr").open("w") as log:
        result = json.loads(_with_stderr(log.fileno()))
    said = (tmp_path / "stderr").read_text()
    assert result["samples_per_second"] > 0
    assert "bound" not in said
    assert "\x1b" not in said


def test_averages_need_no_sync_server_unless_asked_for(tmp_path: Path) -> None:
    """Model averages of two groups are planned without sync servers, which the text says, or with as many as asked for."""
    arguments = (
        "--sync-algorithm",
        "ma",
        "--group-size",
        "1",
        "--max-replicas",
        "2",
        "--out",
        str(tmp_path / "plan.json"),
    )
    for more, count in (((), 0), (("--sync-servers", "1"), 1)):
        done = _solve(*arguments, *more)
        assert done.exit_code == 0, done.output
        plan = load_plan(tmp_path / "plan.json").plan
        assert (len(plan.groups), len(plan.sync_servers), plan.ring) == (2, count, not count)
