"""When to stop with one group: how good is good enough, how much work, how long. Knows nothing of how groups are solved."""

from __future__ import annotations

from dataclasses import dataclass, field

from placement.deadline import Deadline
from placement.shapes import SolveOptions

#: Relative difference below which a placement counts as optimal: the rounding of the integer program.
PRECISION = 1e-6


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop.

    Parameters
    ----------
    gap : float
        Relative gap that is good enough.
    deadline : Deadline
        Of the wall clock.
    deterministic_seconds : float
        Solver work, in OR-tools' deterministic seconds, over all rounds.
    rounds : int
        Proposals that may turn out worse than promised.
    descents : int
        Local searches, where there are too many items for the integer program.
    seed : int
        Of the solver.
    enough_seconds : float
        Placements whose step is no shorter are not wanted: the search may end when its bound says that there are no others.
    """

    gap: float = 0.0
    deadline: Deadline = field(default_factory=Deadline)
    deterministic_seconds: float = 20.0
    rounds: int = 200
    descents: int = 2
    seed: int = 0
    enough_seconds: float = float("inf")


DEFAULT_LIMITS = Limits()


def limits_of(options: SolveOptions, deadline: Deadline, effort: int, samples: int, best: float) -> Limits:
    """Return the limits of one group in a search.

    Parameters
    ----------
    options : SolveOptions
        Of the search.
    deadline : Deadline
        Of the search.
    effort : int
        How often the usual work may be done.
    samples : int
        Samples of a step of all groups, if they are like this one.
    best : float
        Samples per second of the best plan, which groups are to beat by more than half the gap; 0: none is to be beaten.
    """
    goal = 0.0 if options.curve else best * (1 + max(options.gap / 2, PRECISION))
    return Limits(
        gap=options.gap / 2,
        deadline=deadline,
        deterministic_seconds=5.0 * effort,
        rounds=20 * effort,
        descents=effort,
        seed=options.seed,
        enough_seconds=samples / goal if goal else float("inf"),
    )
