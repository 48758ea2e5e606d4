"""How far predictions are from measurements, over many kinds of plan: what ``hiertrain figure validation`` does.

Plans of three models on nodes of this host, profiled, simulated and run in turn as in ``experiments.compare`` (cpu clock).
One plan of each model is for calibration, the rule fixed beforehand: with several sessions at work on shared caches,
everything takes longer by one factor, the ratio of predicted to measured of three groups kept together by EASGD; every
other prediction of a plan with more than one session is divided by it. Plans with one session are taken as predicted.
Iterations below 2 ms are shown and left out of the summary: there scheduling and system calls are a visible part.

How well plans are ranked is said beside how well the measurement ranks them itself: Kendall's tau of two halves of the
rounds, mean of all ways to halve them. That is less than what a prediction without fault would reach, because both halves
err, and each by more than all rounds together; but where it is well below 1, the measurement does not know the order either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
from scipy.stats import kendalltau

from experiments.compare import Comparison, compare
from placement.plan import DP, Plan, Shard, Sync, Tag
from problem.cluster import Node
from problem.graph import Kind
from problem.local import this_node
from problem.model import Model
from problem.readers import load_model, model_from_spec

#: Iterations shorter than this are shown, not summed up.
SHORTEST_SECONDS = 2e-3
#: Runs are at least so long: shorter ones are at the mercy of a single interruption.
RUN_SECONDS = 0.3
CALIBRATION = "three groups, EASGD"
#: Plans of the demo model that :func:`eight_plans` lays side by side, nothing calibrated.
EIGHT = (
    "one node",
    "two ranks, all-DP",
    "four ranks, all-DP",
    "MP cut",
    "two ranks, top on the second",
    "one rank, Hogwild 3",
    "two groups, EASGD in the foreground",
    "two groups of two, MP cut",
)


@dataclass(frozen=True)
class ValidationRow:
    """One plan: rates in samples per second on the cpu clock, medians over rounds.

    Parameters
    ----------
    model, plan : str
        Names.
    sessions, workers : int
        Sessions and processes of the plan.
    predicted, measured : float
        As simulated from the costs of the round, and as run.
    calibrated : float
        Predicted over the model's calibration factor (as predicted for one session).
    step_seconds : float
        Measured seconds of a rank's step.
    role : str
        ``calibration``, ``held out`` or ``short`` (below 2 ms).
    blame : str
        Part of the step that differs most, with milliseconds predicted and measured; of waiting, what servers did.
    rounds : tuple of float
        As measured in each round.
    """

    model: str
    plan: str
    sessions: int
    workers: int
    predicted: float
    measured: float
    calibrated: float
    step_seconds: float
    role: str
    blame: str
    rounds: tuple[float, ...] = ()

    @property
    def error(self) -> float:
        """Calibrated over measured, minus one."""
        return self.calibrated / self.measured - 1


@dataclass(frozen=True)
class Validation:
    """All rows and what they come to (held-out rows only)."""

    rows: tuple[ValidationRow, ...]

    @property
    def errors(self) -> list[float]:
        """Absolute relative errors of the held-out rows, calibrated."""
        return [abs(row.error) for row in self.rows if row.role == "held out"]

    def summary(self) -> dict[str, float]:
        """Median, 95th percentile and largest error, raw median; mean Kendall's tau of models, and of halves of rounds."""
        held = [row for row in self.rows if row.role == "held out"]
        mappings = [asdict(row) for row in held]
        return {
            "plans": len(held),
            "median_error": median(self.errors),
            "p95_error": float(np.percentile(self.errors, 95)),
            "largest_error": max(self.errors),
            "median_error_uncalibrated": median(abs(r.predicted / r.measured - 1) for r in held),
            "kendall_tau": _mean(taus(mappings)),
            "kendall_tau_of_halves": _mean(split_half_taus(mappings)),
        }


def validate_predictions(*, rounds: int = 5, steps: int = 30, watch: Callable[[str], None] | None = None) -> Validation:
    """Compare all plans of all models.

    Parameters
    ----------
    rounds, steps : int
        As in :func:`experiments.compare.compare`; runs are :data:`RUN_SECONDS` long at least.
    watch : callable, optional
        Told what is going on.
    """
    rows: list[ValidationRow] = []
    for model in models():
        found = compare(plans_of(model), rounds=rounds, steps=steps, seconds=RUN_SECONDS, watch=watch)
        factor = next(c.ratio for c in found if c.plan.name == CALIBRATION)
        rows += [_row(comparison, factor) for comparison in found]
    return Validation(tuple(rows))


