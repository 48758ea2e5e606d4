"""Named shared memory that somebody left behind, whatever else the machine is doing."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path("/dev/shm")


def names() -> set[str]:
    """Return the names that there are."""
    return {path.name for path in FOLDER.iterdir()} if FOLDER.is_dir() else set()


def left_since(before: set[str]) -> set[str]:
    """Return the names that are new and that no living process maps: those of other programs at work are not leaks."""
    new = names() - before
    return new - _mapped(new) if new else new


def _mapped(candidates: set[str]) -> set[str]:
    found: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text()
        except OSError:  # a process that has just ended, or one of another user
            continue
        found |= {name for name in candidates if f"{FOLDER}/{name}" in text}
    return found & candidates
