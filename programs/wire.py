"""Sizes of tensors and messages of a session's step, by the names of ``programs.instructions``."""

from __future__ import annotations

from collections.abc import Iterable

from placement.codecs import parse_codec
from placement.plan import Plan
from problem.graph import FLOAT_BYTES


def is_ids(plan: Plan, name: str) -> bool:
    """Whether a tensor holds the ids of a table."""
    return name.startswith("ids.") and name[4:] in plan.model.table


def operator_of(plan: Plan, name: str) -> str:
    """Return the operator whose output, or the gradient of whose output, a tensor is (or is a part of)."""
    graph = plan.model.graph
    base = name.removeprefix("d.") if name not in graph else name
    if base not in graph:
        base = base.split(" <- ")[0]
    return base if base in graph else base.rpartition("@")[0]


def is_gradient(plan: Plan, name: str) -> bool:
    """Whether a tensor is a gradient, or a part of one."""
    return name.startswith("d.") and name not in plan.model.graph


def columns(plan: Plan, name: str) -> int:
    """Elements of a tensor for each sample."""
    if is_ids(plan, name):
        return plan.model.table[name[4:]].ids_per_sample
    return plan.model.graph[operator_of(plan, name)].output_bytes_per_sample // FLOAT_BYTES


def message_bytes(plan: Plan, tensors: Iterable[str], codec: str = "") -> int:
    """Return the bytes of a message; of a codec that leaves elements out, as many as are planned to be kept."""
    if not codec:
        return sum(plan.batch * columns(plan, name) * FLOAT_BYTES for name in tensors)
    chosen = parse_codec(codec)
    return sum(
        chosen.message(plan.batch, columns(plan, name), gradient=is_gradient(plan, name)).bytes for name in tensors
    )
