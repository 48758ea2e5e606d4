"""The TorchRec planner on the tables of ``bench_sharding``: where it puts them.

TorchRec is not a dependency: :func:`load_torchrec` returns None where it is not installed. Its planner, enumerator and
estimators are used as they come, for CPU ranks; the tables live on the meta device, so nothing is allocated.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from placement.plan import Shard
from problem.model import EmbeddingTable

#: Share of a rank's memory that the planner leaves alone; the comparison gives it 85 % of 256 GiB.
RESERVED = 0.15


@dataclass(frozen=True)
class TorchRecPlan:
    """A plan of the TorchRec planner.

    Parameters
    ----------
    shards : tuple of Shard
        Whole tables, strips of columns or ranges of rows, by rank.
    own_seconds : float
        Summed cost of the busiest rank, as the planner estimates it.
    refusal : str
        Why there is no plan; empty if there is one.
    """

    shards: tuple[Shard, ...] = ()
    own_seconds: float = 0.0
    refusal: str = ""


def load_torchrec() -> Any | None:
    """Return TorchRec's planner module, or None where it is not installed with the CPU kernels of FBGEMM."""
    try:
        return importlib.import_module("torchrec.distributed.planner")
    except (ImportError, OSError):
        return None


def plan(planner: Any, tables: Sequence[EmbeddingTable], ranks: int, batch: int, memory_bytes: int) -> TorchRecPlan:
    """Let TorchRec plan tables over equal CPU ranks.

    Parameters
    ----------
    planner : module
        What :func:`load_torchrec` returned.
    tables : sequence of EmbeddingTable
        Names, rows, dims and pooling factors are used.
    ranks, batch : int
        CPU ranks, samples per rank.
    memory_bytes : int
        Memory of a rank, of which :data:`RESERVED` is left alone.
    """
    types = importlib.import_module("torchrec.distributed.planner.types")
    reservations = importlib.import_module("torchrec.distributed.planner.storage_reservations")
    sharders = importlib.import_module("torchrec.distributed.embeddingbag")
    constraints = {t.name: types.ParameterConstraints(pooling_factors=[t.pooling_factor]) for t in tables}
    chosen = planner.EmbeddingShardingPlanner(
        topology=planner.Topology(world_size=ranks, compute_device="cpu", ddr_cap=memory_bytes),
        batch_size=batch,
        storage_reservation=reservations.FixedPercentageStorageReservation(RESERVED),
        constraints=constraints,
    )
    try:
        chosen.plan(_module(tables), [sharders.EmbeddingBagCollectionSharder()])
    except types.PlannerError as error:
        return TorchRecPlan(refusal=str(error).strip().splitlines()[0])
    placed = [(option.name, shard) for option in chosen._best_plan for shard in option.shards]
    loads = [0.0] * ranks
    for _, shard in placed:
        loads[shard.rank] += shard.perf.total / 1e3  # the planner's milliseconds
    dims = {table.name: table.dim for table in tables}
    return TorchRecPlan(tuple(_shard(name, shard, dims[name]) for name, shard in placed), max(loads))


def _shard(table: str, shard: Any, dim: int) -> Shard:
    (rows, width), (row, column) = shard.size, shard.offset
    return Shard(table, shard.rank, row, row + rows, (column, column + width) if width < dim else None)


def _module(tables: Sequence[EmbeddingTable]) -> Any:
    modules = importlib.import_module("torchrec.modules.embedding_modules")
    configs = importlib.import_module("torchrec.modules.embedding_configs")
    return modules.EmbeddingBagCollection(
        tables=[
            configs.EmbeddingBagConfig(
                name=t.name, num_embeddings=t.rows, embedding_dim=t.dim, feature_names=[f"f_{t.name}"]
            )
            for t in tables
        ],
        device=importlib.import_module("torch").device("meta"),
    )
