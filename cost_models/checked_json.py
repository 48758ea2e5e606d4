"""Our own JSON files: written atomically, read into dataclasses.

A value that is not allowed gives one line that names the first such field. Knows JSON and pydantic; nothing of what
the values mean.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from problem.documents import parse_json, read_text
from problem.errors import BadInput
from problem.whole_file import whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

T = TypeVar("T")


def read_object(path: str | Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises
    ------
    BadInput
        If the file cannot be read, is not JSON, is not an object, or names a key twice.
    """
    doc = parse_json(read_text(Path(path)), str(path)).data
    if not isinstance(doc, dict):
        raise BadInput(path, "document", type(doc).__name__, "a JSON object")
    return doc


def build(kind: type[T], doc: dict[str, Any], source: str | Path) -> T:
    """Build a (nested) dataclass from parsed JSON, checking types and the bounds in its annotations.

    Numbers must be numbers, strings strings; keys that the dataclass does not have are refused.

    Raises
    ------
    BadInput
        Naming the first field that is wrong.
    """
    try:
        return TypeAdapter(kind).validate_json(json.dumps(doc), strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False)
        path, value = path_of(found[0]["loc"], doc), found[0]["input"]
        alike = dict.fromkeys(one["msg"] for one in found if path_of(one["loc"], doc) == path)
        allowed = ", or ".join(msg.removeprefix("Input should be ") if i else msg for i, msg in enumerate(alike))
        raise BadInput(source, path, "(missing)" if found[0]["type"] == "missing" else value, allowed) from None


def path_of(loc: tuple[int | str, ...], doc: Any) -> str:
    """Return a dotted path; an element that says what it is (``signature``, ``phase``) is shown with it.

    It ends at a value: what follows in ``loc`` is a name of pydantic's for one of the types that the value might have had.
    """
    path, known = "", doc is not None
    for step in loc:
        if isinstance(doc, str | float | int) or (known and doc is None):
            break
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
        doc = _inside(doc, step)
        if isinstance(doc, dict) and "signature" in doc:
            path += f" ({doc['signature']} {doc.get('phase', '')})"
    return path.removeprefix(".")


def _inside(doc: Any, step: int | str) -> Any:
    """Return an element; an ellipsis where there is none."""
    try:
        return doc[step]
    except (KeyError, IndexError, TypeError):
        return ...


def refuse_bad_numbers(doc: Any, source: str | Path) -> None:
    """Refuse a parsed document with a number that is negative, infinite or not a number.

    Raises
    ------
    BadInput
        Naming the first such field.
    """
    for loc, value in _numbers(doc, ()):
        if not (math.isfinite(value) and value >= 0):
            raise BadInput(source, path_of(loc, None), value, "a finite number, not negative")


def _numbers(doc: Any, loc: tuple[int | str, ...]) -> Iterator[tuple[tuple[int | str, ...], float]]:
    if isinstance(doc, dict):
        for key, value in doc.items():
            yield from _numbers(value, (*loc, key))
    elif isinstance(doc, (list, tuple)):
        for i, value in enumerate(doc):
            yield from _numbers(value, (*loc, i))
    elif isinstance(doc, (int, float)):
        yield loc, doc


def write_json(doc: Mapping[str, Any], path: str | Path) -> None:
    """Write a JSON object so that the file is never half there.

    Raises
    ------
    BadInput
        If the folder that the file is to be in does not exist.
    """
    with whole_file(path) as file:
        json.dump(doc, file, indent=1)
        file.write("\n")
