"""Thresholds as training goes on: figures 2, 5 and 6b of the DCT paper on the planted task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from executor.codecs.dct import CutCodec, CutSettings, Rule
from executor.codecs.selection import kept_of, thresholds
from experiments.quality.study import Watch, in_parallel, interval
from experiments.quality.task import BATCH, BOTTOM_CUT, TOP_CUT, clicks, dlrm
from experiments.quality.trainer import Cell, Trainer

Row = dict[str, Any]
#: What is read off a trainer in a step, by name.
Probe = Callable[[Trainer], Mapping[str, float]]

STEPS, EVERY, SEEDS = 1000, 20, 5
#: Readings that are averaged into one point, so that single batches do not hide the trend.
AVERAGED = 5
GRADIENT_DROPPED = (0.50, 0.75, 0.90, 0.95, 0.98, 0.99)
CUT_DROPPED = (0.75, 0.90, 0.95)
LAPLACE_KEEP = (0.25, 0.10, 0.05, 0.02)
#: The layer whose gradient is read: the one behind the top cut, 256 wide.
LAYER = TOP_CUT
_PLAIN = Cell("none", {BOTTOM_CUT: "fp32"})


def gradient_probe(trainer: Trainer) -> dict[str, float]:
    """Thresholds of one layer's gradient by share dropped, and the shape of a Weibull law through them."""
    gradient = trainer.oracle.gradients[LAYER][None]
    found = {share: float(thresholds(gradient, kept_of(gradient.size, 1 - share))[0, 0]) for share in GRADIENT_DROPPED}
    return {f"{share:g}": value for share, value in found.items()} | {"weibull shape": weibull_shape(found)}


def weibull_shape(quantiles: Mapping[float, float]) -> float:
    """Return k of P(|g| > t) = exp(-(t / scale)^k) by least squares: ln(-ln(1 - share)) = k (ln t - ln scale).

    A threshold of zero (rectifiers left more than that share without a gradient) is no point of such a law.
    """
    points = {share: value for share, value in quantiles.items() if value > 0}
    left = [math.log(-math.log(1 - share)) for share in points]
    return float(np.polyfit([math.log(value) for value in points.values()], left, 1)[0])


def cut_probe(trainer: Trainer) -> dict[str, float]:
    """Mean over samples of the exact threshold of the activations at the cut, by share dropped."""
    values = trainer.loops[0][BOTTOM_CUT].latest
    return {f"{d:g}": float(thresholds(values, kept_of(values.shape[1], 1 - d)).mean()) for d in CUT_DROPPED}


def kept_probe(trainer: Trainer) -> dict[str, float]:
    """Share of the activations at the cut that the cell's Laplace threshold keeps."""
    keep = float(trainer.cell.codecs[BOTTOM_CUT].split(":")[1])
    values = trainer.loops[0][BOTTOM_CUT].latest
    settings = CutSettings(keep, rule=Rule.LAPLACE_ONE_SIDED)
    return {"kept": float(CutCodec(settings, *values.shape).select(values).mean())}


def traces(cells: Sequence[Cell], probe: Probe, watch: Watch) -> dict[tuple[str, str], list[list[float]]]:
    """Return by cell and name of a reading one trace for each seed."""
    found = in_parallel(_trace, [(cell, probe, seed) for cell in cells for seed in range(SEEDS)], watch)
    series: dict[tuple[str, str], list[list[float]]] = {}
    for number, trace in enumerate(found):
        for name, values in trace.items():
            series.setdefault((cells[number // SEEDS].name, name), []).append(values)
    return series


def _trace(cell: Cell, probe: Probe, seed: int) -> dict[str, list[float]]:
    model = dlrm()
    trainer, found = Trainer(model, cell, BATCH, seed), list[Mapping[str, float]]()
    for step, batch in enumerate(clicks(model, seed, STEPS).training, start=1):
        trainer.step([batch])
        if step % EVERY == 0:
            found.append(probe(trainer))
    return {name: [reading[name] for reading in found] for name in found[0]}


def _points(series: Sequence[Sequence[float]]) -> list[Row]:
    """Mean and interval over seeds of averaged readings, by step."""
    means = np.array(series).reshape(len(series), -1, AVERAGED).mean(axis=2)
    rows = []
    for number, values in enumerate(means.T):
        found = interval(values.tolist())
        step = (number + 1) * EVERY * AVERAGED
        rows.append({"step": step, "value": found.mean, "low": found.low, "high": found.high, "seeds": len(values)})
    return rows


def gradient_thresholds(watch: Watch) -> list[Row]:
    """Does the threshold of gradients stay where it is? (DCT paper, Figure 2)"""
    found = traces([_PLAIN], gradient_probe, watch)
    return [{"dropped": name, **row} for (_, name), series in found.items() for row in _points(series)]


def cut_thresholds(watch: Watch) -> list[Row]:
    """Does DCT-MP make activations sparser, so that their threshold falls faster? (DCT paper, Figure 5)"""
    cells = {d: Cell(f"{d:g}", {BOTTOM_CUT: f"dct-mp:{1 - d:g}"}) for d in CUT_DROPPED}
    found = traces([_PLAIN, *cells.values()], cut_probe, watch)
    rows = []
    for dropped in (f"{d:g}" for d in CUT_DROPPED):
        for cell, mode in ((_PLAIN.name, "without DCT-MP"), (dropped, "with DCT-MP")):
            rows += [{"dropped": dropped, "mode": mode, **row} for row in _points(found[cell, dropped])]
    return rows


def laplace_kept(watch: Watch) -> list[Row]:
    """Does a Laplace threshold keep the share that it is meant to? (DCT paper, Figure 6b)"""
    cells = [Cell(f"{keep:g}", {BOTTOM_CUT: f"dct-mp:{keep:g}:laplace_one_sided"}) for keep in LAPLACE_KEEP]
    found = traces(cells, kept_probe, watch)
    return [{"target": name, **row} for (name, _), series in found.items() for row in _points(series)]
