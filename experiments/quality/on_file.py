"""The training studies on a file of Criteo's: what a user gives, made into what a study trains on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from executor.data.store import described_store, store_criteo
from experiments.quality.study import WINDOWS
from experiments.quality.task import BATCH, CRITEO_RATE, Criteo, paper_dlrm
from problem.errors import BadInput


@dataclass(frozen=True)
class CriteoFile:
    """A file in one of Criteo's layouts (``executor.data.criteo``), and how it is used.

    Parameters
    ----------
    path : Path
        The file.
    limit : int or None
        Rows to read at most.
    held_out : float
        Share of the rows, the last ones, that is held out; of Kaggle's seven days, a seventh is the last day.
    passes : int
        How often the others are read.
    batch : int
        Samples of a step.
    table_rows : int
        Rows of each table, to which categories are hashed.

    Raises
    ------
    BadInput
        A setting is out of range.
    """

    path: Path
    limit: int | None = None
    held_out: float = 1 / 7
    passes: int = 1
    batch: int = BATCH
    table_rows: int = 100_000

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise BadInput(self.path, "held-out share", self.held_out, "above 0 and below 1")


def criteo_source(file: CriteoFile, folder: Path, watch: Callable[[str], None]) -> Criteo:
    """Return what a study trains on: the layers of the DCT paper's DLRM, SGD at the upstream script's rate.

    Parameters
    ----------
    file : CriteoFile
        The file.
    folder : Path
        Its rows are kept there, 160 bytes each.
    watch : callable
        Told how far reading is.

    Raises
    ------
    BadInput
        The file is not in Criteo's layout, or too short for the settings.
    """
    model = replace(paper_dlrm(file.table_rows), learning_rate=CRITEO_RATE)
    rows = store_criteo(file.path, model, folder, file.limit, watch)
    of = json.dumps(described_store(file.path, model, file.limit), sort_keys=True)
    source = Criteo(folder, model, rows, of, file.held_out, file.passes, file.batch)
    if source.steps < WINDOWS:
        allowed = f"at least {WINDOWS} batches of {file.batch} in {file.passes} pass(es): more rows or passes"
        raise BadInput(file.path, "rows to train on", source.training_rows, allowed)
    return source
