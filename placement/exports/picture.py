"""A plan as a picture: Graphviz DOT as text, and SVG that needs no Graphviz.

One group is drawn: a box for each machine with the operators that it computes (DP operators stand once, on all ranks), a box
for each embedding server with its tables, and an arrow for each tensor between boxes. Tables of a server beyond
:data:`MOST_TABLES` are counted, not listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from placement.plan import DP, Plan, Shard
from problem.graph import Kind

MOST_TABLES = 12
WIDTH, LINE, GAP, PADDING = 280, 16, 60, 8
"""Pixels: width of a box, height of a line, room between columns, room inside a box."""


@dataclass(frozen=True)
class Box:
    """A machine, or all ranks together: its title, what it holds, and its column (0 servers, 1 ranks, 2 other nodes)."""

    key: str
    title: str
    lines: tuple[str, ...]
    column: int


def boxes(plan: Plan) -> list[Box]:
    """Return the boxes of the first group: embedding servers, the ranks together, then each node with MP operators."""
    found = [Box(f"ps{s}", f"{node.name} (server {s})", _tables(plan, s), 0) for s, node in enumerate(plan.servers)]
    group = plan.groups[0]
    ranks = group[0].name if plan.ranks == 1 else f"{group[0].name} .. {group[plan.ranks - 1].name}"
    found.append(Box("dp", f"data-parallel: {ranks}", _operators(plan, DP), 1))
    for n, node in enumerate(group):
        lines = _operators(plan, n)
        if lines:
            found.append(Box(f"n{n}", f"{node.name} (node {n})", lines, 2))
    return found


def arrows(plan: Plan) -> dict[tuple[str, str], list[str]]:
    """Return the tensors that go from box to box in the forward direction, in graph order."""
    found: dict[tuple[str, str], list[str]] = {}
    for op in plan.model.graph:
        if op.kind is Kind.LOOKUP:
            storage = plan.model.feature[op.table].storage
            sources = [f"ps{shard.server}" for shard in plan.shards if shard.table == storage and shard.rows]
        else:
            sources = [_box(plan, op.name)]
        targets = {_box(plan, name) for name in plan.model.graph.consumers[op.name]}
        for source in dict.fromkeys(sources):
            for target in sorted(targets - {source}):
                found.setdefault((source, target), []).append(op.name)
    return found


def to_dot(plan: Plan) -> str:
    """Return the picture in the DOT language of Graphviz."""
    lines = ["digraph plan {", "  rankdir=LR;", "  node [shape=box, fontname=sans];"]
    for box in boxes(plan):
        label = "\\n".join(_quoted(text) for text in (box.title, *box.lines))
        lines.append(f'  "{box.key}" [label="{label}"];')
    for (source, target), tensors in arrows(plan).items():
        lines.append(f'  "{source}" -> "{target}" [label="{_quoted(_shown(tensors))}"];')
    return "\n".join([*lines, "}"]) + "\n"


def to_svg(plan: Plan) -> str:
    """Return the picture as SVG: three columns, boxes below each other, arrows from edge to edge with their tensors."""
    found, places, heights = boxes(plan), {}, [PADDING] * 3
    for box in found:
        height = (1 + len(box.lines)) * LINE + 2 * PADDING
        places[box.key] = (PADDING + box.column * (WIDTH + 2 * GAP), heights[box.column], height)
        heights[box.column] += height + GAP // 2
    size = f'width="{3 * WIDTH + 4 * GAP + 2 * PADDING}" height="{max(heights)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" role="img">',
        f"<title>{escape(plan.name)}: {escape(plan.model.name)}</title>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker></defs>',
        *(_svg_box(box, *places[box.key]) for box in found),
        *(_svg_arrow(places[source], places[target], tensors) for (source, target), tensors in arrows(plan).items()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _svg_box(box: Box, x: int, y: int, height: int) -> str:
    lines = [f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{height}" fill="#f4f4f4" stroke="#333"/>']
    for i, text in enumerate((box.title, *box.lines)):
        weight = ' font-weight="bold"' if not i else ""
        at = y + PADDING + LINE * i + 12
        lines.append(f'<text x="{x + PADDING}" y="{at}"{weight}>{escape(_cut(text))}</text>')
    return "\n".join(lines)


def _svg_arrow(source: tuple[int, int, int], target: tuple[int, int, int], tensors: list[str]) -> str:
    leftward = target[0] < source[0]
    x1, x2 = source[0] + (0 if leftward else WIDTH), target[0] + (WIDTH if leftward else 0)
    lower = LINE if leftward else -LINE
    y1, y2 = source[1] + source[2] // 2 + lower, target[1] + target[2] // 2 + lower
    text = f'<text x="{(x1 + x2) // 2}" y="{(y1 + y2) // 2 - 3}" text-anchor="middle">{escape(_shown(tensors))}</text>'
    return f'<path d="M{x1} {y1}L{x2} {y2}" stroke="#06c" fill="none" marker-end="url(#head)"/>\n{text}'


def _box(plan: Plan, name: str) -> str:
    tag = plan.tags[name]
    return "dp" if tag == DP else f"n{tag}"


def _operators(plan: Plan, tag: int | str) -> tuple[str, ...]:
    return tuple(name for name, found in plan.tags.items() if found == tag)


def _tables(plan: Plan, server: int) -> tuple[str, ...]:
    shards = plan.server_shards(server)
    lines = [_part(shard) for shard in shards[:MOST_TABLES]]
    return (*lines, f"and {len(shards) - MOST_TABLES} more") if len(shards) > MOST_TABLES else tuple(lines)


def _part(shard: Shard) -> str:
    columns = "" if shard.columns is None else f", {shard.columns[0]}:{shard.columns[1]}"
    return f"{shard.table} [{shard.row_begin:,}:{shard.row_end:,}{columns}]"


def _shown(tensors: list[str]) -> str:
    return tensors[0] if len(tensors) == 1 else f"{len(tensors)} tensors"


def _cut(text: str) -> str:
    most = (WIDTH - 2 * PADDING) // 7
    return text if len(text) <= most else text[: most - 1] + "…"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
