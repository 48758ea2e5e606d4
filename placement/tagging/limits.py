"""When to stop with one group: how good is good enough, how much work, how long. Knows nothing of how groups are solved."""

from __future__ import annotations

from dataclasses import dataclass, field

from placement.deadline import Deadline

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
    looks : int
        Moves that annealing looks at for each item, where descents end far from the bound; 0: none.
    seed : int
        Of the solver.
    relaxes : bool
        Whether the linear relaxation is asked about a group of too many items for the integer program; a search over shapes
        asks it once for all groups that are alike.
    enough_seconds : float
        Placements whose step is no shorter are not wanted: the search may end when its bound says that there are no others.
    """

    gap: float = 0.0
    deadline: Deadline = field(default_factory=Deadline)
    deterministic_seconds: float = 20.0
    rounds: int = 200
    descents: int = 2
    looks: int = 1000
    seed: int = 0
    relaxes: bool = True
    enough_seconds: float = float("inf")


DEFAULT_LIMITS = Limits()
