"""Cost tables as JSON: exact, and strict about what they read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cost_models.checked_json import write_json
from cost_models.costs import CostTable, MessageCost, OpCost, PhaseCost, TableCost
from cost_models.costs_json import costs_from_json, costs_to_json
from cost_models.roofline import roofline_costs
from problem.errors import BadInput
from tests.cost_models.models import node, small


def table() -> CostTable:
    cost = OpCost(PhaseCost(1 / 3, 2.5), PhaseCost(1e-300, 1e18), PhaseCost(0.1 + 0.2))
    lookup = TableCost(PhaseCost(2e-7, 3), PhaseCost(1))
    return CostTable(
        8,
        {"b": cost, "a": cost},
        {"t": lookup},
        MessageCost(1e-6, 2e-12, send_seconds_per_tensor=3e-7),
        kind="k",
        notes=("one", "two"),
    )


@pytest.mark.parametrize("costs", [table(), roofline_costs(small(), 128, node())], ids=["awkward numbers", "roofline"])
def test_round_trip_is_exact(costs: CostTable) -> None:
    """Through JSON text and back, every number to the last bit and every operator in its order."""
    again = costs_from_json(json.loads(json.dumps(costs_to_json(costs))))
    assert again == costs
    assert list(again.ops) == list(costs.ops)


def spoilt(path: str, value: Any) -> dict[str, Any]:
    doc = json.loads(json.dumps(costs_to_json(table())))
    *parents, last = path.split(".")
    inner = doc
    for key in parents:
        inner = inner[key]
    inner[last] = value
    return doc


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("ops.a.forward.core_seconds", float("nan")),
        ("ops.a.forward.core_seconds", float("inf")),
        ("tables.t.lookup.traffic_bytes", -1),
        ("ops.a.update.core_seconds", "3"),
        ("message.send_seconds", None),
        ("batch", 0),
        ("batch", 1.5),
        ("flops_per_core_second", 0),
        ("colour", "red"),
    ],
)
def test_bad_values_are_refused_by_their_path(path: str, value: Any) -> None:
    """One line names the file and the dotted path of the value."""
    with pytest.raises(BadInput) as caught:
        costs_from_json(spoilt(path, value), "plan.json")
    assert str(caught.value).startswith(f"plan.json: {path} = ")
    assert "\n" not in str(caught.value)


def test_missing_fields_are_named() -> None:
    """A table without operators is refused, naming the field."""
    doc = costs_to_json(table())
    del doc["ops"]
    with pytest.raises(BadInput, match=r"costs: ops = '\(missing\)'"):
        costs_from_json(doc)


def test_a_folder_that_is_not_there_is_named() -> None:
    """Writing into a folder that does not exist is refused, naming it."""
    with pytest.raises(BadInput, match="an existing folder"):
        write_json({}, "no-such-folder/costs.json")
