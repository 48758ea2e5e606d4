"""Every public edge case about graphs, clusters, costs and Criteo rows, through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "inputs" / "edge_cases"
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the shared edge cases are not beside the repository")


def hiertrain(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    command = [sys.executable, "-m", "hiertrain", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env={**os.environ, **environment}
    )


def solved(case: str, tmp_path: Path, *options: str) -> dict:
    """Plan a case; returns the plan file."""
    done = hiertrain("solve", CASES / case, "--out", tmp_path / "plan.json", "--json", *options)
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)
    return json.loads((tmp_path / "plan.json").read_text())


def tags_of(case: str, tmp_path: Path, *options: str) -> dict[str, int | str]:
    """Tags of the plan of a case."""
    return solved(case, tmp_path, *options)["plan"]["tags"]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("s04_cycle.json", ["op1", "op2", "cycle"]),
        ("s04_self_loop_root.json", ["op1", "cycle"]),
        ("s05_dangling_edge.json", ["7"]),
        ("s05_duplicate_ids.json", ["op0", "distinct"]),
        ("s06_empty_graph.json", ["nodes"]),
        ("s07_nan_cost.json", ["op0", "Latency"]),
        ("s07_infinite_cost.json", ["op0", "Latency"]),
        ("s07_negative_cost.json", ["op0", "Latency", "-5"]),
        ("s07_duplicate_key.json", ["nodes", "twice"]),
    ],
)
def test_broken_graphs_are_refused_in_one_line(case: str, words: list[str]) -> None:
    """A graph with a fault is refused with exit code 2 and one line that names file, operator or edge, and field."""
    done = hiertrain("solve", CASES / case)
    assert done.returncode == 2
    message = done.stderr.strip().splitlines()[-1]
    assert message.startswith("hiertrain: ")
    assert "Traceback" not in done.stderr
    assert all(word in message for word in [case, *words])


@pytest.mark.parametrize(
    "case", ["s12_pinned_infeasible_with_budget.json", "s12_fits_in_sum_but_no_single_worker.json"]
)
def test_what_fits_on_no_node_is_refused_with_the_reason(case: str) -> None:
    """Nothing fits: exit code 3, and the line says what does not fit where, and how much is short."""
    done = hiertrain("solve", CASES / case)
    assert done.returncode == 3
    assert "short" in done.stderr
    assert "memory" in done.stderr or "bytes" in done.stderr


def test_zero_cost_operators_are_spread_over_the_nodes(tmp_path: Path) -> None:
    """Eight operators of 8 GiB without cost on nodes of 16 GiB: no node gets them all, and the simulation ends."""
    tags = tags_of("s03_zero_cost_ops.json", tmp_path)
    assert len({tag for tag in tags.values() if tag != "dp"}) >= 4
    assert hiertrain("simulate", tmp_path / "plan.json").returncode == 0


def test_one_operator_on_one_worker_gives_the_trivial_plan(tmp_path: Path) -> None:
    """One operator, one node: planned without ado."""
    plan = solved("s06_single_op_one_worker.json", tmp_path)["plan"]
    assert len(plan["tags"]) == 1


@pytest.mark.parametrize("ratio", ["1e4", "1e5", "1e9", "1e18"])
def test_costs_of_any_ratio_are_planned(ratio: str, tmp_path: Path) -> None:
    """Costs eighteen orders of magnitude apart neither break the solver nor lose an operator."""
    document = solved(f"s08_cost_ratio_{ratio}.json", tmp_path)
    assert len(document["plan"]["tags"]) == 2
    assert document["result"]["samples_per_second"] == pytest.approx(1 / 1.0e-3, rel=1e-2)


def test_operators_of_a_terabyte_go_to_different_nodes(tmp_path: Path) -> None:
    """Two operators of 1e12 bytes, nodes of 1e12 bytes: feasible, and only on different nodes."""
    tags = tags_of("s08_coeff_1e12.json", tmp_path)
    assert tags["op0"] != tags["op1"]


def test_sizes_whose_products_exceed_64_bits_are_planned(tmp_path: Path) -> None:
    """Six operators of 1e14 bytes on three nodes of 3e14 bytes: two or three each, and no message of the solver."""
    tags = tags_of("s09_bytes_over_2e63_products.json", tmp_path)
    loads = [list(tags.values()).count(node) for node in range(3)]
    assert sorted(loads) == [2, 2, 2] or sorted(loads) == [0, 3, 3] or sorted(loads) == [1, 2, 3]


def test_durations_above_32_bits_of_nanoseconds_are_summed_exactly(tmp_path: Path) -> None:
    """A chain of 2^31 - 1, 2^31 and 2^32 ns takes 8,589.934591 ms on one node: no counter wraps."""
    solved("s10_op_over_2e31_ns.json", tmp_path, "--group-size", "1", "--max-replicas", "1", "--hogwild", "1")
    done = hiertrain("simulate", tmp_path / "plan.json", "--json", "--steps", "10", "--cores", "none")
    assert done.returncode == 0, done.stderr
    assert 1 / json.loads(done.stdout)["samples_per_second"] == pytest.approx(8.589934591, abs=1e-4)


def test_ties_are_broken_the_same_way_every_time(tmp_path: Path) -> None:
    """Twelve equal operators: the same plan whatever the hash seed."""
    found = []
    for seed in ("0", "1"):
        out = tmp_path / f"plan-{seed}.json"
        assert (
            hiertrain("solve", CASES / "s11_all_ties_symmetric.json", "--out", out, PYTHONHASHSEED=seed).returncode == 0
        )
        found.append(json.loads(out.read_text())["plan"])
    assert found[0] == found[1]


def test_a_table_bigger_than_any_node_is_split_by_rows(tmp_path: Path) -> None:
    """954 GiB of one table on four nodes of 256 GiB: its rows are split over all four, each row once."""
    cluster = str(CASES / "s01_cluster_4x256GiB.yaml")
    document = solved("s01_one_table_bigger_than_any_node.csv", tmp_path, "--cluster", cluster)
    shards = [shard for shard in document["plan"]["shards"] if shard["table"] == "item_id"]
    assert {shard["server"] for shard in shards} == {0, 1, 2, 3}
    assert sum(shard["row_end"] - shard["row_begin"] for shard in shards) == 1_000_000_000


def test_a_table_that_fits_nowhere_is_named_with_its_size(tmp_path: Path) -> None:
    """The same table on one machine with 64 GB: refused, naming table and machine, and how much is short."""
    done = hiertrain("solve", CASES / "s01_one_table_bigger_than_any_node.csv", "--cluster", "fb-1s-18c:2")
    assert done.returncode == 3
    assert "item_id" in done.stderr
    assert "short" in done.stderr


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ("s13_cluster_heterogeneous.yaml", ["noram", "memory"]),
        ("s14_yaml_number_traps.yaml", ["cores", "0123"]),
    ],
)
def test_bad_clusters_are_refused_with_file_field_and_value(cluster: str, words: list[str]) -> None:
    """A cluster with a value that is not allowed is refused in one line."""
    done = hiertrain("solve", "demo", "--cluster", CASES / cluster)
    assert done.returncode == 2
    assert all(word in done.stderr for word in [cluster, *words])


def test_a_cluster_of_one_node_trains_and_serves(tmp_path: Path) -> None:
    """On one node trainer and embedding server share the machine."""
    options = ["--cluster", str(CASES / "s13_cluster_one_node.yaml"), "--out", str(tmp_path / "plan.json"), "--json"]
    assert hiertrain("solve", "demo", *options).returncode == 0
    plan = json.loads((tmp_path / "plan.json").read_text())["plan"]
    assert plan["servers"][0]["name"] == plan["groups"][0][0]["name"] == "only"


def test_slurm_node_lists_name_the_nodes_of_a_cluster(tmp_path: Path) -> None:
    """The five public node lists expand to 5, 2, 2, 4 and 6 machines."""
    from problem.cluster_io import load_cluster

    counts = []
    for number, line in enumerate((CASES / "s14_slurm_nodelists.txt").read_text().split()):
        path = tmp_path / f"cluster{number}.toml"
        path.write_text(f'[[nodes]]\nnames = "{line}"\ncores = 8\nmemory = "64GiB"\nnic_gbps = 10\n')
        counts.append(len(load_cluster(str(path)).nodes))
    assert counts == [5, 2, 2, 4, 6]


@pytest.fixture(scope="module")
def criteo_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of the demo model with a batch of 4, for files of a few rows."""
    path = tmp_path_factory.mktemp("criteo") / "plan.json"
    options = ["--cluster", "local:1", "--hogwild", "1", "--batch", "4", "--max-rows", "1000"]
    done = hiertrain("solve", "demo", *options, "--out", path)
    assert done.returncode == 0, done.stderr
    return path


