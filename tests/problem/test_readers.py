"""Readers: presets, files, and models rebuilt from the description in a plan."""

import json
from dataclasses import replace

import pytest

from problem.errors import BadInput
from problem.graph import Kind
from problem.model import EmbeddingTable, Model
from problem.presets import list_presets, model_presets
from problem.readers import load_model, model_from_spec, with_max_rows
from tests.problem.shared import EDGE_CASES, needs_shared
from tests.problem.test_expand import tiny

#: tables, dense parameters, table rows, batch: worked out from the sources that the preset files name.
PRESETS = {
    "dlrm-kaggle": (26, 508_753, 33_762_577, 128),
    "demo": (26, 508_753, 840_543, 512),
    "dlrm-terabyte": (26, 762_177, 52_487_036, 2048),
    "mlperf-dlrm-dcnv2": (26, 16_044_545, 204_184_588, 2048),
    "rm1": (8, 100_833, 32_000_000, 200),
    "rm2": (32, 319_937, 16_000_000, 200),
    "rm3": (10, 3_205_409, 20_000_000, 200),
    "m1": (30, 2_181_633, 171_000_000, 200),
    "m2": (13, 3_993_601, 94_900_000, 200),
    "m3": (127, 5_365_249, 469_900_000, 200),
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name):
    """Each preset expands to the sizes that its sources give, and comes back equal from its JSON description."""
    model = load_model(name)
    rows = sum(table.rows for table in model.tables)
    assert (len(model.tables), model.graph.dense_parameters, rows, model.batch) == PRESETS[name]
    assert model_from_spec(json.loads(json.dumps(model.spec))) == model
    assert sum(op.kind is Kind.LOOKUP for op in model.graph) == len(model.tables)


def test_all_presets_are_tested_and_listed():
    """The list of presets names every data file with a summary and a source."""
    assert set(PRESETS) == set(model_presets())
    listed = list_presets()
    assert [info.name for info in listed if info.kind == "cluster"] == ["fb-1s-18c", "fb-2s", "local"]
    assert {info.name for info in listed if info.kind == "model"} == set(PRESETS)
    assert all(info.summary and info.source for info in listed)


def test_kaggle_anchors():
    """dlrm-kaggle has the 508,753 dense and 540.2 M embedding parameters of arXiv 2010.08899."""
    model = load_model("dlrm-kaggle")
    assert model.graph.dense_parameters == 508_753
    assert sum(table.rows * table.dim for table in model.tables) == 540_201_232


def test_mlperf_anchors():
    """MLPerf DLRM-DCNv2: 97.363 GiB of rows, 214 ids a sample, doubled by the reference's Adagrad state."""
    tables = load_model("mlperf-dlrm-dcnv2").tables
    assert round(sum(table.parameter_bytes for table in tables) / 2**30, 3) == 97.363
    assert sum(table.ids_per_sample for table in tables) == 214
    assert all(table.total_bytes == 2 * table.parameter_bytes for table in tables)


def test_demo_is_an_iteration_of_a_gigaflop_and_a_half():
    """A demo iteration is 6 flops per dense parameter and sample, within the interaction's and first layer's share."""
    model = load_model("demo")
    flops = sum(work.flops_per_sample for op in model.graph for work in (op.forward, op.backward)) * model.batch
    assert 1.4e9 < flops < 1.8e9


@needs_shared
def test_terabyte_rows_are_the_public_ones():
    """The rows of dlrm-terabyte and mlperf-dlrm-dcnv2 are those of the public fact sheet."""
    facts = json.loads((EDGE_CASES.parent / "facts" / "public_dlrm_models.json").read_text())
    public = [table["rows"] for table in facts["dlrm_terabyte_uncapped"]["tables"]]
    assert [table.rows for table in load_model("dlrm-terabyte").tables] == [min(rows, 10_000_000) for rows in public]
    public = [(table["rows"], table["pooling_factor"]) for table in facts["mlperf_dlrm_dcnv2_training"]["tables"]]
    assert [(t.rows, t.pooling_factor) for t in load_model("mlperf-dlrm-dcnv2").tables] == public


