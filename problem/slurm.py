"""Slurm node lists: ``host[001,003-004]`` as the hosts that it names. Pure text; knows nothing of clusters."""

from __future__ import annotations

import re

MAX_HOSTS = 100_000

_ITEM = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand_nodelist(text: str) -> tuple[str, ...]:
    """Return the hosts of a Slurm node list, in its order, leading zeros kept.

    Several brackets in one name give all combinations, the last one fastest, as ``scontrol show hostnames`` does.

    Parameters
    ----------
    text : str
        For example ``nodeA,b[09-10],ml-16-node-[001-002,004]``.

    Raises
    ------
    ValueError
        On unbalanced brackets, empty items, ranges that run backwards, or more than :data:`MAX_HOSTS` hosts.

    Examples
    --------
    >>> expand_nodelist("a,b[09-10]")
    ('a', 'b09', 'b10')
    """
    items = _ITEM.findall(text)
    if not items or ",".join(items) != text.strip():
        raise ValueError("must be a Slurm node list, such as host[001,003-004],login")
    hosts: list[str] = []
    for item in items:
        hosts.extend(_expand_item(item, MAX_HOSTS - len(hosts)))
    return tuple(hosts)


def _expand_item(item: str, room: int) -> list[str]:
    """Expand one comma-separated item of a list into at most ``room`` hosts."""
    hosts = [""]
    for ranges, literal in _PART.findall(item):
        tails = [literal] if literal else _expand_ranges(ranges, room)
        if len(hosts) * len(tails) > room:
            raise ValueError(f"must name at most {MAX_HOSTS} hosts")
        hosts = [host + tail for host in hosts for tail in tails]
    return hosts


def _expand_ranges(ranges: str, room: int) -> list[str]:
    """Expand ``001,003-004``; the width of a range is that of its first number."""
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"must hold numbers and ranges in brackets, such as [001,003-004]; found [{ranges}]")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ValueError(f"a range must not run backwards; found [{part}]")
        if int(last) - int(first) >= room:
            raise ValueError(f"must name at most {MAX_HOSTS} hosts")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers
