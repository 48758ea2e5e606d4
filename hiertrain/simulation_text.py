"""A prediction as people read it: throughput, how busy machines are, where time goes, what binds and what that costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hiertrain.output import table
from placement.plan import Plan
from problem.units import format_throughput
from simulator.fleet import FLEET, fleet, shares
from simulator.relief import Relief
from simulator.result import SimulationResult

ROUNDING = 1e-9  # share of the throughput below which an interval is that of the sums' rounding

_WORDS = {
    "cpu": "CPU",
    "memory_bandwidth": "memory bandwidth",
    "nic_rx": "network, receiving",
    "nic_tx": "network, sending",
    "memory": "memory footprint",
}


def simulation_json(plan: Plan, result: SimulationResult, relief: Relief | None) -> dict[str, Any]:
    """Return the document of ``hiertrain simulate --json``."""
    spread = {
        role: {resource: asdict(found) for resource, found in of_role.items()}
        for role, of_role in fleet(plan, result).items()
    }
    more = {"fleet": spread, "time_shares": shares(result), "without_bottleneck": asdict(relief) if relief else None}
    return result.to_json_dict() | more


def simulation_text(plan: Plan, result: SimulationResult, relief: Relief | None) -> str:
    """Return what ``hiertrain simulate`` prints."""
    parts = ", ".join(f"{name} {share:.1%}" for name, share in shares(result).items() if share)
    split = ", ".join(f"{name.replace('_', ' ')} {1e3 * s:.2f} ms" for name, s in result.time_split.items() if s > 0)
    gap = result.average_sync_gap
    lines = [
        f"predicted   {format_throughput(result.samples_per_second)} samples/s{_interval(result)}",
        f"bottleneck  {result.bottleneck}",
        *_without(relief),
        f"time        {parts}",
        f"rank's step {split}",
        *([] if gap is None else [f"sync gap    {gap:.1f} steps between two exchanges of a node, on average"]),
        "",
        _busy(fleet(plan, result)),
        "",
        *(f"happened: {sentence}" for sentence in result.happened),
        *(f"left out: {sentence}" for sentence in result.left_out),
    ]
    return "\n".join(lines)


def _interval(result: SimulationResult) -> str:
    """Return the interval in words: none for a closed form, 0 where it is nothing but rounding."""
    if math.isnan(result.ci95):
        return " (closed form)"
    half = result.ci95 if result.ci95 > ROUNDING * result.samples_per_second else 0.0
    return f" (95 % interval +- {format_throughput(half)})"


def _without(relief: Relief | None) -> list[str]:
    if relief is None:
        return []
    return [
        f"without it  {format_throughput(relief.samples_per_second)} samples/s ({relief.gain:+.1%}): {relief.change}",
        f"            then {relief.then}",
    ]


def _busy(found: Mapping[str, Mapping[str, Any]]) -> str:
    roles = {"trainer": "trainers", "ps": "parameter servers"}
    headers = ["busy, mean (least to most)", *(words for role, words in roles.items() if role in found)]
    rows = [
        (_WORDS[resource], *(_cell(found[role][resource]) for role in roles if role in found)) for resource in FLEET
    ]
    return table(headers, rows)


def _cell(spread: Any) -> str:
    mean, least, most = (f"{100 * value:.0f}" for value in (spread.mean, spread.least, spread.most))
    return f"{mean} % ({least} to {most})" if least != most else f"{mean} %"