def test_unknown_preset_suggests():
    """A misspelt preset is answered with the nearest one and the list."""
    with pytest.raises(BadInput, match="did you mean dlrm-kaggle"):
        load_model("dlrm-kagle")
    with pytest.raises(BadInput, match="No such file"):
        load_model("model.onnx")


def test_tables_from_a_csv_beside_the_toml(tmp_path):
    """``tables`` may be a path relative to the TOML; faults name line and column of the CSV."""
    (tmp_path / "t.csv").write_text("name,rows,pooling_factor\na,5,2\nb,6,\n")
    text = 'name = "x"\ndense_features = 0\ntop_mlp = [1]\nembedding_dim = 4\ntables = "t.csv"\n'
    (tmp_path / "m.toml").write_text(text)
    model = load_model(tmp_path / "m.toml")
    assert [(table.rows, table.pooling_factor) for table in model.tables] == [(5, 2), (6, 1)]
    assert model_from_spec(model.spec) == model
    (tmp_path / "t.csv").write_text("name,rows\na,5\nb,-1\n")
    with pytest.raises(BadInput, match=r":3: tables\[1\]\(b\)\.rows = '-1'"):
        load_model(str(tmp_path / "m.toml"))


@needs_shared
def test_bare_tables_get_a_stated_head():
    """A CSV of tables becomes a model of those tables; the assumed dense part is told."""
    one = load_model(EDGE_CASES / "s01_one_table_bigger_than_any_node.csv")
    assert max(one.tables, key=lambda table: table.total_bytes).total_bytes == 10**9 * 512 * 2
    assert one.graph["interaction"].kind is Kind.INTERACTION
    odd = load_model(EDGE_CASES / "s02_rows_not_divisible.csv")
    assert [(table.rows, table.ids_per_sample) for table in odd.tables] == [(4091, 3), (1, 1), (3, 1), (2, 100)]
    many = load_model(EDGE_CASES / "s17_600_identical_tables.csv")
    assert (len(many.tables), many.graph["interaction"].kind) == (600, Kind.CONCAT)
    for model in (one, odd, many):
        assert any("assumed dense part" in note for note in model.notes)
        assert model_from_spec(json.loads(json.dumps(model.spec))) == model


@pytest.mark.parametrize(
    "text", ["name,rows\n", "table,rows,index\nt0,4,3\n", "name,rows\na,5\n", "name,rows,dim\na,x,4\n"]
)
def test_bare_tables_refused(tmp_path, text):
    """No tables, foreign columns, no dim and rows that are no number are one line each."""
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(BadInput) as caught:
        load_model(tmp_path / "t.csv")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dim", ["nan", "0", "-1", "1.5", "1e400"])
def test_bug_a_dim_of_bare_tables_was_blamed_on_the_bottom_mlp(tmp_path, dim):
    """The assumed bottom MLP ends in the dim of the tables; a dim that is none is named with its line and table."""
    (tmp_path / "t.csv").write_text(f"name,rows,dim\nuser,5,{dim}\n")
    with pytest.raises(BadInput, match=r"t\.csv:2: tables\[0\]\(user\)\.dim = "):
        load_model(tmp_path / "t.csv")


def test_cap_without_description():
    """A model built by hand is capped as well; one without tables stays as it is."""
    made = replace(tiny(), spec={}, tables=(EmbeddingTable("a", 100, 4),))
    assert with_max_rows(made, 7).tables[0].rows == 7
    bare = tiny(tables=[])
    assert with_max_rows(bare, 7) is bare
    with pytest.raises(BadInput):
        with_max_rows(made, 0)


def test_cap_is_in_the_description():
    """A capped preset rebuilds from its description, and says that it is capped."""
    model = with_max_rows(load_model("rm1"), 1000)
    rebuilt = model_from_spec(json.loads(json.dumps(model.spec)))
    assert isinstance(rebuilt, Model)
    assert rebuilt == model
    assert {table.rows for table in rebuilt.tables} == {1000}
    assert any("hashed by modulo" in note for note in rebuilt.notes)
