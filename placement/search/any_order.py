"""Bounds that hold whatever the order of operators, and plans that are placed for the order that they run in.

What the solver proves in a search holds for operators in the order of names. Where another order has won
(``running_order``), placements are sought once more in that order, in turns; and shapes are bounded again, those that
promise most first: by their own bounds, which look at no order, then by the integer program in which operators of a place
may follow each other in any order (``placement.tagging.one_round``). Both are limited by count. What the linear relaxation
proves about large groups stands: it does not look at critical paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from placement.evaluation.evaluate import evaluate
from placement.evaluation.group import GroupProblem
from placement.search.bounds import Bounds, shares_machine
from placement.search.compositions import Compositions
from placement.search.outcome import Outcome, Solved
from placement.search.running_order import reordered
from placement.search.shapes import Shape
from placement.tagging.limits import PRECISION, Limits
from placement.tagging.nets import Contracted
from placement.tagging.one_round import any_order_seconds
from placement.tagging.solve import proves, solve_group

#: Turns of placement and order; shapes that are bounded again by the integer program.
TURNS, MOST = 3, 16


def ordered(
    rivals: list[Solved], limits: Limits, others: Sequence[Solved], *, again: bool
) -> tuple[Solved, tuple[str, ...]]:
    """Give plans the best order of those that are tried; return the best plan then, and what to say of its order.

    Parameters
    ----------
    rivals, others : sequences of Solved
        As for :func:`placement.search.running_order.reordered`.
    limits : Limits
        When to stop.
    again : bool
        Whether a plan in an order of its own is placed again for that order (:func:`in_turns`).
    """
    best, said = reordered(rivals, limits.deadline, others)
    return in_turns(best, limits) if said and again else best, said


def in_turns(best: Solved, limits: Limits) -> Solved:
    """Return a plan that is placed again for the order in which it runs, then put in order again, as long as that helps.

    Parameters
    ----------
    best : Solved
        A plan in an order of its own; of unlike or of very many items it is returned as it is.
    limits : Limits
        When to stop.
    """
    for _ in range(TURNS):
        problem = replace(best.problems[0], codecs=best.codecs)
        data = Contracted(problem)
        if best.shape.mixed or not proves(data) or limits.deadline.passed:
            return best
        found = solve_group(data, limits, start=dict(best.tags or {}))
        if found.evaluation is None or found.evaluation.samples_per_second <= best.value * (1 + PRECISION):
            return best
        value = found.evaluation.samples_per_second
        best = replace(best, tags=found.tags, value=value, score=value, rivals=[])
        if found.interrupted:
            limits.deadline.stop()
        best, _ = reordered([best], limits.deadline)
    return best


def in_any_order(
    outcome: Outcome, compositions: Compositions, limits: Limits, offers: Mapping[str, tuple[str, ...]]
) -> Outcome:
    """Return an outcome with bounds that hold whatever the order of operators.

    Parameters
    ----------
    outcome : Outcome
        Bounds of solved shapes, and of those like them, were proven for operators in the order of the search.
    compositions : Compositions
        Bounds of the job; what was proven for an order is forgotten.
    limits : Limits
        Of the integer program, each time.
    offers : Mapping of str to tuple of str
        Codecs that the solver may choose, by edge.
    """
    if any(_any_order(one) for one in outcome.solved):
        bounds = compositions.bounds
        solved = [one if _any_order(one) else _without_placements(one, bounds) for one in outcome.solved]
        return replace(outcome, solved=solved)
    again = _Again(outcome, compositions, limits, offers)
    try:
        for _ in range(MOST):
            if limits.deadline.passed or not again.lower():
                break
    except KeyboardInterrupt:  # what was proven stands
        limits.deadline.stop()
    return again.outcome


def _any_order(found: Solved) -> bool:
    """Whether the integer program was not asked about a shape, nor then about those like it."""
    return bool(found.bound and found.problems) and not proves(Contracted(found.problems[0]))


def _without_placements(found: Solved, bounds: Bounds) -> Solved:
    """A solved shape with its own bound; one in which nothing fits keeps 0, whatever the order."""
    return replace(found, bound=max(found.bound, bounds.rate(bounds.quick(found.shape)))) if found.bound else found


class _Again:
    """Shapes that are bounded again, those that promise most first."""

    def __init__(
        self, outcome: Outcome, compositions: Compositions, limits: Limits, offers: Mapping[str, tuple[str, ...]]
    ) -> None:
        self.compositions, self.bounds, self.limits, self.offers = compositions, compositions.bounds, limits, offers
        self.bounds.proven.clear()
        self.outcome = replace(
            outcome,
            solved=[_without_placements(one, self.bounds) for one in outcome.solved],
            unlike=[(shape, self._at_least(shape, rate)) for shape, rate in outcome.unlike],
        )
        self.asked: dict[object, float] = {}
        self.shapes = [(self._quick(shape), self._at_least(shape, rate)) for shape, rate in outcome.waiting]
        self._spread()

    def _at_least(self, shape: Shape, rate: float) -> float:
        """What an open shape cannot exceed, its groups' proofs being forgotten."""
        return rate if shape.composed else max(rate, self.bounds.rate(self.compositions.bounded(shape)))

    def _quick(self, shape: Shape) -> Shape:
        return self.bounds.quick(shape) if shape.composed and shape.bounded else shape

    def _spread(self) -> None:
        """Let shapes that wait have what is proven by now."""
        rates = [
            (shape, self.bounds.rate(self.bounds.raised(shape)) if shape.composed else rate)
            for shape, rate in self.shapes
        ]
        self.outcome = replace(self.outcome, waiting=rates)

    def lower(self) -> bool:
        """Bound the shape again that promises most; return whether the gap may be closed further."""
        outcome, goal = self.outcome, self.outcome.best * (1 + max(self.outcome.gap, PRECISION))
        solved = max(range(len(outcome.solved)), key=lambda i: outcome.solved[i].bound)
        waits = max(range(len(outcome.waiting)), key=lambda i: outcome.waiting[i][1], default=None)
        promised = outcome.waiting[waits][1] if waits is not None else 0.0
        if max(promised, outcome.solved[solved].bound) <= goal:
            return False
        if waits is not None and promised > outcome.solved[solved].bound:
            return self._lower_waiting(self.shapes[waits][0])
        return self._lower_solved(solved)

    def _lower_solved(self, number: int) -> bool:
        found = self.outcome.solved[number]
        if found.shape.mixed or not found.problems or not found.tags:
            return False
        key = found.shape, found.shards
        new = key not in self.asked
        if new:
            self.asked[key] = self._seconds(found.shape, self._tied(found))
        rate = self.bounds.rate(replace(found.shape, bound_seconds=self.asked[key]))
        bound = max(min(found.bound, rate), found.value)
        self.outcome.solved[number] = replace(found, bound=bound)
        return new or bound < found.bound

    def _tied(self, found: Solved) -> GroupProblem:
        """The problem of a shape as it was sharded, or where there are others, for every sharding."""
        problem, cut = found.problems[0], len(found.shards) > self.bounds.fewest_shards(found.shape)
        busiest = evaluate(replace(problem, codecs=found.codecs), found.tags or {}).busiest
        others = len(found.shape.servers) > 1
        if (cut or others or busiest.role == "server") and not shares_machine(found.shape):
            return self.bounds.relaxed(found.shape, self.bounds.least_cuts(found.shape))
        return replace(problem, open_codecs=self.offers)

    def _lower_waiting(self, shape: Shape) -> bool:
        if not (shape.composed and shape.bounded) or shape.mixed or shares_machine(shape) or shape in self.asked:
            return False
        problem = self.bounds.relaxed(shape, self.bounds.least_cuts(shape))
        self.asked[shape] = self._seconds(shape, problem)
        self.bounds.learn(shape, self.asked[shape])
        self._spread()
        return True

    def _seconds(self, shape: Shape, problem: GroupProblem) -> float:
        most = self.bounds.seconds_at(shape, self.outcome.best)
        return any_order_seconds(Contracted(problem), most, self.limits)
