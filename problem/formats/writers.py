"""Models and clusters written in our own formats, so that what was read from elsewhere can be kept and edited.

What is written reads back equal. Knows the syntax of TOML; what the keys are is in :mod:`problem.schema`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from problem.cluster import Cluster, Node
from problem.errors import BadInput
from problem.model import Model


def model_toml(model: Model) -> str:
    """Return a model as TOML.

    Raises
    ------
    BadInput
        When it is an operator graph, which has no TOML form.
    """
    if "operators" in model.spec:
        raise BadInput(model.name, "--to", "model", "graph: its operators are known by their costs only")
    return toml(model.spec)


def graph_document(model: Model, seconds: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return an operator graph as a JSON object.

    Parameters
    ----------
    model : Model
        The model.
    seconds : Mapping of str to float, optional
        Core-seconds per sample of the forward phase that were measured elsewhere, by operator; they replace the model's.

    Raises
    ------
    BadInput
        When it is a DLRM, whose operators are known by their shapes.
    """
    if "operators" not in model.spec:
        raise BadInput(model.name, "--to", "graph", "model: its operators are known by their shapes")
    operators = [{**op, **_measured(op, seconds or {})} for op in model.spec["operators"]]
    return {**model.spec, "operators": operators}


def _measured(op: Mapping[str, Any], seconds: Mapping[str, float]) -> dict[str, float]:
    return {"forward_seconds": seconds[op["name"]]} if op["name"] in seconds else {}


def cluster_toml(cluster: Cluster) -> str:
    """Return a cluster as TOML; neighbours that are alike share an entry."""
    entries = []
    for alike, nodes in groupby(
        cluster.nodes, key=lambda node: (replace(node, name="", host=""), node.host == node.name)
    ):
        found = list(nodes)
        if alike[1]:
            entries.append({"names": [node.name for node in found], **_machine(found[0])})
        else:
            entries += [{"name": node.name, "host": node.host, **_machine(node)} for node in found]
    return toml({"name": cluster.name, "assumptions": list(cluster.assumptions), "nodes": entries})


def _machine(node: Node) -> dict[str, Any]:
    return {
        "kind": node.kind,
        "role": node.role,
        "cores": node.cores,
        "memory": node.memory_bytes,
        "nic_gbps": f"{node.nic_bytes_per_second!r}B/s",
        "link_latency_s": node.latency_seconds,
        "memory_bandwidth": f"{node.memory_bandwidth_bytes_per_second!r}B/s",
        "flops_per_core": node.flops_per_core_second,
    }


def toml(data: Mapping[str, Any]) -> str:
    """Return a mapping as TOML: scalars and lists first, then each list of mappings as an array of tables."""
    plain = {key: value for key, value in data.items() if not _is_table_list(value)}
    lines = [f"{key} = {_value(value)}" for key, value in plain.items()]
    for key, entries in data.items():
        for entry in entries if key not in plain else ():
            lines += ["", f"[[{key}]]", *(f"{name} = {_value(value)}" for name, value in entry.items())]
    return "\n".join(lines) + "\n"


def _is_table_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(entry, Mapping) for entry in value)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
