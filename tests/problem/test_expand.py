"""Expansion of a DLRM description: operators, shapes, counted work, refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from problem.errors import BadInput
from problem.graph import GraphError, Kind
from problem.readers import model_from_spec, with_max_rows

TINY = {
    "kind": "dlrm",
    "name": "tiny",
    "dense_features": 4,
    "bottom_mlp": [8, 2],
    "top_mlp": [6, 1],
    "embedding_dim": 2,
    "tables": [{"name": "a", "rows": 10}, {"name": "b", "rows": 20, "pooling_factor": 3}],
}


def tiny(**changes):
    """The tiny model with some keys changed."""
    return model_from_spec(TINY | changes)


def test_operators_in_order():
    """A DLRM expands to bottom layers, lookups, interaction, top layers and loss, wired in that order."""
    graph = tiny().graph
    assert [op.name for op in graph] == [
        "dense",
        "bottom_0",
        "bottom_1",
        "a",
        "b",
        "interaction",
        "top_0",
        "top_1",
        "loss",
    ]
    assert graph["interaction"].inputs == ("bottom_1", "a", "b")
    assert graph["interaction"].width == 2 + 3
    assert [graph[name].activation for name in ("bottom_1", "top_0", "top_1")] == ["relu", "relu", "none"]
    assert graph["loss"].width == 1


def test_work_of_a_linear_by_hand():
    """top_0 maps 5 to 6: 60 flops forward, 120 backward, 36 parameters, 3 floats of traffic each in the SGD update."""
    top = tiny().graph["top_0"]
    assert (top.forward.flops_per_sample, top.backward.flops_per_sample, top.parameters) == (60, 120, 36)
    assert top.update.bytes_per_step == 3 * 4 * 36
    assert tiny(optimizer="adagrad").graph["top_0"].update.bytes_per_step == 5 * 4 * 36


def test_first_layer_needs_no_input_gradient():
    """The layer behind the dense features computes only the gradient of its weights."""
    first = tiny().graph["bottom_0"]
    assert first.backward.flops_per_sample == first.forward.flops_per_sample == 2 * 4 * 8


def test_work_of_lookup_and_interaction_by_hand():
    """Three ids of two elements are 6 additions and 32 bytes; three vectors of two are 36 flops of dots."""
    graph = tiny().graph
    assert (graph["b"].forward.flops_per_sample, graph["b"].forward.bytes_per_sample) == (6, 24 + 8)
    assert graph["interaction"].forward.flops_per_sample == 2 * 9 * 2


def test_work_of_bags_by_hand():
    """A weighted bag of 0 to 4 ids, 1.5 on average: 1.5 rows of 8 read and multiplied; 4 ids and 4 weights requested."""
    spec = {"name": "t", "rows": 100, "dim": 8, "pooling_factor": 1.5, "max_ids": 4, "pooling": "weighted"}
    model = model_from_spec({"name": "m", "dense_features": 0, "top_mlp": [1], "tables": [spec]})
    (table,) = model.tables
    assert (table.ids_per_sample, table.mean_ids, table.request_elements) == (4, 1.5, 8)
    forward = model.graph["t"].forward
    assert (forward.flops_per_sample, forward.bytes_per_sample) == (2 * 1.5 * 8, 1.5 * 8 * 4 + 8 * 4)


def test_fm_and_projections():
    """A table of another dim gets a layer to the width of the others; the FM has the first vector and the products."""
    tables = [{"name": "a", "rows": 10, "dim": 5}, {"name": "b", "rows": 20}]
    graph = tiny(interaction="fm", projection_dim=2, tables=tables).graph
    assert graph["interaction"].inputs == ("bottom_1", "a_projection", "b")
    assert (graph["interaction"].kind, graph["interaction"].width) == (Kind.FM, 4)
    layer = graph["a_projection"]
    assert (layer.kind, layer.inputs, layer.width, layer.parameters) == (Kind.LINEAR, ("a",), 2, 12)
    assert layer.activation == "none"


def test_dcn():
    """The cross network is a concatenation and N low-rank layers, each with the concatenation as first input."""
    model = tiny(interaction="dcn", cross_layers=2, cross_rank=3)
    cross = model.graph["cross_1"]
    assert (cross.kind, cross.inputs, cross.width, cross.rank) == (Kind.CROSS, ("interaction", "cross_0"), 6, 3)
    assert cross.parameters == 2 * 6 * 3 + 6
    assert model.graph["cross_0"].inputs == ("interaction", "interaction")
    assert model.graph["top_0"].inputs == ("cross_1",)


def test_branches():
    """Two branches halve the hidden widths, see the whole input, and meet before the last layer."""
    graph = tiny(top_mlp=[8, 6, 1], top_branches=2).graph
    assert graph["top_0_b1"].inputs == ("interaction",)
    assert graph["top_1_b1"].inputs == ("top_0_b1",)
    assert [graph[f"top_1_b{b}"].width for b in (0, 1)] == [3, 3]
    assert graph["top_merge"].inputs == ("top_1_b0", "top_1_b1")
    assert graph["top_2"].inputs == ("top_merge",)


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 4))
def test_branches_keep_widths_and_save_parameters(branches, layers):
    """Grouping never changes the width that the last layer sees, and never adds parameters."""
    plain = tiny(top_mlp=[16] * layers + [1]).graph
    grouped = tiny(top_mlp=[16] * layers + [1], top_branches=branches).graph
    assert grouped[f"top_{layers}"].parameters == plain[f"top_{layers}"].parameters
    assert grouped.dense_parameters <= plain.dense_parameters


def test_no_dense_features():
    """Without dense features there is no bottom MLP, and a note says so."""
    model = tiny(dense_features=0)
    assert "dense" not in model.graph
    assert model.graph["interaction"].inputs == ("a", "b")
    assert any("bottom MLP" in note for note in model.notes)


def test_no_tables():
    """Without tables there is no interaction: the top MLP reads the bottom MLP, or the features themselves."""
    assert tiny(tables=[]).graph["top_0"].inputs == ("bottom_1",)
    bare = tiny(tables=[], bottom_mlp=[], interaction="concat").graph
    assert bare["top_0"].inputs == ("dense",)
    assert bare["top_0"].backward.flops_per_sample == bare["top_0"].forward.flops_per_sample


def test_counted_tables():
    """``count`` makes equal tables with numbered names."""
    model = tiny(tables=[{"name": "t", "rows": 5, "count": 3}])
    assert [table.name for table in model.tables] == ["t_0", "t_1", "t_2"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"bottom_mlp": [8, 3]}, "interaction"),
        ({"top_mlp": [6, 2]}, "top_mlp"),
        ({"top_mlp": []}, "top_mlp"),
        ({"top_mlp": [6, 1], "top_branches": 4}, "top_branches"),
        ({"top_mlp": [1], "top_branches": 2}, "top_branches"),
        ({"interaction": "dcn"}, "cross_layers"),
        ({"cross_rank": 4}, "cross_rank"),
        ({"tables": [], "dense_features": 0}, "tables"),
        ({"tables": [{"name": "a", "rows": 1}] * 2}, "tables"),
        ({"embedding_dim": None}, "tables(a).dim"),
        ({"tables": [{"name": "a", "rows": 0}]}, "tables[0](a).rows"),
        ({"tables": [{"name": "a", "rows": True}]}, "tables[0](a).rows"),
        ({"tables": [{"name": "a", "rows": "4M"}]}, "tables[0](a).rows"),
        ({"tables": [{"name": "a@ps0", "rows": 4}]}, "tables[0](a@ps0).name"),
        ({"tables": [{"name": "a", "row": 4}]}, "tables[0](a).row"),
        ({"tables": [{"name": "a"}]}, "tables[0](a).rows"),
        ({"tables": [{"name": "a", "rows": 4, "pooling": "max"}]}, "tables[0](a).pooling"),
        ({"tables": [{"name": "a", "rows": 4, "pooling_factor": 3, "max_ids": 2}]}, "tables(a).max_ids"),
        ({"tables": [{"name": "weights.a", "rows": 4}]}, "tables[0](weights.a).name"),
        ({"tables": [{"name": "a", "rows": 4}, {"name": "b", "shares": "a", "dim": 8}]}, "tables[1](b).dim"),
        ({"tables": [{"name": "a", "rows": 4}, {"name": "b", "shares": "c"}]}, "tables(b).shares"),
        ({"tables": [{"name": "a", "rows": 4}, {"name": "a", "shares": "a"}]}, "tables"),
        ({"tables": ["a"]}, "tables[0]"),
        ({"batch": 0}, "batch"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"optimizer": "rowwise_adagrad"}, "optimizer"),
        ({"botom_mlp": []}, "botom_mlp"),
    ],
)
def test_refused(changes, field):
    """Each contradiction is one line that names the key."""
    with pytest.raises(BadInput) as caught:
        tiny(**changes)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_unknown_key_suggests():
    """A misspelt key is answered with the one that was meant."""
    with pytest.raises(BadInput, match="did you mean bottom_mlp"):
        tiny(botom_mlp=[])


def test_table_named_like_an_operator():
    """A table cannot have the name of a dense operator."""
    with pytest.raises(GraphError, match="'loss' appears twice"):
        tiny(tables=[{"name": "loss", "rows": 3}])


@given(st.integers(1, 40), st.integers(1, 40))
def test_caps_compose(first, second):
    """Capping rows twice is capping at the smaller number; the dense part does not change."""
    model = with_max_rows(with_max_rows(tiny(), first), second)
    assert [table.rows for table in model.tables] == [min(rows, first, second) for rows in (10, 20)]
    assert model.graph.dense_parameters == tiny().graph.dense_parameters


def test_a_feature_reads_the_rows_of_the_table_that_it_shares():
    """A shared table is there once, with its rows and optimizer; each feature has a lookup and ids of its own."""
    shared = {"name": "clicked", "shares": "a", "pooling_factor": 20, "count": 2}
    model = tiny(tables=[shared, {"name": "a", "rows": 10, "optimizer": "adam"}, {"name": "b", "rows": 20}])
    assert list(model.table) == ["a", "b"]
    assert list(model.feature) == ["a", "b", "clicked_0", "clicked_1"]
    assert [feature.name for feature in model.readers["a"]] == ["a", "clicked_0", "clicked_1"]
    found = model.feature["clicked_1"]
    assert (found.rows, found.optimizer, found.ids_per_sample, found.storage) == (10, "adam", 20, "a")
    assert [(op.name, op.table) for op in model.graph if op.kind == "lookup"] == [
        ("a", "a"),
        ("b", "b"),
        ("clicked_0", "a"),
        ("clicked_1", "a"),
    ]
    assert model_from_spec(model.spec).feature == model.feature
