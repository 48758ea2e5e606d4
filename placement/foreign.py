"""A placement that another tool decided becomes a plan of ours, so that it can be simulated beside ours.

The tool's devices are machines that train and hold tables at once, as TorchRec's ranks do: with nodes of any role, the
first ``devices`` of them form one group, data-parallel throughout, and are the embedding servers too. With nodes that only
serve, those hold the tables and the trainers form the group. One thread a rank, the model's batch, no compression.
"""

from __future__ import annotations

from placement.errors import InvalidPlan
from placement.plan import DP, Plan, Shard
from problem.cluster import Cluster, Node
from problem.errors import BadInput
from problem.formats.placement import PlacedShard, Placement
from problem.graph import Kind
from problem.model import EmbeddingTable, Model


def plan_of_placement(placement: Placement, model: Model, cluster: Cluster, source: str) -> Plan:
    """Return the plan that a placement stands for.

    Parameters
    ----------
    placement : Placement
        Where the tables are.
    model : Model
        What is trained. Tables are matched by name, or by order where no name matches.
    cluster : Cluster
        Machines.
    source : str
        File of the placement, for messages.

    Raises
    ------
    BadInput
        When the cluster has too few machines, or model and placement have other tables.
    InvalidPlan
        When the shards do not tile every table.
    """
    servers, trainers = _machines(placement, cluster, source)
    names = _names(placement, model, source)
    shards = tuple(_shard(shard, model.table[names[shard.table]]) for shard in placement.shards)
    tags = {op.name: DP for op in model.graph if op.kind is not Kind.LOOKUP}
    try:
        return Plan(
            model=model,
            groups=(trainers,),
            servers=servers,
            batch=model.batch,
            tags=tags,
            shards=shards,
            ranks=len(trainers),
            name=placement.name,
        )
    except InvalidPlan as error:
        raise InvalidPlan(f"{source}: {error}") from None


def _machines(placement: Placement, cluster: Cluster, source: str) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Return embedding servers and trainers."""
    dedicated = [node for node in cluster.nodes if node.may_serve and not node.may_train]
    candidates = dedicated or [node for node in cluster.nodes if node.may_serve]
    if len(candidates) < placement.devices:
        allowed = f"at least {placement.devices}, the devices of the placement"
        raise BadInput(source, "machines that serve", len(candidates), allowed)
    servers = tuple(candidates[: placement.devices])
    return servers, tuple(node for node in cluster.nodes if node.may_train) if dedicated else servers


def _names(placement: Placement, model: Model, source: str) -> dict[str, str]:
    """Return the model's name of each table of the placement."""
    placed = list(dict.fromkeys(shard.table for shard in placement.shards))
    ours = [table.name for table in model.tables]
    if set(placed) == set(ours):
        return {name: name for name in placed}
    if set(placed) & set(ours) or len(placed) != len(ours):
        missing = sorted(set(ours) ^ set(placed))
        raise BadInput(source, "tables", ", ".join(missing[:3]), f"the {len(ours)} tables of model {model.name}")
    return dict(zip(placed, ours, strict=True))


def _shard(placed: PlacedShard, table: EmbeddingTable) -> Shard:
    whole = placed.columns in {None, (0, table.dim)}
    return Shard(table.name, placed.device, *(placed.rows or (0, table.rows)), None if whole else placed.columns)
