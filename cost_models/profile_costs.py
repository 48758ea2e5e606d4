"""From a profile to a cost table: exact shapes are interpolated in the batch, others estimated from their features.

Nothing is made up in silence: estimated operators, extrapolated batches and a foreign machine are told in the table's
notes, and an operator that can be neither interpolated nor estimated is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cost_models.costs import CostTable, OpCost, PhaseCost, TableCost
from cost_models.features import family, features
from cost_models.fit import interpolate
from cost_models.memory import step_bytes
from cost_models.profile import signature
from cost_models.traffic import (
    batch_bytes_per_sample,
    lookup_traffic,
    shard_lookup_traffic,
    shard_update_traffic,
    update_traffic,
    work_traffic,
)
from problem.errors import BadInput
from problem.graph import Kind
from problem.model import EmbeddingTable

if TYPE_CHECKING:
    from cost_models.features import Subject
    from cost_models.profile import Profile
    from problem.cluster import Node
    from problem.graph import Operator, Work
    from problem.model import Model


def profile_costs(
    profile: Profile, model: Model, batch: int, node: Node, *, foreign_ok: bool = False, sessions: int = 1
) -> CostTable:
    """Return the costs of a model from what was measured.

    Parameters
    ----------
    profile : Profile
        Measurements.
    model : Model
        What is trained.
    batch : int
        Samples per batch.
    node : Node
        Machine that the costs are wanted for.
    foreign_ok : bool
        Accept a profile of another machine. The table is then for the profile's machine, so that
        :meth:`~cost_models.costs.CostTable.slowdown` scales core-seconds by the ratio of core speeds, and says so.
    sessions : int
        Sessions on one machine, whose steps share its last cache (:meth:`~cost_models.profile.Profile.message`).

    Returns
    -------
    CostTable
        For ``profile.machine``.

    Raises
    ------
    BadInput
        If the profile is of another machine or another dense optimizer, or knows too little about an operator.
    """
    foreign = _check_machine(profile, node, foreign_ok)
    _check_optimizer(profile, model)
    costs, needs_gradient = _Costs(profile, batch), model.graph.needs_gradient
    touched = step_bytes(model, batch)
    sum_seconds_per_byte, sum_seconds = profile.summing(touched, sessions)
    ops = {op.name: _op_cost(costs, op, needs_gradient[op.name]) for op in model.graph if op.kind is not Kind.LOOKUP}
    tables = {name: _table_cost(costs, feature) for name, feature in model.feature.items()}
    return CostTable(
        batch=batch,
        ops=ops,
        tables=tables,
        message=profile.message(touched, sessions),
        next_batch_seconds=profile.next_batch_seconds(batch * batch_bytes_per_sample(model)),
        metric_seconds=profile.metric_seconds,
        sum_seconds_per_byte=sum_seconds_per_byte,
        exchange_seconds_per_byte=profile.exchange_seconds_per_byte,
        kind=profile.machine,
        flops_per_core_second=profile.flops_per_core_second,
        source=f"profile {profile.source} of {profile.machine}, {profile.date}",
        notes=(*foreign, *costs.notes()),
        sum_seconds=sum_seconds,
    )


def _check_machine(profile: Profile, node: Node, foreign_ok: bool) -> tuple[str, ...]:
    """Return the note about a foreign machine, if there is one and it is allowed."""
    if profile.machine == node.kind:
        return ()
    if not foreign_ok:
        allowed = (
            f"costs are wanted for {node.kind!r}: profile that machine, name the profile's machine as its kind in the "
            "cluster file if it is the same, or accept a foreign profile (--foreign-costs)"
        )
        raise BadInput(profile.source, "machine", profile.machine, allowed)
    ratio = profile.flops_per_core_second / node.flops_per_core_second
    return (
        f"the profile is of {profile.machine!r}, not of {node.kind!r}: all core-seconds are scaled by {ratio:.3g}, "
        "the ratio of the core speeds",
    )


def _check_optimizer(profile: Profile, model: Model) -> None:
    if profile.optimizer != model.optimizer and model.graph.dense_parameters:
        allowed = f"updates are wanted with {model.optimizer!r}, the dense optimizer of model {model.name!r}"
        raise BadInput(profile.source, "optimizer", profile.optimizer, allowed)


@dataclass
class _Costs:
    """Seconds of phases for one batch, and how they were come by."""

    profile: Profile
    batch: int
    estimated: dict[str, None] = field(default_factory=dict)  # names, in order; the set that keeps its order
    extrapolated: dict[str, None] = field(default_factory=dict)
    shares_only: bool = False

    def knows(self, subject: Subject, phase: str) -> bool:
        """Whether a phase was measured or can be estimated."""
        measured, _ = self.profile.knots(signature(subject), phase)
        return bool(measured) or family(subject, phase) in self.profile.coefficients

    def seconds(self, subject: Subject, phase: str) -> float:
        """Interpolate a measured shape or estimate another one."""
        batches, seconds = self.profile.knots(signature(subject), phase)
        if len(batches) > 1 or self.batch in batches:
            if not batches[0] <= self.batch <= batches[-1]:
                self.extrapolated[subject.name] = None
            return interpolate(batches, seconds, self.batch)
        coefficients = self.profile.coefficients.get(family(subject, phase))
        if coefficients is None:
            raise self._unknown(subject, phase, batches)
        self.estimated[subject.name] = None
        values = features(subject, phase, self.batch)
        return sum(coefficients.get(name, 0.0) * value for name, value in values.items())

    def _unknown(self, subject: Subject, phase: str, batches: list[int]) -> BadInput:
        what = "table" if isinstance(subject, EmbeddingTable) else "operator"
        had = f"measured at batch {batches[0]} only" if batches else "not measured"
        allowed = f"{what} {subject.name!r} needs it at batch {self.batch}; profile the model again"
        return BadInput(self.profile.source, f"{signature(subject)} {phase}", had, allowed)

    def notes(self) -> tuple[str, ...]:
        """What the reader of a prediction must know about the numbers given out so far."""
        found = []
        if self.estimated:
            found.append(f"never measured, estimated from their features: {', '.join(self.estimated)}")
        if self.extrapolated:
            found.append(
                f"batch {self.batch} is outside the profiled ones: extrapolated {', '.join(self.extrapolated)}"
            )
        if self.shares_only:
            found.append(
                "an old profile: shards of a table that is cut are taken to cost their share of it, and no more"
            )
        if self.profile.zeros:
            found.append(f"{self.profile.zeros} measurements of the profile are zero")
        return tuple(found)


def _op_cost(costs: _Costs, op: Operator, needs_gradient: bool) -> OpCost:
    """Cost of an operator; an imported one keeps its own seconds, or is as fast as a core's matrix products.

    Phases that never run cost nothing.
    """

    def phase(name: str, work: Work, runs: bool) -> PhaseCost:
        traffic = work_traffic(work, costs.batch)
        if op.kind is Kind.FIXED:
            seconds = work.seconds_per_sample + work.flops_per_sample / costs.profile.flops_per_core_second
            return PhaseCost(seconds * costs.batch, traffic)
        return PhaseCost(costs.seconds(op, name), traffic) if runs else PhaseCost()

    # NextBatch puts dense features in place: passing them on may not have been worth a measurement.
    passes_on = op.kind is Kind.DENSE_INPUT and not costs.knows(op, "forward")
    return OpCost(
        phase("forward", op.forward, not passes_on),
        phase("backward", op.backward, needs_gradient),
        phase("update", op.update, op.parameters > 0),
    )


def _table_cost(costs: _Costs, table: EmbeddingTable) -> TableCost:
    """Cost of a table, and what every shard of it takes: that is interpolated by itself, so it may seem to be more."""
    lookup = PhaseCost(costs.seconds(table, "lookup"), lookup_traffic(table, costs.batch))
    update = PhaseCost(costs.seconds(table, "update"), update_traffic(table, costs.batch))

    def each(phase: str, whole: PhaseCost, traffic: float) -> PhaseCost:
        if not costs.knows(table, phase):
            costs.shares_only = True
            return PhaseCost()
        return PhaseCost(min(costs.seconds(table, phase), whole.core_seconds), traffic)

    return TableCost(
        lookup,
        update,
        each("shard_lookup", lookup, shard_lookup_traffic(table, costs.batch)),
        each("shard_update", update, shard_update_traffic(table, costs.batch)),
    )
