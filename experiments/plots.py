"""Plots: small functions of rows. They read nothing and run nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

#: Wong's colours for colour-blind readers (Nature Methods 8, 441, 2011), of unlike lightness so that grey works too.
PREDICTED, MEASURED = "#56B4E9", "#D55E00"
#: All of them, dark to light.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

#: Letters in a row of a legend of 8 points, and how many of them a sample of the line takes.
LEGEND_LETTERS, SAMPLE_LETTERS = 124, 11


def counted(number: int, thing: str) -> str:
    """Return "1 replica", "2 replicas"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def legend_above(figure: Figure, axis: Axes) -> None:
    """Put what an axis says of its lines and bars above it, where it covers no data, in as many columns as fit."""
    handles, labels = axis.get_legend_handles_labels()
    if labels:
        place: dict[str, Any] = {"loc": "outside upper left", "ncols": _columns([len(label) for label in labels])}
        figure.legend(handles, labels, frameon=False, fontsize=8, **place)


def _columns(lengths: Sequence[int]) -> int:
    """Return the most columns of labels that fit side by side, filled column by column."""
    for count in range(len(lengths), 1, -1):
        if sum(max(part) + SAMPLE_LETTERS for part in np.array_split(lengths, count)) <= LEGEND_LETTERS:
            return count
    return 1


def plain_log(axis: Axes) -> None:
    """Make both scales logarithmic, with 1, 2, 5 and their tenfolds written as they are spoken."""
    axis.set(xscale="log", yscale="log")
    for one in (axis.xaxis, axis.yaxis):
        one.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        one.set_minor_formatter(NullFormatter())


def plot_comparison(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw predicted and measured throughput of each plan, with the spread of the rounds' ratios, into a PNG.

    Parameters
    ----------
    rows : sequence of Mapping
        Keys ``plan``, ``predicted``, ``measured`` (samples/s, cpu clock), ``ratio``, ``ratios``.
    path : Path
        File to write.
    """
    figure = Figure(figsize=(8, 0.7 * len(rows) + 1.4), layout="constrained")
    axis = figure.subplots()
    positions = range(len(rows))
    height = 0.38
    for offset, key, colour, hatch in (
        (-height / 2, "predicted", PREDICTED, ""),
        (height / 2, "measured", MEASURED, "//"),
    ):
        values = [row[key] / 1e3 for row in rows]
        axis.barh(
            [p + offset for p in positions], values, height, label=key, color=colour, hatch=hatch, edgecolor="white"
        )
    for position, row in zip(positions, rows, strict=True):
        longest = max(row["predicted"], row["measured"]) / 1e3
        spread = f"{row['ratio']:.2f} ({min(row['ratios']):.2f}-{max(row['ratios']):.2f})"
        axis.annotate(spread, (longest, position), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9)
    axis.set_yticks(list(positions), [row["plan"] for row in rows])
    axis.invert_yaxis()
    axis.set_xlim(0, 1.25 * max(max(row["predicted"], row["measured"]) for row in rows) / 1e3)
    axis.set_xlabel("thousand samples per second, cpu clock\nbeside the bars: predicted / measured, median (range)")
    axis.legend(loc="lower right", frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
