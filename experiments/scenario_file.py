"""Scenarios from the literature: a TOML file that says which job a paper ran, what of it is read and what is assumed.

A file holds one job and its cases, which change single settings; :func:`job_of` turns a case into a plan and its costs.
Placement is the plain one that the papers describe, not a search: operators data-parallel or dealt to the nodes of a group
in order, tables whole, the largest to the least loaded server. Knows nothing of what is then asked of the prediction.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from cost_models.checked_json import build
from cost_models.costs import CostTable
from cost_models.roofline import roofline_costs
from placement.plan import DP, Plan, Shard, Sync, Tag
from problem.cluster import Node
from problem.cluster_io import load_cluster
from problem.documents import read_document
from problem.errors import BadInput
from problem.graph import Kind
from problem.model import Model
from problem.readers import load_model, model_from_spec

_STRICT = ConfigDict(extra="forbid")
FOLDER = Path(__file__).parent / "scenarios"


@dataclass(frozen=True)
class Machines:
    """What the nodes of a role are. Work that is bound by memory takes a core of any role the same time.

    Parameters
    ----------
    preset : str
        Cluster preset that gives the machine.
    cores : int or None
        Batches (of a server: requests) that are worked on at once; None: one a core of the preset.
    core_gflops : float or None
        Arithmetic speed of each of them in GFLOP/s; None: a core of the preset.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    preset: str
    cores: int | None = None
    core_gflops: float | None = None


@dataclass(frozen=True)
class Job:
    """How a model is trained.

    Parameters
    ----------
    batch, hogwild : int
        Samples per thread and step; threads per rank.
    groups, group_size : int
        Groups, and nodes of each; one rank each, whose operators are dealt to the nodes of its group in order.
    servers, sync_servers : int
        Embedding servers and sync servers.
    algorithm, mode, gap, alpha
        How groups are kept together (``placement.plan.Sync``).
    cut_codec, push_codec : str
        Codec of every tensor that is cut, and of what is pushed to the sync servers.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    batch: int
    hogwild: int = 1
    groups: int = 1
    group_size: int = 1
    servers: int = 1
    sync_servers: int = 0
    algorithm: Literal["easgd", "ma", "bmuf", "push"] = "easgd"
    mode: Literal["background", "foreground"] = "background"
    gap: int = 1
    alpha: float = 0.1
    cut_codec: str = "fp32"
    push_codec: str = "fp32"


@dataclass(frozen=True)
class Anchor:
    """A published number, and how ours is got from the cases.

    Parameters
    ----------
    number : int
        Its number in the list of anchors.
    what, evidence : str
        What was measured; ``read``, ``digitised`` or ``raster`` (by eye).
    published, tolerance : float
        The number; how far ours may be off, as a part of it if ``relative``.
    measure : str
        ``ratio`` (rate of the first case over the second's), ``gain`` (per cent of the time of the first case that the
        second saves), ``utilisation`` (per cent, of ``resource``, mean over the cases) or ``milliseconds`` (of an iteration
        of the first case).
    cases, other : list of str
        Their names; those of another reading of what was not published, if there is one.
    resource : str
        ``ROLE.RESOURCE`` of a utilisation.
    miss : str
        Why ours is off, if it is.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    number: int
    what: str
    evidence: Literal["read", "digitised", "raster"]
    published: float
    tolerance: float
    measure: Literal["ratio", "gain", "utilisation", "milliseconds"]
    cases: list[str]
    relative: bool = False
    resource: str = ""
    other: list[str] = field(default_factory=list)
    miss: str = ""


