"""Models, graphs and clusters that are written read back equal."""

from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from problem.cluster_io import load_cluster
from problem.errors import BadInput
from problem.formats.writers import cluster_toml, graph_document, model_toml, toml
from problem.presets import model_presets
from problem.readers import load_model
from tests.problem.shared import MSR, needs_shared


@pytest.mark.parametrize("name", sorted(model_presets()))
def test_models_survive(tmp_path, name):
    """Every preset, written as TOML, reads back as the same model."""
    model = load_model(name)
    (tmp_path / "m.toml").write_text(model_toml(model))
    assert load_model(tmp_path / "m.toml") == model


@pytest.mark.parametrize("source", ["fb-1s-18c:3", "fb-2s:2+1", "local:2"])
def test_clusters_survive(tmp_path, source):
    """A cluster, written as TOML, has the same machines and tells the same assumptions."""
    cluster = load_cluster(source)
    (tmp_path / "c.toml").write_text(cluster_toml(cluster))
    found = load_cluster(tmp_path / "c.toml")
    assert (found.nodes, found.name, found.assumptions) == (cluster.nodes, cluster.name, cluster.assumptions)


@needs_shared
def test_graphs_survive(tmp_path):
    """A dnn-partitioning graph, written as ours, is the same model; measured seconds replace its own."""
    model = load_model(MSR / "throughput-inputs" / "LayerGraphs" / "gnmt_training.json")
    (tmp_path / "g.json").write_text(json.dumps(graph_document(model)))
    assert load_model(tmp_path / "g.json") == model
    name = model.graph.operators[0].name
    (tmp_path / "g.json").write_text(json.dumps(graph_document(model, {name: 0.125})))
    assert load_model(tmp_path / "g.json").graph[name].forward.seconds_per_sample == 0.125


def test_what_has_no_such_form_is_refused():
    """A DLRM is no graph of costs."""
    with pytest.raises(BadInput, match="known by their shapes"):
        graph_document(load_model("demo"))


scalars = st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
plain = st.dictionaries(
    st.from_regex(r"[a-z_]{1,8}", fullmatch=True), scalars | st.lists(scalars, max_size=3), max_size=4
)


@settings(max_examples=40)
@given(plain, st.lists(plain.filter(bool), min_size=1, max_size=3))
def test_toml_survives(data, entries):
    """Any mapping of scalars, lists and lists of mappings is what a TOML reader makes of it."""
    data = {**data, "entries_": entries}
    assert tomllib.loads(toml(data)) == data
