"""The table of production-size instances: what it changes of a cluster, and what it prints of a result."""

from __future__ import annotations

import pytest

from experiments import bench_production
from experiments.autoctr import autoctr_model
from experiments.bench_production import HEADER, INSTANCES, Instance, measure
from placement.search.options import SolveOptions
from problem.cluster_io import load_cluster


def test_factors_change_every_machine() -> None:
    """NIC rate and memory are multiplied on each of the preset's machines; the rest stays."""
    given, changed = (
        load_cluster("fb-1s-18c:3"),
        Instance(("fb-1s-18c:3",), SolveOptions(), nic=0.5, memory=0.25).machines(),
    )
    for before, after in zip(given.nodes, changed.nodes, strict=True):
        assert after.nic_bytes_per_second == 0.5 * before.nic_bytes_per_second
        assert after.memory_bytes == before.memory_bytes // 4
        assert after.cores == before.cores


def test_a_row_has_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model is planned and printed: group size, value, bound and the best heuristic."""
    monkeypatch.setattr(bench_production, "autoctr_model", lambda: autoctr_model(operators=8, branches=4, tables=2))
    monkeypatch.setitem(INSTANCES, "tiny", Instance(("fb-1s-18c:3",), SolveOptions(group_size=2)))
    row = dict(zip(HEADER, measure("tiny", 5.0), strict=True))
    assert row["K"] == "2"
    assert float(row["samples/s"].replace(",", "")) <= float(row["bound"].replace(",", ""))
    assert row["best heuristic"] != "none fits"


def test_without_the_file_of_tables_its_row_says_so() -> None:
    """The job of a published plan is left out with a reason, in a row as wide as the others."""
    row = measure("published tables", 5.0)
    assert len(row) == len(HEADER)
    assert "--tables" in row[1]
