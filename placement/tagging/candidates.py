"""Which tags an operator may take: pins, what is forbidden, components and the operators that stay with the rank.

Operators that must be placed together are one :class:`Item`; the rest of the package places items. Knows nothing of
costs and memory.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import NoReturn

from placement.errors import ConstraintsConflict
from placement.plan import DP, Tag
from problem.cluster import Node
from problem.errors import BadInput
from problem.graph import Graph, Kind, Operator

#: Kinds that stay with the rank that read the batch.
RANK_KINDS = frozenset({Kind.DENSE_INPUT, Kind.LOSS})
#: What may be forbidden besides a tag or a kind of machine: every node, so that DP is left.
MP = "mp"
#: Operators (as in a pin), and what they may not have: a tag, ``mp``, or a kind of machine (a shell pattern).
Forbid = tuple[str, Tag | str]


@dataclass(frozen=True, slots=True)
class Item:
    """Operators that are placed together, the tag that is forced on them (None: open), and tags that are forbidden."""

    name: str
    ops: tuple[str, ...]
    fixed: Tag | None = None
    forbidden: frozenset[Tag] = frozenset()


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
        for op in _matching(graph, "pins", key):
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


def resolve_forbids(
    graph: Graph, forbids: Iterable[Forbid], pins: Mapping[str, Tag], kinds: Iterable[str]
) -> tuple[dict[str, Tag], tuple[Forbid, ...]]:
    """Turn what is forbidden for operators, components or patterns into pins and what operators may not have.

    Who may be on no node is data-parallel: that is a pin. Inputs and the loss, which stay with the rank, are left out
    where a pattern or a component names them; what is forbidden about machines holds for them as well.

    Parameters
    ----------
    graph : Graph
        The operators.
    forbids : iterable of Forbid
        What the user forbids.
    pins : Mapping of str to Tag
        Resolved pins.
    kinds : iterable of str
        Kinds of machines there are.

    Returns
    -------
    (dict of str to Tag, tuple of Forbid)
        Pins, those given among them; and operators, each with a tag or a kind of machine that it may not have.

    Raises
    ------
    BadInput
        When a key matches nothing, or what is forbidden is no tag, ``mp`` or kind.
    ConstraintsConflict
        When what a pin demands is forbidden, or DP is for an operator that stays with the rank.
    """
    tags, found, known = dict(pins), dict[Forbid, None](), tuple(dict.fromkeys(kinds))
    for key, what in forbids:
        matching, meant = _matching(graph, "forbids", key), _meant(key, what, known)
        if meant == [MP]:
            for op in matching:
                if tags.setdefault(op.name, DP) != DP:
                    _contradict(op, tags[op.name], f"{key}=mp")
        else:
            found |= dict.fromkeys((op.name, one) for op in matching for one in meant if _binds(op, one, key, known))
    for name, what in found:
        if what == tags.get(name, DP if graph[name].kind in RANK_KINDS else None):
            _contradict(graph[name], what, f"{name}={what}")
    return tags, tuple(found)


def _binds(op: Operator, what: Tag | str, key: str, kinds: Sequence[str]) -> bool:
    """Whether what is forbidden says anything about an operator: a rank's own has no other tag, so it must be named."""
    return op.kind not in RANK_KINDS or what in kinds or (what == DP and op.name == key)


def _contradict(op: Operator, tag: Tag | str, forbidden: str) -> NoReturn:
    why = f"a {op.kind} stays with the rank" if op.kind in RANK_KINDS else f"its only tag is {tag!r}"
    raise ConstraintsConflict(f"operator {op.name!r}: {forbidden} is forbidden, but {why}", (op.name,))


def _meant(key: str, what: Tag | str, kinds: Sequence[str]) -> list[Tag | str]:
    """What is forbidden: a tag, ``mp``, or the kinds that a pattern matches."""
    if what in (DP, MP) or (isinstance(what, int) and what >= 0):
        return [what]
    matched: list[Tag | str] = [kind for kind in kinds if isinstance(what, str) and fnmatchcase(kind, what)]
    if not matched:
        raise BadInput(
            "forbids", key, what, f"'dp', 'mp', the index of a node in the group, or a kind of {list(kinds)}"
        )
    return matched


