"""What can go wrong while a plan is made, by what the user can do about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from problem.errors import HiertrainError


class PlacementError(HiertrainError):
    """Base: no plan, and why.

    ``conflict`` names the pins and limits that together leave no plan; ``minimal`` says whether each of them is needed
    for that, or time ran out before that was known. ``enough`` has those without which alone a plan exists:
    all, unless something else conflicts as well; ``besides`` has other such sets where it has none.
    """

    exit_code = 3
    conflict: tuple[str, ...] = ()
    minimal: bool = True
    besides: tuple[tuple[str, ...], ...] = ()
    enough: tuple[str, ...] = ()
    together: ClassVar[str] = "these conflict"

    def __str__(self) -> str:
        return "; ".join((super().__str__(), *self._blame()))

    def _blame(self) -> Iterator[str]:
        """What conflicts, in words."""
        if not self.conflict:
            return
        named = ", ".join(self.conflict)
        if not self.minimal:
            yield f"to blame are some of: {named}"
        elif self.enough == self.conflict:
            some = "a plan exists without", f"{self.together}, and a plan exists without any one of them:"
            yield f"{some[len(self.conflict) > 1]} {named}"
        else:
            yield f"{self.together}, but no part of them: {named}"
            yield from (f"so do: {', '.join(names)}" for names in self.besides)
            if self.enough:
                yield f"a plan exists without {', or without '.join(self.enough)}"


class InvalidPlan(PlacementError):
    """A plan that was loaded or put together breaks a rule (an operator or row not placed exactly once, ...)."""

    exit_code = 2


class DoesNotFit(PlacementError):
    """No placement fits: which resource, where, how much is needed and how much there is.

    Parameters
    ----------
    what : str
        What does not fit (an operator, a table, the sum of them), with the constraint that forces it.
    where : str
        Node or set of nodes.
    needed, available : float
        Bytes (or the unit named by ``unit``).
    """

    def __init__(self, what: str, where: str, needed: float, available: float, unit: str = "bytes") -> None:
        super().__init__(
            f"{what} does not fit on {where}: needs {needed:,.0f} {unit}, has {available:,.0f} "
            f"({needed - available:,.0f} short)"
        )
        self.what, self.where, self.needed, self.available, self.unit = what, where, needed, available, unit


class NothingFound(PlacementError):
    """The search ended without a plan, and without a proof that there is none; ``what`` says what was to be placed."""

    together = "none is found under these"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"no placement of {what} was found in which every node has the memory it needs, and none was proven "
            "impossible: a longer time limit, or more memory, may give one"
        )


class ConstraintsConflict(PlacementError):
    """Pins or components contradict each other; ``names`` says which."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names
