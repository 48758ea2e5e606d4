"""Memory eased: local search until every node has the memory that it needs, whatever the step takes.

The same moves as ``descent``: clusters, then smaller ones, then single items; it ends with the first placement that fits.
Messages are counted, which a packing leaves out: with hundreds of sessions their buffers may take most of the memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from placement.deadline import Deadline
from placement.plan import DP, Tag
from placement.tagging.candidates import tags_of
from placement.tagging.descent import LEVELS, Descent, units_of
from placement.tagging.nets import Contracted
from placement.tagging.quick_loads import QuickLoads, places_of

#: Levels of a descent that are gone through: two of clusters, one of single items.
PASSES = 3


class _Easing(Descent):
    """A descent that ends when no bytes are lacking."""

    def _goes_on(self) -> bool:
        return self.value[0] > 0 and super()._goes_on()


def nearest(contracted: Contracted, tags: Mapping[str, Tag]) -> dict[str, Tag]:
    """Return the placement nearest to some tags in which items have those that they may have; data-parallel without one.

    Parameters
    ----------
    contracted : Contracted
        The group problem.
    tags : Mapping of str to Tag
        Tags of operators.
    """
    fixed = {item.name: item.fixed for item in contracted.items if item.fixed is not None}
    open_ = {i: tags.get(contracted.items[i].ops[0], DP) for i in contracted.free}
    near = {contracted.items[i].name: contracted.nearest(i, tag) for i, tag in open_.items()}
    return tags_of(contracted.items, fixed | near)


def eased(contracted: Contracted, tags: Mapping[str, Tag], deadline: Deadline, seed: int = 0) -> dict[str, Tag] | None:
    """Return a placement in which every node has enough memory, by quick loads; None if none is found.

    Parameters
    ----------
    contracted : Contracted
        The group problem.
    tags : Mapping of str to Tag
        Where to start.
    deadline : Deadline
        When to stop.
    seed : int
        Of the order of moves.
    """
    loads = QuickLoads(contracted, places_of(contracted, dict(tags)))
    for level in LEVELS[:PASSES]:
        if not loads.score(0)[0] or deadline.passed:
            break
        easing = _Easing(loads, list(units_of(contracted, level.clusters)), level.doublings, seed)
        easing.run(level.passes * len(easing.units), deadline)
    return contracted.canonical(loads.tags()) if not loads.score(0)[0] else None
