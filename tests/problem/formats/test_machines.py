"""Machines of foreign files: SimGrid, hwloc, FlexFlow, ASTRA-sim, Slurm lists."""

from __future__ import annotations

import pytest

from problem.cluster_io import load_cluster
from problem.errors import BadInput
from tests.problem.shared import SHARED, needs_shared

CLUSTERS = SHARED / "inputs" / "clusters"
GB = 1e9


def written(tmp_path, name, text):
    """Write a file and return its path as text."""
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1"><zone id="w" routing="Full">
  <cluster id="c" prefix="n-" radical="0-1,7" suffix=".x" speed="2Gf" core="4" bw="{bw}" lat="50us" topology="TORUS"/>
</zone></platform>"""


@pytest.mark.parametrize(
    ("bw", "rate"), [("1.25E9Bps", 1.25e9), ("1.25Gbps", 1.25e9 / 8), ("125MBps", 125e6), ("1MiBps", 2**20)]
)
def test_simgrid_rates_keep_bits_and_bytes_apart(tmp_path, bw, rate):
    """``Bps`` is bytes, ``bps`` bits; names, cores and speed are those of the cluster; a dropped topology is told."""
    cluster = load_cluster(written(tmp_path, "p.xml", PLATFORM.format(bw=bw)) + ",memory=64GiB")
    assert [node.name for node in cluster.nodes] == ["n-0.x", "n-1.x", "n-7.x"]
    node = cluster.nodes[0]
    assert (node.cores, node.flops_per_core_second, node.memory_bytes) == (4, 2e9, 64 * 2**30)
    assert (node.nic_bytes_per_second, node.latency_seconds) == (rate, 50e-6)
    assert any("TORUS" in note for note in cluster.assumptions)


def test_simgrid_host_has_the_nic_of_its_best_route(tmp_path):
    """Of two routes the one whose slowest link is faster counts, latencies added up."""
    text = (
        '<platform version="4.1"><zone id="z" routing="Full"><host id="a b" speed="1Gf,2Gf"/><host id="b" speed="1Gf"/>'
        '<link id="f" bandwidth="10GBps" latency="1us"/><link id="s" bandwidth="1GBps" latency="2us"/>'
        '<route src="a b" dst="b"><link_ctn id="f"/><link_ctn id="s"/></route>'
        '<route src="b" dst="b"><link_ctn id="f"/></route></zone></platform>'
    )
    first, second = load_cluster(written(tmp_path, "p.xml", text) + ",memory=1GiB").nodes
    assert (first.name, first.nic_bytes_per_second, first.latency_seconds) == ("a-b", 1 * GB, pytest.approx(3e-6))
    assert (second.nic_bytes_per_second, second.latency_seconds) == (10 * GB, 1e-6)


def test_missing_values_are_asked_for(tmp_path):
    """A platform says nothing of memory: the line says how to give it; a wrong key and a wrong value are named."""
    path = written(tmp_path, "p.xml", PLATFORM.format(bw="1GBps"))
    with pytest.raises(BadInput, match=r"memory = None: .*FILE,memory="):
        load_cluster(path)
    with pytest.raises(BadInput, match="one of cores, memory"):
        load_cluster(path + ",mem=1GiB")
    with pytest.raises(BadInput, match="512m"):
        load_cluster(path + ",memory=512m")


@pytest.mark.parametrize(
    ("old", "new"), [('"2Gf"', '"fast"'), ('"50us"', '"50 parsecs"'), ("0-1,7", "x"), ('"4"', '"-4"')]
)
def test_bad_simgrid_values_are_named_with_their_line(tmp_path, old, new):
    """An attribute that SimGrid would not take is refused with line, element and attribute."""
    text = PLATFORM.format(bw="1GBps").replace(old, new)
    with pytest.raises(BadInput, match=r"p\.xml:4: cluster\(c\)\.\w+ = "):
        load_cluster(written(tmp_path, "p.xml", text) + ",memory=1GiB")


HWLOC = """<topology version="3.0"><object type="Machine" cpuset="0x0000000f" allowed_cpuset="0x0000000b">
 <object type="NUMANode" nodeset="0x1" local_memory="1000"/><object type="NUMANode" nodeset="0x2" local_memory="500"/>
 <object type="Core" cpuset="0x3"><object type="PU" os_index="0" cpuset="0x1"/>
  <object type="PU" os_index="1" cpuset="0x2"/></object>
 <object type="Core" cpuset="0x4"><object type="PU" os_index="2" cpuset="0x4"/></object>
 <object type="Core" cpuset="0x8"><object type="PU" os_index="3" cpuset="0x8"/></object></object></topology>"""


def test_hwloc_counts_usable_cores_and_copies_the_machine(tmp_path):
    """Two of three cores are allowed (threads do not count); memory adds up; ``:3`` makes three such machines."""
    cluster = load_cluster(written(tmp_path, "h.xml", HWLOC) + ":3,nic_gbps=25Gb/s")
    assert [node.name for node in cluster.nodes] == ["h-0", "h-1", "h-2"]
    assert {(node.cores, node.memory_bytes, node.nic_bytes_per_second) for node in cluster.nodes} == {
        (2, 1500, 25e9 / 8)
    }
    named = load_cluster(str(tmp_path / "h.xml") + ",nic_gbps=25,names=x[1-2]")
    assert [node.name for node in named.nodes] == ["x1", "x2"]


@needs_shared
@pytest.mark.parametrize(
    ("name", "settings", "nodes", "cores"),
    [
        ("hwloc/192em64t-24n8c2t.xml", "nic_gbps=25", 1, 192),
        ("hwloc/96em64t-4n4d3ca2co-pci.xml", "nic_gbps=25", 1, 96),
        ("hwloc/16em64t-4s2c2t-offlines.xml", "nic_gbps=25,memory=8GiB", 1, 6),
        ("hwloc/32em64t-2n8c2t-pci-normalio.xml", "nic_gbps=25", 1, 16),
        ("simgrid/griffon.xml", "memory=16GiB", 92, 1),
        ("simgrid/g5k.xml", "memory=16GiB", 1528, 1),
        ("simgrid/three_multicore_hosts.xml", "memory=16GiB", 3, 4),
        ("flexflow/machine_config_example", "memory=64GiB", 2, 20),
        ("astrasim/examples_network_analytical_Ring_8npus.yml", "memory=64GiB,cores=8", 8, 8),
    ],
)
def test_public_machines(name, settings, nodes, cores):
    """Real files give the machines that they describe: how many, and with how many cores."""
    cluster = load_cluster(f"{CLUSTERS / name},{settings}")
    assert (len(cluster.nodes), cluster.nodes[0].cores) == (nodes, cores)


@needs_shared
def test_flexflow_units_are_those_of_its_comments():
    """NIC 10.9448431 GB/s and 0.000507 ms; two sockets of 4.26623 GB/s."""
    node = load_cluster(f"{CLUSTERS / 'flexflow' / 'machine_config_example'},memory=64GiB").nodes[0]
    assert (node.nic_bytes_per_second, node.latency_seconds) == (10.9448431 * GB, pytest.approx(0.507e-6))
    assert node.memory_bandwidth_bytes_per_second == 2 * 4.26623 * GB


def test_several_network_dimensions_are_refused(tmp_path):
    """A node has one NIC: a network of two dimensions is refused, and so is a rate that is no number."""
    for text in ("topology: [Ring, Ring]\nnpus_count: [2, 2]\nbandwidth: [1, 1]\nlatency: [1, 1]\n",):
        with pytest.raises(BadInput, match="one dimension"):
            load_cluster(written(tmp_path, "n.yml", text) + ",memory=1GiB,cores=1")
    text = "topology: [Ring]\nnpus_count: [2]\nbandwidth: [tbd]\nlatency: [1]\n"
    with pytest.raises(BadInput, match=r"n\.yml:3: bandwidth = 'tbd'"):
        load_cluster(written(tmp_path, "n.yml", text) + ",memory=1GiB,cores=1")


def test_slurm_lists_name_machines(tmp_path):
    """A file of node lists names the machines; everything else is given behind its name."""
    path = written(tmp_path, "nodes.txt", "b[09-10],x\nc[1-2]\n")
    cluster = load_cluster(path + ",cores=8,memory=64GiB,nic_gbps=10")
    assert [node.name for node in cluster.nodes] == ["b09", "b10", "x", "c1", "c2"]
