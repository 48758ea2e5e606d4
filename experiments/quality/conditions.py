"""Where DCT-MP's harmless limits hold: by optimizer, width of the cut, which cut, and length of the run."""

from __future__ import annotations

import functools
from typing import Any

from experiments.quality.study import Study, Watch, run_study
from experiments.quality.tables import BASE, CONTROL, STEPS, measured
from experiments.quality.task import BOTTOM_CUT, TOP_CUT, dlrm
from experiments.quality.trainer import Cell

Row = dict[str, Any]

#: Optimizer and width of both cuts: the paper's, and what differs from it in one thing each.
TASKS = (("sgd", 256), ("sgd", 32), ("adagrad", 256), ("adagrad", 32))
CELLS = tuple(
    Cell(f"{where}, 10 % kept", {edge: "dct-mp:0.1"})
    for where, edge in (("bottom cut", BOTTOM_CUT), ("top cut", TOP_CUT))
)


def conditions(watch: Watch) -> list[Row]:
    """On what does it depend whether DCT-MP is harmless: cut, width, optimizer, length of the run?"""
    rows = []
    for optimizer, width in TASKS:
        study = Study(dlrm(width, optimizer), (BASE, CONTROL, *CELLS), STEPS)
        runs = run_study(study, functools.partial(_tell, watch, f"{optimizer}, {width} wide"))
        task = {"optimizer": optimizer, "width": width}
        rows += [task | {"cell": cell.name} | measured(runs, cell.name) for cell in study.cells[1:]]
    return rows


def _tell(watch: Watch, task: str, news: str) -> None:
    watch(f"{task}: {news}")
