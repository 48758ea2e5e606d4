"""Descriptions of published models in JSON: tables with rows and dims, MLP widths, interaction, batch, and a source.

Keys as in collections of facts: ``tables`` (``rows``, ``dim``, ``pooling_factor`` or ``hotness``), or ``rows`` (a list) and
``embedding_dim``; ``dense_in``, ``bottom_mlp``, ``top_mlp``, ``interaction`` (where it is not named: dots if all widths are
equal, else side by side). Without MLP widths a dense part is assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from problem.errors import BadInput
from problem.formats.content import Content
from problem.formats.tables_model import described_model, model_around
from problem.model import Model

_OPTIONAL = {"cross_layers": "dcn_num_layers", "cross_rank": "dcn_low_rank_dim", "batch": "batch"}


def read_model(content: Content) -> Model:
    """Return the model of a description.

    Raises
    ------
    BadInput
        When a table has no rows or no dim, or the widths do not fit together.
    """
    data: Mapping[str, Any] = content.json.data
    tables = _tables(data, content)
    notes = [f"described in {data.get('source') or data.get('url')}"]
    name = content.stem.replace("#", " ")
    if "top_mlp" not in data or "bottom_mlp" not in data:
        return model_around(name, tables, content.source, notes=notes)
    interaction = str(data.get("interaction", _interaction(data, tables))).split(" ")[0]
    wanted = {key: data[theirs] for key, theirs in _OPTIONAL.items() if isinstance(data.get(theirs), int)}
    if interaction == "dot":
        wanted = {key: value for key, value in wanted.items() if not key.startswith("cross")}
    description = {
        "name": name,
        "dense_features": data.get("dense_in", data.get("dense_dim")),
        "bottom_mlp": data["bottom_mlp"],
        "top_mlp": data["top_mlp"],
        "interaction": interaction,
        "tables": tables,
        "notes": notes,
        **wanted,
    }
    return described_model(description, content.source)


def _interaction(data: Mapping[str, Any], tables: list[dict[str, Any]]) -> str:
    """Return the interaction of a description that names none: dots of equal widths, else side by side."""
    widths = {table.get("dim") for table in tables} | set(data["bottom_mlp"][-1:])
    return "dot" if len(widths) == 1 else "concat"


def _tables(data: Mapping[str, Any], content: Content) -> list[dict[str, Any]]:
    given = data.get("tables")
    if given is None and isinstance(data.get("rows"), list):
        given = [{"name": f"t_{i}", "rows": rows} for i, rows in enumerate(data["rows"])]
    if not isinstance(given, list) or not given:
        raise BadInput(content.source, "tables", given, "a list of tables with rows and dim")
    return [_table(table, i, data, content) for i, table in enumerate(given)]


def _table(table: Any, index: int, data: Mapping[str, Any], content: Content) -> dict[str, Any]:
    if not isinstance(table, Mapping) or "rows" not in table:
        raise BadInput(content.source, f"tables[{index}]", table, "a table with rows and dim")
    found = {
        "name": str(table.get("name", f"t_{index}")),
        "rows": table["rows"],
        "dim": table.get("dim", data.get("embedding_dim")),
        "pooling_factor": table.get("pooling_factor", table.get("hotness", 1)),
    }
    return {key: value for key, value in found.items() if value is not None}
