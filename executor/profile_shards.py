"""What a range of a table's rows takes of the whole table: measured on the tables that a profile's run has left behind.

A shard reads its own rows only, but that is not all that it does: it is called, looks at all ids that it gets (those of its
rows, or all: ``cost_models.routing``), and waits for rows of which fewer are under way at once. How much of this there is
depends on how many of the ids are its own, so a shard that half of them fall on is measured (to cut a table in two is
commonest), beside the whole table and a shard without ids. What every shard takes
(``cost_models.costs.TableCost.shard_lookup``) follows by proportion. The three are called in turn outside of a step, where
caches are warmer, so that only their ratios are used. Knows nothing of operators and messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cost_models.profile import Measurement, Phase, signature
from cost_models.routing import is_routed
from executor.arrays import Bags, Floats, Ids
from executor.clock import Clock, ClockKind
from executor.data.batch import Batch
from executor.kernels_rows import Read, update_rows
from executor.kernels_sparse import chosen, pool
from executor.loopback import Loopback
from executor.parameters import TableRows
from problem.model import Model

#: Larger than a core's second-level cache: written before each measurement.
SWEEP_BYTES = 8 << 20
#: Batches of the run that are used at most: by turns for whole tables and for shards, whose rows must be as cold.
_BATCHES = 32
#: Turns that come first and do not count.
_WARMUP = 4

_Request = tuple[Ids | Bags, Floats | None]
_Action = Callable[[TableRows, _Request], None]


class Ranges(NamedTuple):
    """A table whole, the rows from a cut on, and none of them; and the share of the ids that fall on those from the cut."""

    whole: TableRows
    part: TableRows
    none: TableRows
    share: float


def shard_measurements(loop: Loopback, whole: Mapping[tuple[str, Phase], float]) -> Iterator[Measurement]:
    """Measure what every shard of a table takes, for each table of a run that has ended. Updates are by nothing.

    Parameters
    ----------
    loop : Loopback
        The run; each of its features has a table of its own, whole on one server.
    whole : Mapping
        Seconds of ``lookup`` and ``update`` of whole tables in the run, by the table's signature.
    """
    model, batches = loop.plan.model, [loop.pool.take(0, step) for step in range(min(loop.steps, _BATCHES))]
    cut = [_cut(held, batches) for held in loop.state.rows if held is not None]
    for (phase, into), action in zip(_PHASES.items(), _actions(model, loop.plan.batch), strict=True):
        for ranges, times in zip(cut, _times(cut, batches, action), strict=True):
            key = signature(ranges.whole.table)
            seconds = whole[key, phase] * every_shard(*times, ranges.share)
            yield Measurement(key, into, loop.plan.batch, seconds)


_PHASES: dict[Phase, Phase] = {"lookup": "shard_lookup", "update": "shard_update"}


def every_shard(whole: float, part: float, none: float, share: float) -> float:
    """Return the part of a whole table's seconds that every shard takes, 0 to 1.

    With e this part, a shard that a share s of the ids falls on takes ``e + s (1 - e)`` of the whole table. At least what a
    shard without ids takes, at most all.

    Parameters
    ----------
    whole, part, none : float
        Seconds of the whole table, of a shard and of a shard that no id falls on.
    share : float
        Share of the ids that fall on the shard.
    """
    found = (part / whole - share) / (1.0 - share) if share < 1.0 else 0.0
    return min(1.0, max(found, none / whole))


def _cut(held: TableRows, batches: Sequence[Batch]) -> Ranges:
    """Cut a table where about half of the ids of some batches are on either side."""
    rows = len(held.rows)
    ids = np.concatenate([batch.ids[held.table.name].reshape(-1) for batch in batches])
    read = np.sort(ids[ids >= 0])
    middle = min(max(int(read[len(read) // 2]), 1), rows) if len(read) else rows
    share = 1.0 - float(np.searchsorted(read, middle)) / len(read) if len(read) else 0.0
    return Ranges(held, _rows_from(held, middle), _rows_from(held, rows), share)


def _rows_from(held: TableRows, first: int) -> TableRows:
    """Return the rows of a whole table from one on, and their state, as views."""
    state = held.state[:, first:] if held.table.optimizer == "adam" else held.state[first:]
    return replace(held, row_begin=first, rows=held.rows[first:], state=state)


def _actions(model: Model, batch: int) -> tuple[_Action, _Action]:
    """Return lookup and update of a range of rows; gradients are zero."""
    pooled = {table.name: np.zeros((batch, table.dim), np.float32) for table in model.tables}
    nothing = {name: np.zeros_like(array) for name, array in pooled.items()}

    def lookup(held: TableRows, request: _Request) -> None:
        ids, weights = request
        pool(held.rows, held.row_begin, ids, pooled[held.table.name], weights, mean=held.table.pooling == "mean")

    def update(held: TableRows, request: _Request) -> None:
        ids, weights = request
        read = Read(ids, nothing[held.table.name], weights, held.table.pooling == "mean")
        update_rows(held, [read], model.learning_rate)

    return lookup, update


def _request(held: TableRows, batch: Batch) -> _Request:
    """Return ids and weights as a server that holds the rows gets them: all, or those of its rows."""
    table = held.table
    ids, weights = batch.ids[table.name], batch.weights.get(table.name)
    if len(held.rows) == table.rows or not is_routed(table, batch.places):
        return ids, weights
    bags, taken = chosen(ids, held.row_begin, len(held.rows), weights)
    return bags._replace(counts=(ids >= 0).sum(axis=1, dtype=np.int32)), taken


def _times(cut: Sequence[Ranges], batches: Sequence[Batch], action: _Action) -> list[tuple[float, float, float]]:
    """Return the median seconds of an action on the three ranges of each table; caches are swept before each range."""
    clock, sweep = Clock(ClockKind.CPU, 0.0), np.zeros(SWEEP_BYTES // 4, np.float32)
    seconds = np.zeros((len(batches) // 2, 3, len(cut)))
    for turn, which in np.ndindex(*seconds.shape[:2]):
        held = [(ranges.whole, ranges.part, ranges.none)[which] for ranges in cut]
        requests = [_request(rows, batches[2 * turn + which % 2]) for rows in held]
        sweep += 1.0
        for table, rows in enumerate(held):
            clock.begin()
            action(rows, requests[table])
            clock.lap()
            seconds[turn, which, table] = clock.used
    typical = np.median(seconds[min(_WARMUP, len(seconds) - 1) :], axis=0)
    return [(float(whole), float(part), float(none)) for whole, part, none in typical.T]
