"""HTML in the making: elements with escaped text and attributes, tables, and how numbers are written.

Knows nothing of plans.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from problem.units import format_throughput

VOID = frozenset({"br", "line", "rect", "circle", "path", "polyline", "meta"})
"""Elements without an end tag, or without content in SVG."""


class Html(str):
    """Text that is HTML already; anything else is escaped when it goes into an element."""

    __slots__ = ()


def text(value: object) -> Html:
    """Return a value as HTML text."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def join(parts: Iterable[object]) -> Html:
    """Return parts one behind the other."""
    return Html("".join(text(part) for part in parts))


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element.

    Parameters
    ----------
    name : str
        Its tag.
    *children : object
        Content; text is escaped unless it is :class:`Html`.
    **attributes : object
        ``class_`` and ``for_`` lose their underscore, others become dashes; None and False leave the attribute out,
        True gives it no value.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        content = join(children)
        return Html(f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """Return a table whose first column names the row; columns of numbers stand to the right, others to the left."""
    cells = [[text(cell) for cell in row] for row in rows]
    looks = ["words" if any(not _number(row[i]) for row in cells) else None for i in range(len(headers))]
    named = zip(headers, looks, strict=True)
    head = element("tr", *(element("th", header, scope="col", class_=look) for header, look in named))
    body = [
        element(
            "tr",
            element("th", first, scope="row"),
            *(element("td", cell, class_=look) for cell, look in zip(others, looks[1:], strict=True)),
        )
        for first, *others in cells
    ]
    parts = (element("caption", caption), element("thead", head), element("tbody", *body))
    return element("div", element("table", *parts), class_="scroll", tabindex=0, role="region", aria_label=caption)


def _number(cell: str) -> bool:
    """Return whether a cell is a number, with or without a unit, or says that there is none."""
    return cell in {"", "-"} or re.fullmatch(r"[-+]?[\d.,]+(e[-+]?\d+)?( ?(%|[kMGT]?B))?", cell) is not None


def section(anchor: str, title: str, *children: object) -> Html:
    """Return a section with a heading that can be linked to."""
    heading = element("h2", title, id=f"{anchor}-title")
    return element("section", heading, *children, id=anchor, aria_labelledby=f"{anchor}-title")


def folded(summary: str, *children: object) -> Html:
    """Return content that opens on request."""
    return element("details", element("summary", summary), *children)


def size(count: float) -> str:
    """Return bytes with a decimal unit."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def rate(value: float | None) -> str:
    """Return samples per second, or a dash."""
    return "-" if value is None else format_throughput(value)


def milliseconds(seconds: float) -> str:
    """Return a duration in milliseconds with three digits."""
    value = 1e3 * seconds
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
