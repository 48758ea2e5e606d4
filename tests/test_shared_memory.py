"""The check that runs leave no shared memory must itself be able to fail."""

from __future__ import annotations

import mmap
import os

import pytest

from tests import shared_memory


@pytest.mark.skipif(not shared_memory.FOLDER.is_dir(), reason="no named shared memory in files here")
def test_what_nobody_maps_is_left_behind() -> None:
    """A new name counts once nobody maps it any more, and not while a process, this one, does."""
    before, path = shared_memory.names(), shared_memory.FOLDER / f"hiertrain-test-{os.getpid()}"
    try:
        with path.open("w+b") as file:
            file.truncate(4096)
            with mmap.mmap(file.fileno(), 4096):
                assert path.name not in shared_memory.left_since(before)
        assert path.name in shared_memory.left_since(before)
    finally:
        path.unlink()
