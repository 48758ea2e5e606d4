"""Plan files: an exact round trip, and refusals that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cost_models.roofline import roofline_costs
from placement.errors import InvalidPlan
from placement.planfile import load_plan, save_plan
from placement.search.job import solve
from placement.search.options import SolveOptions
from problem.cluster import Cluster
from problem.errors import BadInput, HiertrainError
from problem.expand import expand_model
from problem.schema import ModelSpec
from tests.instances import nodes


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A plan file with two groups and sync servers, and the result it holds."""
    tables = [{"name": f"t{i}", "rows": 1000} for i in range(3)]
    spec = ModelSpec(name="m", dense_features=4, bottom_mlp=(8,), top_mlp=(16, 1), embedding_dim=8, tables=tables)
    model = expand_model(spec, "test")
    options = SolveOptions(max_replicas=2, group_size=2, servers=1, sync_servers=1)
    result = solve(model, Cluster("c", nodes(6)), lambda b, n: roofline_costs(model, b, n), options)
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    save_plan(path, result, result.costs)
    return path, result


def _changed(saved: tuple[Path, Any], tmp_path: Path, change: Any) -> Path:
    document = json.loads(saved[0].read_text())
    change(document)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(document))
    return path


def test_round_trip_is_exact(saved: tuple[Path, Any]) -> None:
    """A plan, its costs and its prediction come back as they were."""
    path, result = saved
    loaded = load_plan(path)
    assert loaded.plan == result.plan
    assert loaded.costs == result.costs
    assert loaded.result["samples_per_second"] == result.objective
    assert {"status", "group_size", "groups", "replicas", "gap", "bottleneck", "curve"} <= set(loaded.result)


def test_strips_come_back_and_tile_the_columns(saved: tuple[Path, Any], tmp_path: Path) -> None:
    """A plan file may cut a table's columns; a strip that is missing or doubled is refused, with file and columns."""

    def cut(*strips: tuple[int, int]) -> Any:
        def change(document: Any) -> None:
            shards = document["plan"]["shards"]
            whole = [s for s in shards if s["table"] == "t0"]
            others = [s for s in shards if s["table"] != "t0"]
            document["plan"]["shards"] = others + [{**s, "columns": list(strip)} for s in whole for strip in strips]

        return change

    dim = saved[1].plan.model.table["t0"].dim
    loaded = load_plan(_changed(saved, tmp_path, cut((0, 3), (3, dim))))
    assert sorted({s.columns for s in loaded.plan.shards if s.table == "t0"}) == [(0, 3), (3, dim)]
    for strips in (((0, 3),), ((0, 3), (2, dim)), ((1, dim),)):
        with pytest.raises(InvalidPlan, match=r"changed.json.*t0.*columns"):
            load_plan(_changed(saved, tmp_path, cut(*strips)))


def test_no_partial_file_is_left(saved: tuple[Path, Any]) -> None:
    """Writing goes through a neighbour that takes the name: nothing else remains in the folder."""
    assert [path.name for path in saved[0].parent.iterdir()] == ["plan.json"]


def test_missing_operator_is_refused(saved: tuple[Path, Any], tmp_path: Path) -> None:
    """A plan without a tag for an operator is refused, with file and operator."""
    path = _changed(saved, tmp_path, lambda document: document["plan"]["tags"].pop("top_0"))
    with pytest.raises(InvalidPlan, match=r"changed.json.*top_0"):
        load_plan(path)


def test_missing_rows_are_refused(saved: tuple[Path, Any], tmp_path: Path) -> None:
    """A plan that does not place all rows of a table is refused, with file and table."""
    path = _changed(saved, tmp_path, lambda document: document["plan"]["shards"].pop(0))
    with pytest.raises(InvalidPlan, match=r"changed.json.*t0"):
        load_plan(path)


def test_wrong_field_is_refused(saved: tuple[Path, Any], tmp_path: Path) -> None:
    """A field of the wrong kind is refused, with file and field."""
    path = _changed(saved, tmp_path, lambda document: document["plan"].update(batch="many"))
    with pytest.raises(BadInput, match=r"changed.json: batch"):
        load_plan(path)


@pytest.mark.parametrize("tag", ["x", 3.5, None])
def test_a_wrong_tag_is_named_by_its_operator_and_all_that_is_allowed(
    saved: tuple[Path, Any], tmp_path: Path, tag: object
) -> None:
    """The line names tags.top_0 as it stands in the file, and both a node's index and 'dp'."""
    path = _changed(saved, tmp_path, lambda document: document["plan"]["tags"].update(top_0=tag))
    with pytest.raises(BadInput, match=r"tags\.top_0 = .*: Input should be a valid integer, or 'dp'$"):
        load_plan(path)


def test_other_formats_are_refused(saved: tuple[Path, Any], tmp_path: Path) -> None:
    """A document of another format is refused."""
    path = _changed(saved, tmp_path, lambda document: document.update(format="something"))
    with pytest.raises(BadInput, match="hiertrain-plan/1"):
        load_plan(path)


def test_part_that_is_missing_is_refused(saved: tuple[Path, Any], tmp_path: Path) -> None:
    """A plan file without costs is refused."""
    path = _changed(saved, tmp_path, lambda document: document.pop("costs"))
    with pytest.raises(BadInput, match="costs"):
        load_plan(path)


@pytest.mark.parametrize("value", [0.9999991, 1.0000000000012, -1e-13, 99])
def test_a_number_that_is_nearly_whole_is_no_node(saved: tuple[Path, Any], tmp_path: Path, value: float) -> None:
    """Tags and rows of other solvers that are nearly whole are refused, not cut off to the number below; so is no node."""
    path = _changed(saved, tmp_path, lambda document: document["plan"]["tags"].update(top_0=value))
    with pytest.raises(HiertrainError, match="top_0"):
        load_plan(path)
    path = _changed(saved, tmp_path, lambda document: document["plan"]["shards"][0].update(row_begin=value))
    with pytest.raises(HiertrainError, match=r"row_begin|rows"):
        load_plan(path)
