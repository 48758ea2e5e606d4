"""``hiertrain explain``."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from hiertrain.output import emit, table
from problem.units import format_throughput

if TYPE_CHECKING:
    from placement.difference import Difference
    from placement.explain import Explanation
    from placement.plan import Plan

MOST_CHANGES = 3  # what-ifs that are printed; all are in the JSON document
HELPS = 1.005  # ratio of throughput from which a change is said to help
WIDTH = 120  # characters of a line
BAR = 20  # characters of a resource that is always busy


def command(
    plan: Annotated[Path, typer.Argument(help="Plan file, from hiertrain solve.")],
    programs: Annotated[bool, typer.Option("--programs", help="Print the program of every place instead.")] = False,
    against: Annotated[Path | None, typer.Option(help="Print what is different from this plan instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show the loads of a plan per machine and resource, what binds, and what would change it.

    Example: hiertrain explain plan.json
    """
    from placement.difference import difference
    from placement.explain import explain
    from placement.planfile import load_plan
    from programs.text import to_json, to_text
    from programs.transform import transform
    from programs.verify import verify

    loaded = load_plan(plan)
    if programs:
        job = verify(transform(loaded.plan))
        emit(as_json, to_json(job), lambda: to_text(job))
    elif against is not None:
        changed = difference(load_plan(against), loaded)
        emit(as_json, changed.as_dict(), lambda: _changes(changed))
    else:
        found = explain(loaded.plan, loaded.costs, loaded.result)
        emit(as_json, found.as_dict(), lambda: _text(found, loaded.plan))


def _text(found: Explanation, plan: Plan) -> str:
    parts = [(part, f"{1e3 * seconds:.3f}") for part, seconds in found.parts.items() if seconds > 0]
    sections = [
        f"throughput  {format_throughput(found.evaluation.samples_per_second)} samples/s\n"
        f"bottleneck  {found.evaluation.bottleneck}",
        table(("machine", "role", "resource", "ms per step", "busy", " " * BAR), _machines(found)),
        table(("core time of the busiest group node", "ms per step"), parts),
        _what_ifs(found),
        _places(plan),
    ]
    if found.curve:
        sections.append(table(("group size", "groups", "samples/s", "bound", "status"), _curve(found)))
    return "\n\n".join(sections)


def _what_ifs(found: Explanation) -> str:
    """Return the changes that help most, and the names of those that do not help."""
    helps = [row for row in found.what_if if row.ratio >= HELPS][:MOST_CHANGES]
    idle = ", ".join(row.change for row in found.what_if if row.ratio < HELPS)
    rows = [
        (row.change, format_throughput(row.samples_per_second), f"{row.ratio:.2f}", row.bottleneck) for row in helps
    ]
    parts = [table(("what would help most", "samples/s", "ratio", "then binds"), rows)] if rows else []
    return "\n".join(parts + ([f"no help alone: {idle}"] if idle else []))


def _places(plan: Plan) -> str:
    """Return a row for each machine that computes or serves: its operators or its tables."""
    from placement.exports.picture import boxes

    rows = [(box.title, ", ".join(box.lines) or "-") for box in boxes(plan)]
    return "what is where (first group)\n" + "\n".join(
        fill(f"{title}: {content}", WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
        for title, content in rows
    )


def _curve(found: Explanation) -> list[tuple[str, ...]]:
    """Rows of the curve over group sizes."""
    return [
        (
            str(point["group_size"]),
            str(point["groups"]),
            _rate(point["samples_per_second"]),
            _rate(point["samples_per_second_bound"]),
            str(point["status"]),
        )
        for point in found.curve
    ]


def _changes(found: Difference) -> str:
    """Return throughput before and after, and a row for each change."""
    ratio = found.after / found.before if found.before else 1.0
    return "\n".join(
        [
            f"throughput  {format_throughput(found.before)} -> {format_throughput(found.after)} samples/s ({ratio:.2f})",
            f"bottleneck  {found.bottleneck_before} -> {found.bottleneck_after}",
            f"moved       {found.moved_bytes:,} bytes\n",
            table(("what", "before", "after"), [(row.what, row.before, row.after) for row in found.changes])
            if found.changes
            else "nothing is different",
        ]
    )


def _machines(found: Explanation) -> list[tuple[str, ...]]:
    """Rows of loads; machines that are loaded alike share one."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in found.loads:
        bar = ("#" * round(BAR * min(row.utilization, 1.0))).ljust(BAR)
        key = (row.role, row.resource, f"{1e3 * row.seconds:.3f}", f"{100 * row.utilization:.0f} %", bar)
        if row.seconds > 0:
            alike.setdefault(key, []).append(row.node)
    return [
        (nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more", *key) for key, nodes in alike.items()
    ]


def _rate(value: float | None) -> str:
    return "-" if value is None else format_throughput(value)
