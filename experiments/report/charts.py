"""Charts of the report as SVG: throughput against group size, and timelines of workers.

Every chart has a title and a description for those who do not see it; numbers stand in a table beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.report.markup import Html, element, folded, join, milliseconds, rate, table
from programs.instructions import Instruction, Recv
from programs.timeline import PARTS, Timeline, WorkerTimeline, part_of
from simulator.perfetto import label

COLOURS = {
    "compute": "#0072B2",
    "embedding": "#009E73",
    "message": "#E69F00",
    "allreduce": "#D55E00",
    "update": "#56B4E9",
    "sync": "#CC79A7",
    "other": "#7F7F7F",
    "waiting": "#D9D9D9",
}
"""Of the parts of a step: the palette of Okabe and Ito (2008), which colour-blind readers tell apart."""

WIDTH, CHART_HEIGHT, LANE = 960, 280, 22
LEFT, BOTTOM = 150, 34
MOST_LANES, SHOWN_STEPS = 16, 3
VALUE, BOUND = "samples_per_second", "samples_per_second_bound"


@dataclass(frozen=True)
class _Scale:
    """Where a group size and a rate are on the chart."""

    sizes: Sequence[int]
    top: float

    def x(self, size: int) -> float:
        """Return the place of a group size."""
        share = (size - min(self.sizes)) / max(1, max(self.sizes) - min(self.sizes))
        return LEFT + 20 + share * (WIDTH - LEFT - 60)

    def y(self, value: float) -> float:
        """Return the place of a rate."""
        return (CHART_HEIGHT - BOTTOM) * (1 - value / self.top)


def curve_chart(points: Sequence[Mapping[str, Any]], chosen: int) -> Html:
    """Return samples per second and bound over group sizes, the plan's own marked.

    Parameters
    ----------
    points : sequence of Mapping
        The curve of the plan file (``placement.result.CurvePoint``).
    chosen : int
        The plan's group size.
    """
    if not points:
        return element("p", "The plan file has no curve over group sizes: the plan was made by hand.")
    top = 1.05 * max(p[key] for p in points for key in (VALUE, BOUND) if _finite(p, key))
    scale = _Scale([int(point["group_size"]) for point in points], top)
    bound = " ".join(f"{scale.x(p['group_size']):.1f},{scale.y(p[BOUND]):.1f}" for p in points if _finite(p, BOUND))
    marks = [_mark(scale, point, point["group_size"] == chosen) for point in points if _finite(point, VALUE)]
    names = [_label(scale.x(k), CHART_HEIGHT - 12, str(k), "middle") for k in _few(scale.sizes)]
    ticks = [part for v in _ticks(top) for part in _level(scale.y(v), rate(v))]
    axes = [
        _label(WIDTH / 2, CHART_HEIGHT + 8, "nodes per group (K)", "middle"),
        _label(0, 12, "samples/s", "start"),
    ]
    title = "Samples per second (dots; the large one is this plan) and proven bound (dashes) by nodes per group"
    line = element("polyline", points=bound, class_="bound")
    drawn = _svg(title, CHART_HEIGHT + 14, [*ticks, line, *marks, *names, *axes])
    return join([element("p", title), drawn, _curve_table(points)])


def _level(y: float, words: str) -> tuple[Html, Html]:
    """Return a line across the chart at a round value, and the value."""
    line = element("line", x1=LEFT, x2=WIDTH - 20, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid")
    return line, _label(LEFT - 8, y + 4, words, "end")


def _mark(scale: _Scale, point: Mapping[str, Any], chosen: bool) -> Html:
    """Return the dot of a group size."""
    words = element("title", f"K = {point['group_size']}: {rate(point[VALUE])} samples/s")
    x, y = scale.x(point["group_size"]), scale.y(point[VALUE])
    look = {"r": 7, "class_": "chosen"} if chosen else {"r": 4, "class_": "found"}
    return element("circle", words, cx=f"{x:.1f}", cy=f"{y:.1f}", **look)


def _curve_table(points: Sequence[Mapping[str, Any]]) -> Html:
    rows = [
        (p["group_size"], p["groups"], rate(p["samples_per_second"]), rate(p["samples_per_second_bound"]), p["status"])
        for p in points
    ]
    return folded(
        "The same as a table", table("Group sizes", ("group size", "groups", "samples/s", "bound", "status"), rows)
    )


def _finite(point: Mapping[str, Any], key: str) -> bool:
    return point[key] is not None and math.isfinite(point[key])


def _few(values: Sequence[int], most: int = 16) -> Sequence[int]:
    return values[:: max(1, math.ceil(len(values) / most))]


def _ticks(top: float, count: int = 4) -> list[float]:
    """Return round values from 0 to the top."""
    raw = top / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    return [i * step for i in range(int(top / step) + 1)]


def _label(x: float, y: float, words: str, anchor: str) -> Html:
    return element("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def _svg(title: str, height: float, children: Iterable[Html]) -> Html:
    """Return a picture as wide as the page, in a box that scrolls where the page is narrow."""
    box = f"0 0 {WIDTH} {height:.0f}"
    drawn = element("svg", element("title", title), *children, viewBox=box, role="img", aria_label=title)
    return element("div", drawn, class_="wide", tabindex=0, role="region", aria_label=title)


def timelines(found: Sequence[tuple[str, Timeline]]) -> Html:
    """Return timelines one above the other, on one scale: the same steps of the same workers.

    Parameters
    ----------
    found : sequence of (str, Timeline)
        Titles, and what was predicted or measured. Workers of the first group's first session and the other ranks'
        first threads are shown, at most ``MOST_LANES``; ``SHOWN_STEPS`` steps from the middle of the run.
    """
    windows = [(title, _lanes(timeline), _window(timeline)) for title, timeline in found]
    span = max(end - begin for _, _, (begin, end, _) in windows)
    drawn = [_timeline(title, lanes, window, span) for title, lanes, window in windows]
    legend = [
        element("span", element("span", class_="swatch", style=f"background:{colour}"), part, class_="key")
        for part, colour in COLOURS.items()
    ]
    return join([element("p", *legend, class_="legend"), *drawn, _seconds(found)])


def _lanes(timeline: Timeline) -> list[WorkerTimeline]:
    first = [w for w in timeline.workers if w.worker.endswith(("/t0", "n0t0")) and w.worker.startswith(("g0", "ps"))]
    mine = [
        w for w in first if w.role == "rank" or w.worker.endswith("serves-n0t0") or w.worker.endswith("serves-g0n0t0")
    ]
    return mine[:MOST_LANES]


def _window(timeline: Timeline) -> tuple[float, float, int]:
    """Return begin and end, in seconds, and the first step of what is shown."""
    rank = next(timeline.ranks())
    steps = len(rank.starts)
    first = max(0, min(steps // 2, steps - SHOWN_STEPS))
    return float(rank.starts[first, 0]), float(rank.ends[min(first + SHOWN_STEPS, steps) - 1, -1]), first


def _timeline(title: str, lanes: Sequence[WorkerTimeline], window: tuple[float, float, int], span: float) -> Html:
    begin, end, first = window
    per_second = (WIDTH - LEFT - 10) / max(span, 1e-12)
    height = LANE * len(lanes) + BOTTOM
    parts = []
    for number, lane in enumerate(lanes):
        parts.append(_label(LEFT - 8, LANE * number + 15, lane.worker, "end"))
        parts += _boxes(lane, LANE * number, begin, end, per_second, first)
    for tick in _ticks(1e3 * span, 6):
        x = LEFT + tick / 1e3 * per_second
        parts.append(element("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=0, y2=LANE * len(lanes), class_="grid"))
        parts.append(_label(x, LANE * len(lanes) + 16, f"{tick:g}", "middle"))
    parts.append(_label(WIDTH - 10, LANE * len(lanes) + 30, "ms", "end"))
    words = f"{title}: {SHOWN_STEPS} steps take {milliseconds(end - begin)} ms"
    return element("figure", element("figcaption", words), _svg(words, height, parts), class_="timeline")


def _boxes(lane: WorkerTimeline, y: int, begin: float, end: float, per_second: float, first: int) -> Iterator[Html]:
    """Yield a rectangle for every instruction in the window that is wide enough to be seen."""
    for step in range(max(0, first - 1), min(first + SHOWN_STEPS + 1, len(lane.starts))):
        for index, instruction in enumerate(lane.instructions):
            start, stop = float(lane.starts[step, index]), float(lane.ends[step, index])
            start, stop = max(start, begin), min(stop, end)
            if stop > start and (stop - start) * per_second > 0.05:
                yield from _box(instruction, start - begin, stop - begin, float(lane.busy[step, index]), y, per_second)


def _box(instruction: Instruction, start: float, stop: float, busy: float, y: int, per_second: float) -> Iterator[Html]:
    """Yield what an instruction looks like; the waiting part of a receive is grey."""
    work = stop - min(busy, stop - start) if isinstance(instruction, Recv) else start
    for a, b, part in ((start, work, "waiting"), (work, stop, part_of(instruction))):
        if b > a:
            words = f"{label(instruction)}: {milliseconds(b - a)} ms{' waiting' if part == 'waiting' else ''}"
            box = {"x": f"{LEFT + a * per_second:.2f}", "y": y + 3, "width": f"{max((b - a) * per_second, 0.2):.2f}"}
            yield element("rect", element("title", words), **box, height=LANE - 6, fill=COLOURS[part])


def _seconds(found: Sequence[tuple[str, Timeline]]) -> Html:
    """Return the table of milliseconds of a rank's step by part."""
    columns = []
    for _, timeline in found:
        warmup = len(next(timeline.ranks()).starts) // 5
        columns.append(timeline.seconds_per_step("rank", warmup))
    rows = [(part, *(milliseconds(column[part]) for column in columns)) for part in PARTS]
    rows.append(("sum", *(milliseconds(float(np.sum(list(column.values())))) for column in columns)))
    return table("Milliseconds of a rank's step, by part", ("part", *(title for title, _ in found)), rows)
