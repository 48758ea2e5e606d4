"""Tables 1, 2, 3, 6, 7 and 8 of the DCT paper on the planted task: cells, and rows with the printed changes beside ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.quality.published import published_change
from experiments.quality.study import USUAL, Change, Effort, Study, Trained, Watch, change, row_change, run_study
from experiments.quality.task import BOTTOM_CUT, TOP_CUT, Planted, Source, dlrm
from experiments.quality.trainer import Cell

Row = dict[str, Any]

#: Steps of a run, of 128 samples each. Cuts get more, because what they cost depends on it.
STEPS, CUT_STEPS = 1500, 3000
BASE = Cell("none")
#: What changes next to nothing shows how far apart two runs come by rounding alone.
CONTROL = Cell("control: bf16 at both cuts", {BOTTOM_CUT: "bf16", TOP_CUT: "bf16"})


@dataclass(frozen=True)
class Point:
    """A cell as a point of a figure.

    Parameters
    ----------
    family : str
        Line that it belongs to (``published.TEST_LOSS``).
    dropped : float
        Share of the elements that is left out: eta.
    cell : Cell
        What is trained.
    """

    family: str
    dropped: float
    cell: Cell


def _points(family: str, shares: Sequence[float], edges: Sequence[str], codec: str, **more: Any) -> Iterator[Point]:
    for dropped in shares:
        name = codec.format(keep=f"{1 - dropped:g}")
        yield Point(family, dropped, Cell(f"{family}: {dropped:.1%} dropped", dict.fromkeys(edges, name), **more))


def dct_mp_points() -> list[Point]:
    """Cells of Tables 1 and 6."""
    return [
        *_points("DCT-MP, one cut", (0.75, 0.90, 0.95, 0.98), [BOTTOM_CUT], "dct-mp:{keep}"),
        *_points("DCT-MP, two cuts", (0.75, 0.90, 0.95), [BOTTOM_CUT, TOP_CUT], "dct-mp:{keep}"),
        *_points("DCT-MP, one cut, Laplace", (0.75, 0.90, 0.95, 0.98), [BOTTOM_CUT], "dct-mp:{keep}:laplace_one_sided"),
    ]


def dct_dp_points() -> list[Point]:
    """Cells of Tables 2 and 3, and one threshold that lives for most of the run.

    The others live 10 steps, 0.7 % of the run; 1,000 steps are 0.3 % of the paper's epoch.
    """
    hybrid = []
    for dropped in (0.75, 0.90, 0.95):
        keep = f"{1 - dropped:g}"
        codecs = {BOTTOM_CUT: f"dct-mp:{keep}", TOP_CUT: f"dct-mp:{keep}", "allreduce": f"dct-dp:{keep}:10"}
        hybrid.append(Point("hybrid, two cuts", dropped, Cell(f"hybrid: {dropped:.1%} dropped", codecs)))
    return [
        *_points("DCT-DP", (0.75, 0.90, 0.95, 0.98, 0.995), ["allreduce"], "dct-dp:{keep}:10"),
        *_points("DCT-DP, threshold of 1,000 steps", (0.95,), ["allreduce"], "dct-dp:{keep}:1000"),
        *hybrid,
    ]


def ablation_points() -> list[Point]:
    """Cells of Tables 7 and 8."""
    return [
        *_points("sketch of activations", (0.50, 0.75, 0.90), [BOTTOM_CUT], "sketch:{keep}"),
        *_points("top-k of their gradient", (0.50, 0.75, 0.90), [BOTTOM_CUT], "top-k:{keep}:feedback"),
        *_points("top-k of their gradient, no feedback", (0.90,), [BOTTOM_CUT], "top-k:{keep}"),
    ]


def rows_of(points: Sequence[Point], watch: Watch, effort: Effort, source: Source) -> list[Row]:
    """Train all points and the control; return a row for each."""
    known = [Point("control", 0.0, CONTROL), *points]
    study = Study(source, (BASE, *(point.cell for point in known)), effort)
    runs = run_study(study, watch)
    return [point_row(point, runs, source) for point in known]


def point_row(point: Point, runs: Sequence[Trained], source: Source) -> Row:
    """What one point came to, as data."""
    fields: Row = {
        "family": point.family,
        "dropped": point.dropped,
        "codecs": described(point.cell.codecs),
        "steps": source.steps,
    }
    found = measured(runs, point.cell.name, progressive=source.progressive)
    return fields | found | {"published": published_change(point.family, point.dropped)}


def measured(runs: Sequence[Trained], cell: str, *, progressive: bool = True) -> Row:
    """Changes of a cell against the base in percent: progressive, held out (compressed and not), and by window.

    ``change`` is the one that counts; ``rows_low`` and ``rows_high`` are the interval of the held-out change over parts of
    the held-out samples.
    """
    mine = [run for run in runs if run.cell == cell]

    def against_base(of: Any) -> Change:
        return change(runs, cell, BASE.name, of)

    early, held, plain = (
        against_base(of)
        for of in (lambda run: run.progressive, lambda run: run.held_out, lambda run: run.held_out_plain)
    )
    found, rows = early if progressive else held, row_change(runs, cell, BASE.name)
    windows = [against_base(lambda run, i=i: run.windows[i]).mean for i in range(len(mine[0].windows))]
    return {
        "seeds": len(mine),
        "wire": mine[0].wire,
        "change": found.mean,
        "low": found.low,
        "high": found.high,
        "held_out": held.mean,
        "held_out_low": held.low,
        "held_out_high": held.high,
        "rows_low": rows.low,
        "rows_high": rows.high,
        "held_out_plain": plain.mean,
        "held_out_plain_high": plain.high,
        "windows": " ".join(f"{value:.3f}" for value in windows),
    }


def described(codecs: Mapping[str, str]) -> str:
    """Codecs by edge in one line."""
    return ", ".join(f"{edge}={codec}" for edge, codec in codecs.items())


def dct_mp(watch: Watch, effort: Effort = USUAL, source: Source | None = None) -> list[Row]:
    """Does dropping activations at a cut cost quality? (DCT paper, Tables 1 and 6)"""
    return rows_of(dct_mp_points(), watch, effort, source or Planted(dlrm(), CUT_STEPS))


def dct_dp(watch: Watch, effort: Effort = USUAL, source: Source | None = None) -> list[Row]:
    """Does dropping gradients cost quality, alone and with activations? (DCT paper, Tables 2 and 3)"""
    return rows_of(dct_dp_points(), watch, effort, source or Planted(dlrm(), STEPS))


def ablations(watch: Watch, effort: Effort = USUAL, source: Source | None = None) -> list[Row]:
    """What do sketches and an own choice of gradients cost? (DCT paper, Tables 7 and 8)"""
    return rows_of(ablation_points(), watch, effort, source or Planted(dlrm(), STEPS))