def validation_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return every row, the worst last within its kind, short iterations too, and what the kinds come to."""
    lines = [
        f"{'role':<12} {'model':<16} {'plan':<36} {'step ms':>8} {'error':>8}  largest difference, predicted > measured"
    ]
    for role in ("calibration", "held out", "short"):
        mine = sorted((row for row in rows if row["role"] == role), key=lambda row: abs(row["error"]))
        lines += [
            f"{role:<12} {row['model']:<16} {row['plan']:<36} {1e3 * row['step_seconds']:>8.2f} {row['error']:>+8.1%}  "
            f"{row['blame']}"
            for row in mine
        ]
    for role in ("held out", "short"):
        errors = [abs(row["error"]) for row in rows if row["role"] == role]
        if errors:
            worst = f"95th percentile {np.percentile(errors, 95):.1%}, largest {max(errors):.1%}"
            lines.append(f"{role}: {len(errors)} plans, median error {median(errors):.1%}, {worst}")
    return "\n".join([*lines, *_ranking([row for row in rows if row["role"] == "held out"])])


def misplaced(rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, Mapping[str, Any], Mapping[str, Any]]]:
    """Pairs of one model that prediction orders otherwise than measurement, most unlike first, with their measured ratio."""
    found = []
    for a, b in combinations(rows, 2):
        slower, faster = sorted((a, b), key=lambda row: row["measured"])
        if a["model"] == b["model"] and slower["calibrated"] > faster["calibrated"]:
            found.append((faster["measured"] / slower["measured"], faster, slower))
    return sorted(found, key=lambda pair: -pair[0])


def taus(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Kendall's tau of the plans of each model with three or more."""
    return {
        model: _tau([r["calibrated"] for r in mine], [r["measured"] for r in mine])
        for model, mine in _by_model(rows).items()
    }


