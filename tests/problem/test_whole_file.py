"""Files that appear complete or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from problem.errors import BadInput
from problem.whole_file import check_target, made_folder, whole_file


@pytest.mark.parametrize("name", ["folder", "nowhere/file"])
def test_bug_a_folder_as_target_left_a_neighbour_behind(name, tmp_path):
    """A path that is a folder, or lies in none, is refused before anything is written; nothing is left behind."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match="folder"), whole_file(tmp_path / name):
        pytest.fail("opened")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert not list((tmp_path / "folder").iterdir())


def test_a_file_takes_its_name_when_it_is_whole(tmp_path):
    """An error while writing leaves the file that was there, and no other."""
    path = tmp_path / "x.json"
    with whole_file(path) as file:
        file.write("first")

    def fail() -> None:
        with whole_file(path) as file:
            file.write("second")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "first"
    assert [one.name for one in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no /proc here")
def test_bug_a_folder_that_takes_no_files_was_found_after_the_work():
    """Nobody can make a file in /proc, whatever its permissions: one line before any work, not an error number after it."""
    with pytest.raises(BadInput, match="may be written to"):
        check_target("/proc/plan.json")
    with pytest.raises(BadInput, match="may be written to"):
        made_folder("/proc/self")
