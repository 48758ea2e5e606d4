"""Model configurations of other tools: what becomes of their tables and of their dense part."""

from __future__ import annotations

import pytest

from problem.errors import BadInput
from problem.formats.content import Content
from problem.formats.flexflow import read_placement as flexflow_placement
from problem.formats.torchrec_csv import read_placement as torchrec_placement
from problem.graph import Kind
from problem.readers import load_model, model_from_spec
from tests.problem.shared import SHARED, needs_shared

INPUTS = SHARED / "inputs"
HEADER = "table,sharding,ranks,hash_size,emb_dim,cw_dim,sum_pooling_factor\n"


def sizes(model):
    """Rows, dim and pooling factor of each feature by name."""
    return {found.name: (found.rows, found.dim, found.pooling_factor) for found in model.feature.values()}


def widths(model, prefix):
    """Widths of the layers of an MLP."""
    return [op.width for op in model.graph if op.kind is Kind.LINEAR and op.name.startswith(prefix)]


def test_torchrec_plan_gives_tables_and_shards(tmp_path):
    """Column shards of the given width on the ranks listed, one twice; row shards tile the rows, the last ones empty."""
    path = tmp_path / "p.csv"
    path.write_text(HEADER + 't,CW,"1,1",10,6,4,2.5\nu,RW,0-3,5,4,,0\nu,TW,2,7,4,,1\n')
    assert sizes(load_model(path)) == {"t": (10, 6, 2.5), "u": (5, 4, 0.0), "u (2)": (7, 4, 1.0)}
    found = torchrec_placement(Content(path))
    shards = [(s.table, s.device, s.rows, s.columns) for s in found.shards]
    assert found.devices == 4
    assert shards[:2] == [("t", 1, None, (0, 4)), ("t", 1, None, (4, 6))]
    assert shards[2:6] == [("u", rank, rows, None) for rank, rows in enumerate([(0, 2), (2, 4), (4, 5), (5, 5)])]
    assert shards[6] == ("u (2)", 2, None, None)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("t,XY,0,10,4,,1", "XY on 1 ranks"),
        ('t,CW,"0,1,2",10,4,4,1', "one rank for each 4 of 4 columns"),
        ("t,TW,a,10,4,,1", "ranks = 'a'"),
        ("t,TW,0,0,4,,1", "hash_size = '0'"),
        ("t,TW,,10,4,,1", "ranks = None"),
    ],
)
def test_bad_rows_of_a_torchrec_plan_are_named(tmp_path, row, words):
    """A row that says nothing that can be done is refused with its line."""
    path = tmp_path / "p.csv"
    path.write_text(HEADER + row + "\n")
    with pytest.raises(BadInput, match=words) as caught:
        torchrec_placement(Content(path))
    assert "p.csv:2" in str(caught.value)


@needs_shared
def test_the_production_plan_is_read_whole():
    """1,935 tables, 2.61e9 rows, 325.7e9 parameters, 35 of pooling 0; its shards fill all columns and rows on 96 ranks."""
    path = INPUTS / "torchrec_plan" / "meta_1935_tables_plan.csv"
    model, placement = load_model(path), torchrec_placement(Content(path))
    assert len(model.tables) == 1935
    assert sum(table.rows for table in model.tables) == pytest.approx(2.61e9, rel=1e-2)
    assert sum(table.rows * table.dim for table in model.tables) == pytest.approx(325.7e9, rel=1e-3)
    assert sum(table.pooling_factor == 0 for table in model.tables) == 35
    assert placement.devices == 96
    cells = {table.name: 0 for table in model.tables}
    for shard in placement.shards:
        table = model.table[shard.table]
        rows, columns = shard.rows or (0, table.rows), shard.columns or (0, table.dim)
        cells[shard.table] += (rows[1] - rows[0]) * (columns[1] - columns[0])
    assert cells == {table.name: table.rows * table.dim for table in model.tables}
    assert model_from_spec(model.spec) == model


@needs_shared
def test_the_printed_report_says_the_same_as_the_csv():
    """The report that the planner printed gives the same tables and the same shards as its rows in CSV."""
    folder = INPUTS / "torchrec_plan"
    printed, rows = folder / "sharding_stats_example.txt.gz", folder / "meta_1935_tables_plan.csv"
    assert load_model(printed).tables == load_model(rows).tables
    assert torchrec_placement(Content(printed)).shards == torchrec_placement(Content(rows)).shards


def test_a_report_without_parameters_is_refused(tmp_path):
    """A report that was cut off before its table of parameters is refused."""
    (tmp_path / "r.txt").write_text("#" * 30 + "\n# Evaluated 0 proposal(s)\n# Parameter Info:\n")
    with pytest.raises(BadInput, match="begins with FQN"):
        load_model(tmp_path / "r.txt")


@needs_shared
@pytest.mark.parametrize(
    ("name", "dense", "tables", "first"),
    [
        ("nvidia_feature_spec/criteo_f15.yaml", 13, 26, (7912889, 128, 1.0)),
        ("nvidia_feature_spec/outbrain_no_categorical.yaml", 13, 0, None),
        ("easyrec/dlrm_on_criteo.config", 13, 26, (1000000, 16, 1.0)),
        ("torcheasyrec/dlrm_criteo.config", 13, 26, (40000000, 16, 1.0)),
        ("easyrec/deepfm_combo_on_avazu_ctr.config", 0, 23, (24, 16, 1.0)),
        ("paddlerec_dlrm/config_bigdata.yaml", 13, 26, (1000001, 16, 1.0)),
        ("primus_dlrm/dlrm_baseline.yaml", 128, 13, (9390624, 64, 20.0)),
        ("torchrec_benchmark/sparse_data_dist_base.yml", 100, 173, (100000, 256, 30.0)),
    ],
)
def test_public_configurations(name, dense, tables, first):
    """Each public configuration gives its tables, dense features and the size of its first table; and lives in its spec."""
    model = load_model(INPUTS / "model_configs" / name)
    found = [op.width for op in model.graph if op.kind is Kind.DENSE_INPUT]
    assert (sum(found), len(model.feature)) == (dense, tables)
    if first is not None:
        assert next(iter(sizes(model).values())) == first
    assert model_from_spec(model.spec) == model


