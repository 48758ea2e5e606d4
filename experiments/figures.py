"""Figures: a name, a question, how long it takes, and a function that writes rows.csv, manifest.json, PNG and SVG.

Rows are computed by other modules; the drawing is a small function of rows, so that a figure can be drawn again from its
rows.csv alone. What a figure shows, and what it cannot show, is said in ``docs/figures.md``.
"""

from __future__ import annotations

import csv
import io
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.checked_json import write_json
from experiments import questions
from experiments.literature import literature_rows, literature_text
from experiments.paced import paced_rows
from experiments.plots import COLOURS, MARKERS, counted, legend_above, plain_log
from experiments.quality import conditions, drawing, exchanges, length, replicas, tables, thresholds
from experiments.quality.on_file import CriteoFile, criteo_source
from experiments.quality.study import USUAL, Effort
from experiments.quality.verdicts import verdict_text
from experiments.systems import ablation, fleet, suite, sync
from experiments.systems import draw as systems
from experiments.validation import eight_plans, eight_text, validate_predictions, validation_text
from problem.errors import BadInput
from problem.local import fingerprint
from problem.presets import nearest
from problem.whole_file import made_folder

Row = dict[str, Any]
Watch = Callable[[str], None]


@dataclass(frozen=True)
class FigureInfo:
    """A figure that can be made.

    Parameters
    ----------
    name, question : str
        What it is called and what it answers.
    minutes : int
        About how long it takes on two cores.
    rows : callable
        Computes the rows.
    draw : callable
        Draws rows on an axis.
    height : float
        Of the picture, in inches.
    say : callable or None
        Text to print below the names of the files.
    trains : bool
        Whether ``rows`` also takes an :class:`~experiments.quality.study.Effort`.
    on_files : bool
        Whether it takes what to train on besides.
    """

    name: str
    question: str
    minutes: int
    rows: Callable[..., list[Row]]
    draw: Callable[[Sequence[Mapping[str, Any]], Axes], None]
    height: float = 4.6
    say: Callable[[Sequence[Mapping[str, Any]]], str] | None = None
    trains: bool = False
    on_files: bool = False


def make_figure(
    name: str, out: Path, watch: Watch | None = None, effort: Effort | None = None, criteo: CriteoFile | None = None
) -> list[Row]:
    """Make a figure and write its files into ``out``; one that was trained on a file is called NAME-criteo.

    Parameters
    ----------
    name : str
        Which.
    out : Path
        Folder.
    watch : callable, optional
        Told how far it is.
    effort : Effort, optional
        Seeds and processes of a figure that trains.
    criteo : CriteoFile, optional
        Train on the rows of a file, which are kept in ``out / "criteo"``.

    Finished runs of a figure that trains are kept in ``out / "runs"``: one that was interrupted goes on from there.

    Raises
    ------
    BadInput
        There is no such figure, it takes no such setting, or no such folder can be made.
    """
    if name not in FIGURES:
        raise BadInput("figure", "name", name, nearest(name, list(FIGURES), "figures"))
    info, tell = FIGURES[name], watch or (lambda news: None)
    for given, takes, known in ((effort, "trains", "--seeds and --jobs"), (criteo, "on_files", "--criteo")):
        if given is not None and not getattr(info, takes):
            able = ", ".join(one.name for one in FIGURES.values() if getattr(one, takes))
            raise BadInput("figure", "name", name, f"with {known} one of {able}")
    made_folder(out)
    settings: dict[str, Any] = {}
    if info.trains:
        settings["effort"] = replace(effort or USUAL, keep=made_folder(out / "runs"))
    if criteo is not None:
        settings["source"] = criteo_source(criteo, out / "criteo", tell)
        info = replace(info, name=f"{name}-criteo")
    rows = info.rows(tell, **settings)
    write_rows(rows, out, info.name)
    draw(info, rows, out)
    return rows


