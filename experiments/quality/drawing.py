"""Pictures of the training studies: small functions of rows and an axis. Ours filled with intervals, published hollow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from experiments.plots import COLOURS, MARKERS
from experiments.quality.published import ACTIVATION_THRESHOLD, GRADIENT_THRESHOLD, LAPLACE_KEPT
from experiments.quality.verdicts import HARMLESS

Rows = Sequence[Mapping[str, Any]]


def _errors(rows: Rows, key: str = "change") -> list[list[float]]:
    """Distances from the mean down and up to the ends of the interval."""
    return [[row[key] - row["low"] for row in rows], [row["high"] - row[key] for row in rows]]


def _zero(axis: Axes) -> None:
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.set_yscale("symlog", linthresh=0.2, linscale=0.6)
    ticks = [-1, -0.5, -0.2, -0.1, 0, 0.1, 0.2, 0.5, 1, 2, 5]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    low, high = axis.get_ylim()
    axis.set_ylim(1.15 * low, 1.15 * high)


def draw_changes(rows: Rows, axis: Axes) -> None:
    """Change of the loss against the share dropped, a line for each family; the control's interval as a band."""
    shares = sorted({row["dropped"] for row in rows if row["family"] != "control"})
    families = dict.fromkeys(row["family"] for row in rows if row["family"] != "control")
    for number, family in enumerate(families):
        mine = [row for row in rows if row["family"] == family]
        shift = 0.08 * (number - (len(families) - 1) / 2)
        at = [shares.index(row["dropped"]) + shift for row in mine]
        style: dict[str, Any] = {"marker": MARKERS[number], "color": COLOURS[number]}
        values = [row["change"] for row in mine]
        axis.errorbar(at, values, _errors(mine), capsize=3, linewidth=1.2, label=family, **style)
        printed = [(x, row["published"]) for x, row in zip(at, mine, strict=True) if row["published"] is not None]
        if printed:
            axis.plot(*zip(*printed, strict=True), linestyle=":", fillstyle="none", markersize=8, **style)
    for row in (row for row in rows if row["family"] == "control"):
        axis.axhspan(row["low"], row["high"], color="lightgrey", alpha=0.6, label="95 % of rounding alone (bf16)")
    axis.plot([], [], ":", marker="o", fillstyle="none", color="grey", label="hollow, dotted: printed (Criteo Kaggle)")
    axis.set_xticks(range(len(shares)), [f"{100 * share:g}" for share in shares])
    axis.set(xlabel="share dropped, %", ylabel="change of the loss, % (positive: worse)")
    _zero(axis)


def draw_exchanges(rows: Rows, axis: Axes) -> None:
    """Change of the loss by codec of the exchange, with its interval, against the share of bytes that it leaves."""
    wire = [row["wire"] for row in rows]
    values = [row["change"] for row in rows]
    style: dict[str, Any] = {"color": COLOURS[0], "marker": MARKERS[0], "linestyle": "none"}
    axis.errorbar(wire, values, _errors(rows), capsize=3, label="mean and 95 % of the seeds", **style)
    place: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "ha": "center", "va": "bottom"}
    for row in rows:
        axis.annotate(row["codecs"].partition("=")[2], (row["wire"], row["high"]), xytext=(0, 3), **place)
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.set(xscale="log", xlabel="bytes of the exchange over those of float32")
    axis.set_xticks([0.05, 0.1, 0.2, 0.5, 1], ["0.05", "0.1", "0.2", "0.5", "1"])
    axis.minorticks_off()
    axis.set_ylabel("change of the loss, % (positive: worse)")


