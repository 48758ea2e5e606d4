"""How well are tables balanced? Ours beside greedy rules and TorchRec's planner, on public tables in one cost measure.

    python -m experiments.bench_sharding DIR

DIR holds ``inputs/torchrec_plan/meta_1935_tables_plan.csv`` (a production plan: cost and bytes of each table as
published) and ``workloads/embedding_tables/public_table_configs.json`` (tables; cost by TorchRec's estimator). Every
value is in seconds of that measure, recomputed from the shards; what TorchRec itself says of its plan stands beside it.
Its planner runs where ``torchrec`` and ``fbgemm-gpu-cpu`` are installed; the published plan is a plan of it already.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from cost_models.costs import CostTable, MessageCost, PhaseCost, TableCost
from experiments import torchrec_reference
from placement.errors import DoesNotFit
from placement.plan import Shard
from placement.tables.pieces import Piece
from placement.tables.shard_state import Sharding
from placement.tables.sharding import ShardingOptions, shard_tables
from problem.cluster import Node
from problem.expand import lookup
from problem.graph import Graph
from problem.model import EmbeddingTable, Model
from problem.units import parse_bytes

#: TorchRec's estimator: memory and network bandwidth of a CPU rank, bytes per second; samples per rank; factors on short
#: rows; bytes of an id (torchrec/distributed/planner/constants.py and shard_estimators.py, release 1.3).
GIB = parse_bytes("1GiB")
DDR, NETWORK, RANK_BATCH, ID_BYTES = 51 * GIB, 12.5 * GIB, 2048, 8
PENALTIES = ((64, 1.75), (128, 1.15))
#: Memory of a rank of the published plan for tables: planning memory less dense part and inputs (its own footer).
PUBLISHED_MEMORY = int((138.0 - 62.667 - 18.2) * 1e9)
#: Memory of a rank in the comparison with TorchRec: 85 % of 256 GiB.
RANK_MEMORY = int(0.85 * 256 * GIB)


@dataclass(frozen=True)
class Case:
    """Tables, their costs and the servers.

    Parameters
    ----------
    name : str
        Shown in the table.
    model : Model
        The tables.
    costs : CostTable
        Core-seconds of each whole table on a server of one core; a message costs what a shard costs whatever its rows.
    servers : tuple of Node
        Equal servers.
    batch : int
        Samples per batch.
    parts : dict of str to int
        Shards of each table that the greedy rules place; tables that are not named stay whole.
    published : tuple of (Shard, float)
        Shards of the published plan, if there is one, each with the seconds that the plan says it takes.
    """

    name: str
    model: Model
    costs: CostTable
    servers: tuple[Node, ...]
    batch: int
    parts: dict[str, int]
    published: tuple[tuple[Shard, float], ...] = ()

    def empty(self) -> Sharding:
        """Return the servers without tables."""
        return Sharding(self.model, self.batch, self.servers, self.costs, 0, local=True)


@dataclass(frozen=True)
class Row:
    """One way to shard a case: busiest server and mean in seconds of the measure, bound, shards, seconds it took.

    ``own`` is what the planner itself says of the busiest server; ``lacking`` the bytes that some server lacks.
    """

    case: str
    method: str
    largest: float | None
    mean: float | None = None
    bound: float | None = None
    shards: int = 0
    seconds: float = 0.0
    note: str = ""
    own: float | None = None
    lacking: int = 0

    def __str__(self) -> str:
        if self.largest is None or self.mean is None:
            return f"{self.case:24} {self.method:24} {'-':>10}  {self.note}"
        bound, own = (f"{'':10}" if value is None else f"{value:10.4f}" for value in (self.bound, self.own))
        ratio = self.largest / self.mean if self.mean else 1.0
        lacking = f"  some server lacks {self.lacking / 1e9:.2f} GB" if self.lacking else ""
        return (
            f"{self.case:24} {self.method:24} {self.largest:10.4f} {self.mean:10.4f} {ratio:8.3f} {bound} {own} "
            f"{self.shards:7} {self.seconds:8.2f}{lacking}"
        )


def published_plan(folder: Path, ranks: int = 96) -> Case:
    """The production plan of 1,935 tables: cost and bytes as published, shared out by rows when a table is cut.

    Parameters
    ----------
    folder : Path
        Folder of the inputs.
    ranks : int
        Equal servers.
    """
    with (folder / "inputs" / "torchrec_plan" / "meta_1935_tables_plan.csv").open() as file:
        rows = list(csv.DictReader(file))
    tables, work, parts, published = [], {}, {}, list[tuple[Shard, float]]()
    for number, row in enumerate(rows):
        count = int(row["hash_size"])
        dim = -(-int(float(row["hbm_gb"]) * 1e9) // (4 * count)) or 1  # as wide as its published bytes
        table = EmbeddingTable(f"{row['table']}/{number}", count, dim, float(row["sum_pooling_factor"]))
        tables.append(table)
        work[table.name] = float(row["perf_ms"]) / 1e3
        every = row["ranks"] == f"0-{ranks - 1}"
        placed = list(range(ranks)) if every else [int(rank) for rank in row["ranks"].split(",")]
        parts[table.name] = min(len(placed), count)
        shards = _published(table, placed, by_rows=row["sharding"] == "RW" or dim < len(placed))
        published += [(shard, work[table.name] / len(placed)) for shard in shards]
    case = _case(f"{len(tables):,} tables, {ranks} ranks", tables, work, 0.0, ranks, PUBLISHED_MEMORY, 1, parts)
    return replace(case, published=tuple(published))


def _published(table: EmbeddingTable, ranks: list[int], *, by_rows: bool) -> list[Shard]:
    """Return equal parts of a table, one on each of some ranks."""
    whole = by_rows or len(ranks) == 1
    spans = pairwise([(table.rows if whole else table.dim) * i // len(ranks) for i in range(len(ranks) + 1)])
    if whole:
        return [Shard(table.name, rank, *span) for rank, span in zip(ranks, spans, strict=True)]
    return [Shard(table.name, rank, 0, table.rows, span) for rank, span in zip(ranks, spans, strict=True)]


def public_set(folder: Path, key: str, name: str, ranks: int) -> Case:
    """A public set of tables with the cost of TorchRec's estimator on CPU ranks.

    A table costs three times its forward reads (forward 1, backward 2) and twice the exchange of its pooled rows. A row
    shard takes its share of the reads but exchanges whole pooled rows.

    Parameters
    ----------
    folder : Path
        Folder of the inputs.
    key, name : str
        Key of the set in the file; name to show.
    ranks : int
        Equal servers.
    """
    sets = json.loads((folder / "workloads" / "embedding_tables" / "public_table_configs.json").read_text())
    rows = sets[key]["tables"]
    tables = [EmbeddingTable(r["name"], r["rows"], r["dim"], r["pooling_factor"]) for r in rows]
    work = {table.name: 3 * forward_seconds(table, ranks) for table in tables}
    return _case(name, tables, work, 2 / NETWORK, ranks, RANK_MEMORY, RANK_BATCH * ranks, {})


def forward_seconds(table: EmbeddingTable, ranks: int) -> float:
    """Seconds of a table's forward pass on one rank that serves all (``shard_estimators.py``, table-wise)."""
    batch = RANK_BATCH * ranks
    ids, factor = table.pooling_factor * batch, next((p for below, p in PENALTIES if table.dim < below), 1.0)
    traffic = ids * ID_BYTES + ids * max(table.dim, 32) * 4 + batch * table.dim * 4
    return traffic * factor / DDR


