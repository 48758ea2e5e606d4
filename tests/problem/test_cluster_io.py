"""Clusters: presets with counts, files, defaults that are told, and the traps of YAML."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from problem.cluster_io import load_cluster
from problem.errors import BadInput
from tests.problem.shared import EDGE_CASES, needs_shared


def yaml_cluster(folder, *nodes):
    """Load a YAML cluster of these flow mappings, one a line; node i stands on line i + 2."""
    path = folder / "c.yaml"
    path.write_text("nodes:\n" + "".join(f"  - {{{node}}}\n" for node in nodes))
    return load_cluster(str(path))


def test_preset_with_count():
    """``fb-1s-18c:32`` is 32 equal machines with the numbers of its sources, each its own host."""
    cluster = load_cluster("fb-1s-18c:32")
    names = [node.name for node in cluster.nodes]
    assert (len(names), names[0], names[-1]) == (32, "fb-1s-18c-00", "fb-1s-18c-31")
    assert names == sorted(names)
    node = cluster.nodes[7]
    assert (node.cores, node.nic_bytes_per_second, node.memory_bytes) == (18, 12.5e9 / 8, 64 * 10**9)
    assert node.may_train
    assert node.may_serve
    assert len({node.host for node in cluster.nodes}) == 32
    assert any("64 GB" in line for line in cluster.assumptions)


def test_preset_with_servers():
    """``24+8`` is 24 trainers and 8 servers."""
    cluster = load_cluster("fb-1s-18c:24+8")
    assert [sum(node.role == role for node in cluster.nodes) for role in ("trainer", "server", "any")] == [24, 8, 0]


def test_fb_2s():
    """fb-2s has 40 cores, 25 Gb/s and 256 GB."""
    (node,) = load_cluster("fb-2s").nodes
    assert (node.cores, node.nic_bytes_per_second, node.memory_bytes) == (40, 25e9 / 8, 256 * 10**9)


def test_local():
    """``local:3`` is three trainers and a server on one host that divide its memory and share its cores."""
    cluster = load_cluster("local:3")
    assert [node.name for node in cluster.nodes] == ["local-0", "local-1", "local-2", "local-server"]
    assert [node.role for node in cluster.nodes] == ["trainer"] * 3 + ["server"]
    assert cluster.is_local
    whole = load_cluster("local").nodes[0]
    assert cluster.nodes[0].memory_bytes == whole.memory_bytes // 2
    assert cluster.nodes[0].cores == whole.cores
    assert cluster.assumptions
    assert len(load_cluster("local:2+2").nodes) == 4


@pytest.mark.parametrize(
    "source", ["local:0", "fb-1s-18c:0+3", "fb-2s:200000", "fb-2s:-1", "fb-2s:x", "fb-2s:", "fb-2s:3+-1"]
)
def test_counts_refused(source):
    """Counts of zero, beyond reason or that are no numbers are refused as counts, not as names."""
    with pytest.raises(BadInput, match="count"):
        load_cluster(source)


@pytest.mark.parametrize("source", ["fb-1s:3", ":3", ""])
def test_unknown_presets(source):
    """Unknown names are answered with the list of presets."""
    with pytest.raises(BadInput, match="presets: fb-1s-18c, fb-2s, local"):
        load_cluster(source)


def test_missing_file_is_named():
    """A file that is not there is named as one, not taken for a preset."""
    with pytest.raises(BadInput, match=r"c\.json: file = 'c\.json': No such file"):
        load_cluster("c.json")


@needs_shared
def test_public_clusters():
    """The well-formed public clusters load; values left open are told, each once for all nodes."""
    four = load_cluster(str(EDGE_CASES / "s01_cluster_4x256GiB.yaml"))
    assert [node.memory_bytes for node in four.nodes] == [256 * 2**30] * 4
    assert [node.nic_bytes_per_second for node in four.nodes] == [12.5e9] * 4
    assert len(four.assumptions) == 3
    assert all(line.startswith("n0, n1, n2, n3: ") for line in four.assumptions)
    assert len(load_cluster(str(EDGE_CASES / "s13_cluster_one_node.yaml")).nodes) == 1


@needs_shared
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("s13_cluster_heterogeneous.yaml", r":4: nodes\[2\]\(noram\).memory = '0': .*leave the node out"),
        ("s14_yaml_number_traps.yaml", r":2: nodes\[0\]\(1e3\).cores = '0123'"),
    ],
)
def test_public_faults(name, told):
    """Nodes without memory and octal-looking numbers are refused with their line."""
    with pytest.raises(BadInput, match=told):
        load_cluster(str(EDGE_CASES / name))


def test_yaml_types(tmp_path):
    """Names that YAML 1.1 would read as a number or as False stay names; quantities are read with their unit."""
    cluster = yaml_cluster(
        tmp_path,
        "name: 1e3, cores: 16, memory: 5e10, nic_gbps: 100, link_latency_s: 5e-6",
        "name: no, cores: 16, memory: 64Gi, nic_gbps: 1e2, link_latency_s: 5us",
        "name: n2, cores: 16, memory: 64G, nic_gbps: 12.5GB/s, link_latency_s: 0.005ms",
        "name: n3, cores: 16, memory: 64GiB, nic_gbps: 100Gb/s",
    )
    assert [node.name for node in cluster.nodes] == ["1e3", "no", "n2", "n3"]
    assert [node.memory_bytes for node in cluster.nodes] == [5 * 10**10, 64 * 2**30, 64 * 10**9, 64 * 2**30]
    assert {node.nic_bytes_per_second for node in cluster.nodes} == {12.5e9}
    assert [node.latency_seconds for node in cluster.nodes[:3]] == [5e-6] * 3


@pytest.mark.parametrize(
    ("node", "told"),
    [
        ("name: a, cores: 0123, memory: 1GB, nic_gbps: 1", r"cores = '0123'"),
        ("name: a, cores: 1, memory: 512m, nic_gbps: 1", r"memory = '512m'"),
        ("name: a, cores: 1, memory: 1GB, nic_gbps: 1, link_latency_s: 22:22", r"link_latency_s = '22:22'"),
        ("name: a, cores: 1, memory: 1GB, nic_gbps: 0", r"nic_gbps = '0': .*leave the node out"),
        ("name: a, cores: 1, memory: 1GB", "nic_gbps = None: required"),
        ("name: a, cores: 1, nic_gbps: 1", "memory = None: required"),
        ("name: a, cores: 1, memory: 1GB, nic_gpbs: 1", "did you mean nic_gbps"),
        ("name: a, cores: 0, memory: 1GB, nic_gbps: 1", "cores = '0'"),
        ("name: a, cores: 1, memory: 1GB, nic_gbps: 1, memory_bandwidth: 85", "needs a unit"),
        (
            "name: a, cores: 1, memory: 1GB, nic_gbps: 1, role: boss",
            "role = 'boss': must be 'any', 'trainer' or 'server'",
        ),
        ("cores: 1, memory: 1GB, nic_gbps: 1", "either name or names"),
        ("name: 'a b', cores: 1, memory: 1GB, nic_gbps: 1", r"name = 'a b'"),
        ("name: a, cores: 1, memory: 1e40, nic_gbps: 1", "memory"),
        ("name: n0, cores: 1, memory: 1GB, nic_gbps: 1", r"name = 'n0': distinct"),
    ],
)
def test_faults_name_line_and_field(tmp_path, node, told):
    """Each fault is one line with file, line, node and field."""
    with pytest.raises(BadInput, match=told) as caught:
        yaml_cluster(tmp_path, "name: n0, cores: 1, memory: 1GB, nic_gbps: 1", node)
    assert "c.yaml:3: nodes[1]" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "nodes: []", "nodes: 3", "[]", "nodes:\n  - a"])
def test_empty_clusters(tmp_path, text):
    """A file without nodes is refused in one line."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(BadInput):
        load_cluster(path)


