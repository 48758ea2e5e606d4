"""The plan file: a plan, the costs it was made for, and what was predicted, as one JSON document.

    {"format": "hiertrain-plan/1", "plan": {...}, "costs": {...}, "result": {...}}

The model travels as its own description (``Model.spec``), so a plan file is complete; ``plan.order`` is the order in which
the plan runs its operators (a file without it: that of the description). A file that misses an operator or
a row is refused, with its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from cost_models.checked_json import build, read_object, write_json
from cost_models.costs import CostTable
from cost_models.costs_json import costs_from_json, costs_to_json
from placement.errors import InvalidPlan
from placement.plan import Plan, Shard, Sync
from placement.result import PlacementResult
from problem.cluster import Node
from problem.errors import BadInput
from problem.model import Model
from problem.readers import model_from_spec

FORMAT = "hiertrain-plan/1"


@dataclass(frozen=True)
class LoadedPlan:
    """What a plan file holds.

    Parameters
    ----------
    plan : Plan
        The plan.
    costs : CostTable
        Costs it was made for.
    result : Mapping
        What was predicted (``PlacementResult.as_dict``); empty for a plan made by hand.
    """

    plan: Plan
    costs: CostTable
    result: Mapping[str, Any]


@dataclass(frozen=True)
class _PlanDocument:
    """The fields of a plan in JSON, checked on reading."""

    model: dict[str, Any]
    groups: list[list[Node]]
    servers: list[Node]
    sync_servers: list[Node]
    batch: int
    hogwild: int
    ranks: int
    tags: dict[str, int | Literal["dp"]]
    shards: list[Shard]
    sync: Sync | None
    synchronous: bool
    name: str
    seed: int
    codecs: dict[str, str] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)


def save_plan(
    path: str | Path, result: PlacementResult | Plan, costs: CostTable, prediction: Mapping[str, Any] | None = None
) -> None:
    """Write a plan file; the file appears complete or not at all.

    Parameters
    ----------
    path : str or Path
        File to write.
    result : PlacementResult or Plan
        A result, whose prediction is written too, or a bare plan.
    costs : CostTable
        Costs that the prediction is for.
    prediction : Mapping, optional
        What to write as prediction of a bare plan.
    """
    plan = result if isinstance(result, Plan) else result.plan
    predicted = dict(prediction or {}) if isinstance(result, Plan) else result.as_dict()
    document = {"format": FORMAT, "plan": plan_to_json(plan), "costs": costs_to_json(costs), "result": predicted}
    write_json(document, path)


def load_plan(path: str | Path) -> LoadedPlan:
    """Read a plan file.

    Raises
    ------
    BadInput
        When the file cannot be read, is no plan file, or a field is missing or of the wrong kind.
    InvalidPlan
        When the plan does not place every operator and every row exactly once; the message names the file.
    """
    document = read_object(path)
    if document.get("format") != FORMAT:
        raise BadInput(path, "format", document.get("format"), f"{FORMAT!r}")
    for part in ("plan", "costs"):
        if not isinstance(document.get(part), dict):
            raise BadInput(path, part, document.get(part), "an object")
    plan = plan_from_json(document["plan"], path)
    return LoadedPlan(plan, costs_from_json(document["costs"], path), document.get("result") or {})


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as a JSON object."""
    return {
        "model": dict(plan.model.spec),
        "groups": [[asdict(node) for node in group] for group in plan.groups],
        "servers": [asdict(node) for node in plan.servers],
        "sync_servers": [asdict(node) for node in plan.sync_servers],
        "batch": plan.batch,
        "hogwild": plan.hogwild,
        "ranks": plan.ranks,
        "tags": dict(plan.tags),
        "shards": [asdict(shard) for shard in plan.shards],
        "sync": asdict(plan.sync) if plan.sync else None,
        "synchronous": plan.synchronous,
        "name": plan.name,
        "seed": plan.seed,
        "codecs": dict(plan.codecs),
        "order": list(plan.model.graph.order),
    }


def plan_from_json(document: Mapping[str, Any], source: str | Path) -> Plan:
    """Return the plan of a JSON object made by :func:`plan_to_json`.

    Raises
    ------
    BadInput
        When a field is missing or of the wrong kind.
    InvalidPlan
        When the plan breaks a rule; the message names ``source``.
    """
    found = build(_PlanDocument, dict(document), source)
    model = _in_order(model_from_spec(found.model), found.order, source)
    try:
        return Plan(
            model=model,
            groups=tuple(tuple(group) for group in found.groups),
            servers=tuple(found.servers),
            sync_servers=tuple(found.sync_servers),
            batch=found.batch,
            hogwild=found.hogwild,
            ranks=found.ranks,
            tags=found.tags,
            shards=tuple(found.shards),
            sync=found.sync,
            synchronous=found.synchronous,
            name=found.name,
            seed=found.seed,
            codecs=found.codecs,
        )
    except InvalidPlan as error:
        raise InvalidPlan(f"{source}: {error}") from None


def _in_order(model: Model, names: Sequence[str], source: str | Path) -> Model:
    """Return a model whose operators run in a plan's order; in that of its description if a file has none."""
    graph = model.graph
    if not names or tuple(names) == graph.order:
        return model
    known = set(graph.order)
    wrong = next((name for name in (*names, *graph.order) if name not in known or names.count(name) != 1), None)
    if wrong is not None:
        raise BadInput(source, "plan.order", wrong, "each operator of the model but the look-ups, once")
    return replace(model, graph=graph.in_order(names))