def write_rows(rows: Sequence[Row], out: Path, name: str) -> None:
    """Write NAME.csv and NAME.json (what it was made with)."""
    text = io.StringIO()
    fields = list(dict.fromkeys(field for row in rows for field in row))
    writer = csv.DictWriter(text, fields)
    writer.writeheader()
    writer.writerows(rows)
    (out / f"{name}.csv").write_text(text.getvalue())
    made = {"command": sys.argv, "machine": fingerprint(), "python": platform.python_version(), "numpy": np.__version__}
    write_json({**made, "rows": len(rows)}, out / f"{name}.json")


def draw(info: FigureInfo, rows: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Draw rows into NAME.png and NAME.svg."""
    figure = Figure(figsize=(7.5, info.height), layout="constrained")
    axis = figure.subplots()
    info.draw(rows, axis)
    axis.spines[["top", "right"]].set_visible(False)
    legend_above(figure, axis)
    for ending in ("png", "svg"):
        figure.savefig(out / f"{info.name}.{ending}", dpi=150)


# ---- rows of measurements


def _validation(watch: Watch) -> list[Row]:
    found = validate_predictions(watch=watch)
    return [{**asdict(row), "error": row.error} for row in found.rows]


def _eight_plans(watch: Watch) -> list[Row]:
    return eight_plans(watch=watch)


def _paced(watch: Watch) -> list[Row]:
    return [{**asdict(row), "ratio": row.ratio, "conclusive": row.conclusive} for row in paced_rows(watch=watch)]


def _literature(watch: Watch) -> list[Row]:
    return [{**asdict(row), "deviation": row.deviation, "met": row.met} for row in literature_rows(watch)]


# ---- drawing


def _draw_literature(rows: Sequence[Mapping[str, Any]], axis: Axes) -> None:
    positions = range(len(rows))
    for met, colour, word in ((True, COLOURS[1], "within its tolerance"), (False, COLOURS[2], "missed")):
        mine = [position for position in positions if rows[position]["met"] is met]
        off = [rows[position]["deviation"] / rows[position]["tolerance"] for position in mine]
        axis.plot(off, mine, "o" if met else "s", color=colour, label=word)
    axis.axvspan(-1, 1, color="lightgrey", alpha=0.5)
    axis.axvline(0, color="grey", linewidth=0.8)
    names = [f"{row['anchor']}: {row['what']}" for row in rows]
    axis.set_yticks(list(positions), names, fontsize=7)
    axis.grid(axis="y", color="lightgrey", linewidth=0.4)
    axis.margins(y=0.02)
    axis.invert_yaxis()
    axis.set_xscale("symlog", linthresh=1, linscale=0.5)
    reach = 1.3 * max(2.0, *(abs(row["deviation"]) / row["tolerance"] for row in rows))
    ticks = [-10, -5, -2, -1, 0, 1, 2, 5, 10]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set(xlabel="(ours - published) / tolerance", xlim=(-reach, reach))


def _draw_validation(rows: Sequence[Mapping[str, Any]], axis: Axes) -> None:
    for number, model in enumerate(dict.fromkeys(row["model"] for row in rows)):
        mine = [row for row in rows if row["model"] == model]
        measured = [row["measured"] / 1e3 for row in mine]
        style: Row = {"marker": MARKERS[number], "color": COLOURS[number], "linestyle": "none"}
        axis.plot(measured, [row["calibrated"] / 1e3 for row in mine], label=model, **style)
        axis.plot(measured, [row["predicted"] / 1e3 for row in mine], fillstyle="none", alpha=0.5, **style)
    ends = [min(row["measured"] for row in rows) / 1.3e3, max(row["measured"] for row in rows) * 1.3e-3]
    axis.plot(ends, ends, color="grey", linewidth=0.8)
    axis.set(xlabel="measured, thousand samples/s (cpu clock)")
    axis.plot([], [], "o", fillstyle="none", color="grey", label="hollow: before calibration")
    axis.set_ylabel("predicted, thousand samples/s")
    plain_log(axis)


def _draw_eight(rows: Sequence[Mapping[str, Any]], axis: Axes) -> None:
    ratios = [row["ratio"] for row in rows]
    reach = [[row["ratio"] - row["least"] for row in rows], [row["most"] - row["ratio"] for row in rows]]
    label = "median and range over rounds"
    axis.errorbar(ratios, range(len(rows)), xerr=reach, fmt="o", color=COLOURS[0], capsize=3, label=label)
    axis.set_yticks(range(len(rows)), [f"{row['plan']} ({row['workers']} processes)" for row in rows], fontsize=8)
    axis.invert_yaxis()
    axis.axvline(1, color="grey", linewidth=0.8)
    axis.set_xlabel("predicted / measured samples/s (cpu clock, not calibrated)")


def _draw_paced(rows: Sequence[Mapping[str, Any]], axis: Axes) -> None:
    errors = [100 * (row["ratio"] - 1) for row in rows]
    kept = [position for position, row in enumerate(rows) if row["conclusive"]]
    axis.barh(
        kept,
        [errors[p] for p in kept],
        color=COLOURS[5],
        edgecolor=COLOURS[0],
        label="paced run against its simulation, wall clock",
    )
    for position, (row, error) in enumerate(zip(rows, errors, strict=True)):
        words = f"{error:+.1f} %" if row["conclusive"] else f"machine did not keep up ({error:+.0f} %)"
        end = max(0.0, error) if row["conclusive"] else 0.0
        axis.annotate(words, (end, position), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_yticks(range(len(rows)), [f"{row['plan']} ({row['workers']} processes)" for row in rows], fontsize=8)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.axvline(0, color="grey", linewidth=0.8)
    reach = max([1.0, *(abs(errors[p]) for p in kept)])
    axis.set(xlabel="predicted / measured samples/s - 1, %", xlim=(-1.1 * reach, 2 * reach))


def _draw_trainers(rows: Sequence[Mapping[str, Any]], axis: Axes) -> None:
    for number, name in enumerate(dict.fromkeys(row["architecture"] for row in rows)):
        mine = [row for row in rows if row["architecture"] == name]
        machines = [row["machines"] for row in mine]
        style: Row = {"marker": MARKERS[number], "color": COLOURS[number], "linestyle": ("-", "--", ":")[number % 3]}
        label = f"{name} ({counted(mine[-1]['replicas'], 'replica')} on {machines[-1]})"
        axis.plot(machines, [row["simulated"] / 1e3 for row in mine], label=label, **style)
    axis.set_xticks(sorted({row["machines"] for row in rows}))
    axis.set(xlabel="machines (fb-1s-18c), servers included", ylabel="simulated, thousand samples/s", ylim=(0, None))


def _draw_lines(rows: Sequence[Mapping[str, Any]], axis: Axes, key: str, xlabel: str) -> None:
    names = [name for name in rows[0] if name != key]
    said = {"bound": "proven bound of any plan", "simulated": "the ILP's plan, simulated"}
    lines = {"bound": ":", "simulated": "--"}
    for number, name in enumerate(names):
        style: Row = {"marker": MARKERS[number], "color": COLOURS[number], "linestyle": lines.get(name, "-")}
        axis.plot([row[key] for row in rows], [row[name] / 1e3 for row in rows], label=said.get(name, name), **style)
    axis.set(xlabel=xlabel, ylabel="thousand samples/s", ylim=(0, None))


def _draw_group_size(rows: Sequence[Mapping[str, Any]], axis: Axes) -> None:
    _draw_lines(
        rows, axis, "group_size", "nodes in the one group (32 cores at 50 GFLOP/s, 25 Gb/s; wide grouped top MLP)"
    )


def _draw_heuristics(rows: Sequence[Mapping[str, Any]], axis: Axes) -> None:
    names = [name for name in rows[0] if name not in {"model", "ILP", "bound"}]
    for number, name in enumerate(names):
        shift = 0.13 * (number - (len(names) - 1) / 2)
        found = [(row[name] / row["ILP"], position + shift) for position, row in enumerate(rows) if row[name]]
        style: Row = {"marker": MARKERS[number], "color": COLOURS[number], "linestyle": "none", "markersize": 5}
        axis.plot([share for share, _ in found], [at for _, at in found], label=name, **style)
    axis.axvline(1, color=COLOURS[0], linewidth=1, label="the ILP's plan")
    for position, row in enumerate(rows):
        best = max(row[name] or 0.0 for name in names)
        words = f"{100 * (row['ILP'] / best - 1):+.0f} %" if best else "none fits"
        axis.annotate(words, (1.04, position), va="center", fontsize=8)
    axis.set_yticks(range(len(rows)), [row["model"] for row in rows], fontsize=8)
    axis.set_yticks([position + 0.5 for position in range(len(rows) - 1)], minor=True)
    axis.grid(axis="y", which="minor", color="lightgrey", linewidth=0.6)
    axis.tick_params(axis="y", which="minor", length=0)
    axis.invert_yaxis()
    axis.set(xlabel="samples/s relative to the ILP's plan; at the right: the ILP over the best of them", xlim=(0, 1.15))


FIGURES: Mapping[str, FigureInfo] = {
    info.name: info
    for info in (
        FigureInfo(
            "validation",
            "How far are predictions from measurements?",
            8,
            _validation,
            _draw_validation,
            say=validation_text,
        ),
        FigureInfo(
            "eight-plans",
            str(eight_plans.__doc__),
            2,
            _eight_plans,
            _draw_eight,
            say=eight_text,
        ),
        FigureInfo("paced", "Is the schedule right, costs aside?", 1, _paced, _draw_paced),
        FigureInfo(
            "literature",
            "How far are predictions from published numbers?",
            1,
            _literature,
            _draw_literature,
            height=7.5,
            say=literature_text,
        ),
        FigureInfo("trainers", str(questions.trainers.__doc__), 1, questions.trainers, _draw_trainers),
        FigureInfo("group-size", str(questions.group_size.__doc__), 3, questions.group_size, _draw_group_size),
        *(
            FigureInfo(
                name,
                str(rows.__doc__),
                minutes,
                rows,
                drawing.draw_changes,
                say=verdict_text,
                trains=True,
                on_files=True,
            )
            for name, minutes, rows in (
                ("dct-mp", 5, tables.dct_mp),
                ("dct-dp", 3, tables.dct_dp),
                ("dct-ablations", 2, tables.ablations),
            )
        ),
        FigureInfo(
            "dct-mp-conditions",
            str(conditions.conditions.__doc__),
            5,
            conditions.conditions,
            drawing.draw_conditions,
            height=6.0,
            trains=True,
        ),
        FigureInfo(
            "dct-mp-length",
            str(length.mp_length.__doc__),
            7,
            length.mp_length,
            drawing.draw_length,
            height=5.4,
            trains=True,
        ),
        FigureInfo(
            "exchange-codecs",
            str(exchanges.exchanges.__doc__),
            3,
            exchanges.exchanges,
            drawing.draw_exchanges,
            trains=True,
        ),
        *(
            FigureInfo(name, str(rows.__doc__), minutes, rows, draw_rows)
            for name, minutes, rows, draw_rows in (
                ("dct-gradient-thresholds", 1, thresholds.gradient_thresholds, drawing.draw_gradient_thresholds),
                ("dct-cut-thresholds", 1, thresholds.cut_thresholds, drawing.draw_cut_thresholds),
                ("dct-laplace", 1, thresholds.laplace_kept, drawing.draw_laplace),
                ("replicas", 5, replicas.replicas, drawing.draw_replicas),
                ("dct-time", 1, fleet.gains, systems.draw_gains),
                ("utilisation", 1, fleet.utilisation, systems.draw_utilisation),
                ("features", 1, suite.features, systems.draw_features),
                ("mlp-width", 1, suite.mlp_width, systems.draw_mlp),
                ("sync-gap", 1, sync.sync_gap, systems.draw_sync),
            )
        ),
        FigureInfo(
            "ablation",
            str(ablation.ablation.__doc__),
            3,
            ablation.ablation,
            systems.draw_ablation,
            height=3.6,
            say=ablation.ablation_text,
        ),
        FigureInfo("heuristics", str(questions.heuristics.__doc__), 1, questions.heuristics, _draw_heuristics),
    )
}
