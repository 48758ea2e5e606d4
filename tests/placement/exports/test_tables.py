"""Plans for other tools: what is written says the same as the plan, and reads back as its shards."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from placement.errors import InvalidPlan
from placement.exports.picture import arrows, boxes, to_dot, to_svg
from placement.exports.tables import placement_map, shards_csv, torchrec_plan
from placement.foreign import plan_of_placement
from placement.plan import DP, Plan, Shard, Sync
from problem.cluster import Cluster, Node
from problem.cluster_io import load_cluster
from problem.errors import BadInput
from problem.formats.content import Content
from problem.formats.placement import PlacedShard, Placement
from problem.formats.registry import sniff
from problem.graph import Kind
from problem.readers import model_from_spec


def node(name: str, role: str = "any") -> Node:
    """A machine of the preset under another name."""
    return replace(load_cluster("fb-1s-18c").nodes[0].renamed(name), role=role)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Two tables on two servers, one cut by rows; the top MLP on node 1 of two groups of two."""
    tables = [{"name": "a", "rows": 10, "dim": 4, "pooling_factor": 3}, {"name": 'b "<x>"', "rows": 7, "dim": 4}]
    spec = {"name": "m", "dense_features": 2, "bottom_mlp": [4], "top_mlp": [8, 1], "tables": tables}
    model = model_from_spec(spec)
    tags = {op.name: 1 if op.name.startswith("top") else DP for op in model.graph if op.kind is not Kind.LOOKUP}
    return Plan(
        model=model,
        groups=((node("t0"), node("t1")), (node("t2"), node("t3"))),
        servers=(node("s0"), node("s1")),
        sync_servers=(node("s1"),),
        sync=Sync(),
        batch=16,
        tags=tags,
        ranks=2,
        shards=(Shard("a", 0, 0, 6), Shard("a", 1, 6, 10), Shard('b "<x>"', 1, 0, 7)),
    )


def test_torchrec_plan_reads_back(plan, tmp_path):
    """The sharding plan names types, ranks, sizes and offsets; read back it gives the plan's shards again."""
    document = torchrec_plan(plan)
    tables = document["plan"]["embedding_bag_collection"]
    assert (tables["a"]["sharding_type"], tables["a"]["ranks"]) == ("row_wise", [0, 1])
    assert tables["a"]["sharding_spec"]["shards"][1] == {
        "shard_sizes": [4, 4],
        "shard_offsets": [6, 0],
        "placement": "rank:1/cpu",
    }
    (tmp_path / "p.json").write_text(json.dumps(document))
    content = Content(tmp_path / "p.json")
    placement = sniff(content).reader("placement")(content)
    cluster = Cluster("c", (*plan.groups[0], *(replace(server, role="server") for server in plan.servers)))
    back = plan_of_placement(placement, plan.model, cluster, "p.json")
    assert back.shards == plan.shards
    assert [server.name for server in back.servers] == ["s0", "s1"]


def test_shards_csv_reads_back(plan, tmp_path):
    """The CSV names server, machine, rows, columns and bytes; read back it gives the plan's shards again."""
    (tmp_path / "p.csv").write_text(shards_csv(plan))
    assert (tmp_path / "p.csv").read_text().splitlines()[1] == "a,0,s0,0,6,0,4,96"
    content = Content(tmp_path / "p.csv")
    placement = sniff(content).reader("placement")(content)
    assert plan_of_placement(placement, plan.model, Cluster("c", plan.groups[0]), "p.csv").shards == plan.shards


def test_strips_of_columns_survive(plan, tmp_path):
    """A table cut by columns, and one cut both ways, keep their strips in TorchRec's plan and in the CSV."""
    shards = (
        Shard("a", 0, 0, 10, (0, 2)),
        Shard("a", 0, 0, 10, (2, 4)),
        Shard('b "<x>"', 0, 0, 7, (0, 1)),
        Shard('b "<x>"', 0, 0, 3, (1, 4)),
        Shard('b "<x>"', 1, 3, 7, (1, 4)),
    )
    cut = replace(plan, shards=shards)
    tables = torchrec_plan(cut)["plan"]["embedding_bag_collection"]
    assert [table["sharding_type"] for table in tables.values()] == ["column_wise", "grid_shard"]
    (tmp_path / "p.json").write_text(json.dumps(torchrec_plan(cut)))
    (tmp_path / "p.csv").write_text(shards_csv(cut))
    for name in ("p.json", "p.csv"):
        content = Content(tmp_path / name)
        placement = sniff(content).reader("placement")(content)
        assert plan_of_placement(placement, plan.model, Cluster("c", plan.groups[0]), name).shards == shards
    assert "a [0:10, 2:4]" in to_svg(cut)