def test_toml_with_node_list(tmp_path):
    """A Slurm node list makes equal nodes; other hardware gets another kind; a host may hold several nodes."""
    path = tmp_path / "rack.toml"
    path.write_text(
        '[[nodes]]\nnames = "b[09-10]"\ncores = 4\nmemory = "8GiB"\nnic_gbps = 10\nrole = "trainer"\n'
        '[[nodes]]\nname = "ps"\nhost = "b09"\ncores = 8\nmemory = "8GiB"\nnic_gbps = 10\nflops_per_core = "9GFLOP/s"\n'
        '[[nodes]]\nnames = ["x", "y[1-2]"]\ncores = 8\nmemory = 1000000000\nnic_gbps = "1Gb/s"\nkind = "old"\n'
    )
    cluster = load_cluster(path)
    assert [node.name for node in cluster.nodes] == ["b09", "b10", "ps", "x", "y1", "y2"]
    assert [node.host for node in cluster.nodes][:3] == ["b09", "b10", "b09"]
    assert [node.kind for node in cluster.nodes][2] != cluster.nodes[0].kind == cluster.nodes[1].kind
    assert cluster.nodes[5].kind == "old"
    assert cluster.name == "rack"
    assert any(line.startswith("b09, ..., y2 (6 nodes)") for line in cluster.assumptions)


@given(st.integers(1, 60), st.one_of(st.none(), st.integers(1, 60)))
def test_counts_are_what_was_asked(trainers, servers):
    """Whatever the counts, names are distinct and there are as many nodes as asked for."""
    cluster = load_cluster(f"fb-2s:{trainers}" + ("" if servers is None else f"+{servers}"))
    assert len({node.name for node in cluster.nodes}) == trainers + (servers or 0)
