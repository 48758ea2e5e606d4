"""What a server is asked for: of each feature all ids, or those of the rows that it holds (``cost_models.routing``).

Of a table whose rows are in several ranges on a server, the ids of all rows from the first to the last are sent: the server
passes over those that are not its own. Knows nothing of messages.
"""

from __future__ import annotations

from collections.abc import Iterable

from cost_models.memory import request_tensors
from cost_models.network import Wire
from cost_models.routing import TAKE_SECONDS, Sizes, choose_seconds, ids_bytes, is_routed, routed_sizes
from placement.plan import Shard
from placement.tables.shares import row_share
from problem.model import EmbeddingTable, Model

#: First row and last row plus one.
Rows = tuple[int, int]


def routed_rows(model: Model, batch: int, shards: Iterable[Shard]) -> dict[str, Rows]:
    """Return, for each feature of which a server gets the ids of some rows only, which rows these are.

    Parameters
    ----------
    model, batch : Model, int
        Features; samples per batch.
    shards : iterable of Shard
        Shards on one server.
    """
    held: dict[str, Rows] = {}
    for shard in shards:
        if shard.rows:
            begin, end = held.get(shard.table, (shard.row_begin, shard.row_end))
            held[shard.table] = min(begin, shard.row_begin), max(end, shard.row_end)
    return {
        feature.name: rows
        for table, rows in held.items()
        for feature in model.readers[table]
        if rows != (0, feature.rows) and is_routed(feature, batch)
    }


def request_sizes(feature: EmbeddingTable, batch: int, rows: Rows | None) -> Sizes:
    """Return the (expected) bytes of a request for one feature; ``rows`` None: of all ids."""
    if rows is not None:
        return routed_sizes(feature, batch, row_share(feature, *rows))
    total = ids_bytes(feature, batch)
    weights = total // 2 if feature.pooling == "weighted" else 0
    return Sizes(total - weights, weights)


def request_wire(feature: EmbeddingTable, batch: int, rows: Rows | None) -> Wire:
    """Return what a request for one feature takes; ``rows`` None: of all ids."""
    size, tensors = request_sizes(feature, batch, rows).total, request_tensors(feature)
    if rows is None:
        return Wire(size, tensors=tensors)
    return Wire(size, choose_seconds(feature, batch), TAKE_SECONDS.value, tensors)
