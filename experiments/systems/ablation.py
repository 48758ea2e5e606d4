"""What each part of hierarchical training is worth, in one scenario that is stated in full.

The abstract of Huang et al. (KDD 2021) says 1.9 times as fast at equal quality; scenario, baseline and parts are not
public. So this is OUR scenario, chosen before its result was seen and tuned to nothing: the wide model of
``experiments.questions`` on its ``modern`` machines (their cores outrun their network), of which ``MACHINES`` may be used,
with at most ``REPLICAS`` replicas, which stands for equal quality. Parts are added one by one in the order of the abstract;
every plan is the planner's, every rate is simulated. What compression and co-design do to quality is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cost_models.costs import CostTable
from experiments.planning import planned
from experiments.questions import modern, wide
from placement.plan import DP, Plan
from placement.search.options import SolveOptions
from problem.graph import Kind
from simulator.simulate import simulate

MACHINES, REPLICAS, BRANCHES = 16, 4, 4
PUBLISHED = 1.9
GAP = 5
"""Steps between two exchanges in the foreground, a gap that ShadowSync's authors are recalled to have used."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A part that is added.

    Parameters
    ----------
    name : str
        What is added.
    branches : int
        Of the top MLP.
    most : int or None
        Largest group; None as many nodes as the planner wants.
    mode : str
        How replicas are kept together.
    hogwild : int
        Threads a rank; one batch at a time, or several that overlap messages and arithmetic.
    codec : str
        Of everything that is sent inside a group and to servers.
    """

    name: str
    branches: int = 1
    most: int | None = 1
    mode: str = "foreground"
    hogwild: int = 16
    codec: str = "fp32"


PARTS = (
    Part("one machine a replica, foreground sync"),
    Part("+ groups: data and model parallel", most=None),
    Part("+ model co-design: grouped branches", branches=BRANCHES, most=None),
    Part("+ compression: fp16 messages", branches=BRANCHES, most=None, codec="fp16"),
    Part("+ system: background sync", branches=BRANCHES, most=None, codec="fp16", mode="background"),
    Part("+ system: more batches overlap", branches=BRANCHES, most=None, codec="fp16", mode="background", hogwild=38),
)


def ablation(watch: Callable[[str], None]) -> list[Row]:
    """What is each part worth: groups, model co-design, compression, background sync, overlap?"""
    rows: list[Row] = []
    for part in PARTS:
        watch(part.name)
        plan, costs, bound = _planned(part)
        rate = simulate(plan, costs, steps=20).samples_per_second
        rows.append(
            {
                "part": part.name,
                "replicas": len(plan.groups),
                "group_size": plan.group_size,
                "servers": len(plan.servers),
                "simulated": rate,
                "planned_bound": bound,
                "speed_up": rate / rows[0]["simulated"] if rows else 1.0,
            }
        )
    return rows


def _planned(part: Part) -> tuple[Plan, CostTable, float]:
    """Return the planner's plan with a part's codecs put on it, its costs, and the bound without them."""
    options = SolveOptions(
        hogwild=part.hogwild,
        group_size=part.most,
        max_replicas=REPLICAS,
        sync_mode="background" if part.mode == "background" else "foreground",
        sync_gap=GAP,
        time_limit_seconds=30.0,
        gap=0.02,
    )
    result = planned(wide(part.branches), modern(MACHINES), None, options)
    return _coded(result.plan, part.codec), result.costs, result.bound


def _coded(plan: Plan, codec: str) -> Plan:
    """Return the plan with one codec on every cut, on pooled rows and their gradients, and on the all-reduce."""
    if codec == "fp32":
        return plan
    graph = plan.model.graph
    dense = [op.name for op in graph if op.kind not in {Kind.LOOKUP, Kind.LOSS, Kind.DENSE_INPUT}]
    edges = [*dense, "pooled", "push", *(["allreduce"] if any(plan.tags[name] == DP for name in dense) else [])]
    return replace(plan, codecs=dict.fromkeys(edges, codec))


def ablation_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as lines, and what the published number is."""
    lines = [
        f"{row['speed_up']:5.2f} x  {row['part']} ({row['replicas']} x {row['group_size']} nodes, {row['servers']} servers)"
        for row in rows
    ]
    return "\n".join([*lines, f"published: {PUBLISHED} x (abstract; its scenario is not public, this one is ours)"])
