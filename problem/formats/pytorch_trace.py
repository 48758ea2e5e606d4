"""PyTorch execution traces (``ExecutionTraceObserver``), schemas 1.0.1 to 1.1.1: what was called with which tensors.

A trace is a tree of calls. Operators of the model are the topmost calls that have a schema (``aten::linear``, not the
``aten::addmm`` inside it) and the calls outside them that call nothing. An operator depends on the last earlier one that
wrote the storage of a tensor that it reads. Views and in-place calls thereby keep their order.

The trace has no durations. They come from the Kineto trace of the same step (``--costs``), which ``cost_models.kineto``
joins to the operators by :func:`label`: the name and its number among calls of that name. Parameters cannot be told from
inputs, so the model holds none; tensors count as the bytes of their elements.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from problem.errors import BadInput
from problem.formats.content import Content
from problem.formats.trace_graph import TraceNode, clean, model_of_trace
from problem.model import Model

SCHEMAS = re.compile(r"1\.(0\.[1-4]|1\.[01])(-chakra\.0\.0\.4)?")
_COMMUNICATION = ("c10d::", "nccl:", "record_param_comms", "gloo:")
_LABELS = ("##", "[pytorch|")
_TENSOR_PARTS = 6  # id, storage, offset, elements, bytes of an element, device


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the trace; tensors as (id, storage, bytes)."""

    id: int
    name: str
    parent: int
    schema: str
    reads: tuple[tuple[int, int, int], ...]
    writes: tuple[tuple[int, int, int], ...]


def read_model(content: Content) -> Model:
    """Return the model of a trace.

    Raises
    ------
    BadInput
        When the schema is not read, or a call has no id.
    """
    data = content.json.data
    schema = data["schema"]
    if not isinstance(schema, str) or not SCHEMAS.fullmatch(schema):
        raise BadInput(content.source, "schema", schema, "1.0.1 to 1.1.1, with or without -chakra.0.0.4")
    calls = sorted((_call(node, i, content.source) for i, node in enumerate(data["nodes"])), key=lambda call: call.id)
    notes = ["execution trace: durations are in the Kineto trace of the same step (--costs); parameters are not known"]
    return model_of_trace(list(_operators(calls)), content.stem, content.source, notes)


def label(name: str, number: int) -> str:
    """Return the name of an operator: call number ``number`` (from 0) of those named ``name``, in their order."""
    return clean(f"{name} [{number}]")


def communicates(name: str) -> bool:
    """Whether a call is a collective or a message."""
    return name.startswith(_COMMUNICATION)


def _output_bytes(call: _Call) -> int:
    """Return the bytes of the outputs; of a collective that returns nothing, of the largest tensor that it is given."""
    if not call.writes and communicates(call.name):
        return max((size for _, _, size in call.reads), default=0)
    return sum(size for _, _, size in call.writes)


def _operators(calls: list[_Call]) -> Iterator[TraceNode]:
    """Yield the operators in their order, each with what it depends on."""
    labels = _labels(calls)
    writer: dict[tuple[str, int], int] = {}
    for call in _topmost(calls):
        depends = [writer[key] for tensor in call.reads for key in _keys(tensor) if key in writer]
        writer |= {key: call.id for tensor in (*call.writes, *_overwritten(call)) for key in _keys(tensor)}
        yield TraceNode(
            id=call.id,
            name=call.name,
            depends=tuple(dict.fromkeys(depends)),
            output_bytes=_output_bytes(call),
            communicates=communicates(call.name),
            label=labels[call.id],
        )


def _labels(calls: list[_Call]) -> dict[int, str]:
    count: Counter[str] = Counter()
    labels: dict[int, str] = {}
    for call in calls:
        labels[call.id] = label(call.name, count[call.name])
        count[call.name] += 1
    return labels


def _topmost(calls: list[_Call]) -> Iterator[_Call]:
    """Yield the operators: topmost calls with a schema, and calls outside them that call nothing."""
    parents = {call.parent for call in calls if call.parent != call.id}
    by_id = {call.id: call for call in calls}
    inside: dict[int, bool] = {}
    for call in calls:
        parent = by_id.get(call.parent)
        covered = parent is not None and parent is not call and (bool(parent.schema) or inside.get(parent.id, False))
        inside[call.id] = covered
        leaf = call.id not in parents and not call.name.startswith(_LABELS)
        if not covered and (call.schema or leaf):
            yield call


def _keys(tensor: tuple[int, int, int]) -> tuple[tuple[str, int], ...]:
    """Return what a tensor is known by: its storage, or its own number where it has none."""
    number, storage, _ = tensor
    return (("storage", storage),) if storage else (("tensor", number),)


def _overwritten(call: _Call) -> tuple[tuple[int, int, int], ...]:
    """Return the inputs that a call writes in place: its schema marks them (``Tensor(a!) self``), here all of them."""
    return call.reads if "!)" in call.schema or call.name.startswith("c10d::") else ()


def _call(node: Mapping[str, Any], index: int, source: str) -> _Call:
    """Return a call of either layout: flat keys (1.0.1), or inputs, outputs and attributes."""
    attributes = {item["name"]: item["value"] for item in node.get("attrs", ())}
    inputs, outputs = node.get("inputs", ()), node.get("outputs", ())
    number, parent = node.get("id"), node.get("parent", node.get("ctrl_deps"))
    if not isinstance(number, int) or not isinstance(parent, int):
        raise BadInput(source, f"nodes[{index}].id", number, "a whole number, and that of its parent")
    return _Call(
        id=number,
        name=str(node.get("name", "")),
        parent=parent,
        schema=str(node.get("op_schema", attributes.get("op_schema", ""))),
        reads=tuple(_tensors(inputs.get("values", ()) if isinstance(inputs, Mapping) else inputs)),
        writes=tuple(_tensors(outputs.get("values", ()) if isinstance(outputs, Mapping) else outputs)),
    )


def _tensors(values: Any) -> Iterator[tuple[int, int, int]]:
    """Yield the tensors among values, those in lists included."""
    for value in values if isinstance(values, list) else ():
        if isinstance(value, list):
            whole = len(value) == _TENSOR_PARTS and all(isinstance(part, int) for part in value[:5])
            if whole and isinstance(value[5], str):
                yield value[0], value[1], value[3] * value[4]
            else:
                yield from _tensors(value)