def draw_conditions(rows: Rows, axis: Axes) -> None:
    """Change of the loss of each cell with its interval, by task; hollow: the same half-way through the run."""
    names, tasks = (list(dict.fromkeys(row[key] for row in rows)) for key in ("cell", "task"))
    for number, task in enumerate(tasks):
        mine = [row for row in rows if row["task"] == task]
        at = [names.index(row["cell"]) + 0.13 * (number - (len(tasks) - 1) / 2) for row in mine]
        style: dict[str, Any] = {"marker": MARKERS[number], "color": COLOURS[number], "linestyle": "none"}
        values = [row["change"] for row in mine]
        axis.errorbar(at, values, _errors(mine), capsize=3, label=f"{task}, {mine[0]['steps']:,} steps", **style)
        axis.plot(at, [_window(row, 3) for row in mine], fillstyle="none", **style)
    axis.plot([], [], "o", fillstyle="none", color="grey", label="hollow: the same half-way through")
    axis.set_xticks(
        range(len(names)),
        [name.replace(", ", "\n").replace(": ", ":\n").replace(" of the", " of\nthe") for name in names],
        fontsize=8,
    )
    axis.set(ylabel="change of the loss, % (positive: worse)", xlabel="what is compressed (DCT-MP; control: bf16)")
    _zero(axis)


def draw_length(rows: Rows, axis: Axes) -> None:
    """Change of the loss against the length of the run, a line for each cell; tasks apart by line and fill."""
    tasks, names = (list(dict.fromkeys(row[key] for row in rows)) for key in ("task", "cell"))
    for number, (task, cell) in enumerate(dict.fromkeys((row["task"], row["cell"]) for row in rows)):
        mine = [row for row in rows if (row["task"], row["cell"]) == (task, cell)]
        first, position = task == tasks[0], names.index(cell)
        style: dict[str, Any] = {"marker": MARKERS[position], "color": COLOURS[position], "linewidth": 1.2}
        style |= {"linestyle": "-" if first else ":", "fillstyle": "full" if first else "none"}
        at = [(1 + 0.02 * number) * row["steps"] for row in mine]
        label = ", ".join([cell, *([] if first else [task]), *(["one seed"] if mine[0]["seeds"] == 1 else [])])
        axis.errorbar(at, [row["change"] for row in mine], _errors(mine), capsize=3, label=label, **style)
    axis.axhspan(-HARMLESS, HARMLESS, color="lightgrey", alpha=0.6, label=f"within {HARMLESS:g} %")
    lengths = sorted({row["steps"] for row in rows})
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axis.set(xlabel="steps (128 samples each)", ylabel="change of the loss, % (positive: worse)")
    _zero(axis)


def _window(row: Mapping[str, Any], number: int) -> float:
    return float(str(row["windows"]).split()[number])


def _lines(rows: Rows, axis: Axes, keys: Sequence[str], label: str) -> list[tuple[str, ...]]:
    """Draw value against step with its interval for each combination of some fields."""

    def key_of(row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row[key]) for key in keys)

    found: list[tuple[str, ...]] = []
    for key, group in groupby(rows, key_of):
        mine, number = list(group), len({one[0] for one in found} | {key[0]}) - 1
        dashed = len(key) > 1 and key[1] == "with DCT-MP"
        style: dict[str, Any] = {"marker": MARKERS[number], "color": COLOURS[number], "markevery": 2, "markersize": 4}
        steps = [row["step"] for row in mine]
        axis.fill_between(steps, [r["low"] for r in mine], [r["high"] for r in mine], color=COLOURS[number], alpha=0.2)
        values = [row["value"] for row in mine]
        axis.plot(
            steps, values, "--" if dashed else "-", label=label.format(f"{100 * float(key[0]):g} %", *key[1:]), **style
        )
        found.append(key)
    axis.set_xlabel("step (128 samples each)")
    return found


def draw_gradient_thresholds(rows: Rows, axis: Axes) -> None:
    """Threshold of a layer's gradient against step; the printed mean of each share at the right."""
    quantiles = [row for row in rows if row["dropped"] != "weibull shape"]
    for number, (share,) in enumerate(_lines(quantiles, axis, ["dropped"], "{0} dropped")):
        end = max(row["step"] for row in rows)
        printed = GRADIENT_THRESHOLD[float(share)]
        axis.plot(1.06 * end, printed, MARKERS[number], fillstyle="none", color=COLOURS[number], clip_on=False)
    shape = [row["value"] for row in rows if row["dropped"] == "weibull shape"]
    axis.plot([], [], "o", fillstyle="none", color="grey", label="hollow: printed mean (Criteo Kaggle)")
    axis.set(yscale="log", ylabel="threshold of |gradient| of one layer")
    axis.set_title(f"Weibull shape {min(shape):.2f} to {max(shape):.2f} (printed thresholds: 0.45)", fontsize=9)


