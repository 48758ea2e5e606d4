"""The task of the training studies: a planted click stream, and models of the DCT paper's DLRM shape.

The paper's DLRM (Gupta et al., KDD 2021, section 3) has a bottom MLP 512-256-64-16, a top MLP 512-256-128-1 and cuts behind
the second layer of each, rectified and 256 wide. Here the layers around the cuts are narrower and there are 6 tables of 300
rows in place of 26 with 34 million, so that a run takes seconds and learns most of what there is to learn. Both cut tensors
are 256 wide as there, batches have 128 samples, the optimizer is plain SGD.
"""

from __future__ import annotations

from dataclasses import dataclass

from executor.data import Batch, SyntheticStream
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
    """The batches of a study: the same for every cell of one seed.

    Parameters
    ----------
    training : tuple of Batch
        In order.
    held_out : tuple of Batch
        For the quality.
    """

    training: tuple[Batch, ...]
    held_out: tuple[Batch, ...]


def clicks(model: Model, seed: int, steps: int, batch: int = BATCH) -> Clicks:
    """Draw the batches of one seed; they depend on the seed and on the model's tables alone."""
    stream = SyntheticStream(model, seed)
    training = tuple(stream.batch(i, batch) for i in range(steps))
    return Clicks(training, tuple(stream.batch(FAR + i, HELD_OUT_BATCH) for i in range(HELD_OUT)))
