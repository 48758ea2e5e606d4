"""Presets: the models and clusters that come with hiertrain, as data files that name the source of each number.

Knows where the files are and what each says of itself; what is in them is read like any user's file.
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class PresetInfo:
    """A preset, for listing.

    Parameters
    ----------
    name : str
        What to type.
    kind : str
        ``model`` or ``cluster``.
    summary : str
        One line.
    source : str
        Where the numbers come from.
    """

    name: str
    kind: Literal["model", "cluster"]
    summary: str
    source: str


LOCAL = PresetInfo("local", "cluster", "this machine: local:N is N trainers and a server on it", "the operating system")


def list_presets() -> tuple[PresetInfo, ...]:
    """Return all presets, models first, by name."""
    models = [_info(path, "model") for path in _files("models")]
    clusters = [_info(path, "cluster") for path in _files("clusters")]
    return (*models, *clusters, LOCAL)


def model_presets() -> dict[str, Path]:
    """Return the file of each model preset."""
    return {path.stem: path for path in _files("models")}


def cluster_presets() -> dict[str, Path]:
    """Return the file of each cluster preset (``local`` has none)."""
    return {path.stem: path for path in _files("clusters")}


def nearest(name: str, known: list[str], what: str = "presets") -> str:
    """Say which of the known names (``what`` they are) was probably meant, and list them all."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return (f"did you mean {near[0]}? " if near else "") + f"{what}: {', '.join(known)}"


def _files(folder: str) -> list[Path]:
    return sorted((DATA / folder).glob("*.toml"))


def _info(path: Path, kind: Literal["model", "cluster"]) -> PresetInfo:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    return PresetInfo(path.stem, kind, data["summary"], data["source"])
