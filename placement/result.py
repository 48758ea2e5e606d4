"""What a search for a plan returns: the plan, its value, a proven bound, and the curve over group sizes."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from cost_models.costs import CostTable
from placement.evaluation.evaluate import Evaluation
from placement.plan import Plan

Status = Literal["optimal", "feasible"]
PointStatus = Literal["optimal", "feasible", "pruned", "does not fit", "not reached"]


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The best that is known about one group size.

    Parameters
    ----------
    group_size, groups : int
        K, and how many groups of that size train in the best case.
    samples_per_second : float or None
        Best plan found; None if none was sought (pruned) or none fits.
    bound : float
        No plan with this group size does more samples per second.
    status : str
        ``optimal`` (within the gap asked for), ``feasible``, ``pruned`` by its bound, ``does not fit``, ``not reached``.
    """

    group_size: int
    groups: int
    samples_per_second: float | None
    bound: float
    status: PointStatus


@dataclass(frozen=True, slots=True)
class BaselineValue:
    """Best samples per second of a baseline over all group sizes that were solved; None and a reason if it never fits."""

    name: str
    samples_per_second: float | None
    reason: str = ""


@dataclass(frozen=True)
class PlacementResult:
    """A plan and what is known about it.

    Parameters
    ----------
    status : str
        ``optimal`` if the gap asked for was proven, else ``feasible``. Where nothing fits there is no result but a
        ``DoesNotFit``.
    plan : Plan
        The plan.
    costs : CostTable
        The costs it was made for.
    objective : float
        Predicted samples per second of all groups.
    bound : float
        Proven: no plan that the options allow does more, its operators in the order of their names or, if the plan's own
        order is another, in any.
    gap : float
        (bound - objective) / bound.
    solve_seconds : float
        Wall time of the search.
    bottleneck : str
        What binds, in words.
    curve : tuple of CurvePoint
        One per group size.
    baselines : tuple of BaselineValue
        What simple placements reach.
    evaluation : Evaluation
        Loads and critical path of the (first) group.
    assumptions : tuple of str
        What was assumed, for printing.
    interrupted : bool
        Whether the user stopped the search.
    moved_bytes : int or None
        Bytes of parameters and optimizer state that machines hold and did not hold in the plan that the search started
        from; None without one.
    """

    status: Status
    plan: Plan
    costs: CostTable
    objective: float
    bound: float
    gap: float
    solve_seconds: float
    bottleneck: str
    curve: tuple[CurvePoint, ...]
    baselines: tuple[BaselineValue, ...]
    evaluation: Evaluation
    assumptions: tuple[str, ...] = ()
    interrupted: bool = False
    moved_bytes: int | None = None

    @property
    def samples_per_second(self) -> float:
        """The objective."""
        return self.objective

    @property
    def best_baseline(self) -> BaselineValue | None:
        """The best baseline that fits, or None."""
        fitting = [row for row in self.baselines if row.samples_per_second is not None]
        return max(fitting, key=lambda row: row.samples_per_second or 0.0, default=None)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form; the keys are part of the interface."""
        best = self.best_baseline
        return {
            "status": self.status,
            "group_size": self.plan.group_size,
            "groups": len(self.plan.groups),
            "replicas": len(self.plan.groups),
            "ranks": self.plan.ranks,
            "hogwild": self.plan.hogwild,
            "batch": self.plan.batch,
            "elp": self.plan.elp,
            "servers": len(self.plan.servers),
            "sync_servers": len(self.plan.sync_servers),
            "samples_per_second": _finite(self.objective),
            "samples_per_second_bound": _finite(self.bound),
            "gap": self.gap,
            "solve_seconds": self.solve_seconds,
            "bottleneck": self.bottleneck,
            "interrupted": self.interrupted,
            "moved_bytes": self.moved_bytes,
            "tags": dict(self.plan.tags),
            "codecs": dict(self.plan.codecs),
            "curve": [
                {
                    "group_size": point.group_size,
                    "groups": point.groups,
                    "samples_per_second": _finite(point.samples_per_second),
                    "samples_per_second_bound": _finite(point.bound),
                    "status": point.status,
                }
                for point in self.curve
            ],
            "best_baseline": best.name if best else None,
            "baselines": [
                {"name": row.name, "samples_per_second": _finite(row.samples_per_second), "reason": row.reason}
                for row in self.baselines
            ],
            "assumptions": list(self.assumptions),
        }


def _finite(value: float | None) -> float | None:
    """JSON has no infinity: a job in which nothing costs anything has no finite rate."""
    return value if value is not None and isfinite(value) else None
