"""Where tables and operators are, for other tools: TorchRec's plan, a map for ``torch.distributed``, CSV.

Ranks of the TorchRec plan and of the CSV are embedding servers, in the plan's order; those of the map are all machines.
TorchRec calls a table on one server ``table_wise``, one that is cut by rows ``row_wise`` and one that is cut by columns
``column_wise``; one that is cut both ways is ``grid_shard``.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from typing import Any

from placement.plan import DP, Plan, Shard
from problem.cluster import Node

MODULE = "embedding_bag_collection"
"""Path of the module that the TorchRec plan is for; a user whose model calls it otherwise renames the key."""
HEADER = ("table", "server", "node", "row_begin", "row_end", "column_begin", "column_end", "bytes")


def torchrec_plan(plan: Plan) -> dict[str, Any]:
    """Return the plan's tables as TorchRec's ``EmbeddingShardingPlan``, field by field, as a JSON object."""
    by_table: dict[str, list[Shard]] = defaultdict(list)
    for shard in plan.shards:
        by_table[shard.table].append(shard)
    return {"plan": {MODULE: {table: _sharding(plan, shards) for table, shards in by_table.items()}}}


def _sharding(plan: Plan, shards: list[Shard]) -> dict[str, Any]:
    """Return a ``ParameterSharding``."""
    return {
        "sharding_type": _type(plan, shards),
        "compute_kernel": "dense",
        "ranks": [shard.server for shard in shards],
        "sharding_spec": {"shards": [_metadata(plan, shard) for shard in shards]},
    }


def _type(plan: Plan, shards: list[Shard]) -> str:
    by_rows = len({(shard.row_begin, shard.row_end) for shard in shards}) > 1
    by_columns = len({_columns(plan, shard) for shard in shards}) > 1
    if by_rows and by_columns:
        return "grid_shard"
    return "row_wise" if by_rows else "column_wise" if by_columns else "table_wise"


def _metadata(plan: Plan, shard: Shard) -> dict[str, Any]:
    begin, end = _columns(plan, shard)
    return {
        "shard_sizes": [shard.rows, end - begin],
        "shard_offsets": [shard.row_begin, begin],
        "placement": f"rank:{shard.server}/cpu",
    }


def _columns(plan: Plan, shard: Shard) -> tuple[int, int]:
    return shard.span(plan.model.table[shard.table])


def shards_csv(plan: Plan) -> str:
    """Return the shards, one a line, with the machine that holds each and its bytes (optimizer state included)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for shard in plan.shards:
        node = plan.servers[shard.server].name
        rows = (shard.row_begin, shard.row_end)
        writer.writerow(
            [shard.table, shard.server, node, *rows, *_columns(plan, shard), shard.bytes(plan.model.table[shard.table])]
        )
    return text.getvalue()


def placement_map(plan: Plan) -> dict[str, Any]:
    """Return who does what, for a job that starts one process per machine.

    Returns
    -------
    dict
        ``world_size``; ``ranks``: for each machine its rank, name, host, roles, operators and shards; ``process_groups``:
        ranks that reduce DP gradients with each other, embedding servers, sync servers; and the settings of the run.
    """
    machines = _machines(plan)
    rank = {name: number for number, name in enumerate(machines)}
    groups = {f"group{g}": [rank[node.name] for node in group] for g, group in enumerate(plan.groups)}
    return {
        "world_size": len(machines),
        "batch": plan.batch,
        "threads_per_rank": plan.hogwild,
        "process_groups": {
            **groups,
            "embedding_servers": [rank[node.name] for node in plan.servers],
            "sync_servers": [rank[node.name] for node in plan.sync_servers],
        },
        "ranks": [_rank(plan, node, rank[name]) for name, node in machines.items()],
    }


def _machines(plan: Plan) -> dict[str, Node]:
    nodes = (*(node for group in plan.groups for node in group), *plan.servers, *plan.sync_servers)
    return {node.name: node for node in nodes}


def _rank(plan: Plan, node: Node, rank: int) -> dict[str, Any]:
    place = next(
        ((g, n) for g, group in enumerate(plan.groups) for n, member in enumerate(group) if member == node), None
    )
    server = next((s for s, member in enumerate(plan.servers) if member == node), None)
    roles = {
        "trainer": place is not None,
        "embedding_server": server is not None,
        "sync_server": node in plan.sync_servers,
    }
    return {
        "rank": rank,
        "node": node.name,
        "host": node.host,
        "roles": [role for role, has in roles.items() if has],
        "group": None if place is None else place[0],
        "operators": _operators(plan, place),
        "shards": [
            {"table": shard.table, "rows": [shard.row_begin, shard.row_end], "columns": list(_columns(plan, shard))}
            for shard in plan.shards
            if shard.server == server and shard.rows
        ],
    }


def _operators(plan: Plan, place: tuple[int, int] | None) -> list[str]:
    """Return the operators that a machine computes: DP ones on ranks, its own MP ones."""
    if place is None:
        return []
    is_rank = place[1] < plan.ranks
    return [name for name, tag in plan.tags.items() if (tag == DP and is_rank) or tag == place[1]]