def split_half_taus(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Kendall's tau of the medians of two halves of the rounds, mean of all ways to halve them; of two rounds or more."""
    found = {}
    for model, mine in _by_model(rows).items():
        rates = np.array([row["rounds"] for row in mine])
        numbers = range(rates.shape[1])
        halves = [(half, sorted({*numbers} - {*half})) for half in combinations(numbers, len(numbers) // 2) if half]
        if halves:
            medians = [[np.median(rates[:, half], axis=1) for half in pair] for pair in halves]
            found[model] = float(np.mean([_tau(*pair) for pair in medians]))
    return found


def _mean(found: Mapping[str, float]) -> float:
    return float(np.mean(list(found.values()))) if found else math.nan


def _tau(one: Sequence[float], other: Sequence[float]) -> float:
    return float(kendalltau(one, other).statistic)


def _by_model(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Rows of each model with three or more."""
    found = {row["model"]: [r for r in rows if r["model"] == row["model"]] for row in rows}
    return {model: mine for model, mine in found.items() if len(mine) > 2}


def _ranking(held: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say how well plans are ranked within models, and which pairs, most unlike first, change places."""
    found, pairs = taus(held), misplaced(held)
    if not found:
        return []
    each = ", ".join(f"{model} {tau:.2f}" for model, tau in found.items())
    lines = [f"Kendall's tau within a model: mean {_mean(found):.2f} ({each}); {len(pairs)} pairs change places"]
    if halves := split_half_taus(held):
        each = ", ".join(f"{model} {tau:.2f}" for model, tau in halves.items())
        lines.append(f"of two halves of the measured rounds: mean {_mean(halves):.2f} ({each})")
    return lines + [
        f"  {faster['model']}: {faster['plan']} ({faster['error']:+.1%}) is {ratio - 1:.1%} faster than {slower['plan']} "
        f"({slower['error']:+.1%}){_agreement(faster, slower)}"
        for ratio, faster, slower in pairs
    ]


def _agreement(faster: Mapping[str, Any], slower: Mapping[str, Any]) -> str:
    """In how many rounds it was faster; nothing of rows that do not say."""
    rounds = list(zip(faster["rounds"], slower["rounds"], strict=True))
    return f", in {sum(a > b for a, b in rounds)} of {len(rounds)} rounds" if rounds else ""


def eight_plans(
    *, rounds: int = 3, steps: int = 30, watch: Callable[[str], None] | None = None
) -> list[dict[str, Any]]:
    """How do prediction and measurement of eight plans compare?"""
    plans = [plan for plan in plans_of(models()[0]) if plan.name in EIGHT]
    return [
        {
            "plan": found.plan.name,
            "workers": found.workers,
            "predicted": found.middle("predicted"),
            "measured": found.middle("measured"),
            "ratio": found.ratio,
            "least": min(found.ratios),
            "most": max(found.ratios),
            "step_seconds": found.step_seconds,
            "blame": found.verdict(),
        }
        for found in compare(plans, rounds=rounds, steps=steps, watch=watch)
    ]


def eight_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of :func:`eight_plans`: samples per second on the cpu clock, medians over rounds."""
    head = f"{'plan':<36} {'processes':>9} {'predicted':>9} {'measured':>9} {'ratio (range)':>18} {'step ms':>8}"
    lines = [f"{head}  largest difference, predicted > measured"]
    for row in rows:
        ratio = f"{row['ratio']:.2f} ({row['least']:.2f}-{row['most']:.2f})"
        lines.append(
            f"{row['plan']:<36} {row['workers']:>9} {row['predicted']:>9,.0f} {row['measured']:>9,.0f} {ratio:>18} "
            f"{1e3 * row['step_seconds']:>8.2f}  {row['blame']}"
        )
    return "\n".join(lines)


def _row(comparison: Comparison, factor: float) -> ValidationRow:
    plan = comparison.plan
    sessions = len(plan.groups) * plan.ranks * plan.hogwild
    measured = comparison.middle("measured")
    predicted = measured * comparison.ratio
    role = "calibration" if plan.name == CALIBRATION else "held out"
    return ValidationRow(
        model=plan.model.name,
        plan=plan.name,
        sessions=sessions,
        workers=comparison.workers,
        predicted=predicted,
        measured=measured,
        calibrated=predicted / (factor if sessions > 1 else 1.0),
        step_seconds=comparison.step_seconds,
        role="short" if comparison.step_seconds < SHORTEST_SECONDS else role,
        blame=comparison.verdict(),
        rounds=tuple(float(each.measured) for each in comparison.rounds),
    )


# ---- models and plans


def models() -> tuple[Model, ...]:
    """The demo model at two batches, one with grouped branches, and one whose iteration takes half a millisecond."""
    demo = load_model("demo")
    return (
        demo,
        _variant(demo, "demo, batch 128", batch=128),
        _variant(demo, "branches", batch=256, top_mlp=[1024, 512, 256, 1], top_branches=4),
        _variant(demo, "short", batch=32, bottom_mlp=[32, 16], top_mlp=[32, 1]),
    )


def _variant(model: Model, name: str, **changes: Any) -> Model:
    return model_from_spec({**model.spec, "name": name, **changes})


def plans_of(model: Model) -> tuple[Plan, ...]:
    """Plans of one model: sizes K, ranks R, threads H, groups, cuts, sync settings, row-split tables."""
    top = [op.name for op in model.graph if op.name.startswith("top_")]
    half = top[: len(top) // 2] or top[:1]
    plans = [
        _plan(model, "one node"),
        _plan(model, "two ranks, all-DP", size=2, ranks=2),
        _plan(model, "four ranks, all-DP", size=4, ranks=4),
        _plan(model, "MP cut", size=2, tags=dict.fromkeys(top, 1)),
        _plan(model, "two ranks, top on the second", size=2, ranks=2, tags=dict.fromkeys(top, 1)),
        _plan(model, "two ranks, half the top on a third", size=3, ranks=2, tags=dict.fromkeys(half, 2)),
        _plan(model, "two ranks, MP, Hogwild 2", size=2, ranks=2, hogwild=2, tags=dict.fromkeys(half, 1)),
        _plan(model, "one rank, Hogwild 3", hogwild=3),
        _plan(model, "two groups, EASGD", groups=2, sync=Sync("background", 8, 0.45)),
        _plan(model, "two groups, EASGD in the foreground", groups=2, sync=Sync("foreground", 4, 0.45)),
        _plan(model, "two groups of two, MP cut", groups=2, size=2, tags=dict.fromkeys(top, 1)),
        _plan(model, "rows on two servers", size=2, ranks=2, servers=2),
        _plan(model, CALIBRATION, groups=3, sync=Sync("background", 8, 0.3)),
    ]
    return tuple(plans)


def _plan(
    model: Model,
    name: str,
    *,
    groups: int = 1,
    size: int = 1,
    ranks: int = 1,
    hogwild: int = 1,
    servers: int = 1,
    tags: Mapping[str, Tag] | None = None,
    sync: Sync | None = None,
) -> Plan:
    all_dp: dict[str, Tag] = {op.name: DP for op in model.graph if op.kind is not Kind.LOOKUP}
    sync_servers = _nodes("sync", 1) if groups > 1 else ()
    return Plan(
        model=model,
        groups=tuple(_nodes(f"g{group}", size) for group in range(groups)),
        servers=_nodes("server", servers),
        batch=model.batch,
        tags={**all_dp, **(tags or {})},
        shards=tuple(_shards(model, servers)),
        sync_servers=sync_servers,
        hogwild=hogwild,
        ranks=ranks,
        sync=(sync or Sync("background", 8, 0.45)) if groups > 1 else None,
        name=name,
    )


def _nodes(prefix: str, count: int) -> tuple[Node, ...]:
    return tuple(replace(this_node(), name=f"{prefix}-{i}") for i in range(count))


def _shards(model: Model, servers: int) -> Sequence[Shard]:
    ends = [(t.name, [t.rows * s // servers for s in range(servers + 1)]) for t in model.tables]
    return [Shard(name, s, cut[s], cut[s + 1]) for name, cut in ends for s in range(servers)]