@needs_shared
def test_dense_parts_are_those_of_the_files():
    """MLP widths of EasyRec, TorchEasyRec and PaddleRec, with one logit at the end; wide tables of TorchRec in fp16."""
    configs = INPUTS / "model_configs"
    easy = load_model(configs / "easyrec" / "dlrm_on_criteo.config")
    assert (widths(easy, "bottom"), widths(easy, "top"), easy.batch) == ([64, 32, 16], [256, 128, 64, 1], 4096)
    torch_easy = load_model(configs / "torcheasyrec" / "dlrm_criteo.config")
    assert (widths(torch_easy, "bottom"), widths(torch_easy, "top"), torch_easy.batch) == ([64, 16], [64, 32, 1], 8192)
    paddle = load_model(configs / "paddlerec_dlrm" / "config_bigdata.yaml")
    assert (widths(paddle, "bottom"), widths(paddle, "top"), paddle.batch) == ([512, 256, 64, 16], [512, 256, 1], 2048)
    bench = load_model(configs / "torchrec_benchmark" / "sparse_data_dist_base.yml")
    wide = [(t.name, t.rows, t.dim, t.dtype) for t in bench.tables][-3:]
    assert wide[:2] == [("FP16_table", 100000, 512, "fp16"), ("large_table", 1000000, 2048, "fp32")]


def test_networks_that_are_not_modelled_are_named(tmp_path):
    """A network other than DLRM and DeepFM is refused by its name; an embedding without rows by its feature."""
    path = tmp_path / "m.config"
    path.write_text(
        "feature_configs { id_feature { feature_name: 'a' embedding_dim: 4 } }\nmodel_config { mmoe { } }\n"
    )
    with pytest.raises(BadInput, match="model_config = 'mmoe'"):
        load_model(path)
    path.write_text(path.read_text().replace("mmoe", "dlrm"))
    with pytest.raises(BadInput, match=r"features\(a\)"):
        load_model(path)


def test_shared_embeddings_are_one_table(tmp_path):
    """Two features of one ``embedding_name``, one of them a sequence of 5: one table, and a feature that shares it."""
    path = tmp_path / "m.config"
    sized = "embedding_name: 'v' embedding_dim: 4 num_buckets: 9"
    path.write_text(
        f"feature_configs {{ id_feature {{ feature_name: 'a' {sized} }} }}\n"
        "feature_configs { sequence_feature { sequence_length: 5 "
        f"features {{ id_feature {{ feature_name: 'b' {sized} }} }} }} }}\n"
        "model_config { dlrm { final { hidden_units: [8] } } }\n"
    )
    model = load_model(path)
    assert sizes(model) == {"v": (9, 4, 1.0), "v (2)": (9, 4, 5.0)}
    assert [feature.shares for feature in model.feature.values()] == ["", "v"]


@needs_shared
def test_described_models_are_entries_of_a_file():
    """One entry of a collection is a model; the collection asks for one; an entry without tables is refused."""
    facts = INPUTS / "facts" / "public_dlrm_models.json"
    model = load_model(f"{facts}/mlperf_dlrm_dcnv2_training")
    assert (len(model.tables), sum(op.kind is Kind.CROSS for op in model.graph)) == (26, 3)
    with pytest.raises(BadInput, match="FILE/ENTRY"):
        load_model(facts)
    with pytest.raises(BadInput, match="tables"):
        load_model(f"{facts}/dlrm_kaggle_shape")
    with pytest.raises(BadInput, match="one of mlperf"):
        load_model(f"{facts}/nothing")


@needs_shared
def test_flexflow_strategies_place_tables():
    """Eight tables on eight devices, one each; sixteen on eight, two each."""
    folder = INPUTS / "placements" / "flexflow"
    eight = flexflow_placement(Content(folder / "dlrm_strategy_8embs_8gpus.pb"))
    assert [(shard.table, shard.device) for shard in eight.shards] == [(f"embedding{i}", i) for i in range(8)]
    sixteen = flexflow_placement(Content(folder / "dlrm_strategy_16embs_8gpus.pb"))
    devices = [shard.device for shard in sixteen.shards]
    assert (sixteen.devices, sorted(devices)) == (8, sorted(2 * list(range(8))))


def test_a_format_can_be_forced(tmp_path):
    """``FORMAT:PATH`` reads a file that its content does not give away; a file of another kind is refused as what it is."""
    path = tmp_path / "tables"
    path.write_text("name,rows,dim\na,5,4\n")
    with pytest.raises(BadInput, match="format = 'unknown'"):
        load_model(path)
    assert sizes(load_model(f"tables:{path}")) == {"a": (5, 4, 1.0)}
    (tmp_path / "c.toml").write_text("[[nodes]]\nname = 'a'\ncores = 1\nmemory = '1GiB'\nnic_gbps = 1\n")
    with pytest.raises(BadInput, match="a model; this is a cluster"):
        load_model(tmp_path / "c.toml")
