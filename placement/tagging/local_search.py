"""Local searches of a large group, in turn: which start where, and how many there are.

Knows descents and annealing; what a placement is worth is ``solve``'s business, who is asked for the best one so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from placement.evaluation.evaluate import evaluation_of
from placement.plan import Tag
from placement.tagging.annealing import anneal
from placement.tagging.descent import descend
from placement.tagging.limits import Limits
from placement.tagging.nets import Contracted

if TYPE_CHECKING:
    from placement.tagging.solve import GroupSolution

#: Descents from spread clusters, from all items data-parallel, from the best placement; and annealing that.
SPREAD, PARALLEL, BEST, ANNEALED = "spread", "parallel", "best", "annealed"
#: Relative gap above which a large group is worth more than the descents that are wanted, and the share of time for that.
FAR, EXTRA = 0.05, 0.5


def proposals(found: GroupSolution, contracted: Contracted, limits: Limits) -> Iterator[dict[str, Tag]]:
    """Yield placements: as many as are wanted, and far from the bound until one was annealed.

    The best one comes first where it is better than all items data-parallel. Where the critical path binds, which local
    search does not see, the first descent is left out, and there are no more than wanted; nor where no bound is known.

    Parameters
    ----------
    found : GroupSolution
        What is known; the caller keeps it up to date.
    contracted : Contracted
        The group problem.
    limits : Limits
        When to stop.
    """
    turns = (SPREAD, PARALLEL, ANNEALED, BEST)
    if found.seconds < found.baselines[0].evaluation.seconds:
        turns = (BEST, SPREAD, PARALLEL, ANNEALED)
    anneals = limits.looks > 0 and found.bound_seconds > 0 and not found.waits
    more = turns.index(ANNEALED) + 1 if anneals else 0
    extra, size = limits.deadline.share(EXTRA), max(1, len(contracted.items)) * contracted.problem.size
    for number in range(found.waits, max(limits.descents, more)):
        wanted, turn = number < limits.descents, turns[number % len(turns)]
        deadline = (limits.deadline if wanted else extra).before(evaluation_of(contracted.problem))
        if found.within(limits.gap if wanted else FAR) or not deadline.allows(("quick loads", size)):
            return
        origin = found.tags if turn in (BEST, ANNEALED) and found.tags else found.baselines[0].tags
        seed = limits.seed + limits.descents - 1 + number
        if turn == ANNEALED:
            yield anneal(contracted, origin, deadline, limits.looks, seed)
        else:
            yield descend(contracted, origin, deadline, seed, limit_seconds=found.seconds, spread=turn == SPREAD)
