"""ASTRA-sim analytical networks (https://github.com/astra-sim/astra-sim): YAML with one entry per network dimension.

One dimension becomes equal machines with NICs of its bandwidth (GB/s) and latency (ns); cores and memory are asked for.
Several dimensions are refused: our nodes have one NIC.
"""

from __future__ import annotations

from typing import Any

from problem.documents import Document
from problem.errors import BadInput
from problem.formats.content import Content
from problem.formats.machines import Machines

_KEYS = ("topology", "npus_count", "bandwidth", "latency")


def read_machines(content: Content) -> Machines:
    """Return the machines of a network.

    Raises
    ------
    BadInput
        When a key is missing, a value is no number above zero, or there is more than one dimension.
    """
    document = content.yaml
    lists = {key: _list(document, key) for key in _KEYS}
    if len(lists["topology"]) != 1:
        raise BadInput(
            document.where(("topology",)), "topology", lists["topology"], "one dimension: a node has one NIC"
        )
    count, rate, delay = (_number(document, key) for key in _KEYS[1:])
    node: dict[str, Any] = {
        "names": [f"npu{i}" for i in range(int(count))],
        "nic_gbps": f"{rate!r}GB/s",
        "link_latency_s": f"{delay!r}ns",
    }
    kind = lists["topology"][0]
    note = "rates read as GB/s, latencies as ns" + ("" if kind == "Switch" else f"; topology {kind} read as one switch")
    return Machines(content.stem, [node], (note,))


def _list(document: Document, key: str) -> list[Any]:
    value = document.data.get(key)
    if not isinstance(value, list) or not value:
        raise BadInput(document.where((key,)), key, value, "a list with an entry for each dimension")
    return value


def _number(document: Document, key: str) -> float:
    text = document.data[key][0]
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = 0.0
    if not 0 < value < float("inf") or (key == "npus_count" and not str(text).isdecimal()):
        raise BadInput(document.where((key, 0)), key, text, "a number above 0")
    return value
