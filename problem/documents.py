"""Documents: JSON, TOML, YAML and CSV text as plain data, with the line of each value where the format tells it.

Knows syntax only: duplicate keys, bad encodings, broken text. Knows nothing of what a document means; that is the
business of ``problem.schema`` and of the readers. Scalars of YAML and CSV stay text (``1e3``, ``no`` and ``0123`` are
what was written), because YAML 1.1 types them by surprise; they get their type from the field that holds them.
"""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from problem.errors import BadInput

Location = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """Plain data that was read from a file.

    Parameters
    ----------
    source : str
        File, for messages.
    data : object
        Mappings, lists and scalars.
    lines : Mapping
        Line of each value by its location; empty where the format does not tell it.
    """

    source: str
    data: Any
    lines: Mapping[Location, int] = field(default_factory=dict)

    def where(self, location: Location) -> str:
        """Return ``file`` or ``file:line`` of the value at ``location`` or of the nearest value around it."""
        for length in range(len(location), 0, -1):
            if location[:length] in self.lines:
                return f"{self.source}:{self.lines[location[:length]]}"
        return self.source

    def value(self, location: Location) -> Any:
        """Return the value at ``location``, or None when there is no such value."""
        value = self.data
        for key in location:
            value = _child(value, key)
        return value

    def path(self, location: Location) -> str:
        """Return ``nodes[2](n2).memory``: the dotted path of a value, with the name of each list element on it."""
        text, value = "", self.data
        for key in location:
            value = _child(value, key)
            text += f"[{key}]{_label(value)}" if isinstance(key, int) else f".{key}"
        return text.removeprefix(".") or "document"


def _child(value: Any, key: str | int) -> Any:
    """Return ``value[key]``, or None when there is no such thing."""
    try:
        return value[key]
    except (KeyError, IndexError, TypeError):
        return None


def _label(value: Any) -> str:
    """Return ``(name)`` of a list element that has a name or an id."""
    if not isinstance(value, Mapping):
        return ""
    name = value.get("name", value.get("id", value.get("names")))
    return "" if name is None else f"({name})"


def read_text(path: Path) -> str:
    """Return the text of a file (UTF-8, with or without byte order mark).

    Raises
    ------
    BadInput
        When there is no such file, or it is not text.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadInput(path, "file", path.name, error.strerror or "a readable file") from None
    except UnicodeDecodeError:
        raise BadInput(path, "file", path.name, "text in UTF-8") from None


def read_document(path: Path) -> Document:
    """Read a ``.json``, ``.toml``, ``.yaml`` or ``.yml`` file.

    Raises
    ------
    BadInput
        When the file cannot be read, its syntax is broken or a key appears twice.
    """
    parsers = {".json": parse_json, ".toml": parse_toml, ".yaml": parse_yaml, ".yml": parse_yaml}
    if path.suffix not in parsers:
        raise BadInput(path, "file", path.suffix, "a file that ends in " + ", ".join(parsers))
    return parsers[path.suffix](read_text(path), str(path))


def parse_json(text: str, source: str) -> Document:
    """Parse JSON. NaN and Infinity pass as floats, so that the reader can name the field that holds them.

    Raises
    ------
    BadInput
        On broken syntax or a key that appears twice in one object.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        twice = (
            next((key for i, key in enumerate(keys) if key in keys[:i]), None) if len(set(keys)) < len(keys) else None
        )
        if twice is not None:
            raise BadInput(source, twice, "given twice", "each key once in an object")
        return dict(pairs)

    try:
        return Document(source, json.loads(text, object_pairs_hook=unique))
    except json.JSONDecodeError as error:
        raise BadInput(f"{source}:{error.lineno}", "document", error.msg, "valid JSON") from None
    except (RecursionError, ValueError) as error:
        raise BadInput(source, "document", str(error)[:80], "valid JSON") from None


def parse_toml(text: str, source: str) -> Document:
    """Parse TOML.

    Raises
    ------
    BadInput
        On broken syntax or a key that appears twice; the message carries the line.
    """
    try:
        return Document(source, tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise BadInput(source, "document", str(error)[:80], "valid TOML, each key once") from None


MAX_YAML_VALUES = 200_000
"""Values that a YAML document may hold once its aliases are written out: aliases of aliases grow without end."""


def parse_yaml(text: str, source: str, *, aliases: bool = False) -> Document:
    """Parse YAML with every scalar as text.

    Parameters
    ----------
    text, source : str
        The text, and the file it is from.
    aliases : bool
        Whether an alias (``*name``) stands for what it names (files of others), or is refused (ours).

    Raises
    ------
    BadInput
        On broken syntax, a key that appears twice, an alias where none is allowed, or aliases that grow without end.
    """
    import yaml  # noqa: PLC0415 - only this format needs it

    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = source if mark is None else f"{source}:{mark.line + 1}"
        problem = getattr(error, "problem", None) or type(error).__name__
        raise BadInput(where, "document", problem, "valid YAML, one document") from None
    reader = _YamlReader(source, aliases)
    return Document(source, None if root is None else reader.plain(root, ()), reader.lines)


class _YamlReader:
    """Turns YAML nodes into plain values, and notes the line of each."""

    def __init__(self, source: str, aliases: bool) -> None:
        self.lines: dict[Location, int] = {}
        self._source, self._aliases = source, aliases
        self._seen: set[int] = set()

    def plain(self, node: Any, location: Location) -> Any:
        """Return the plain value of a node and note the line of everything in it."""
        line = node.start_mark.line + 1
        self.lines[location] = line
        self._check(node, line)
        if isinstance(node.value, str):
            return node.value
        if node.tag.endswith(":seq"):
            return [self.plain(child, (*location, i)) for i, child in enumerate(node.value)]
        found: dict[str, Any] = {}
        for key, child in node.value:
            name = str(key.value)
            if name in found:
                raise BadInput(f"{self._source}:{key.start_mark.line + 1}", name, "given twice", "each key once")
            found[name] = self.plain(child, (*location, name))
        return found

    def _check(self, node: Any, line: int) -> None:
        where = f"{self._source}:{line}"
        again = id(node) in self._seen
        if again and not self._aliases:
            raise BadInput(where, "document", "an alias", "values written out; aliases are not read")
        self._seen.add(id(node))
        if again and len(self.lines) > MAX_YAML_VALUES:
            raise BadInput(where, "document", "an alias", f"at most {MAX_YAML_VALUES} values, aliases written out")


def parse_csv(text: str, source: str, at: str) -> Document:
    """Parse CSV with a header into ``{at: [{column: text}, ...]}``; empty cells are left out, blank lines skipped.

    Raises
    ------
    BadInput
        On an empty file, a column named twice, or a line with more cells than columns.
    """
    reader = csv.reader(text.splitlines())
    header = [name.strip() for name in next(reader, [])]
    if not header or len(set(header)) < len(header):
        raise BadInput(f"{source}:1", "header", ",".join(header), "a header line with distinct column names")
    rows: list[dict[str, str]] = []
    lines: dict[Location, int] = {}
    for cells in reader:
        if len(cells) > len(header):
            raise BadInput(f"{source}:{reader.line_num}", "line", ",".join(cells)[:60], f"{len(header)} cells")
        if any(cell.strip() for cell in cells):
            lines[(at, len(rows))] = reader.line_num
            filled = zip(header, cells, strict=False)
            rows.append({name: cell.strip() for name, cell in filled if cell.strip()})
    return Document(source, {at: rows}, lines)
