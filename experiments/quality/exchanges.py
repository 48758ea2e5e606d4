"""What rounding costs in the exchange of groups: replicas kept together by EASGD, with and without a codec.

Four replicas (``replicas``), each with its share of the batches. The quality is progressive, as in the other studies: the
mean loss of all replicas' batches before their updates. The centre's held-out loss stands beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from executor.metrics import log_loss, measure
from experiments.quality.replicas import Replicas
from experiments.quality.study import PARTS, USUAL, Effort, Study, Trained, Watch, progress_of, run_study
from experiments.quality.tables import BASE, described, measured
from experiments.quality.task import Clicks, Planted, Source, dlrm
from experiments.quality.trainer import Cell
from placement.codecs import EXCHANGE

Row = dict[str, Any]

COUNT, BATCHES = 4, 2400
CODECS = ("bf16", "rowwise8", "rowwise4")


def exchanges(watch: Watch, effort: Effort = USUAL) -> list[Row]:
    """Does rounding what groups exchange with the sync servers cost quality?"""
    cells = [BASE, *(Cell(codec, {EXCHANGE: codec}) for codec in CODECS)]
    runs = run_study(Study(Planted(dlrm(), BATCHES), tuple(cells), effort, run=train_replicas), watch)
    fields = ({"family": EXCHANGE, "codecs": described(cell.codecs), "steps": BATCHES // COUNT} for cell in cells[1:])
    return [row | measured(runs, cell.name) for row, cell in zip(fields, cells[1:], strict=True)]


def train_replicas(source: Source, cell: Cell, data: Clicks, seed: int) -> Trained:
    """Train replicas on the batches of a seed, dealt to them (a study's ``run``)."""
    job = Replicas(source.model, COUNT, seed, cell.codecs.get(EXCHANGE, ""))
    steps = [list(data.training[begin : begin + COUNT]) for begin in range(0, len(data.training), COUNT)]
    losses = [job.step(batches) for batches in steps]
    rates = [float(np.mean([batch.labels.mean() for batch in batches])) for batches in steps]
    labels = np.concatenate([batch.labels for batch in data.held_out])
    logits = np.concatenate([job.centre.logits(batch) for batch in data.held_out])
    parts = [log_loss(logits[part], labels[part]) for part in np.array_split(np.arange(len(labels)), PARTS)]
    found = measure(logits, labels).normalized_entropy
    return Trained(cell.name, seed, progress_of(losses, rates), found, found, job.wire_share, tuple(parts))
