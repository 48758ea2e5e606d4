"""Sizes of tensors and messages of a session's step, by the names of ``programs.instructions``, and what codecs take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from cost_models.codecs import Message
from placement.codecs import EXCHANGE, parse_codec
from placement.plan import Plan, Shard, Span
from placement.tables.requests import Rows, request_sizes, request_wire, routed_rows
from placement.tables.shares import passes
from problem.graph import FLOAT_BYTES
from problem.model import EmbeddingTable
from programs.instructions import Recv, Reduce, Send

#: Begins what a request is sent by of which some features have the ids of the server's rows only; then the server.
ROUTE = "route:"
_STRIP = re.compile(r"@(\d+):(\d+)(?=@|$)")


def is_ids(plan: Plan, name: str) -> bool:
    """Whether a tensor holds the ids of a feature."""
    return name.startswith("ids.") and name[4:] in plan.model.feature


def strip_name(name: str, span: Span) -> str:
    """Return the name of some columns of a tensor."""
    return f"{name}@{span[0]}:{span[1]}"


def strip_of(name: str) -> Span | None:
    """Return the columns that a tensor is of, if it is a strip."""
    found = _STRIP.search(name)
    return (int(found[1]), int(found[2])) if found else None


def viewed(name: str) -> str:
    """Return the gradient that a tensor is a view into, where that gradient is; another tensor is itself."""
    return _STRIP.sub("", name) if name.startswith("d.") else name


def gradients_of(plan: Plan, shard: Shard) -> list[str]:
    """Return the names of the gradients that a shard is updated with, one for each feature of its table, in order."""
    names = [f"d.{feature.name}" for feature in plan.model.readers[shard.table]]
    if shard.width(plan.model.table[shard.table]) == plan.model.table[shard.table].dim:
        return names
    return [strip_name(name, shard.span(plan.model.table[shard.table])) for name in names]


def is_weights(plan: Plan, name: str) -> bool:
    """Whether a tensor holds the weights of a feature's ids."""
    return name.startswith("weights.") and name[8:] in plan.model.feature


def request_of(feature: EmbeddingTable) -> tuple[str, ...]:
    """Tensors that an embedding server needs to pool or to update for a feature: ids, and weights if it pools by weight."""
    weights = (f"weights.{feature.name}",) if feature.pooling == "weighted" else ()
    return (f"ids.{feature.name}", *weights)


def route(plan: Plan, server: int) -> str:
    """Return what the request to a server is sent by: empty if that has all ids of all its features."""
    return f"{ROUTE}{server}" if routed_rows(plan.model, plan.batch, plan.server_shards(server)) else ""


def rows_asked(plan: Plan, codec: str) -> dict[str, Rows]:
    """Return, for each feature of which a request has the ids of some rows only, which rows these are."""
    return routed_rows(plan.model, plan.batch, plan.server_shards(int(codec.removeprefix(ROUTE))))


def operator_of(plan: Plan, name: str) -> str:
    """Return the operator whose output, or the gradient of whose output, a tensor is (or is a part of)."""
    graph = plan.model.graph
    base = name.removeprefix("d.") if name not in graph else name
    if base not in graph:
        base = base.split(" <- ")[0]
    return base if base in graph else base.split("@")[0]


def is_gradient(plan: Plan, name: str) -> bool:
    """Whether a tensor is a gradient, or a part of one."""
    return name.startswith("d.") and name not in plan.model.graph


def columns(plan: Plan, name: str) -> int:
    """Elements of a tensor for each sample."""
    if is_ids(plan, name):
        return plan.model.feature[name[4:]].ids_per_sample
    if is_weights(plan, name):
        return plan.model.feature[name[8:]].ids_per_sample
    if (strip := strip_of(name)) is not None:
        return strip[1] - strip[0]
    return plan.model.graph[operator_of(plan, name)].output_bytes_per_sample // FLOAT_BYTES


def message_bytes(plan: Plan, tensors: Iterable[str], codec: str = "") -> int:
    """Return the bytes of a message; of a codec that leaves elements out, as many as are planned to be kept."""
    if not codec:
        return sum(plan.batch * columns(plan, name) * FLOAT_BYTES for name in tensors)
    if codec.startswith(ROUTE):
        asked = rows_asked(plan, codec)
        return sum(_requested(plan, name, asked) for name in tensors)
    return sum(message.bytes for message in _coded(plan, tensors, codec))


def exchanged_messages(plan: Plan, ops: Iterable[str]) -> list[tuple[Message, Message]]:
    """Return what each operator's part of a compressed exchange with a sync server is, there and back."""
    chosen, graph = parse_codec(plan.codec(EXCHANGE)), plan.model.graph
    return [chosen.exchanged(graph[op].parameters, graph[op].width) for op in ops]


def passes_of(reduce: Reduce) -> float:
    """Return how often a Reduce goes through its tensor, once for each sum or copy."""
    strips = [strip_of(part) for part in reduce.parts]
    spans = [strip for strip in strips if strip is not None]
    if not spans:
        return len(strips) - 1
    return passes(spans, max(end for _, end in spans))


def coding_seconds(plan: Plan, instruction: Send | Recv) -> float:
    """Return the core-seconds that a codec takes at this end of a message, on the machine that it was measured on."""
    if not instruction.codec:
        return 0.0
    if instruction.codec.startswith(ROUTE):
        asked = rows_asked(plan, instruction.codec)
        wires = [request_wire(plan.model.feature[name], plan.batch, rows) for name, rows in asked.items()]
        return sum(w.encode_seconds if isinstance(instruction, Send) else w.decode_seconds for w in wires)
    messages = _coded(plan, instruction.tensors, instruction.codec)
    if isinstance(instruction, Send):
        return sum(message.encode_seconds for message in messages)
    return sum(message.decode_seconds for message in messages)


def _requested(plan: Plan, name: str, asked: Mapping[str, Rows]) -> int:
    """Bytes of a tensor of a request, ids or weights of a feature."""
    feature = plan.model.feature[name.partition(".")[2]]
    sizes = request_sizes(feature, plan.batch, asked.get(feature.name))
    return sizes.ids if is_ids(plan, name) else sizes.weights


def _coded(plan: Plan, tensors: Iterable[str], codec: str) -> list[Message]:
    chosen = parse_codec(codec)
    return [chosen.message(plan.batch, columns(plan, name), gradient=is_gradient(plan, name)) for name in tensors]
