"""Files that appear complete or not at all: written into a neighbour, which then takes the name."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from problem.errors import BadInput


def check_target(path: str | Path | None) -> None:
    """Refuse, before any work, a path that no file can be written to; None is no path.

    Raises
    ------
    BadInput
        If the folder that the file is to be in does not exist or may not be written to, or the path is a folder itself.
    """
    if path is None:
        return
    check_parent(path)
    if Path(path).is_dir():
        raise BadInput(path, "file", str(path), "a file to write, not a folder")


def check_parent(path: str | Path) -> None:
    """Refuse, before any work, a path or the beginning of one in a folder that cannot be written into.

    Raises
    ------
    BadInput
        If the folder does not exist or may not be written to.
    """
    folder = Path(path).parent
    if not folder.is_dir():
        raise BadInput(path, "folder", str(folder), "an existing folder to write into")
    _check_writable(path, folder)


def _check_writable(path: str | Path, folder: Path) -> None:
    """Refuse a folder that no file can be made in; permissions do not tell (``/proc``, a full disk), a file does."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        raise BadInput(path, "folder", str(folder), "a folder that may be written to") from None


def made_folder(path: str | Path) -> Path:
    """Return a folder to write into, made if it is not there; before any work, so that it is not lost.

    Raises
    ------
    BadInput
        If it cannot be made, is a file, or may not be written to.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        raise BadInput(path, "folder", str(path), "a folder, or a place where one can be made") from None
    _check_writable(path, folder)
    return folder


@contextmanager
def whole_file(path: str | Path) -> Iterator[IO[str]]:
    """Open a text file for writing; it takes its name when the block ends well, and leaves nothing behind otherwise.

    Raises
    ------
    BadInput
        If there can be no such file.
    """
    check_target(path)
    target = Path(path)
    with tempfile.NamedTemporaryFile(
        "w", dir=target.parent, prefix=f".{target.name}.", delete=False, encoding="utf-8"
    ) as file:
        partial = Path(file.name)
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    partial.chmod(0o644)
    partial.replace(target)
