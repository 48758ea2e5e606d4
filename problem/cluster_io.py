"""Clusters: ON WHAT the model is trained, from a preset with a count or from a file.

Knows how nodes are named and which values a source may leave open; each value filled in is told in
``Cluster.assumptions``. Memory and NIC are never filled in: a guess there would decide the plan.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from problem import local, units
from problem.cluster import Cluster, Node
from problem.documents import Document, parse_toml, parse_yaml
from problem.errors import BadInput
from problem.formats.content import Content, unwrap
from problem.formats.machines import Asked, Machines, complete, parse_asked
from problem.formats.registry import Format, found_reader, split_forced
from problem.presets import LOCAL, cluster_presets, nearest
from problem.schema import ClusterSpec, NodeSpec, validate

DEFAULT_FLOPS_PER_CORE = 6e9
"""120 GFLOP/s effective on a 20-core socket: 256 ms per DLRM batch of 2048 (arXiv 1906.00091, section 5.2)."""
DEFAULT_MEMORY_BANDWIDTH_PER_CORE = 85e9 / 18
"""Four channels of DDR4-2666 for 18 cores, as the preset fb-1s-18c (recalled, not read in a source)."""
DEFAULT_LATENCY_SECONDS = 20e-6
"""One way, TCP over Ethernet: order of magnitude, not from a source."""
MAX_NODES = 100_000

_PRESET = re.compile(r"(?P<name>[^:]+?)(?::(?P<trainers>\d+)(?:\+(?P<servers>\d+))?)?")


def load_cluster(source: str | Path) -> Cluster:
    """Read a cluster.

    Parameters
    ----------
    source : str or Path
        ``NAME`` or ``NAME:COUNT`` of a preset (``fb-1s-18c:32``: nodes of any role), ``NAME:T+S`` (T trainers and S
        servers), ``local:N`` (N trainers and a server on this machine), or a file of any format that becomes a cluster
        (docs/formats.md), with what it leaves open behind its name: ``host.xml:32,nic_gbps=25``.

    Raises
    ------
    BadInput
        When there is no such preset or file, or a value in it is not allowed.
    """
    forced, text = split_forced(str(source))
    asked = parse_asked(text)
    if asked is not None:
        return cluster_from_spec(_spec_of(asked, forced))
    if Path(text).suffix:
        raise BadInput(text, "file", Path(text).name, "No such file or directory")
    match = _PRESET.fullmatch(str(source))
    known, wanted = [*cluster_presets(), LOCAL.name], str(source).partition(":")[0]
    if wanted not in known:
        files = "each with a count (NAME:4); or a file, see docs/formats.md"
        raise BadInput("cluster", "name", str(source), f"{nearest(wanted, known)}, {files}")
    trainers, servers = (int(match["trainers"] or 1), match["servers"]) if match else (0, None)
    if not 1 <= trainers + int(servers or 0) <= MAX_NODES or trainers < 1:
        allowed = f"NAME:N or NAME:TRAINERS+SERVERS: between 1 and {MAX_NODES} nodes, at least one of them a trainer"
        raise BadInput("cluster", "count", str(source), allowed)
    if wanted == LOCAL.name:
        return _local(str(source), trainers, int(servers or 1))
    return _preset(str(source), wanted, trainers, None if servers is None else int(servers))


def _local(name: str, trainers: int, servers: int) -> Cluster:
    """Return trainers and servers that share this machine: its memory is divided among them, its cores are shared."""
    shares = trainers + servers
    server_names = ["local-server"] if servers == 1 else _numbered("local-server", servers)
    nodes = [local.this_node(node, role="trainer", shares=shares) for node in _numbered("local", trainers)]
    nodes += [local.this_node(node, role="server", shares=shares) for node in server_names]
    return Cluster(name, tuple(nodes), local.ASSUMPTIONS)


def _preset(source: str, name: str, count: int, servers: int | None) -> Cluster:
    """Return ``count`` copies of a preset's machine; with servers, roles are fixed."""
    pattern = cluster_from_spec(cluster_of_content(Content(cluster_presets()[name])))
    node = pattern.nodes[0]
    if servers is None:
        nodes = [node.renamed(copy) for copy in _numbered(name, count)]
    else:
        nodes = [replace(node.renamed(copy), role="trainer") for copy in _numbered(f"{name}-t", count)]
        nodes += [replace(node.renamed(copy), role="server") for copy in _numbered(f"{name}-s", servers)]
    return Cluster(source, tuple(nodes), pattern.assumptions)


