"""A model around embedding tables: what a list of tables becomes when a file says little or nothing of the dense part.

Knows which dense part is assumed and says so in the notes of the model; files that describe their dense part pass it on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from problem.documents import Document, Location
from problem.expand import expand_model
from problem.model import Model
from problem.schema import ModelSpec, validate

#: The dense part that is put around a bare list of tables; small, so that the tables dominate. A dot interaction grows
#: with the square of the number of tables, so lists above MAX_DOT_TABLES or of mixed dims are concatenated.
HEAD_DENSE_FEATURES = 13  # as in the Criteo data
HEAD_BOTTOM = (64,)
HEAD_TOP = (128, 1)
MAX_DOT_TABLES = 64


def model_around(
    name: str,
    tables: Sequence[Mapping[str, Any]],
    source: str,
    *,
    dense_features: int | None = None,
    keys: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    lines: Mapping[Location, int] | None = None,
) -> Model:
    """Return a model of ``tables`` with an assumed dense part.

    Parameters
    ----------
    name : str
        Name of the model.
    tables : sequence of Mapping
        Tables in the keys of :class:`problem.schema.TableSpec`.
    source : str
        File, for messages.
    dense_features : int, optional
        Number of dense features where the file knows it.
    keys : Mapping, optional
        Further keys of :class:`problem.schema.ModelSpec`, such as ``batch``.
    notes : sequence of str
        What the reader has to say.
    lines : Mapping, optional
        Line of each table, for messages.

    Raises
    ------
    BadInput
        When a value is not allowed.
    """
    dims = {str(table.get("dim")) for table in tables}
    features = HEAD_DENSE_FEATURES if dense_features is None else dense_features
    dot = 0 < len(tables) <= MAX_DOT_TABLES and len(dims) == 1
    bottom = [*HEAD_BOTTOM, *([_width(tables[0].get("dim"))] if dot else [])] if features else []
    head = {
        "name": name,
        "dense_features": features,
        "bottom_mlp": bottom,
        "top_mlp": list(HEAD_TOP),
        "interaction": "dot" if dot else "concat",
        "notes": [*notes, _note(features, bottom, dot)],
    }
    return described_model({**head, **(keys or {}), "tables": [dict(table) for table in tables]}, source, lines)


def described_model(data: Mapping[str, Any], source: str, lines: Mapping[Location, int] | None = None) -> Model:
    """Return the model of a description in the keys of :class:`problem.schema.ModelSpec`.

    Raises
    ------
    BadInput
        When a value is not allowed.
    """
    return expand_model(validate(ModelSpec, Document(source, dict(data), lines or {})), source)


def _width(dim: Any) -> int:
    """Width of the last layer for tables of a dim; 1 for what is no dim, so that the table is blamed, not the layer."""
    return int(str(dim)) if str(dim).isdecimal() and int(str(dim)) else 1


def _note(features: int, bottom: Sequence[Any], dot: bool) -> str:
    widths = "-".join(str(width) for width in (features, *bottom)) if features else "none"
    top = "-".join(str(width) for width in HEAD_TOP)
    return f"assumed dense part: bottom {widths}, {'dot' if dot else 'concat'} interaction, top {top}, batch 128, SGD"
