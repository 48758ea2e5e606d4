"""Where DCT-MP's harmless limits hold: one condition of the paper's setting at a time taken away.

The reference is the studies' DLRM: both cuts rectified and 256 wide, plain SGD, each sample's largest activations kept. Each
other task differs from it in one thing; the last has the layers and the number of tables of the DCT paper's DLRM (section
3: bottom 512-256-64-16, top 512-256-128-1, 26 tables), but tables of 300 rows. What length does, ``length`` says.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from experiments.quality.study import USUAL, Effort, Study, Watch, run_study
from experiments.quality.tables import BASE, CONTROL, measured
from experiments.quality.task import BOTTOM_CUT, TOP_CUT, Planted, dlrm, paper_dlrm
from experiments.quality.trainer import Cell
from problem.graph import Graph
from problem.model import Model

Row = dict[str, Any]


def cuts(name: str, codec: str) -> tuple[Cell, Cell]:
    """Return two cells with a codec: at the bottom cut, and at both."""
    one, both = (dict.fromkeys(edges, codec) for edges in ((BOTTOM_CUT,), (BOTTOM_CUT, TOP_CUT)))
    return Cell(f"one cut, {name}", one), Cell(f"two cuts, {name}", both)


TENTH = cuts("10 % kept", "dct-mp:0.1")
QUARTER = cuts("25 % kept", "dct-mp:0.25")
OF_BATCH = cuts("10 % of the batch kept", "dct-mp:0.1:batch")


def unrectified(model: Model) -> Model:
    """Return a model whose cut layers have no activation."""
    operators = [replace(op, activation="none") if op.name in {BOTTOM_CUT, TOP_CUT} else op for op in model.graph]
    return replace(model, name=f"{model.name}, linear", graph=Graph(tuple(operators)))


@dataclass(frozen=True)
class Task:
    """A model, how long it is trained, and what is compressed."""

    model: Model
    cells: tuple[Cell, ...] = TENTH
    steps: int = 1000


def tasks() -> Mapping[str, Task]:
    """Return the tasks by name, the reference first."""
    return {
        "reference": Task(dlrm(), (*TENTH, *OF_BATCH, *QUARTER)),
        "cuts 32 wide": Task(dlrm(32)),
        "Adagrad": Task(dlrm(256, "adagrad")),
        "cuts not rectified": Task(unrectified(dlrm())),
        "paper's layers": Task(paper_dlrm(), steps=600),
    }


def conditions(watch: Watch, effort: Effort = USUAL) -> list[Row]:
    """On what does it depend whether DCT-MP is harmless: width, rectifier, selection, optimizer, shape?"""
    rows: list[Row] = []
    for name, task in tasks().items():
        study = Study(Planted(task.model, task.steps), (BASE, CONTROL, *task.cells), effort)
        runs = run_study(study, functools.partial(_tell, watch, name))
        rows += [
            {"task": name, "steps": task.steps, "cell": cell.name} | measured(runs, cell.name)
            for cell in study.cells[1:]
        ]
    return rows


def _tell(watch: Watch, task: str, news: str) -> None:
    watch(f"{task}: {news}")