def test_odd_criteo_rows_are_refused_with_line_and_column(criteo_plan: Path) -> None:
    """The row with an id that is not hexadecimal is refused by line, column and value."""
    done = hiertrain("run", criteo_plan, "--data", CASES / "s15_criteo_odd_rows.tsv", "--steps", "4")
    assert done.returncode == 2
    assert "s15_criteo_odd_rows.tsv" in done.stderr
    assert "hexadecimal" in done.stderr


def test_one_epoch_ends_with_a_short_batch_and_is_measured_on_held_out_rows(criteo_plan: Path) -> None:
    """``--epochs 1`` reads every row once, whatever ``--steps`` says; ``--eval-data`` measures the net on a file."""
    case = CASES / "s15_criteo_7_rows_batch_4_workers_3.tsv"
    done = hiertrain("run", criteo_plan, "--data", case, "--epochs", "1", "--eval-data", case, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"] == 2
    assert found["held_out"]["samples"] == 7
    assert found["evaluated_on"].startswith(str(case))
    text = hiertrain("run", criteo_plan, "--data", case, "--epochs", "2", "--eval-data", case).stdout
    assert "4 steps" in text
    assert "7 samples" in text


@pytest.mark.parametrize("case", ["s15_criteo_same_id_whole_batch.tsv", "s15_criteo_7_rows_batch_4_workers_3.tsv"])
def test_few_or_equal_criteo_rows_train(case: str, criteo_plan: Path) -> None:
    """One id in a whole batch, and 7 rows for batches of 4 (read round and round): both train to a finite loss."""
    done = hiertrain("run", criteo_plan, "--data", CASES / case, "--steps", "6", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["loss"] > 0
