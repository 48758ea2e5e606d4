"""How the command line speaks: aligned tables and JSON on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any


def say(message: str) -> None:
    """Print a line for a person, on stderr."""
    print(message, file=sys.stderr, flush=True)


def emit(as_json: bool, document: dict[str, Any], text: Callable[[], str]) -> None:
    """Print one JSON document, or the text for people."""
    print(json.dumps(document, indent=2, allow_nan=False) if as_json else text())


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an aligned table: the first column to the left, numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(headers, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(headers), line(["-" * width for width in widths]), *map(line, rows)])


@contextlib.contextmanager
def progress(title: str) -> Iterator[Callable[[str], None]]:
    """Show what is going on while it goes on, on a terminal; yields a function that takes a line of news."""
    if not sys.stderr.isatty():
        yield lambda news: None
        return
    from rich.console import Console

    with Console(stderr=True).status(title) as status:
        yield lambda news: status.update(f"{title}: {news}")


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float], None] | None]:
    """Show a bar while something goes on, on a terminal; yields a function that takes the part that is done, 0 to 1."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda done: bar.update(task, completed=done)
