"""What a shard takes of its table, and how the parts of a pooled embedding are put together again.

The parts of a table are its strips of columns on each server. A server answers with one tensor for each part and feature:
shards of one strip on one server are added there. The rank adds the parts of a strip, servers rising, and lays strips side
by side. Knows nothing of costs in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cost_models.costs import PhaseCost, TableCost
from cost_models.roofline import dim_penalty
from placement.plan import Shard, Span
from problem.model import EmbeddingTable, Model
from problem.popularity import popularity

#: A strip of columns on a server.
Part = tuple[Span, int]


def row_share(feature: EmbeddingTable, begin: int, end: int) -> float:
    """Return the share of a feature's lookups that fall on a range of rows, by the popularity of rows."""
    if (begin, end) == (0, feature.rows):
        return 1.0
    below = popularity(feature).below
    return float(below(end) - below(begin))


def shard_cost(cost: TableCost, feature: EmbeddingTable, shard: Shard) -> TableCost:
    """Return what a shard takes of the cost of a feature::

        seconds = each + rows * columns * penalty * (whole - each)        traffic = columns * (each + rows * (whole - each))

    with ``rows`` the share of lookups that fall on its rows and ``columns`` its share of the columns. ``each`` is what every
    shard takes (``TableCost.shard_lookup``), so that a table in n shards costs n - 1 times ``each`` more than a whole one.

    The core-seconds of a narrow strip fall less than its columns (``roofline.dim_penalty``: short rows use the bandwidth
    badly); a whole table's cost has the penalty of its own dim in it already. Approximation: a strip's ids, 4 bytes beside
    at least 64 of a row, count in its traffic by its share of the columns.
    """
    width = shard.width(feature)
    rows, columns = row_share(feature, shard.row_begin, shard.row_end), width / feature.dim
    penalty = dim_penalty(width) / dim_penalty(feature.dim)

    def each(part: PhaseCost) -> PhaseCost:
        return PhaseCost(part.core_seconds, part.traffic_bytes * columns)

    def whole(all_: PhaseCost, part: PhaseCost) -> PhaseCost:
        seconds, traffic = all_.core_seconds - part.core_seconds, all_.traffic_bytes - part.traffic_bytes
        return each(part) + PhaseCost(seconds * rows * columns * penalty, traffic * rows * columns)

    lookup, update = whole(cost.lookup, cost.shard_lookup), whole(cost.update, cost.shard_update)
    return TableCost(lookup, update, each(cost.shard_lookup), each(cost.shard_update))


def parts_of(model: Model, shards: Iterable[Shard]) -> dict[str, tuple[Part, ...]]:
    """Return the parts of each table, in the order in which the rank puts them together."""
    found: dict[str, set[Part]] = {table.name: set() for table in model.tables}
    for shard in shards:
        if shard.rows:
            found[shard.table].add((shard.span(model.table[shard.table]), shard.server))
    return {name: tuple(sorted(parts)) for name, parts in found.items()}


def passes(spans: Sequence[Span], dim: int) -> float:
    """Return how often the whole pooled tensor is gone through, once for each sum or copy, to put parts together.

    A strip of k parts takes k - 1 additions; a strip of one part is copied beside the others.

    Parameters
    ----------
    spans : sequence of Span
        Columns of each part.
    dim : int
        Columns of the table.
    """
    if len(spans) < 2:
        return 0.0
    return sum(max(1, spans.count(span) - 1) * (span[1] - span[0]) for span in set(spans)) / dim


def split_features(model: Model, shards: Iterable[Shard]) -> Mapping[str, float]:
    """Return, for each feature whose pooled tensor comes in several parts, its :func:`passes`."""
    found = {}
    for table, parts in parts_of(model, shards).items():
        for feature in model.readers[table] if len(parts) > 1 else ():
            found[feature.name] = passes([span for span, _ in parts], feature.dim)
    return found
