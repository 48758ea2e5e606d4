"""The errors that a user's input can cause, classified by what the user can do about them.

Every later layer raises a subclass of :class:`HiertrainError`; the command line turns the class into an exit code
(design: 2 bad input, 3 no plan fits, 4 a run failed) and the message into one line.
"""

from __future__ import annotations

from pathlib import Path


class HiertrainError(Exception):
    """Base of every error that hiertrain raises on purpose."""

    exit_code = 1


class BadInput(HiertrainError):
    """A file or option holds a value that is not allowed.

    Parameters
    ----------
    source : str or Path
        File (or command-line option) that holds the value.
    field : str
        Dotted path of the field, for example ``nodes[2].memory``.
    value : object
        What was found.
    allowed : str
        What would have been accepted.
    """

    exit_code = 2

    def __init__(self, source: str | Path, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{source}: {field} = {value!r}: {allowed}")
        self.source, self.field, self.value, self.allowed = str(source), field, value, allowed

    def __reduce__(self) -> tuple[type[BadInput], tuple[object, ...]]:
        return type(self), (self.source, self.field, self.value, self.allowed)
