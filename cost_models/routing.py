"""Ids that are sent to a part of a table's rows alone, in place of all ids: when that is done, and what it takes.

The rank picks out, for each server, the ids of the rows that are there (TorchRec's ``block_bucketize_sparse_features``). The
message then has, for each feature, where the bags end (B + 1 numbers), how many ids each has in the whole table if it pools
by the mean (B), and the ids (and weights) themselves. Knows nothing of servers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cost_models.constants import Constant

if TYPE_CHECKING:
    from problem.model import EmbeddingTable

ID_BYTES = 4  # ids travel and are stored as int32

_HOW = "measured: executor.kernels_sparse.chosen, compiled, 512 to 163,840 ids, caches swept, AMD EPYC, a busy machine"
CHOOSE_SECONDS = Constant(
    14e-6,
    "seconds/feature",
    f"{_HOW}: 12 us for 512 ids; in runs (experiments.bench_requests) 18 to 23 us for 10,240 ids",
)
CHOOSE_ID_SECONDS = Constant(
    0.55e-9, "seconds/id", f"{_HOW}: 95 us for 163,840 ids (weighted 110 to 124, NumPy 206 to 317)"
)
TAKE_SECONDS = Constant(2e-6, "seconds/feature", "measured likewise: views into a message, 1.5 to 3 us")
LEAST_SAVED = Constant(
    8192, "bytes", "assumption: for fewer bytes, 3 us of 25 Gb/s and 1 us at either end, no call of 14 us is made"
)


class Sizes(NamedTuple):
    """Bytes of what a request has for a feature: ids (with what goes before them), and weights."""

    ids: int
    weights: int

    @property
    def total(self) -> int:
        """Both."""
        return self.ids + self.weights


def ids_bytes(table: EmbeddingTable, batch: int) -> int:
    """Bytes of the ids of one table for one batch, int32, and of their weights, float32, if it pools by weight."""
    return batch * table.request_elements * ID_BYTES


def is_routed(feature: EmbeddingTable, batch: int) -> bool:
    """Whether a part of a feature's rows is sent its own ids only: where half of them save :data:`LEAST_SAVED` bytes."""
    return ids_bytes(feature, batch) - routed_sizes(feature, batch, 0.5).total >= LEAST_SAVED.value


def routed_sizes(feature: EmbeddingTable, batch: int, share: float) -> Sizes:
    """Return the expected bytes of the ids of one batch that a share of them makes.

    Parameters
    ----------
    feature : EmbeddingTable
        The feature; ids that fill up short bags do not travel.
    batch : int
        Samples.
    share : float
        Share of the lookups that fall on the rows.
    """
    ids = round(batch * feature.mean_ids * share) * ID_BYTES
    before = (batch + 1 + (batch if feature.pooling == "mean" else 0)) * ID_BYTES
    return Sizes(before + ids, ids if feature.pooling == "weighted" else 0)


def most_bytes(feature: EmbeddingTable, batch: int) -> Sizes:
    """Return the bytes that routed ids, and their weights, may take at most."""
    full = batch * feature.ids_per_sample * ID_BYTES
    return Sizes(routed_sizes(feature, batch, 0.0).ids + full, full if feature.pooling == "weighted" else 0)


def choose_seconds(feature: EmbeddingTable, batch: int) -> float:
    """Core-seconds of the rank to pick out the ids of one server, all ids being looked at."""
    return CHOOSE_SECONDS.value + CHOOSE_ID_SECONDS.value * batch * feature.ids_per_sample


def least_ids_bytes(feature: EmbeddingTable, batch: int) -> int:
    """Return the fewest bytes that the ids of a batch take, however the rows of the table are cut."""
    if not is_routed(feature, batch):
        return ids_bytes(feature, batch)
    return min(ids_bytes(feature, batch), routed_sizes(feature, batch, 1.0).total)


def each_ids_bytes(feature: EmbeddingTable, batch: int) -> int:
    """Return the fewest bytes that come with every further range of the rows: what is there without ids, or all ids."""
    return routed_sizes(feature, batch, 0.0).total if is_routed(feature, batch) else ids_bytes(feature, batch)