def draw_cut_thresholds(rows: Rows, axis: Axes) -> None:
    """Threshold of activations at the cut against step, with and without DCT-MP; printed ends at the sides."""
    shares = dict.fromkeys(share for share, _ in _lines(rows, axis, ["dropped", "mode"], "{0} dropped, {1}"))
    end = max(row["step"] for row in rows)
    for number, share in enumerate(shares):
        for (start, stop), line in zip(ACTIVATION_THRESHOLD[float(share)], ("-", "--"), strict=True):
            style: dict[str, Any] = {"color": COLOURS[number], "linewidth": 0.8, "linestyle": line, "alpha": 0.5}
            axis.plot([0, end], [start, stop], MARKERS[number], fillstyle="none", **style)
    axis.plot(
        [], [], "o", fillstyle="none", color="grey", label="hollow: printed start and end (Criteo Kaggle, an epoch)"
    )
    axis.set(ylabel="threshold of activations", ylim=(0, None))


def draw_laplace(rows: Rows, axis: Axes) -> None:
    """Share kept under a Laplace threshold against step; printed start and end hollow."""
    end = max(row["step"] for row in rows)
    for number, (target,) in enumerate(_lines(rows, axis, ["target"], "meant to keep {0}")):
        axis.axhline(float(target), color=COLOURS[number], linestyle=":", linewidth=0.8)
        style: dict[str, Any] = {"color": COLOURS[number], "linestyle": "none", "fillstyle": "none"}
        axis.plot([0, end], LAPLACE_KEPT[float(target)], marker=MARKERS[number], **style)
    axis.plot([], [], "o", fillstyle="none", color="grey", label="hollow: printed start and end (Criteo Kaggle)")
    axis.plot([], [], ":", color="grey", label="dotted: target")
    axis.set(ylabel="share of activations kept", yscale="log")
    axis.set_yticks([0.01, 0.02, 0.05, 0.1, 0.2, 0.5])
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    axis.minorticks_off()


def draw_replicas(rows: Rows, axis: Axes) -> None:
    """Change of NE against one machine at equal samples, by machines; a line for each kind of group and each rate."""
    rates = list(dict.fromkeys(row["rate"] for row in rows))
    kinds = list(dict.fromkeys(_kind(row) for row in rows))
    for number, rate in enumerate(rates):
        for position, kind in enumerate(kinds):
            mine = [row for row in rows if row["rate"] == rate and _kind(row) == kind]
            style: dict[str, Any] = {
                "color": COLOURS[position],
                "marker": MARKERS[position],
                "linestyle": (":", "-")[number % 2],
                "fillstyle": ("none", "full")[number % 2],
            }
            at = [(1 + 0.04 * (2 * number - 1) + 0.03 * position) * row["machines"] for row in mine]
            values = [row["change"] for row in mine]
            axis.errorbar(at, values, _errors(mine), capsize=3, label=f"rate {rate:g}, {kind}", **style)
    machines = sorted({row["machines"] for row in rows})
    axis.set_xscale("log", base=2)
    axis.set_xticks(machines, [str(count) for count in machines])
    axis.set_yscale("symlog", linthresh=2, linscale=0.6)
    ticks = [-5, -2, -1, 0, 1, 2, 5, 10, 20]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set(xlabel="machines; samples in all are the same", ylabel="change of held-out NE against one machine, %")
    axis.axhline(0, color="grey", linewidth=0.8)


def _kind(row: Mapping[str, Any]) -> str:
    if row["group_size"] == 1:
        return "a replica each"
    scale = {"none": 1.0, "root": row["ranks"] ** 0.5, "linear": row["ranks"]}[row["scaling"]]
    ranks = "1 rank" if row["ranks"] == 1 else f"{row['ranks']} ranks"
    return f"groups of {row['group_size']}, {ranks}" + (f", rate x{scale:g}" if scale != 1 else "")