def _case(
    name: str,
    tables: list[EmbeddingTable],
    work: dict[str, float],
    seconds_per_byte: float,
    ranks: int,
    memory: int,
    batch: int,
    parts: dict[str, int],
) -> Case:
    costs = {table: TableCost(PhaseCost(seconds), PhaseCost()) for table, seconds in work.items()}
    message = MessageCost(send_seconds_per_byte=seconds_per_byte)
    servers = tuple(Node(f"r{i}", f"r{i}", "rank", 1, 1.0, 1.0, memory, 1.0, 0.0) for i in range(ranks))
    model = Model(name, Graph(tuple(lookup(table) for table in tables)), tuple(tables))
    return Case(name, model, CostTable(batch, {}, costs, message, kind="rank"), servers, batch, parts)


# ---- methods

#: What the greedy rules balance (AutoShard, Zha et al., KDD 2022, section 5.1): size, lookups, or their product.
GREEDY: dict[str, Callable[[EmbeddingTable], float]] = {
    "greedy by size": lambda table: float(table.rows * table.dim),
    "greedy by lookups": lambda table: table.dim * table.pooling_factor,
    "greedy by size-lookup": lambda table: table.rows * table.dim * table.dim * table.pooling_factor,
}


def greedy(case: Case, method: str) -> Row:
    """Largest first, each shard to the server with the smallest sum that has room."""
    state, key, began = case.empty(), GREEDY[method], time.monotonic()
    sums = np.zeros(len(case.servers))
    for table in sorted(case.model.tables, key=lambda t: -key(t) / case.parts.get(t.name, 1)):
        for piece in _split(table, case.parts.get(table.name, 1)):
            fits = state.room >= state.bytes_of(piece)
            if not fits.any():
                return Row(case.name, method, None, note=f"no plan: table {table.name!r} finds no room")
            server = int(np.argmin(np.where(fits, sums, np.inf)))
            sums[server] += key(table) * (piece.end - piece.begin) / table.rows
            state.put(piece, server)
    return _row(case, method, state.load, None, len(state.at), began)


