"""Files that appear complete or not at all: written into a neighbour, which then takes the name."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from problem.errors import BadInput


@contextmanager
def whole_file(path: str | Path) -> Iterator[IO[str]]:
    """Open a text file for writing; it takes its name when the block ends well, and leaves nothing behind otherwise.

    Raises
    ------
    BadInput
        If the folder that the file is to be in does not exist.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise BadInput(path, "folder", str(target.parent), "an existing folder to write into")
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
