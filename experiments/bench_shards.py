"""What a range of a table's rows costs beside the whole table: ``python -m experiments.bench_shards``.

Lookups and updates of the executor's kernels for a whole table, for half and a quarter of its rows and for a shard that no
id falls on, in turn, the caches swept in between and ids drawn anew; medians of CPU time. A quarter is also given as the
formula of shards (``placement.tables.shares.shard_cost``) has it, with what every shard takes from half the rows, as a
profile has it (``executor.profile_shards``), predicted over measured. Takes about twenty seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import NamedTuple

import numpy as np

from cost_models.costs import PhaseCost, TableCost
from executor.kernels_rows import Read, update_rows
from executor.kernels_sparse import pool
from executor.parameters import TableRows
from executor.profile_shards import every_shard
from placement.plan import Shard
from placement.tables.shares import shard_cost
from problem.model import EmbeddingTable

#: Columns, samples, ids a sample, optimizer.
SHAPES = (
    (16, 32, 1, "sgd"),
    (16, 512, 1, "sgd"),
    (16, 512, 4, "sgd"),
    (64, 512, 20, "sgd"),
    (64, 2048, 20, "sgd"),
    (16, 32, 1, "rowwise_adagrad"),
    (64, 512, 20, "rowwise_adagrad"),
)
ROWS, ROUNDS = 100_000, 40
_SWEEP_BYTES = 8 << 20


class Row(NamedTuple):
    """Median seconds of lookup or update: of the whole table, of half and a quarter of its rows, of a shard without ids."""

    what: str
    whole: float
    half: float
    quarter: float
    none: float

    @property
    def predicted(self) -> float:
        """Seconds of a quarter of the rows, from those of the others."""
        each = PhaseCost(self.whole * every_shard(self.whole, self.half, self.none, 0.5))
        cost = TableCost(PhaseCost(self.whole), PhaseCost(), each)
        return shard_cost(cost, EmbeddingTable("t", 4, 16), Shard("t", 0, 0, 1)).lookup.core_seconds

    def text(self) -> str:
        """Return the row of the table."""
        times = "".join(f"{1e6 * seconds:>10.1f}" for seconds in (self.whole, self.half, self.quarter, self.none))
        shares = f"{self.half / self.whole:>12.2f}{self.quarter / self.whole:>15.2f}"
        return f"{self.what:<46}{times}{shares}{self.predicted / self.quarter:>12.2f}"


def rows_of(dim: int, batch: int, length: int, optimizer: str) -> Iterator[Row]:
    """Measure one shape, ids drawn uniformly: its lookup, its update; the first round is not counted."""
    draw = np.random.default_rng(0)
    ids = [draw.integers(0, ROWS, (batch, length)).astype(np.int32) for _ in range(ROUNDS * len(_RANGES))]
    table = EmbeddingTable("t", ROWS, dim, length, optimizer=optimizer)
    rows = draw.standard_normal((ROWS, dim), np.float32)
    parts = [TableRows(table, begin, rows[begin:end], _state(table, end - begin)) for begin, end in _RANGES]
    out, gradient = np.empty((batch, dim), np.float32), np.ones((batch, dim), np.float32)

    def lookup(held: TableRows, number: int) -> None:
        pool(held.rows, held.row_begin, ids[number], out)

    def update(held: TableRows, number: int) -> None:
        update_rows(held, [Read(ids[number], gradient)], 1e-4)

    for name, action in (("lookup", lookup), ("update", update)):
        yield Row(f"{name}, {dim} columns, {batch} x {length} ids, {optimizer}", *_medians(action, parts))


_RANGES = ((0, ROWS), (0, ROWS // 2), (0, ROWS // 4), (ROWS, ROWS))


def _state(table: EmbeddingTable, rows: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.zeros(rows if table.optimizer == "rowwise_adagrad" else 0, np.float32)


def _medians(action: Callable[[TableRows, int], None], parts: list[TableRows]) -> list[float]:
    sweep = np.zeros(_SWEEP_BYTES // 4, np.float32)
    found: list[list[float]] = [[] for _ in parts]
    for number in range(ROUNDS):
        for which, (held, seconds) in enumerate(zip(parts, found, strict=True)):
            sweep += 1.0
            begin = time.thread_time()
            action(held, number * len(parts) + which)
            seconds.append(time.thread_time() - begin)
    return [median(seconds[1:]) for seconds in found]  # loops are compiled when first used


def main() -> None:
    """Print the table."""
    times = "".join(f"{name:>10}" for name in ("whole", "half", "quarter", "no ids"))
    print(f"{'microseconds':<46}{times}{'half/whole':>12}{'quarter/whole':>15}{'predicted':>12}")
    for shape in SHAPES:
        for row in rows_of(*shape):
            print(row.text(), flush=True)


if __name__ == "__main__":
    main()
