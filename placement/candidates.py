"""Which tags an operator may take: pins, components and the operators that stay with the rank.

Operators that must be placed together are one :class:`Item`; the rest of the package places items. Knows nothing of
costs and memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from placement.errors import ConstraintsConflict
from placement.plan import DP, Tag
from problem.errors import BadInput
from problem.graph import Graph, Kind, Operator

#: Kinds that stay with the rank that read the batch.
RANK_KINDS = frozenset({Kind.DENSE_INPUT, Kind.LOSS})


@dataclass(frozen=True, slots=True)
class Item:
    """Operators that are placed together, and the tag that is forced on them (None: open)."""

    name: str
    ops: tuple[str, ...]
    fixed: Tag | None = None


def resolve_pins(graph: Graph, pins: Mapping[str, Tag]) -> dict[str, Tag]:
    """Turn pins on operators, components or patterns into pins on operators.

    Parameters
    ----------
    graph : Graph
        The operators.
    pins : Mapping of str to Tag
        Key: an operator, else a component, else a shell pattern over operator names.

    Raises
    ------
    BadInput
        When a key matches nothing or a tag is not ``dp`` or a node index.
    ConstraintsConflict
        When an operator gets two tags, or a tag that its kind cannot take.
    """
    resolved: dict[str, Tag] = {}
    for key, tag in pins.items():
        if tag != DP and not (isinstance(tag, int) and tag >= 0):
            raise BadInput("pins", key, tag, "'dp' or the index of a node in the group, from 0")
        for op in _matching(graph, key):
            if resolved.setdefault(op.name, tag) != tag:
                raise ConstraintsConflict(
                    f"operator {op.name!r} is pinned to {resolved[op.name]!r} and {tag!r}", (op.name,)
                )
            if op.kind in RANK_KINDS and tag != DP:
                raise ConstraintsConflict(
                    f"operator {op.name!r} is pinned to node {tag}, but a {op.kind} stays with the rank ('dp')",
                    (op.name,),
                )
    return resolved


def _matching(graph: Graph, key: str) -> list[Operator]:
    placed = [op for op in graph if op.kind is not Kind.LOOKUP]
    for found in (
        [op for op in placed if op.name == key],
        [op for op in placed if op.component == key],
        [op for op in placed if fnmatchcase(op.name, key)],
    ):
        if found:
            return found
    raise BadInput("pins", key, pins_hint(key, graph), "an operator, a component or a pattern that matches one")


def pins_hint(key: str, graph: Graph) -> str:
    """Say why a pin matches nothing: a table is placed by sharding, anything else is unknown."""
    return "an embedding lookup" if key in graph else "no such operator"


def items_of(graph: Graph, pins: Mapping[str, Tag]) -> tuple[Item, ...]:
    """Contract components to items, in graph order; LOOKUPs are left out.

    Parameters
    ----------
    graph : Graph
        The operators.
    pins : Mapping of str to Tag
        Resolved pins.

    Raises
    ------
    ConstraintsConflict
        When members of a component are forced to different tags.
    """
    members: dict[tuple[str, str], list[Operator]] = {}
    for op in graph:
        if op.kind is not Kind.LOOKUP:
            members.setdefault(("component", op.component) if op.component else ("operator", op.name), []).append(op)
    return tuple(_item(ops, pins) for ops in members.values())


def _item(ops: list[Operator], pins: Mapping[str, Tag]) -> Item:
    forced: dict[Tag, str] = {}
    for op in ops:
        tag = DP if op.kind in RANK_KINDS else pins.get(op.name)
        if tag is not None:
            forced.setdefault(tag, op.name)
    if len(forced) > 1:
        (first, one), (second, two) = list(forced.items())[:2]
        raise ConstraintsConflict(
            f"component {ops[0].component!r} is placed together, but {one!r} has tag {first!r} and {two!r} tag {second!r}",
            (one, two),
        )
    return Item(ops[0].name, tuple(op.name for op in ops), next(iter(forced), None))


def tied(items: tuple[Item, ...], ties: Mapping[str, str]) -> tuple[Item, ...]:
    """Join items by cluster, in the order of their first members.

    Parameters
    ----------
    items : tuple of Item
        The items.
    ties : Mapping of str to str
        Cluster of items, by name; others stay alone.
    """
    if not ties:
        return items
    clusters: dict[str, list[Item]] = {}
    for item in items:
        clusters.setdefault(ties.get(item.name, item.name), []).append(item)
    return tuple(
        Item(members[0].name, tuple(op for item in members for op in item.ops), members[0].fixed)
        for members in clusters.values()
    )


def tags_of(items: tuple[Item, ...], choice: Mapping[str, Tag]) -> dict[str, Tag]:
    """Return the tag of every operator from the tags of items (by item name)."""
    return {op: choice[item.name] for item in items for op in item.ops}
