"""Orders that do not depend on the order of an input: names as people sort them."""

from __future__ import annotations

import re

#: Numbers before other parts, by their value; the text itself decides between equal ones (``t1`` and ``t01``).
Natural = tuple[tuple[tuple[int, int, str], ...], str]


def natural(name: str) -> Natural:
    """Return the sort key of a name, in which numbers count by their value: ``t2`` before ``t10``.

    Parameters
    ----------
    name : str
        Any text.
    """
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return tuple((0, int(part), "") if part[0].isdecimal() else (1, 0, part) for part in parts), name