def forbidden_tags(
    forbids: Iterable[Forbid], groups: Sequence[Sequence[Node]], ranks: int
) -> dict[str, frozenset[Tag]]:
    """Return the tags that operators may not have in some groups; what one group forbids holds for all, which share tags.

    Parameters
    ----------
    forbids : iterable of Forbid
        By operator (:func:`resolve_forbids`).
    groups : sequence of sequences of Node
        Machines of each group.
    ranks : int
        Ranks of a group: a kind of machine that is among them forbids DP.
    """
    found: dict[str, set[Tag]] = {}
    places: dict[Tag | str, set[Tag]] = {}
    for name, what in forbids:
        if what not in places:
            places[what] = set(_places(what, groups, ranks))
        found.setdefault(name, set()).update(places[what])
    return {name: frozenset(tags) for name, tags in found.items() if tags}


def _places(what: Tag | str, groups: Sequence[Sequence[Node]], ranks: int) -> Iterator[Tag]:
    if what == DP or isinstance(what, int):
        yield what
        return
    for group in groups:
        for index, node in enumerate(group):
            if node.kind == what:
                yield index
                if index < ranks:
                    yield DP


def _matching(graph: Graph, source: str, key: str) -> list[Operator]:
    placed = [op for op in graph if op.kind is not Kind.LOOKUP]
    for found in (
        [op for op in placed if op.name == key],
        [op for op in placed if op.component == key],
        [op for op in placed if fnmatchcase(op.name, key)],
    ):
        if found:
            return found
    raise BadInput(source, "operator", key, _hint(key, graph, placed))


def _hint(key: str, graph: Graph, placed: Iterable[Operator]) -> str:
    """Say why a key matches nothing: a table is placed by sharding, anything else is unknown."""
    if key in graph:
        return "an embedding lookup, which is where its table is: not an operator to place"
    near = difflib.get_close_matches(key, [name for op in placed for name in (op.name, op.component) if name], n=1)
    asked = f"; do you mean {near[0]!r}?" if near else ""
    return f"neither an operator nor a component, and no operator matches it as a pattern{asked}"


def items_of(
    graph: Graph, pins: Mapping[str, Tag], forbids: Mapping[str, frozenset[Tag]] | None = None, size: int = 0
) -> tuple[Item, ...]:
    """Contract components to items, in graph order; LOOKUPs are left out. An item with one tag left has it.

    Parameters
    ----------
    graph : Graph
        The operators.
    pins : Mapping of str to Tag
        Resolved pins.
    forbids : Mapping of str to set of Tag, optional
        Tags that operators may not have.
    size : int
        Nodes of the group; 0 if that is open.

    Raises
    ------
    ConstraintsConflict
        When members of a component are forced to different tags.
    """
    members: dict[tuple[str, str], list[Operator]] = {}
    for op in graph:
        if op.kind is not Kind.LOOKUP:
            members.setdefault(("component", op.component) if op.component else ("operator", op.name), []).append(op)
    return tuple(_item(ops, pins, forbids or {}, size) for ops in members.values())


def _item(ops: list[Operator], pins: Mapping[str, Tag], forbids: Mapping[str, frozenset[Tag]], size: int) -> Item:
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
    forbidden = frozenset[Tag]().union(*(forbids.get(op.name, ()) for op in ops))
    left: list[Tag] = [tag for tag in (DP, *range(size)) if tag not in forbidden] if size and forbidden else []
    fixed = next(iter(forced), left[0] if len(left) == 1 else None)
    return Item(ops[0].name, tuple(op.name for op in ops), fixed, forbidden)


def tied(items: tuple[Item, ...], ties: Mapping[str, str]) -> tuple[Item, ...]:
    """Join items by cluster, in the order of their first members.

    Parameters
    ----------
    items : tuple of Item
        The items.
    ties : Mapping of str to str
        Cluster of items, by name, that may take the same tags; others stay alone.
    """
    if not ties:
        return items
    clusters: dict[str, list[Item]] = {}
    for item in items:
        clusters.setdefault(ties.get(item.name, item.name), []).append(item)
    return tuple(
        replace(members[0], ops=tuple(op for item in members for op in item.ops)) for members in clusters.values()
    )


def tags_of(items: tuple[Item, ...], choice: Mapping[str, Tag]) -> dict[str, Tag]:
    """Return the tag of every operator from the tags of items (by item name)."""
    return {op: choice[item.name] for item in items for op in item.ops}
