"""A cost table as JSON, for plan files: an exact round trip.

Knows the fields of :class:`cost_models.costs.CostTable`; nothing of plan files.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from cost_models.checked_json import build, refuse_bad_numbers
from cost_models.costs import CostTable
from problem.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def costs_to_json(table: CostTable) -> dict[str, Any]:
    """Return a cost table as a JSON object: the names of its fields, in SI units."""
    return {**asdict(table), "notes": list(table.notes)}


def costs_from_json(doc: Mapping[str, Any], source: str | Path = "costs") -> CostTable:
    """Return the cost table of a JSON object made by :func:`costs_to_json`.

    Parameters
    ----------
    doc : Mapping
        Parsed JSON.
    source : str or Path
        File that it came from, for messages.

    Raises
    ------
    BadInput
        If a field is missing, unknown, of another type, negative, infinite or not a number.
    """
    known = [field.name for field in fields(CostTable)]
    unknown = next((key for key in doc if key not in known), None)
    if unknown is not None:
        raise BadInput(source, unknown, doc[unknown], f"no such field; known: {', '.join(known)}")
    refuse_bad_numbers(doc, source)
    table = build(CostTable, dict(doc), source)
    if table.batch < 1 or not table.flops_per_core_second:
        name = "batch" if table.batch < 1 else "flops_per_core_second"
        raise BadInput(source, name, doc[name], "more than 0")
    return table
