"""What demands that tell machines apart make of groups: which kinds are left out, and who takes which place.

A pin or something forbidden may name a place in the group (a node's index) or a kind of machine. Then it matters which
machine has which place, and whether a kind takes part at all, where otherwise only the machines count. Knows what is
forbidden and what operators take of cores; knows nothing of tags that are chosen, servers and bounds of anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice, permutations
from math import factorial, prod

from cost_models.costs import CostTable, PhaseCost
from placement.plan import DP, Tag
from placement.search.shapes import Shape
from placement.tagging.candidates import Forbid, forbidden_tags
from problem.cluster import Node

#: Orders of the machines of a group that are made, and sets of kinds that are left out, at most.
MOST_ORDERS, MOST_POOLS = 24, 16

Groups = tuple[tuple[Node, ...], ...]


def tells_apart(pins: Mapping[str, Tag], forbids: Iterable[Forbid]) -> bool:
    """Return whether pins or what is forbidden name a place in the group or a kind of machine.

    Parameters
    ----------
    pins : Mapping of str to Tag
        By operator.
    forbids : iterable of Forbid
        What operators may not have, by operator.
    """
    return any(tag != DP for tag in pins.values()) or any(what != DP for _, what in forbids)


def pools(nodes: Sequence[Node], forbids: Iterable[Forbid]) -> Iterator[list[Node]]:
    """Yield machines to form groups of: all, and without kinds that are forbidden for some operator.

    Parameters
    ----------
    nodes : sequence of Node
        Machines that may train.
    forbids : iterable of Forbid
        What operators may not have.
    """
    named = {what for _, what in forbids}
    kinds = sorted({node.kind for node in nodes if node.kind in named})
    sets = chain.from_iterable(combinations(kinds, size) for size in range(len(kinds) + 1))
    for out in islice(sets, MOST_POOLS):
        yield [node for node in nodes if node.kind not in out]


def arranged(groups: Groups, kind: Callable[[Node], Hashable]) -> Iterator[Groups]:
    """Yield groups with their machines in every order that differs, the same for all groups; of many, a few.

    Where there are more than ``MOST_ORDERS``, like places stay side by side, and those of a kind change place with those
    of another.

    Parameters
    ----------
    groups : tuple of tuples of Node
        Groups of one size.
    kind : callable
        What of a machine matters.
    """
    places: dict[Hashable, list[int]] = {}
    for place in range(len(groups[0])):
        places.setdefault(tuple(kind(group[place]) for group in groups), []).append(place)
    alike = list(places.values())
    count = factorial(len(groups[0])) // prod(factorial(len(one)) for one in alike)
    orders = _interleaved(alike) if count <= MOST_ORDERS else map(chain.from_iterable, permutations(alike))
    for order in islice(orders, MOST_ORDERS):
        taken = tuple(order)
        yield tuple(tuple(group[place] for place in taken) for group in groups)


def _interleaved(alike: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Every way to merge sequences, each of which keeps its order."""
    if not any(alike):
        yield ()
    for number, one in enumerate(alike):
        if one:
            rest = (*alike[:number], one[1:], *alike[number + 1 :])
            yield from ((one[0], *others) for others in _interleaved(rest))


def heaviest(forbids: Iterable[Forbid], work: Mapping[str, PhaseCost]) -> list[Forbid]:
    """Return what is forbidden for the operator with most work of each set of operators for which the same is.

    Parameters
    ----------
    forbids : iterable of Forbid
        What operators may not have.
    work : Mapping of str to PhaseCost
        One batch's work of operators.
    """
    of: dict[str, dict[Tag | str, None]] = {}
    for name, what in forbids:
        of.setdefault(name, {})[what] = None
    alike: dict[frozenset[Tag | str], str] = {}
    for name in sorted(of, key=lambda name: (work[name].core_seconds, name)):
        alike[frozenset(of[name])] = name
    return [(name, what) for name in alike.values() for what in of[name]]


def least_alone(shape: Shape, work: Mapping[str, PhaseCost], forbids: Sequence[Forbid], costs: CostTable) -> float:
    """Return the seconds that the busiest of some operators alone takes, wherever it may be: a bound of the step.

    Parameters
    ----------
    shape : Shape
        The machines; of unlike groups, the harmonic mean of their seconds, as rates add up.
    work : Mapping of str to PhaseCost
        One batch's work of operators for which something is forbidden.
    forbids : sequence of Forbid
        What operators may not have.
    costs : CostTable
        Says how fast a core of each machine is.
    """
    barred = forbidden_tags(forbids, shape.groups, shape.ranks)
    speeds = [[node.cores / costs.slowdown(node) for node in group] for group in shape.groups]
    seconds = [
        max((_least(one, work[op].core_seconds, barred[op], shape.ranks) for op in barred), default=0.0)
        for one in speeds
    ]
    return len(seconds) / sum(1 / each for each in seconds) if all(seconds) else 0.0


def _least(speeds: Sequence[float], core_seconds: float, barred: frozenset[Tag], ranks: int) -> float:
    """Seconds of an operator in the best place that it may have, a copy for each rank or one for all; 0 if it has none."""
    found = [ranks * core_seconds / speed for place, speed in enumerate(speeds) if place not in barred]
    if DP not in barred:
        found.append(core_seconds / min(speeds[:ranks]))
    return min(found, default=0.0)
