"""docs/inputs.md: its examples are files that are read."""

import re
from pathlib import Path

import pytest

from problem.cluster_io import load_cluster
from problem.errors import BadInput
from problem.graph_json import graph_cluster
from problem.readers import load_model
from problem.schema import ClusterSpec, GraphSpec, ModelSpec, NodeSpec, OperatorSpec, TableSpec

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "inputs.md").read_text()
EXAMPLES = re.findall(r"```(toml|yaml|json|csv)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("ending", "text"), EXAMPLES)
def test_example_is_read(tmp_path, ending, text):
    """Each example on the page loads as a model or as a cluster."""
    path = tmp_path / f"example.{ending}"
    path.write_text(text)
    if "nic_gbps" in text:
        assert load_cluster(path).nodes
    else:
        assert len(load_model(path).graph) > 1
    if "maxFPGAs" in text:
        assert len(graph_cluster(path).nodes) == 2


def test_every_kind_of_example_is_there():
    """The page shows all formats."""
    assert [ending for ending, _ in EXAMPLES] == ["toml", "toml", "toml", "csv", "toml", "yaml", "json", "json"]


def test_every_key_is_documented():
    """The page names every key of every schema of ours."""
    for schema in (ModelSpec, TableSpec, ClusterSpec, NodeSpec, GraphSpec, OperatorSpec):
        missing = [key for key in schema.model_fields if key not in {"assumptions"} and key not in PAGE]
        assert not missing, schema.__name__


def test_error_line_is_the_real_one(tmp_path, monkeypatch):
    """The error message on the page is what the program says."""
    monkeypatch.chdir(tmp_path)
    Path("rack.yaml").write_text("nodes:\n  - {name: a, cores: 1, memory: 512m, nic_gbps: 1}\n")
    with pytest.raises(BadInput) as caught:
        load_cluster("rack.yaml")
    assert str(caught.value) in PAGE
