"""The choice of OpenBLAS's kernels: measured, remembered, put into effect before NumPy is loaded, never against the user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from executor import coretype
from executor.coretype import FOLDER, VARIABLE
from problem.local import cpu_flags, numpy_version, processor


def test_core_types_are_those_that_the_processor_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """AVX2 alone rules the AVX-512 kernels out; without flags (another architecture) there is only OpenBLAS's own choice."""
    monkeypatch.setattr(coretype, "cpu_flags", lambda: frozenset({"sse2", "avx2", "fma", "avx512f"}))
    assert coretype.candidates() == ["", "Haswell"]
    monkeypatch.setattr(coretype, "cpu_flags", lambda: coretype.CORE_TYPES["SkylakeX"])
    assert coretype.candidates() == ["", "Haswell", "SkylakeX"]
    monkeypatch.setattr(coretype, "cpu_flags", frozenset)
    assert coretype.candidates() == [""]


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        ({"": 100.0, "Haswell": 102.0, "SkylakeX": 102.9}, ""),
        ({"": 90.0, "Haswell": 100.0, "SkylakeX": 102.0}, "Haswell"),
        ({"": 90.0, "Haswell": 100.0, "SkylakeX": 200.0}, "SkylakeX"),
        ({}, ""),
    ],
)
def test_another_core_type_must_be_clearly_faster(speeds: dict[str, float], expected: str) -> None:
    """Within the noise of a measurement the one that comes first stays, so that measuring again chooses the same."""
    assert coretype.fastest(speeds) == expected


def test_measuring_leaves_out_what_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that fails, as one under kernels that this CPU lacks would, has no speed and ends nothing."""
    monkeypatch.setattr(coretype, "ROUNDS", 1)
    speeds = coretype.measure([""])
    assert list(speeds) == [""]
    assert speeds[""] > 0.1
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert coretype.measure([""]) == {}


def started(folder: Path, core_type: str, **variables: str) -> tuple[str, str]:
    """Remember a core type for this machine, settle in a new process; returns what was set, and OpenBLAS's architecture."""
    entry = {f"{processor()}; numpy {numpy_version()}": {"core_type": core_type}}
    (folder / "openblas.json").write_text(json.dumps(entry))
    script = (
        "from executor.coretype import settle; print(repr(settle()));"
        "import numpy, threadpoolctl;"
        "print(next((found['architecture'] for found in threadpoolctl.threadpool_info()), ''))"
    )
    clean = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**clean, FOLDER: str(folder), **variables},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    said = done.stdout.split()
    return said[0], said[1]


@pytest.mark.skipif(not coretype.CORE_TYPES["Haswell"] <= cpu_flags(), reason="needs a processor with AVX2")
def test_a_remembered_core_type_is_what_numpy_uses(tmp_path: Path) -> None:
    """A new process takes the kernels that are remembered; with a user's own choice those, and nothing is set."""
    assert started(tmp_path, "Nehalem") == ("'Nehalem'", "Nehalem")
    assert started(tmp_path, "Nehalem", **{VARIABLE: "Haswell"}) == ("''", "Haswell")


def settle_here(monkeypatch: pytest.MonkeyPatch, folder: Path | str, **settings: bool) -> str:
    """Settle in this process as if NumPy were not loaded, with a measurement that finds Haswell ten percent faster."""
    monkeypatch.setattr(coretype, "sys", SimpleNamespace(modules={}))
    monkeypatch.setenv(FOLDER, str(folder))
    monkeypatch.setenv(VARIABLE, "")  # so that it is put back in the end
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(coretype, "measure", lambda names: dict(zip(names, (100.0, 110.0), strict=False)))
    monkeypatch.setattr(coretype, "candidates", lambda: ["", "Haswell"])
    return coretype.settle(**settings)


def test_nothing_is_measured_unless_asked_and_then_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ``measured`` writes the file, which all later processes read; another machine's entry stays."""
    folder = tmp_path / "made"
    assert settle_here(monkeypatch, folder) == ""
    assert not folder.exists()
    assert settle_here(monkeypatch, folder, measured=True) == "Haswell"
    assert os.environ[VARIABLE] == "Haswell"
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(coretype, "measure", None)  # would fail if called
    assert coretype.settle(measured=True) == "Haswell"


def test_no_folder_or_a_damaged_file_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder name switches all of it off; a file that is no JSON is measured anew; one that cannot be written is
    not used either, since the next process would not know."""
    assert settle_here(monkeypatch, "", measured=True) == ""
    (tmp_path / "openblas.json").write_text("no JSON")
    assert settle_here(monkeypatch, tmp_path) == ""
    assert settle_here(monkeypatch, tmp_path, measured=True) == "Haswell"
    (tmp_path / "file").touch()
    assert settle_here(monkeypatch, tmp_path / "file" / "below", measured=True) == ""


def test_where_numpy_is_loaded_it_is_too_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is set that would not be true."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert "numpy" in sys.modules
    assert coretype.settle(measured=True) == ""
    assert not list(tmp_path.iterdir())