@dataclass(frozen=True)
class Scenario:
    """A file.

    Parameters
    ----------
    title, source : str
        What it is and where it was read.
    read, presets, free, left_out : list of str
        Facts; settings of ours that hold for all scenarios; settings that nobody published and that were chosen for this
        one, each with how; what was there and is not simulated.
    model : dict
        A model description, or ``{preset = NAME}``.
    trainer, server : Machines
        The nodes.
    job : Job
        How it is trained.
    cases : dict of str to dict
        By name, dotted settings that the case changes.
    anchors : list of Anchor
        Published numbers.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    title: str
    source: str
    read: list[str]
    presets: list[str]
    free: list[str]
    left_out: list[str]
    model: dict[str, Any]
    trainer: Machines
    server: Machines
    job: Job
    cases: dict[str, dict[str, Any]]
    anchors: list[Anchor] = field(default_factory=list)


def load_scenario(path: Path) -> Scenario:
    """Read a scenario.

    Raises
    ------
    BadInput
        The file cannot be read, a key is unknown or a value is of the wrong kind, or an anchor names no case.
    """
    found = build(Scenario, dict(read_document(path).data), path)
    for anchor in found.anchors:
        for name in (*anchor.cases, *anchor.other):
            if name not in found.cases:
                raise BadInput(path, f"anchors ({anchor.number}).cases", name, f"one of {', '.join(found.cases)}")
    return found


def scenarios(folder: Path = FOLDER) -> Iterator[tuple[Path, Scenario]]:
    """Return all scenarios of a folder, in the order of their names."""
    for path in sorted(folder.glob("*.toml")):
        yield path, load_scenario(path)


def job_of(scenario: Scenario, case: str) -> tuple[Plan, CostTable]:
    """Return the plan of a case and what everything costs.

    Raises
    ------
    BadInput
        The case changes a setting that there is not.
    """
    document: dict[str, Any] = {"model": scenario.model, "trainer": {}, "server": {}, "job": {}}
    document = copy.deepcopy(document)
    for key, value in scenario.cases[case].items():
        part, _, name = key.partition(".")
        if part not in document or not name:
            raise BadInput("scenario", f"cases.{case}", key, "PART.SETTING, PART model, trainer, server or job")
        document[part][name] = value
    trainer = replace(scenario.trainer, **document["trainer"])
    server = replace(scenario.server, **document["server"])
    plan = _plan(_model(document["model"], case), trainer, server, replace(scenario.job, **document["job"]))
    return plan, roofline_costs(plan.model, plan.batch, plan.groups[0][0])


def _model(description: Mapping[str, Any], name: str) -> Model:
    if "preset" in description:
        return load_model(str(description["preset"]))
    return model_from_spec({"kind": "dlrm", "name": name, **description})


def _nodes(machines: Machines, prefix: str, count: int) -> tuple[Node, ...]:
    node = load_cluster(machines.preset).nodes[0]
    speed = machines.core_gflops * 1e9 if machines.core_gflops is not None else node.flops_per_core_second
    node = replace(node, cores=machines.cores or node.cores, flops_per_core_second=speed, kind="scenario")
    return tuple(node.renamed(f"{prefix}{index}") for index in range(count))


def _plan(model: Model, trainer: Machines, server: Machines, job: Job) -> Plan:
    nodes, size = _nodes(trainer, "trainer", job.groups * job.group_size), job.group_size
    tags = _tags(model, size)
    cut = [name for name, tag in tags.items() if tag != DP] if job.cut_codec != "fp32" else []
    codecs = dict.fromkeys(cut, job.cut_codec)
    if job.push_codec != "fp32":
        codecs["exchange"] = job.push_codec
    return Plan(
        model=model,
        groups=tuple(nodes[first : first + size] for first in range(0, len(nodes), size)),
        servers=_nodes(server, "server", job.servers),
        sync_servers=_nodes(server, "sync", job.sync_servers),
        batch=job.batch,
        hogwild=job.hogwild,
        tags=tags,
        shards=_shards(model, job.servers),
        sync=Sync(job.mode, job.gap, job.alpha, job.algorithm) if job.groups > 1 else None,
        codecs=codecs,
        name=model.name,
    )


def _tags(model: Model, size: int) -> dict[str, Tag]:
    """Everything data-parallel on one node; on several the operators with parameters, and what lies between, in order."""
    tags: dict[str, Tag] = {op.name: DP for op in model.graph if op.kind is not Kind.LOOKUP}
    if size == 1:
        return tags
    cut = [op for op in model.graph if op.kind not in {Kind.LOOKUP, Kind.DENSE_INPUT, Kind.LOSS}]
    layers, seen = sum(bool(op.parameters) for op in cut), 0
    for op in cut:
        tags[op.name] = min(seen * size // layers, size - 1)
        seen += bool(op.parameters)
    return tags


def _shards(model: Model, servers: int) -> tuple[Shard, ...]:
    """Whole tables, those that cost most first, each to the server with the least so far."""
    load, found = [0.0] * servers, {}
    for table in sorted(model.tables, key=lambda table: -table.ids_per_sample * table.dim):
        server = load.index(min(load))
        load[server] += table.ids_per_sample * table.dim
        found[table.name] = Shard(table.name, server, 0, table.rows)
    return tuple(found[table.name] for table in model.tables)
