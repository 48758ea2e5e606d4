"""What can go wrong while a plan is simulated, by what the reader can do about it."""

from __future__ import annotations

from problem.errors import HiertrainError


class SimulationError(HiertrainError):
    """Base: the simulation has no result."""

    exit_code = 4


class Deadlock(SimulationError):
    """Nothing is left to happen and workers are unfinished.

    Parameters
    ----------
    waits : tuple of str
        One sentence per unfinished worker: who waits where for what.
    """

    def __init__(self, waits: tuple[str, ...]) -> None:
        shown = "; ".join(waits[:8]) + (f"; and {len(waits) - 8} more" if len(waits) > 8 else "")
        super().__init__(f"deadlock, {len(waits)} workers wait for ever: {shown}")
        self.waits = waits


class LawBroken(SimulationError):
    """A law that holds in every queueing system does not hold in the result. Please report this."""

    def __init__(self, law: str) -> None:
        super().__init__(f"the simulation broke an operational law: {law}; please report this")
        self.law = law
