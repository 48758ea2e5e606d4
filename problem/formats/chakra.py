"""Chakra execution traces (https://github.com/mlcommons/chakra), schema 0.0.4, in protobuf and in JSON.

The protobuf file is a ``GlobalMetadata`` and then one ``Node`` after the other, each behind its length; it is read as a
stream. The JSON files differ in the case and the underscores of their keys (``Id``, ``ctrlDeps``, ``data_deps``), which
therefore do not count. Metadata nodes are dropped; control and data dependencies are one kind here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

from problem.errors import BadInput
from problem.formats import wire
from problem.formats.content import Content
from problem.formats.trace_graph import TraceNode, model_of_trace
from problem.model import Model

METADATA, SEND, RECV, COLLECTIVE = 1, 5, 6, 7
VERSIONS = ("0.0.4",)
#: Numbers of the fields of ``Node`` (et_def.proto).
ID, NAME, TYPE, CTRL_DEPS, DATA_DEPS, START, DURATION, ATTRIBUTE = 1, 2, 3, 4, 5, 6, 7, 10


class Field(IntEnum):
    """Numbers of the fields of ``AttributeProto`` that are read or written (et_def.proto)."""

    NAME = 1
    DOUBLE = 3
    FLOAT = 5
    INT32 = 7
    INT64 = 9
    UINT32 = 11
    UINT64 = 13
    SINT32 = 15
    SINT64 = 17
    BOOL = 27
    STRING = 29


Attribute = int | float | str


def model_of_protobuf(content: Content) -> Model:
    """Return the model of a protobuf trace.

    Raises
    ------
    BadInput
        When the file is cut off, no Chakra trace, or of a schema that is not read.
    """
    return _model([node for node, _ in read_nodes(content)], content)


def read_nodes(content: Content) -> Iterator[tuple[TraceNode, dict[str, Attribute]]]:
    """Yield the nodes of a protobuf trace, metadata left out, each with its attributes.

    Raises
    ------
    BadInput
        When the file is cut off, no Chakra trace, or of a schema that is not read.
    """
    with content.open() as stream:
        messages = wire.delimited(stream, content.source)
        where = "metadata"
        try:
            _check_version(next(messages, b""), content.source)
            for index, message in enumerate(messages):
                where = f"node {index}"
                kind, node, attributes = _node(message)
                if kind != METADATA:
                    yield node, attributes
        except wire.Broken as error:
            raise BadInput(content.source, where, str(error), "a Chakra trace (protobuf)") from None


def _check_version(metadata: bytes, source: str) -> None:
    version = next((wire.text(value) for number, value in wire.fields(metadata) if number == 1), "")
    if version and version not in VERSIONS:
        raise BadInput(source, "version", version, f"Chakra schema {', '.join(VERSIONS)}")


def _node(message: bytes) -> tuple[int, TraceNode, dict[str, Attribute]]:
    """Return type, node and attributes of a ``Node``."""
    scalars: dict[int, wire.Value] = {}
    depends: list[int] = []
    attributes: dict[str, Attribute] = {}
    for number, value in wire.fields(message):
        if number in {CTRL_DEPS, DATA_DEPS}:
            depends += wire.packed(value)
        elif number == ATTRIBUTE and isinstance(value, bytes):
            attributes.update([_attribute(value)])
        else:
            scalars[number] = value
    kind, duration = int(scalars.get(TYPE, 0)), scalars.get(DURATION)
    node = TraceNode(
        id=int(scalars.get(ID, 0)),
        name=wire.text(scalars.get(NAME, b"")) or f"type {kind}",
        depends=tuple(depends),
        microseconds=None if duration is None else float(int(duration)),
        output_bytes=int(attributes.get("comm_size", 0)),
        communicates=kind in {SEND, RECV, COLLECTIVE},
    )
    return kind, node, attributes


def _attribute(message: bytes) -> tuple[str, Attribute]:
    """Return name and value of an attribute; lists and bytes are not read (0)."""
    name: str = ""
    attribute: Attribute = 0
    for number, value in wire.fields(message):
        if number == Field.NAME:
            name = wire.text(value)
        else:
            attribute = _value(number, value)
    return name, attribute


def _value(number: int, value: wire.Value) -> Attribute:
    match number, value:
        case (Field.SINT32 | Field.SINT64, int()):
            return value >> 1 ^ -(value & 1)
        case (_, int()):
            return wire.signed(value)
        case (Field.DOUBLE, bytes()):
            return float(struct.unpack("<d", value)[0])
        case (Field.FLOAT, bytes()):
            return float(struct.unpack("<f", value)[0])
        case (Field.STRING, bytes()):
            return wire.text(value)
    return 0


def model_of_json(content: Content) -> Model:
    """Return the model of a JSON trace.

    Raises
    ------
    BadInput
        When a node has no id, or a value is of the wrong kind.
    """
    data = content.json.data
    nodes = data["workload_graph"] if isinstance(data, Mapping) else data
    found = [_json_node(node, i, content.source) for i, node in enumerate(nodes)]
    return _model([node for kind, node in found if kind != METADATA], content)


def _json_node(data: Mapping[str, Any], index: int, source: str) -> tuple[int, TraceNode]:
    """Return type and node; keys without their case and underscores."""
    keys = {key.lower().replace("_", ""): value for key, value in data.items()}
    keys |= {key.lower().replace("_", ""): value for key, value in (keys.get("attr") or {}).items()}

    def whole(key: str, default: int | None = None) -> int:
        value = keys.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadInput(source, f"nodes[{index}].{key}", value, "a whole number")
        return value

    depends = [*(keys.get("ctrldeps") or ()), *(keys.get("datadeps") or ())]
    if not all(isinstance(number, int) for number in depends):
        raise BadInput(source, f"nodes[{index}].deps", depends, "lists of node ids")
    duration = next((keys[key] for key in ("runtime", "durationmicros", "dur") if key in keys), None)
    if duration is not None and not isinstance(duration, int | float):
        raise BadInput(source, f"nodes[{index}].runtime", duration, "microseconds")
    kind = whole("nodetype", keys.get("type", 0))
    node = TraceNode(
        id=whole("id"),
        name=str(keys.get("name") or f"type {kind}"),
        depends=tuple(depends),
        microseconds=duration,
        output_bytes=whole("commsize", 0),
        communicates=kind in {SEND, RECV, COLLECTIVE},
    )
    return kind, node


def _model(nodes: list[TraceNode], content: Content) -> Model:
    return model_of_trace(nodes, content.stem, content.source)
