"""Drawings of the questions about whole systems: functions of rows alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from experiments.plots import COLOURS, MARKERS, counted, plain_log
from experiments.systems.ablation import PUBLISHED
from experiments.systems.suite import NOISE

Rows = Sequence[Mapping[str, Any]]


def draw_ablation(rows: Rows, axis: Axes) -> None:
    """Bars of speed-up over the first row, and what the abstract says as a line."""
    positions = range(len(rows))
    axis.barh(positions, [row["speed_up"] for row in rows], color=COLOURS[5], edgecolor=COLOURS[0], label="simulated")
    for position, row in zip(positions, rows, strict=True):
        words = f"{row['speed_up']:.2f}  ({row['replicas']} x {row['group_size']} nodes)"
        paper = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
        place: dict[str, Any] = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
        axis.annotate(words, (row["speed_up"], position), bbox=paper, **place)
    label = f"published: {PUBLISHED}, the abstract's, of a scenario that is not public"
    axis.axvline(PUBLISHED, color=COLOURS[2], linestyle="--", label=label)
    axis.set_yticks(list(positions), [row["part"] for row in rows], fontsize=8)
    axis.invert_yaxis()
    axis.set(
        xlabel="samples/s relative to one machine a replica", xlim=(0, 1.35 * max(row["speed_up"] for row in rows))
    )


def draw_utilisation(rows: Rows, axis: Axes) -> None:
    """Published and simulated utilisation side by side, the other reading as a mark."""
    positions = range(len(rows))
    published = [row["published"] for row in rows]
    label = "published (Acun et al., figure 5, read by eye)"
    axis.barh([p - 0.2 for p in positions], published, 0.38, color=COLOURS[0], label=label)
    axis.barh([p + 0.2 for p in positions], [row["ours"] for row in rows], 0.38, color=COLOURS[5], label="ours")
    other = [row["other"] for row in rows]
    axis.plot(other, [p + 0.2 for p in positions], "D", color=COLOURS[2], label="ours, a batch on all cores")
    axis.set_yticks(list(positions), [row["what"].replace(", % busy", "") for row in rows], fontsize=8)
    axis.invert_yaxis()
    axis.set(xlabel="busy, %", xlim=(0, 100))


def draw_gains(rows: Rows, axis: Axes) -> None:
    """Published and simulated time saved by compression."""
    positions = range(len(rows))
    axis.plot(
        [row["published"] for row in rows], positions, MARKERS[0], color=COLOURS[0], label="published (Gupta et al.)"
    )
    axis.plot([row["ours"] for row in rows], positions, MARKERS[1], color=COLOURS[1], label="ours", fillstyle="none")
    for position, row in zip(positions, rows, strict=True):
        axis.plot([row["published"], row["ours"]], [position, position], color="lightgrey", zorder=0)
    axis.axvline(0, color="grey", linewidth=0.8)
    names = [row["what"].replace(", time saved in %", "").replace(" left out", "") for row in rows]
    axis.set_yticks(list(positions), names, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("time saved, % of the step without compression")


def draw_features(rows: Rows, axis: Axes) -> None:
    """Ours against published: a mark for each number of dense features, larger by batch, tables beside their marks."""
    ends = [0.8 * min(row["published"] for row in rows), 1.25 * max(row["published"] for row in rows)]
    least, most = ([factor * end for end in ends] for factor in NOISE)
    axis.fill_between(ends, least, most, color="lightgrey", label="noise of the suite itself")
    axis.plot(ends, ends, color="grey", linewidth=0.8)
    batches = sorted({row["batch"] for row in rows})
    for number, dense in enumerate(sorted({row["dense_features"] for row in rows})):
        style: dict[str, Any] = {"marker": MARKERS[number], "color": COLOURS[number], "linestyle": "none"}
        axis.plot([], [], fillstyle="none", label=f"{dense} dense features", **style)
        for row in (row for row in rows if row["dense_features"] == dense):
            size = 4 + 2 * batches.index(row["batch"])
            axis.plot(row["published"], row["ours"], fillstyle="none", markersize=size, **style)
    sizes = ", ".join(str(batch) for batch in batches)
    axis.plot([], [], " ", label=f"small to large: batch {sizes}")
    for tables in sorted({row["sparse_features"] for row in rows}):
        _beside([row for row in rows if row["sparse_features"] == tables], f"{tables} tables", axis)
    axis.set(xlabel="published rate (Acun et al., figure 11; slowest = 1)", ylabel="ours, one scale for all")
    axis.set(xlim=(ends[0], 2 * ends[1]), ylim=(ends[0], 1.25 * ends[1]))
    plain_log(axis)


def _beside(rows: Rows, words: str, axis: Axes) -> None:
    """Write words to the right of points."""
    last = max(rows, key=lambda row: row["published"])
    place = (last["published"], last["ours"])
    axis.annotate(words, place, xytext=(10, 0), textcoords="offset points", va="center", fontsize=8)


def draw_mlp(rows: Rows, axis: Axes) -> None:
    """Published and ours by MLP."""
    positions = range(len(rows))
    for key, shift, colour, label in (
        ("published", -0.2, COLOURS[0], "published (Acun et al., figure 13)"),
        ("ours", 0.2, COLOURS[5], "ours, one scale for all"),
    ):
        axis.bar([p + shift for p in positions], [row[key] for row in rows], 0.38, color=colour, label=label)
    axis.set_xticks(list(positions), [row["mlp"] for row in rows])
    axis.set(
        xlabel="MLP: width ^ layers (1024 dense features, 64 tables, batch 200)",
        ylabel="samples/s, slowest published = 1",
    )


def draw_sync(rows: Rows, axis: Axes) -> None:
    """The average gap of background exchanges by number of trainers, a line for each number of sync servers."""
    background = [row for row in rows if row["mode"] == "background" and row["sync_gap"] > 0]
    for number, servers in enumerate(sorted({row["sync_servers"] for row in background})):
        mine = [row for row in background if row["sync_servers"] == servers]
        style: dict[str, Any] = {
            "marker": MARKERS[number],
            "color": COLOURS[number],
            "linestyle": ("-", "--", "-.")[number % 3],
        }
        axis.plot(
            [r["trainers"] for r in mine],
            [r["sync_gap"] for r in mine],
            label=f"background, {counted(servers, 'sync server')}",
            **style,
        )
    axis.axhline(5, color="grey", linestyle=":", label="foreground, every 5 steps")
    axis.set(xlabel="trainers (replicas)", ylabel="average sync gap, steps of a thread", xlim=(0, None), ylim=(0, None))
