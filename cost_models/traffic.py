"""Bytes of memory traffic of operators and tables, counted.

The counts load a node's memory bandwidth whatever the source of the core-seconds, so the roofline and the profile share
them. Every access counts as traffic to memory: data that stay in a cache make the count an upper bound.
"""

from __future__ import annotations

from math import expm1
from typing import TYPE_CHECKING

from cost_models.routing import ID_BYTES, each_ids_bytes
from problem.graph import FLOAT_BYTES
from problem.model import DTYPE_BYTES

if TYPE_CHECKING:
    from problem.graph import Work
    from problem.model import EmbeddingTable, Model


def work_traffic(work: Work, batch: int) -> float:
    """Bytes of memory traffic of one phase of an operator for ``batch`` samples."""
    return work.bytes_per_sample * batch + work.bytes_per_step


def lookup_traffic(table: EmbeddingTable, batch: int) -> float:
    """Bytes to pool one table for a batch: each id (and weight) and its row read, the pooled (batch, dim) float32 written.

    ``batch * (ids * dim * element + request * 4) + batch * dim * 4``; RecShard (Sethi et al., ASPLOS 2022, section 4)
    counts the row term alone.
    """
    row = table.dim * DTYPE_BYTES[table.dtype]
    return batch * (table.mean_ids * row + table.request_elements * ID_BYTES + table.dim * FLOAT_BYTES)


def update_traffic(table: EmbeddingTable, batch: int) -> float:
    """Bytes of the sparse update of one table for a batch.

    Each id (and weight) and the gradient of its bag read, its row and optimizer state read and written:
    ``batch * (request * 4 + ids * (dim * 4 + 2 * bytes_per_row))``. Ids that occur twice count twice.
    """
    moved = table.dim * FLOAT_BYTES + 2 * table.bytes_per_row
    return batch * (table.request_elements * ID_BYTES + table.mean_ids * moved)


def shard_lookup_traffic(table: EmbeddingTable, batch: int) -> float:
    """Bytes of :func:`lookup_traffic` that every row shard moves: the request without ids of its own read, or all ids (and
    weights) where it gets these (``routing``), and the pooled tensor written.
    """
    return float(each_ids_bytes(table, batch) + batch * table.dim * FLOAT_BYTES)


def shard_update_traffic(table: EmbeddingTable, batch: int) -> float:
    """Bytes of :func:`update_traffic` that every row shard moves: the request as for a lookup."""
    return float(each_ids_bytes(table, batch))


def distinct_rows(table: EmbeddingTable, batch: int) -> float:
    """Distinct rows that a batch meets, if ids were uniform: rows * (1 - exp(-batch * ids / rows))."""
    return -table.rows * expm1(-batch * table.mean_ids / table.rows)


def batch_bytes_per_sample(model: Model) -> int:
    """Bytes of one sample of the input: dense features, ids of every feature and their weights, label; 4 bytes each."""
    dense = sum(op.output_bytes_per_sample for op in model.graph if op.kind == "dense_input")
    return dense + sum(feature.request_elements for feature in model.feature.values()) * ID_BYTES + FLOAT_BYTES
