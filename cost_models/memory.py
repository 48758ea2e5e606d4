"""Memory: how many bytes an operator, a tensor or a table shard holds on the machine it is on.

What is counted, for H Hogwild threads per rank and R ranks:

* once per machine that holds the operator: parameters and optimizer state, float32 (:func:`resident_bytes`);
* once per session and place: the gradient of the parameters, the output and the gradient of the output, because each
  session has a batch of its own in flight (:func:`in_flight_bytes`);
* once per session: what it receives (:func:`tensor_bytes` of every tensor or gradient that arrives);
* on an embedding server: rows and their state once, and for each session and feature the ids, the pooled rows and
  their gradient.

An imported operator (kind FIXED) comes with one measured size that already includes all of this, so nothing is added.
The module knows sizes and refuses to know where things are placed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.routing import ids_bytes
from cost_models.traffic import batch_bytes_per_sample, distinct_rows
from problem.graph import FLOAT_BYTES, Kind

if TYPE_CHECKING:
    from problem.graph import Operator
    from problem.model import EmbeddingTable, Model


def parameter_bytes(op: Operator) -> int:
    """Bytes of the parameters of an operator (and of their gradient), float32."""
    return op.parameters * FLOAT_BYTES


def resident_bytes(op: Operator, model: Model) -> int:
    """Bytes once per copy of the operator: parameters and optimizer state; an imported size is taken as it is."""
    state = 0 if op.kind is Kind.FIXED else model.dense_state_per_parameter
    return parameter_bytes(op) * (1 + state)


def tensor_bytes(op: Operator, batch: int) -> int:
    """Bytes of the output of an operator for one batch, float32; its gradient has as many."""
    return batch * op.output_bytes_per_sample


def in_flight_bytes(op: Operator, batch: int) -> int:
    """Bytes for each session that runs the operator: parameter gradient, output, gradient of the output."""
    if op.kind is Kind.FIXED:
        return 0
    return parameter_bytes(op) + 2 * tensor_bytes(op, batch)


def request_tensors(table: EmbeddingTable) -> int:
    """Tensors of a request for one table: its ids, and their weights if it pools by weight."""
    return 2 if table.pooling == "weighted" else 1


def pooled_bytes(table: EmbeddingTable, batch: int, width: int | None = None) -> int:
    """Bytes of the pooled embeddings (or of ``width`` columns of them) of one feature for one batch, float32."""
    return batch * (table.dim if width is None else width) * FLOAT_BYTES


def shard_in_flight_bytes(table: EmbeddingTable, batch: int, width: int | None = None) -> int:
    """Bytes for each session and feature on a server with a shard (of ``width`` columns): ids, pooled rows, gradient."""
    return ids_bytes(table, batch) + 2 * pooled_bytes(table, batch, width)


def step_bytes(model: Model, batch: int) -> float:
    """Bytes of memory that a step of one session touches, wherever it runs, each byte counted once.

    The batch; parameters, their state, gradients and outputs of all operators; on embedding servers requests, pooled rows,
    their gradients, and the distinct rows that a batch meets, with their state. So much lies, in the caches, between a
    message and the next of the same kind.
    """
    dense = sum(resident_bytes(op, model) + in_flight_bytes(op, batch) for op in model.graph)
    served = sum(shard_in_flight_bytes(feature, batch) for feature in model.feature.values())
    rows = sum(distinct_rows(feature, batch) * feature.bytes_per_row for feature in model.feature.values())
    return batch * batch_bytes_per_sample(model) + dense + served + rows