def _numbered(prefix: str, count: int) -> list[str]:
    """Return ``count`` names that sort in their order: ``prefix-00``, ``prefix-01``, ..."""
    digits = len(str(max(count - 1, 0)))
    return [f"{prefix}-{i:0{digits}d}" for i in range(count)]


def cluster_of_content(content: Content) -> Document:
    """Return the description of a cluster file of ours (TOML or YAML).

    Raises
    ------
    BadInput
        When its syntax is broken.
    """
    parse = parse_toml if content.suffix == ".toml" else parse_yaml
    return parse(content.text, content.source)


def _spec_of(asked: Asked, forced: Format | None) -> Document:
    """Return the description of what was asked for, settings and count applied."""
    content = unwrap(asked.path)
    found = found_reader(content, "cluster", forced)(content)
    if isinstance(found, Machines):
        return Document(content.source, complete(found, asked, content.source))
    if asked.settings or asked.count is not None:
        raise BadInput(content.source, "settings", ",".join(asked.settings), "none: write them into the file")
    document: Document = found
    return document


def cluster_from_spec(document: Document) -> Cluster:
    """Return the cluster of a description in the keys of :class:`problem.schema.ClusterSpec`.

    Raises
    ------
    BadInput
        When a value is not allowed or a node name appears twice.
    """
    spec = validate(ClusterSpec, document)
    nodes: list[Node] = []
    gaps = _Gaps()
    for i, entry in enumerate(spec.nodes):
        nodes += _nodes(entry, gaps)
        _check_names(nodes, document, i)
    return Cluster(spec.name or Path(document.source).stem, tuple(nodes), (*spec.assumptions, *gaps.told()))


def _check_names(nodes: list[Node], document: Document, index: int) -> None:
    """Refuse a name that an earlier node has; ``index`` is the entry that was added last."""
    names = [node.name for node in nodes]
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        where = ("nodes", index)
        raise BadInput(document.where(where), f"{document.path(where)}.name", twice, "distinct node names")
    if len(names) > MAX_NODES:
        raise BadInput(document.source, "nodes", len(names), f"at most {MAX_NODES} nodes")


class _Gaps:
    """Values that a file left open: fills them in, and tells which nodes got them."""

    def __init__(self) -> None:
        self._nodes: dict[str, list[str]] = {}

    def fill(self, value: float | None, default: float, key: str, shown: str, names: tuple[str, ...]) -> float:
        """Return ``value``, or ``default`` and remember that it was assumed."""
        if value is not None:
            return value
        self._nodes.setdefault(f"{key} not given, {shown} assumed", []).extend(names)
        return default

    def told(self) -> list[str]:
        """Return one line for each assumption."""
        return [f"{_some(names)}: {text}" for text, names in self._nodes.items()]


def _some(names: list[str]) -> str:
    """Return the names, shortened when there are many."""
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, ..., {names[-1]} ({len(names)} nodes)"


def _nodes(entry: NodeSpec, gaps: _Gaps) -> list[Node]:
    """Return the nodes of one entry; values filled in are noted in ``gaps``."""
    names = entry.name or entry.names
    flops, streams, delay = (
        DEFAULT_FLOPS_PER_CORE,
        DEFAULT_MEMORY_BANDWIDTH_PER_CORE * entry.cores,
        DEFAULT_LATENCY_SECONDS,
    )
    flops = gaps.fill(entry.flops_per_core, flops, "flops_per_core", units.format_flops(flops), names)
    streams = gaps.fill(entry.memory_bandwidth, streams, "memory_bandwidth", units.format_bandwidth(streams), names)
    delay = gaps.fill(entry.link_latency_s, delay, "link_latency_s", units.format_seconds(delay), names)
    pattern = Node(
        name="",
        host=entry.host,
        kind=entry.kind or f"{entry.cores} cores x {units.format_flops(flops)}, {units.format_bandwidth(streams)}",
        cores=entry.cores,
        flops_per_core_second=flops,
        memory_bandwidth_bytes_per_second=streams,
        memory_bytes=entry.memory,
        nic_bytes_per_second=entry.nic_gbps,
        latency_seconds=delay,
        role=entry.role,
    )
    return [replace(pattern, name=name, host=entry.host or name) for name in names]
