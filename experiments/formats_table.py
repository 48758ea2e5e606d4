"""QUESTION: which files are read, as what, and what is said of those that are not?

``python -m experiments.formats_table FOLDER...`` walks folders and prints a line for each file: its format, what it became,
or the line with which it was refused. Archives and collections are opened, and their members listed too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_models.kineto import load_kineto
from problem.cluster_io import cluster_from_spec
from problem.documents import Document
from problem.errors import BadInput, HiertrainError
from problem.formats import signatures
from problem.formats.content import Content, unwrap
from problem.formats.machines import Asked, Machines, complete
from problem.formats.placement import Placement
from problem.formats.registry import Format, sniff


@dataclass(frozen=True)
class Row:
    """A file: where it is, its format (empty if unknown), whether it was read, and what became of it in a line."""

    path: str
    format: str
    read: bool
    line: str

    def __str__(self) -> str:
        return f"{'read   ' if self.read else 'refused'}  {self.path}  [{self.format or '?'}]  {self.line}"


def rows(folder: Path) -> Iterator[Row]:
    """Yield a row for each file below a folder, those in archives and the entries of collections included."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield from _file_rows(path, folder)


def _file_rows(path: Path, folder: Path) -> Iterator[Row]:
    yield row(path, folder)
    content = Content(path)
    if content.is_archive:
        members = content.members()
        yield from (row(path / member, folder) for member in (members if len(members) > 1 else ()))
    elif content.suffix == ".json" and _is_collection(content):
        yield from (row(path / entry, folder) for entry in content.json.data)


def _is_collection(content: Content) -> bool:
    try:
        return sniff(content).name == "several"
    except HiertrainError:
        return False


def row(path: Path, folder: Path) -> Row:
    """Return what becomes of one file."""
    shown, name = str(path.relative_to(folder)), ""
    try:
        content = unwrap(path)
        form = sniff(content)
        name = form.name
        return Row(shown, name, True, _became(content, form))
    except HiertrainError as error:
        return Row(shown, name, False, str(error).replace(str(path), path.name))


def _became(content: Content, form: Format) -> str:
    """Return what a file becomes; raises if it becomes nothing."""
    if form.name == "kineto":
        return f"costs of {len(load_kineto(content.source).seconds)} calls"
    if form.refusal:
        raise BadInput(content.source, "format", form.name, signatures.reason(content) or form.refusal)
    return "; ".join(_summary(kind, form.reader(kind)(content), content) for kind in form.becomes)


def _summary(kind: str, thing: Any, content: Content) -> str:
    match thing:
        case Placement():
            return f"placement: {len(thing.shards)} shards on {thing.devices} devices"
        case Machines():
            return f"cluster: {_machines(thing, content)}"
        case Document():
            return f"cluster: {len(cluster_from_spec(thing).nodes)} machines"
        case _:
            return f"{kind}: {len(thing.graph)} operators, {len(thing.tables)} tables"


def _machines(machines: Machines, content: Content) -> str:
    count = sum(len(node.get("names", ("one",))) for node in machines.nodes)
    try:
        complete(machines, Asked(content.path), content.source)
        return f"{count} machines"
    except BadInput as error:
        return (
            f"{count} machines, asks for {error.allowed.partition('FILE,')[2].replace('=...', '').replace(',', ', ')}"
        )


def main(folders: list[str]) -> None:
    """Print the table."""
    for folder in folders:
        for found in rows(Path(folder)):
            print(found, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