def test_broken_placements_are_named(tmp_path):
    """A shard without sizes or rank, and a line without numbers, are refused by field."""
    for shards, words in (([{}], "shard_sizes"), ([{"shard_sizes": [1, 1], "shard_offsets": [0, 0]}], "placement")):
        document = {"plan": {"m": {"t": {"sharding_spec": {"shards": shards}}}}}
        (tmp_path / "p.json").write_text(json.dumps(document))
        content = Content(tmp_path / "p.json")
        with pytest.raises(BadInput, match=words):
            sniff(content).reader("placement")(content)
    (tmp_path / "p.csv").write_text("table,server,row_begin,row_end,column_begin,column_end\na,0,0,x,0,4\n")
    content = Content(tmp_path / "p.csv")
    with pytest.raises(BadInput, match=r"p\.csv:2: row_end = 'x'"):
        sniff(content).reader("placement")(content)


def test_map_names_each_machine_once(plan):
    """Seven roles on six machines: ranks count up, s1 holds shards and the centre, groups are process groups."""
    found = placement_map(plan)
    assert found["world_size"] == 6
    assert [rank["rank"] for rank in found["ranks"]] == list(range(6))
    assert found["process_groups"] == {
        "group0": [0, 1],
        "group1": [2, 3],
        "embedding_servers": [4, 5],
        "sync_servers": [5],
    }
    last = found["ranks"][5]
    assert (last["node"], last["roles"]) == ("s1", ["embedding_server", "sync_server"])
    assert [(shard["table"], shard["rows"]) for shard in last["shards"]] == [("a", [6, 10]), ('b "<x>"', [0, 7])]
    placed = {name for rank in found["ranks"] for name in rank["operators"]}
    assert placed == set(plan.tags)
    assert "top_0" in found["ranks"][1]["operators"]
    assert "top_0" not in found["ranks"][0]["operators"]


def test_pictures_show_every_operator_table_and_cut(plan):
    """DOT and SVG hold each box and arrow; the SVG is well-formed, whatever names hold."""
    assert [box.key for box in boxes(plan)] == ["ps0", "ps1", "dp", "n1"]
    assert arrows(plan) == {
        ("ps0", "dp"): ["a"],
        ("ps1", "dp"): ["a", 'b "<x>"'],
        ("dp", "n1"): ["interaction"],
        ("n1", "dp"): ["top_1"],
    }
    dot, svg = to_dot(plan), to_svg(plan)
    assert '"ps1" -> "dp" [label="2 tensors"];' in dot
    assert '\\"<x>\\"' in dot
    texts = [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert "top_0" in texts
    assert "2 tensors" in texts
    assert 'b "<x>" [0:7]' in texts


def placed(*shards: PlacedShard) -> Placement:
    """A placement on two devices."""
    return Placement("p", 2, shards)


def test_a_foreign_placement_is_matched_by_name_or_by_order(plan):
    """Names of the model are kept; names that nothing has are matched in order; a mixture or another number is refused."""
    cluster = Cluster("c", plan.groups[0])
    both = placed(PlacedShard("embedding0", 1), PlacedShard("embedding1", 0))
    found = plan_of_placement(both, plan.model, cluster, "f")
    assert [(shard.table, shard.server, shard.rows) for shard in found.shards] == [("a", 1, 10), ('b "<x>"', 0, 7)]
    assert (found.ranks, found.group_size, found.servers) == (2, 2, plan.groups[0])
    for shards in ((PlacedShard("a", 0), PlacedShard("c", 0)), (PlacedShard("x", 0),)):
        with pytest.raises(BadInput, match="the 2 tables of model m"):
            plan_of_placement(placed(*shards), plan.model, cluster, "f")
    with pytest.raises(BadInput, match="at least 2"):
        plan_of_placement(both, plan.model, Cluster("c", plan.groups[0][:1]), "f")
    with pytest.raises(InvalidPlan, match="rows are not placed"):
        plan_of_placement(placed(PlacedShard("a", 0, (0, 4)), PlacedShard('b "<x>"', 0)), plan.model, cluster, "f")