def _split(table: EmbeddingTable, parts: int) -> list[Piece]:
    edges = [table.rows * i // parts for i in range(parts + 1)]
    return [Piece((table,), edges[i], edges[i + 1], None, i) for i in range(parts)]


def ours(case: Case, method: str, *, row_splits: bool) -> Row:
    """Shard with hiertrain."""
    began = time.monotonic()
    options = ShardingOptions(sessions=0, local=True, deterministic_seconds=10.0, row_splits=row_splits)
    try:
        found = shard_tables(case.model, case.batch, case.servers, case.costs, options)
    except DoesNotFit as error:
        return Row(case.name, method, None, note=f"no plan: {error}")
    row = _judged_row(case, method, found.shards, began)
    if row.lacking:
        raise AssertionError(f"{case.name}: a server lacks {row.lacking} bytes")
    return replace(row, bound=found.bound_seconds)


def torchrec(case: Case) -> Iterator[Row]:
    """Judge TorchRec's plan in the measure of the case: the published one, else what its planner finds now."""
    if case.published:
        own = [sum(s for shard, s in case.published if shard.server == rank) for rank in range(len(case.servers))]
        row = _judged_row(
            case, "TorchRec, published plan", tuple(shard for shard, _ in case.published), time.monotonic()
        )
        yield replace(row, own=max(own))
        return
    planner, began, method = torchrec_reference.load_torchrec(), time.monotonic(), "TorchRec planner"
    if planner is None:
        yield Row(case.name, method, None, note="not run: torchrec and fbgemm-gpu-cpu are not installed")
        return
    found = torchrec_reference.plan(planner, case.model.tables, len(case.servers), RANK_BATCH, 256 * GIB)
    if found.refusal:
        yield Row(case.name, method, None, note=f"no plan: {found.refusal}")
    else:
        yield replace(_judged_row(case, method, found.shards, began), own=found.own_seconds)


def judged(case: Case, shards: tuple[Shard, ...]) -> Sharding:
    """Return the servers with shards, put there one by one whether there is room or not."""
    state = case.empty()
    for number, shard in enumerate(shards):
        table = case.model.table[shard.table]
        state.put(Piece((table,), shard.row_begin, shard.row_end, shard.columns, number), shard.server)
    return state


def _judged_row(case: Case, method: str, shards: tuple[Shard, ...], began: float) -> Row:
    seconds, state = time.monotonic() - began, judged(case, shards)
    row = _row(case, method, state.load, None, len(shards), began)
    return replace(row, seconds=seconds, lacking=max(0, -int(state.room.min())))


def _row(
    case: Case,
    method: str,
    load: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    bound: float | None,
    shards: int,
    began: float,
) -> Row:
    busy = load[:, 0]
    seconds = time.monotonic() - began
    return Row(case.name, method, float(busy.max()), float(busy.mean()), bound, shards, seconds)


def rows(case: Case) -> Iterator[Row]:
    """Yield every method on a case."""
    yield ours(case, "hiertrain, whole tables", row_splits=False)
    yield ours(case, "hiertrain", row_splits=True)
    for method in GREEDY:
        yield greedy(case, method)
    yield from torchrec(case)


def cases(folder: Path) -> Iterator[Case]:
    """Yield the cases."""
    yield published_plan(folder)
    yield public_set(folder, "200table_100B_hotness20", "200 tables, 64 ranks", 64)
    yield public_set(folder, "180table_70B_hotness80", "177 tables, 64 ranks", 64)
    yield public_set(folder, "510table_110B_hotness5", "510 tables, 64 ranks", 64)
    yield public_set(folder, "dcnv2", "DCNv2, 8 ranks", 8)
    yield public_set(folder, "dcnv2", "DCNv2, 16 ranks", 16)
    yield public_set(folder, "7table_470B_hotness20", "7 tables, 64 ranks", 64)


def main(folder: str) -> None:
    """Print the table."""
    print(
        f"{'tables':24} {'method':24} {'max s':>10} {'mean s':>10} {'max/mean':>8} {'bound s':>10} {'own s':>10} "
        f"{'shards':>7} {'seconds':>8}"
    )
    for case in cases(Path(folder)):
        for row in rows(case):
            print(row, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
