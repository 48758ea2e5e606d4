"""What is different between two plans of one model: settings, tags, tables, what they do, and what must be moved.

Knows plans; each is evaluated with its own costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from placement.evaluation.evaluate import evaluate
from placement.explain import problem_of, rate_of
from placement.plan import DP, Plan, Tag
from placement.planfile import LoadedPlan
from placement.search.replan import moved_bytes
from problem.errors import BadInput


@dataclass(frozen=True, slots=True)
class Change:
    """Something that the plans say differently: a setting, an operator or a table, before and after."""

    what: str
    before: str
    after: str


@dataclass(frozen=True)
class Difference:
    """From one plan to another.

    Parameters
    ----------
    before, after : float
        Samples per second.
    bottleneck_before, bottleneck_after : str
        What binds.
    changes : tuple of Change
        Settings first, then operators in graph order, then tables.
    moved_bytes : int
        Parameters and optimizer state that machines hold after and not before.
    """

    before: float
    after: float
    bottleneck_before: str
    bottleneck_after: str
    changes: tuple[Change, ...]
    moved_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def difference(old: LoadedPlan, new: LoadedPlan) -> Difference:
    """Compare two plans.

    Parameters
    ----------
    old, new : LoadedPlan
        Plans of one model, each with its costs.

    Raises
    ------
    BadInput
        When the plans are of different models.
    """
    first, second = old.plan, new.plan
    if first.model.graph != second.model.graph or first.model.tables != second.model.tables:
        raise BadInput("--against", "model", first.model.name, f"a plan of the same model ({second.model.name})")
    then, now = (evaluate(problem_of(one.plan, one.costs), one.plan.tags) for one in (old, new))
    return Difference(
        rate_of(first, old.costs),
        rate_of(second, new.costs),
        then.bottleneck,
        now.bottleneck,
        tuple(change for change in _changes(first, second) if change.before != change.after),
        moved_bytes(first, second),
    )


def _changes(old: Plan, new: Plan) -> Iterator[Change]:
    for what, before, after in zip(_SETTINGS, _settings(old), _settings(new), strict=True):
        yield Change(what, str(before), str(after))
    for name in new.tags:
        yield Change(f"operator {name}", _place(old.tags[name]), _place(new.tags[name]))
    for table in new.model.tables:
        yield Change(f"table {table.name}", _servers(old, table.name), _servers(new, table.name))
    for edge in sorted({*old.codecs, *new.codecs}):
        yield Change(f"codec of {edge}", old.codec(edge) or "fp32", new.codec(edge) or "fp32")


_SETTINGS = ("nodes a group", "groups", "ranks a group", "threads a rank", "batch", "embedding servers", "sync servers")


def _settings(plan: Plan) -> tuple[int, ...]:
    machines = len(plan.servers), len(plan.sync_servers)
    return plan.group_size, len(plan.groups), plan.ranks, plan.hogwild, plan.batch, *machines


def _place(tag: Tag) -> str:
    return "data-parallel" if tag == DP else f"node {tag}"


def _servers(plan: Plan, table: str) -> str:
    """Machines that hold rows of a table."""
    numbers = sorted({shard.server for shard in plan.shards if shard.table == table and shard.rows})
    return ", ".join(plan.servers[number].name for number in numbers)
