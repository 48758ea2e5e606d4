"""Readers: WHAT is trained, from whatever names it: a preset, a model TOML, a graph JSON or a CSV of tables.

Knows how to tell the sources apart and how to rebuild a model from the description that a plan file carries. What the
keys are is in ``problem.schema``; what they become in ``problem.expand`` and ``problem.graph_json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from problem.documents import Document, parse_csv, read_document, read_text
from problem.errors import BadInput
from problem.expand import capped, expand_model, rows_capped
from problem.graph_json import graph_model, read_graph
from problem.model import Model
from problem.presets import model_presets, nearest
from problem.schema import GraphSpec, ModelSpec, validate

#: The dense part that is put around a bare list of tables; small, so that the tables dominate. A dot interaction grows
#: with the square of the number of tables, so lists above MAX_DOT_TABLES or of mixed dims are concatenated.
HEAD_DENSE_FEATURES = 13  # as in the Criteo data
HEAD_BOTTOM = (64,)
HEAD_TOP = (128, 1)
MAX_DOT_TABLES = 64


def load_model(source: str | Path) -> Model:
    """Read a model.

    Parameters
    ----------
    source : str or Path
        Name of a preset, or a file: ``.toml`` (model), ``.json`` (graph), ``.csv`` (tables).

    Raises
    ------
    BadInput
        When there is no such preset or file, or a value in it is not allowed.
    GraphError
        When the operators do not form a directed acyclic graph.
    """
    path = Path(source)
    preset = model_presets().get(str(source))
    if preset is not None:
        return _read_toml(preset)
    readers = {".toml": _read_toml, ".json": read_graph, ".csv": _read_csv}
    if path.suffix in readers:
        return readers[path.suffix](path)
    endings = f"or a file that ends in {', '.join(readers)}"
    raise BadInput("model", "name", str(source), f"{nearest(str(source), list(model_presets()))}; {endings}")


def model_from_spec(spec: Mapping[str, Any]) -> Model:
    """Rebuild a model from ``Model.spec``; the result equals the model that the spec came from.

    Raises
    ------
    BadInput
        When the description is not valid.
    GraphError
        When the operators do not form a directed acyclic graph.
    """
    document = Document("model description", dict(spec))
    if "operators" in spec:
        return graph_model(validate(GraphSpec, document), document.source)
    return expand_model(validate(ModelSpec, document), document.source)


def with_max_rows(model: Model, rows: int) -> Model:
    """Return the model with tables of at most ``rows`` rows; ids above are hashed by modulo, as Criteo's max_ind_range.

    The dense part, and so its cost, stays the same: a big preset becomes small enough for this machine.

    Raises
    ------
    BadInput
        When ``rows`` is below 1.
    """
    if rows < 1:
        raise BadInput("model", "max_rows", rows, "at least 1")
    if not model.tables:
        return model
    if not model.spec:
        return replace(model, tables=tuple(rows_capped(table, rows) for table in model.tables))
    document = Document("model description", dict(model.spec))
    return expand_model(capped(validate(ModelSpec, document), rows), document.source)


def _read_toml(path: Path) -> Model:
    """Read a model TOML; ``tables`` may be a path to a CSV, relative to the TOML."""
    document = read_document(path)
    data = document.data
    if isinstance(data.get("tables"), str):
        table_path = path.parent / data["tables"]
        tables = parse_csv(read_text(table_path), str(table_path), "tables")
        _check_columns(tables)
        document = Document(str(path), data | tables.data, tables.lines)
    return expand_model(validate(ModelSpec, document), str(path))


def _read_csv(path: Path) -> Model:
    """Read a bare list of tables and put a small DLRM around it."""
    document = parse_csv(read_text(path), str(path), "tables")
    _check_columns(document)
    rows = document.data["tables"]
    dims = {row.get("dim") for row in rows}
    dot = len(rows) <= MAX_DOT_TABLES and len(dims) == 1
    bottom = [*HEAD_BOTTOM, rows[0].get("dim")] if dot else list(HEAD_BOTTOM)
    head = {
        "name": path.stem,
        "dense_features": HEAD_DENSE_FEATURES,
        "bottom_mlp": bottom,
        "top_mlp": list(HEAD_TOP),
        "interaction": "dot" if dot else "concat",
        "notes": [_head_note(bottom, dot)],
    }
    return expand_model(validate(ModelSpec, Document(str(path), head | document.data, document.lines)), str(path))


def _head_note(bottom: list[Any], dot: bool) -> str:
    widths = "-".join(str(width) for width in (HEAD_DENSE_FEATURES, *bottom))
    top = "-".join(str(width) for width in HEAD_TOP)
    return f"assumed dense part: bottom {widths}, {'dot' if dot else 'concat'} interaction, top {top}, batch 128, SGD"


def _check_columns(document: Document) -> None:
    """Refuse a CSV without the columns that every table needs, or without tables."""
    rows = document.data["tables"]
    if not rows:
        raise BadInput(document.source, "tables", [], "at least one line below the header")
    for column in ("name", "rows"):
        if not any(column in row for row in rows):
            raise BadInput(
                document.source, "header", None, f"a column {column!r}; columns: name, rows, dim, pooling_factor, dtype"
            )
