"""The tasks of the training studies: a planted click stream, or a file of Criteo's; models of the DCT paper's DLRM shape.

The paper's DLRM (Gupta et al., KDD 2021, section 3) has a bottom MLP 512-256-64-16, a top MLP 512-256-128-1 and cuts behind
the second layer of each, rectified and 256 wide. Here the layers around the cuts are narrower and there are 6 tables of 300
rows in place of 26 with 34 million, so that a run takes seconds and learns most of what there is to learn. Both cut tensors
are 256 wide as there, batches have 128 samples, the optimizer is plain SGD.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from executor.arrays import generator
from executor.data import Batch, Rows, SyntheticStream
from executor.data.store import open_store
from problem.model import Model
from problem.readers import model_from_spec

#: Samples of a step, over all ranks.
BATCH = 128
#: Cuts behind the second layer of the bottom and of the top MLP: the paper's first and second.
BOTTOM_CUT, TOP_CUT = "bottom_1", "top_1"
#: Held-out batches, and samples of each.
HELD_OUT, HELD_OUT_BATCH = 16, 2048
#: Of three rates each the best without compression, in short runs of a wider model of this kind.
LEARNING_RATES = {"sgd": 0.4, "adagrad": 0.02}
#: First number of the held-out batches: beyond those of any run.
FAR = 10_000_000


def dlrm(cut: int = 256, optimizer: str = "sgd") -> Model:
    """Return a DLRM with 13 dense features and 6 tables whose two cut tensors are ``cut`` wide."""
    layers = ([64, cut, 32, 16], [64, cut, 64, 1])
    return _dlrm(f"dlrm, cuts {cut} wide", layers, [300] * 6, optimizer)


def paper_dlrm(rows: int = 300) -> Model:
    """Return a DLRM with the layers of the DCT paper's, 13 dense features and 26 tables of so many rows each."""
    return _dlrm("dlrm, the paper's layers", ([512, 256, 64, 16], [512, 256, 128, 1]), [rows] * 26, "sgd")


#: Of the upstream script for Criteo's data (facebookresearch/dlrm, bench/dlrm_s_criteo_kaggle.sh), with SGD.
CRITEO_RATE = 0.1


def _dlrm(name: str, layers: tuple[list[int], list[int]], rows: list[int], optimizer: str) -> Model:
    return model_from_spec(
        {
            "kind": "dlrm",
            "name": name,
            "dense_features": 13,
            "embedding_dim": 16,
            "bottom_mlp": layers[0],
            "top_mlp": layers[1],
            "optimizer": optimizer,
            "table_optimizer": optimizer,
            "learning_rate": LEARNING_RATES[optimizer],
            "tables": [{"name": f"t{i}", "rows": count} for i, count in enumerate(rows)],
        }
    )


def shares(batch: Batch, ranks: int) -> list[Batch]:
    """Deal the samples of a batch to ranks, as many to each."""
    return [
        Batch(batch.dense[r::ranks], {n: ids[r::ranks].copy() for n, ids in batch.ids.items()}, batch.labels[r::ranks])
        for r in range(ranks)
    ]


@dataclass(frozen=True)
class Clicks:
    """The batches of a run: the same for every cell of one seed.

    Parameters
    ----------
    training : sequence of Batch
        In order.
    held_out : sequence of Batch
        For the quality.
    """

    training: Sequence[Batch]
    held_out: Sequence[Batch]


class Source(Protocol):
    """What is trained, and on what."""

    @property
    def model(self) -> Model:
        """The model."""
        ...

    @property
    def batch(self) -> int:
        """Samples of a step."""
        ...

    @property
    def steps(self) -> int:
        """Steps of a run."""
        ...

    @property
    def progressive(self) -> bool:
        """Whether the quality of a run is the loss of batches before they are trained on, in place of held-out loss."""
        ...

    def clicks(self, seed: int) -> Clicks:
        """Return the batches of a seed."""
        ...


@dataclass(frozen=True)
class Planted:
    """Planted clicks, read once.

    Parameters
    ----------
    model : Model
        The model.
    steps : int
        Steps of a run.
    """

    model: Model
    steps: int
    batch: int = BATCH
    progressive: bool = True

    def clicks(self, seed: int) -> Clicks:
        """Draw the batches of a seed; a quarter of the held-out ones, which are not what counts here."""
        return clicks(self.model, seed, self.steps, HELD_OUT // 4)


def clicks(model: Model, seed: int, steps: int, held_out: int = HELD_OUT) -> Clicks:
    """Draw the batches of one seed; they depend on the seed and on the model's tables alone."""
    stream = SyntheticStream(model, seed)
    training = tuple(stream.batch(i, BATCH) for i in range(steps))
    return Clicks(training, tuple(stream.batch(FAR + i, HELD_OUT_BATCH) for i in range(held_out)))


@dataclass(frozen=True)
class Criteo:
    """Rows of a file in Criteo's layout: the last share of them is held out, the others are read in passes.

    Each pass takes the rows in a new order, which depends on the seed; rows of a pass that do not fill a batch are left out.

    Parameters
    ----------
    folder : Path
        A store of the rows (``executor.data.store``).
    model : Model
        The model that it was made for.
    rows : int
        Rows of the store.
    of : str
        What the store was made of.
    held_out : float
        Share that is held out.
    passes : int
        How often the others are read.
    batch : int
        Samples of a step.
    """

    folder: Path
    model: Model
    rows: int
    of: str
    held_out: float = 1 / 7
    passes: int = 1
    batch: int = BATCH
    progressive: bool = False

    @property
    def training_rows(self) -> int:
        """Rows that are trained on."""
        return self.rows - max(1, round(self.rows * self.held_out))

    @property
    def steps(self) -> int:
        """Steps of a run."""
        return self.passes * (self.training_rows // self.batch)

    def clicks(self, seed: int) -> Clicks:
        """Map the rows."""
        rows = open_store(self.folder, self.model)
        held_out = _InOrder(rows, self.training_rows, HELD_OUT_BATCH)
        return Clicks(_Shuffled(rows, self.training_rows, self.batch, self.passes, seed), held_out)


@dataclass(frozen=True)
class _InOrder(Sequence[Batch]):
    """Rows from one on, in the order of the file; the last batch may be short."""

    rows: Rows
    begin: int
    size: int

    def __len__(self) -> int:
        return math.ceil((len(self.rows) - self.begin) / self.size)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        begin = self.begin + index * self.size
        return self.rows.chosen(slice(begin, min(begin + self.size, len(self.rows))))


class _Shuffled(Sequence[Batch]):
    """Passes over the first rows, each in an order of its own; only the order of the latest pass is kept."""

    def __init__(self, rows: Rows, count: int, size: int, passes: int, seed: int) -> None:
        self._rows, self._count, self._size, self._passes, self._seed = rows, count, size, passes, seed
        self._order: tuple[int, npt.NDArray[np.uint32]] = (-1, np.zeros(0, np.uint32))

    def __len__(self) -> int:
        return self._passes * (self._count // self._size)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number, at = divmod(index, self._count // self._size)
        if self._order[0] != number:
            order = np.arange(self._count, dtype=np.uint32)
            generator(self._seed, "order of pass", number).shuffle(order)
            self._order = number, order
        return self._rows.chosen(np.sort(self._order[1][at * self._size : (at + 1) * self._size]).astype(np.intp))
