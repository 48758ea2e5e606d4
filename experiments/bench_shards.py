"""What a range of a table's rows costs beside the whole table: ``python -m experiments.bench_shards``.

Lookups and updates of the executor's kernels for a whole table, for half of its rows and for a shard that no id falls on, in
turn, the caches swept in between; medians of CPU time. Half is also given as ``placement.tables.shares.shard_cost`` has it
from the other two, as predicted over measured. Takes about ten seconds.
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
from placement.plan import Shard
from placement.tables.shares import shard_cost
from problem.model import EmbeddingTable

#: Columns, samples, ids a sample, optimizer.
SHAPES = (
    (16, 32, 1, "sgd"),
    (16, 512, 4, "sgd"),
    (64, 512, 20, "sgd"),
    (64, 2048, 20, "sgd"),
    (16, 32, 1, "rowwise_adagrad"),
    (64, 512, 20, "rowwise_adagrad"),
)
ROWS, ROUNDS = 100_000, 60
_SWEEP_BYTES = 8 << 20


class Row(NamedTuple):
    """Median seconds of lookup or update: of the whole table, of half its rows, of a shard without ids."""

    what: str
    whole: float
    half: float
    none: float

    @property
    def predicted(self) -> float:
        """Seconds of half the rows, from those of the whole table and of none."""
        cost = TableCost(PhaseCost(self.whole), PhaseCost(), PhaseCost(min(self.none, self.whole)))
        return shard_cost(cost, EmbeddingTable("t", 2, 16), Shard("t", 0, 0, 1)).lookup.core_seconds

    def text(self) -> str:
        """Return the row of the table."""
        times = "".join(f"{1e6 * seconds:>10.1f}" for seconds in (self.whole, self.half, self.none))
        return f"{self.what:<46}{times}{self.half / self.whole:>12.2f}{self.predicted / self.half:>12.2f}"


def rows_of(dim: int, batch: int, length: int, optimizer: str) -> Iterator[Row]:
    """Measure one shape, ids drawn uniformly: its lookup, its update; the first round is not counted."""
    draw = np.random.default_rng(0)
    ids = [draw.integers(0, ROWS, (batch, length)).astype(np.int32) for _ in range(ROUNDS)]
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


_RANGES = ((0, ROWS), (0, ROWS // 2), (ROWS, ROWS))


def _state(table: EmbeddingTable, rows: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.zeros(rows if table.optimizer == "rowwise_adagrad" else 0, np.float32)


def _medians(action: Callable[[TableRows, int], None], parts: list[TableRows]) -> list[float]:
    sweep = np.zeros(_SWEEP_BYTES // 4, np.float32)
    found: list[list[float]] = [[] for _ in parts]
    for number in range(ROUNDS):
        for held, seconds in zip(parts, found, strict=True):
            sweep += 1.0
            begin = time.thread_time()
            action(held, number)
            seconds.append(time.thread_time() - begin)
    return [median(seconds[1:]) for seconds in found]  # loops are compiled when first used


def main() -> None:
    """Print the table."""
    print(f"{'microseconds':<46}{'whole':>10}{'half':>10}{'no ids':>10}{'half/whole':>12}{'predicted':>12}")
    for shape in SHAPES:
        for row in rows_of(*shape):
            print(row.text(), flush=True)


if __name__ == "__main__":
    main()
