"""FlexFlow (https://github.com/flexflow/flexflow-train): machine configurations and DLRM strategies.

A machine configuration (``key = value``, latencies in ms and bandwidths in GB/s as its comments say) becomes equal
machines; GPUs, PCI-e and NVLink are dropped. A strategy (protobuf: operators with device type, dimensions and device
numbers) becomes a placement: an ``embeddingN`` on one device is table N whole on that device.
"""

from __future__ import annotations

import re
from typing import Any

from problem.errors import BadInput
from problem.formats import wire
from problem.formats.content import Content
from problem.formats.machines import Machines
from problem.formats.placement import PlacedShard, Placement

_NAME, _DEVICE_TYPE, _DIMS, _DEVICES = 1, 2, 3, 4
_OPERATORS = 1
_COUNTS = ("num_nodes", "num_sockets_per_node", "num_cpus_per_socket")
_NUMBERS = ("membus_bandwidth", "nic_latency", "nic_bandwidth")


def read_machines(content: Content) -> Machines:
    """Return the machines of a configuration.

    Raises
    ------
    BadInput
        When a line is no ``key = value``, or a key that is needed is missing or no number above zero.
    """
    found = _settings(content)
    nodes, sockets, cpus = (int(_positive(found, key, content)) for key in _COUNTS)
    bus, latency_ms, nic = (_positive(found, key, content) for key in _NUMBERS)
    per_socket = int(float(found.get("nic_persocket", ("0", 0))[0]))
    node: dict[str, Any] = {
        "names": [f"node{i}" for i in range(nodes)],
        "cores": sockets * cpus,
        "nic_gbps": f"{nic * max(1, per_socket * sockets)!r}GB/s",
        "link_latency_s": f"{latency_ms!r}ms",
        "memory_bandwidth": f"{bus * sockets!r}GB/s",
    }
    notes = [
        "GPUs, PCI-e, NVLink and the links between sockets are not modelled",
        "latencies read as ms, rates as GB/s",
    ]
    return Machines(content.stem, [node], tuple(notes))


def _settings(content: Content) -> dict[str, tuple[str, int]]:
    """Return value and line of each key."""
    found: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(content.text.splitlines(), start=1):
        text = line.partition("#")[0].strip()
        key, equals, value = (part.strip() for part in text.partition("="))
        if text and not equals:
            raise BadInput(f"{content.source}:{number}", "line", text, "key = value")
        if text:
            found[key] = value, number
    return found


def _positive(found: dict[str, tuple[str, int]], key: str, content: Content) -> float:
    text, line = found.get(key, ("", 0))
    if not re.fullmatch(r"\d+(\.\d+)?([eE][+-]?\d+)?", text) or float(text) <= 0:
        raise BadInput(f"{content.source}:{line}" if line else content.source, key, text or None, "a number above 0")
    return float(text)


def read_placement(content: Content) -> Placement:
    """Return the placement of a strategy's tables.

    Raises
    ------
    BadInput
        When the bytes are no strategy, no ``embeddingN`` is in it, or one is on several devices.
    """
    try:
        operators = [_operator(value) for number, value in wire.fields(_whole(content)) if number == _OPERATORS]
    except wire.Broken as error:
        raise BadInput(content.source, "strategy", str(error), "a FlexFlow strategy (protobuf)") from None
    tables = [(name, devices) for name, devices in operators if name.startswith("embedding")]
    if not tables:
        raise BadInput(content.source, "operators", [name for name, _ in operators], "at least one embeddingN")
    for name, devices in tables:
        if len(devices) != 1:
            raise BadInput(content.source, f"{name}.device_ids", devices, "one device: a table that is not split")
    ranks = 1 + max(device for _, devices in operators for device in devices)
    replicated = [name for name, devices in operators if len(devices) == ranks]
    notes = (
        f"tables are read without sizes: name a model with {len(tables)} tables (--model)",
        f"data-parallel on all {ranks} devices: {', '.join(replicated)}",
    )
    return Placement(content.stem, ranks, tuple(PlacedShard(name, devices[0]) for name, devices in tables), notes=notes)


def _whole(content: Content) -> bytes:
    with content.open() as stream:
        return stream.read()


def _operator(value: wire.Value) -> tuple[str, list[int]]:
    """Return name and devices of an operator."""
    if isinstance(value, int):
        raise wire.Broken("a number where an operator is expected")
    name, devices = "", []
    for number, inner in wire.fields(value):
        if number == _NAME:
            name = wire.text(inner)
        elif number == _DEVICES:
            devices += wire.packed(inner)
    return name, devices
