"""Readers: WHAT is trained, from whatever names it: a preset, or a file of ours or of others.

Knows our own files, and how to rebuild a model from the description that a plan file carries. Formats are told apart in
``problem.formats.registry``; what our keys are is in ``problem.schema``, what they become in ``problem.expand`` and
``problem.graph_json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from problem.documents import Document, parse_csv, parse_toml
from problem.errors import BadInput
from problem.expand import capped, expand_model, rows_capped
from problem.formats.content import Content
from problem.formats.registry import read, split_forced
from problem.formats.tables_model import model_around
from problem.graph_json import graph_model
from problem.model import Model
from problem.presets import model_presets, nearest
from problem.schema import GraphSpec, ModelSpec, validate


def load_model(source: str | Path) -> Model:
    """Read a model.

    Parameters
    ----------
    source : str or Path
        Name of a preset, or a file of any format that becomes a model (docs/formats.md), told by its content;
        ``FORMAT:PATH`` forces a format.

    Raises
    ------
    BadInput
        When there is no such preset or file, its format is not read, or a value in it is not allowed.
    GraphError
        When the operators do not form a directed acyclic graph.
    """
    preset = model_presets().get(str(source))
    if preset is not None:
        return model_of_toml(Content(preset))
    forced, path = split_forced(str(source))
    if len(Path(path).parts) == 1 and not Path(path).suffix and not Path(path).exists():
        raise BadInput("model", "name", path, f"{nearest(path, list(model_presets()))}; or a file, see docs/formats.md")
    model: Model = read(path, "model", forced)
    return model


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
        tables, shared = (tuple(rows_capped(t, rows) for t in part) for part in (model.tables, model.shared))
        return replace(model, tables=tables, shared=shared)
    document = Document("model description", dict(model.spec))
    if "operators" in model.spec:
        graph = validate(GraphSpec, document)
        specs = [t.model_copy(update={"rows": min(t.rows, rows)}) if t.rows else t for t in graph.tables]
        return graph_model(graph.model_copy(update={"tables": tuple(specs)}), document.source)
    return expand_model(capped(validate(ModelSpec, document), rows), document.source)


def model_of_toml(content: Content) -> Model:
    """Return the model of a TOML of ours; ``tables`` may be a path to a CSV, relative to the TOML.

    Raises
    ------
    BadInput
        When a value in it is not allowed.
    """
    document = parse_toml(content.text, content.source)
    data = document.data
    if isinstance(data.get("tables"), str):
        tables = read_tables(Content(content.path.parent / data["tables"]))
        document = Document(content.source, data | tables.data, tables.lines)
    return expand_model(validate(ModelSpec, document), content.source)


def model_of_csv(content: Content) -> Model:
    """Return the model of a bare list of tables: a small DLRM around them.

    Raises
    ------
    BadInput
        When a column is missing or a value is not allowed.
    """
    document = read_tables(content)
    return model_around(content.stem, document.data["tables"], content.source, lines=document.lines)


def read_tables(content: Content) -> Document:
    """Return the tables of a CSV.

    Raises
    ------
    BadInput
        When the file has no tables, or no column that every table needs.
    """
    document = parse_csv(content.text, content.source, "tables")
    rows = document.data["tables"]
    if not rows:
        raise BadInput(document.source, "tables", [], "at least one line below the header")
    for column in ("name", "rows"):
        if not any(column in row for row in rows):
            columns = f"a column {column!r}; columns: name, rows, dim, pooling_factor, dtype"
            raise BadInput(document.source, "header", None, columns)
    return document
