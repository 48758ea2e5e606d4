"""What the length of a run does to the loss of DCT-MP: one run, read at lengths that double.

On a stream that is read once a run of N steps is the beginning of every longer one, so that one run yields the points of all
its lengths. The quality at a length is that of the other studies: the loss of each batch before its update over the last
quarter, here of the steps up to that length. Tasks are two of ``conditions``: the reference, and the layers of the DCT
paper's DLRM, whose steps take four times as long and which is therefore trained for fewer of them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.quality.conditions import QUARTER, TENTH, Task
from experiments.quality.study import USUAL, Effort, Study, Trained, Watch, change, run_cell, run_study
from experiments.quality.tables import BASE, CONTROL, described
from experiments.quality.task import Clicks, Planted, Source, dlrm, paper_dlrm
from experiments.quality.trainer import Cell

Row = dict[str, Any]

#: Lengths that are read off a run: the whole, and a half of it so many times less one.
LENGTHS = 6
#: Windows of a run: as many as make the last quarter of the shortest length one window.
WINDOWS = 4 * 2 ** (LENGTHS - 1)
#: Steps without compression at the beginning of one of the cells.
WARM_UP = 1_000
_BOTH = TENTH[1]
WARMED = replace(_BOTH, name=f"{_BOTH.name} from step {WARM_UP:,} on", warm_up=WARM_UP)


def tasks() -> Mapping[str, Task]:
    """Return the tasks by name."""
    return {
        "reference": Task(dlrm(), (*TENTH, QUARTER[1], WARMED), steps=8_000),
        "paper's layers": Task(paper_dlrm(), steps=2_000),
    }


def train_long(source: Source, cell: Cell, data: Clicks, seed: int) -> Trained:
    """Train a cell and keep its progress in short windows (a study's ``run``)."""
    return run_cell(source, cell, data, seed, windows=WINDOWS)


def quality_at(run: Trained, halvings: int) -> float:
    """Return the progressive NE of the last quarter of a run that ends after 1 / 2^halvings of this one."""
    end = len(run.windows) >> halvings
    return float(np.mean(run.windows[end - end // 4 : end]))


def mp_length(watch: Watch, effort: Effort = USUAL, known: Mapping[str, Task] | None = None) -> list[Row]:
    """Does the loss of DCT-MP go away as a run gets longer?"""
    rows: list[Row] = []
    for name, task in (known or tasks()).items():
        cells = (BASE, CONTROL, *task.cells)
        study = Study(Planted(task.model, task.steps), cells, effort, run=train_long)
        runs = run_study(study, functools.partial(_tell, watch, name))
        rows += [row for cell in cells[1:] for row in _rows(name, task.steps, cell, runs)]
    return rows


def _rows(task: str, steps: int, cell: Cell, runs: Sequence[Trained]) -> list[Row]:
    """Return a row for each length of a cell at which all that counts is compressed, the shortest first."""
    mine = [run for run in runs if run.cell == cell.name]
    rows = []
    for halvings in (number for number in reversed(range(LENGTHS)) if 3 * (steps >> number) >= 4 * cell.warm_up):
        found = change(runs, cell.name, BASE.name, functools.partial(quality_at, halvings=halvings))
        fields = {"task": task, "steps": steps >> halvings, "cell": cell.name, "codecs": described(cell.codecs)}
        told = {"seeds": len(mine), "wire": mine[0].wire, "change": found.mean, "low": found.low, "high": found.high}
        rows.append(fields | told)
    return rows


def _tell(watch: Watch, task: str, news: str) -> None:
    watch(f"{task}: {news}")
