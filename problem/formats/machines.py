"""Machines of foreign files, in the keys of our own cluster file, and what the command line adds to them.

A foreign file seldom says all that a plan needs: SimGrid knows no memory, hwloc no network. What is missing is asked for
(``FILE:COUNT,memory=64GiB,nic_gbps=25Gb/s``), never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from problem.errors import BadInput
from problem.schema import NodeSpec

SETTINGS = (
    "cores",
    "memory",
    "nic_gbps",
    "link_latency_s",
    "flops_per_core",
    "memory_bandwidth",
    "role",
    "kind",
    "names",
)
"""Keys of a node that may be given behind the file name."""
REQUIRED = tuple(key for key, info in NodeSpec.model_fields.items() if info.is_required())
MAX_COUNT = 100_000


@dataclass(frozen=True)
class Machines:
    """What a foreign file says of machines.

    Parameters
    ----------
    name : str
        Name of the cluster.
    nodes : list of dict
        Entries in the keys of :class:`problem.schema.NodeSpec`; a key that the file does not give is absent.
    notes : tuple of str
        What was dropped or interpreted, for printing.
    """

    name: str
    nodes: list[dict[str, Any]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """A cluster file as it was typed: the path, how many copies of its one machine, and values to add."""

    path: Path
    count: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


def parse_asked(text: str) -> Asked | None:
    """Return the file that ``PATH[:COUNT][,key=value]...`` names; None when there is no such file.

    Raises
    ------
    BadInput
        On a key that is not one of :data:`SETTINGS`, or a count that is not allowed.
    """
    if not text:
        return None
    if Path(text).exists():
        return Asked(Path(text))
    file, *pairs = text.split(",")
    match = re.fullmatch(r"(?P<path>.+?)(?::(?P<count>\d+))?", file)
    if match is None or not Path(match["path"]).exists():
        return None
    settings = dict(_setting(pair) for pair in pairs)
    count = int(match["count"]) if match["count"] else None
    if count is not None and not 1 <= count <= MAX_COUNT:
        raise BadInput("cluster", "count", text, f"between 1 and {MAX_COUNT}")
    return Asked(Path(match["path"]), count, settings)


def _setting(pair: str) -> tuple[str, str]:
    key, found, value = pair.partition("=")
    if not found or key not in SETTINGS:
        raise BadInput("cluster", "setting", pair, f"KEY=VALUE with one of {', '.join(SETTINGS)}")
    return key, value


def complete(machines: Machines, asked: Asked, source: str) -> dict[str, Any]:
    """Return the description of a cluster (keys of :class:`problem.schema.ClusterSpec`) with settings and count applied.

    Raises
    ------
    BadInput
        When a value that a plan needs is neither in the file nor among the settings, or a count is given for a file with
        several machines.
    """
    nodes = [{**node, **asked.settings} for node in _copies(machines, asked, source)]
    for node in nodes:
        missing = [key for key in REQUIRED if key not in node]
        if missing:
            example = ",".join(f"{key}=..." for key in missing)
            raise BadInput(source, missing[0], None, f"not in this file: give it behind its name, FILE,{example}")
    told = [f"{key} = {value} as given" for key, value in asked.settings.items()]
    return {"name": machines.name, "nodes": nodes, "assumptions": [*machines.notes, *told]}


def _copies(machines: Machines, asked: Asked, source: str) -> list[dict[str, Any]]:
    if "names" in asked.settings or asked.count is not None:
        if len(machines.nodes) != 1:
            raise BadInput(source, "count", asked.count, f"no count or names: the file has {len(machines.nodes)} kinds")
        node = {key: value for key, value in machines.nodes[0].items() if key not in {"name", "names"}}
        if asked.count is None:
            return [node]
        digits = len(str(asked.count - 1))
        return [{**node, "names": [f"{machines.name}-{i:0{digits}d}" for i in range(asked.count)]}]
    return machines.nodes


def host_name(text: str) -> str:
    """Return a machine's name without the spaces and commas that our lists of machines do not allow."""
    return re.sub(r"[\s,\[\]]+", "-", text.strip())
