"""A better bound where codecs are open: case by case, by the codec that an edge has.

In the open problem an edge has the fewest bytes of any codec and no work to encode, which no codec gives. So the edge of
which that matters most is decided, each of its codecs being a case of its own, and so on in the case that promises most:
branch and bound over codecs, each case bounded by the integer program with the other edges open. The least bound of any case
holds for all choices. Which edge: the one whose best codec lengthens the open step of the case's best placement most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from placement.evaluation.evaluate import evaluate_timed, evaluation_of
from placement.evaluation.group import GroupProblem
from placement.plan import Tag
from placement.tagging.limits import Limits
from placement.tagging.nets import Contracted
from placement.tagging.solve import GroupSolution, solve_group

#: Cases that are bounded for each unit of effort.
CASES = 12

Offers = Mapping[str, tuple[str, ...]]
#: Edges that get a codec together.
Edge = tuple[str, ...]
#: Says which edges a placement of a problem uses, if some are on offer.
EdgesOf = Callable[[GroupProblem, Mapping[str, Tag], Offers], Sequence[Edge]]


@dataclass(frozen=True, slots=True, order=True)
class _Case:
    """Some edges decided, the others open: a bound of its steps, its number, and its best placement."""

    seconds: float
    number: int
    problem: GroupProblem
    tags: Mapping[str, Tag] | None


def bounded(
    contracted: Contracted, offers: Offers, first: GroupSolution, best_seconds: float, limits: Limits, edges_of: EdgesOf
) -> GroupSolution:
    """Return a bound of a group's step whatever its tags and codecs, with what servers take at most in any case.

    Parameters
    ----------
    contracted : Contracted
        The group, with the codecs that are decided.
    offers : Mapping of str to tuple of str
        What other edges may have besides float32.
    first : GroupSolution
        Of the group with all of these edges open.
    best_seconds : float
        Of the best plan known; no better bound is wanted.
    limits : Limits
        Of each case, but for the deadline, which is that of all.
    edges_of : callable
        Says which edges a placement uses.
    """
    enough = best_seconds / (1 + limits.gap)
    opened = replace(contracted.problem, open_codecs=offers)
    waiting, made, proven = [_Case(first.bound_seconds, 0, opened, first.tags)], 1, GroupSolution()
    proven.bound_seconds, proven.served_seconds = first.bound_seconds, first.served_seconds
    while waiting[0].seconds < enough and made < CASES * limits.descents:
        case = waiting[0]
        edge = _decisive(case, edges_of, limits)
        if edge is None or case.tags is None:
            break
        heappop(waiting)
        for problem in _decided(case.problem, edge):
            found = solve_group(Contracted(problem), limits, case.seconds, dict(case.tags))
            heappush(waiting, _Case(max(case.seconds, found.bound_seconds), made, problem, found.tags))
            made += 1
            proven.served_seconds = max(proven.served_seconds, found.served_seconds)
            if found.interrupted or limits.deadline.passed:
                proven.interrupted = found.interrupted
                return proven
        proven.bound_seconds = min(best_seconds, waiting[0].seconds)
    return proven


def _decided(problem: GroupProblem, edge: Edge) -> Iterator[GroupProblem]:
    """Yield a problem for each codec of an edge."""
    left = {name: names for name, names in problem.open_codecs.items() if name not in edge}
    for codec in ("fp32", *problem.open_codecs[edge[0]]):
        yield replace(problem, codecs={**problem.codecs, **dict.fromkeys(edge, codec)}, open_codecs=left)


def _decisive(case: _Case, edges_of: EdgesOf, limits: Limits) -> Edge | None:
    """Return the edge that is to be decided: with whichever codec, the step of the case's placement becomes longest."""
    tags, chosen, most = case.tags or {}, None, -1.0
    for edge in edges_of(case.problem, tags, case.problem.open_codecs):
        if not limits.deadline.allows(evaluation_of(case.problem, tags)):
            return chosen
        values = (evaluate_timed(one, tags, limits.deadline).seconds for one in _decided(case.problem, edge))
        if (value := min(values)) > most:
            chosen, most = edge, value
    return chosen
