"""Named shared memory that somebody left behind, whatever else the machine is doing."""

from __future__ import annotations

import time
from pathlib import Path

FOLDER = Path("/dev/shm")


def names() -> set[str]:
    """Return the names that there are."""
    return {path.name for path in FOLDER.iterdir()} if FOLDER.is_dir() else set()


def left_since(before: set[str], within_seconds: float = 10.0) -> set[str]:
    """Return the names that are new, that no living process maps, and that are still there after so many seconds.

    Those of other programs are not leaks: a process that is being spawned maps the semaphores it is given a while later.
    """
    deadline = time.monotonic() + within_seconds
    while True:
        new = names() - before
        left = new - _mapped(new) if new else new
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def _mapped(candidates: set[str]) -> set[str]:
    found: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text()
        except OSError:  # a process that has just ended, or one of another user
            continue
        found |= {name for name in candidates if f"{FOLDER}/{name}" in text}
    return found & candidates
