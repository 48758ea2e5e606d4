"""Shapes of a job: which machines train, in groups of which size, and which serve; with a quick bound for each.

A shape is (group size, embedding servers, sync servers). Its bound is a relaxation without any placement: work spread
perfectly over the group's cores, what every rank must do itself, the embedding traffic, the servers, and the longest
path of the graph. No placement of that shape is faster, so a shape whose bound is below a plan in hand is never solved.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from cost_models.costs import CostTable, PhaseCost
from cost_models.memory import ids_bytes, pooled_bytes
from placement.cuts import candidates, cut_count, fewest_cuts
from placement.group import GroupProblem, ServerLink
from placement.loads import fixed_tally, runs_backward
from placement.nets import RANK, Contracted
from placement.plan import DP, Sync, Tag
from placement.sharding import Sharding
from problem.cluster import Cluster, Node
from problem.errors import BadInput
from problem.model import Model

#: Threads per core unless told otherwise: enough to hide waiting. ShadowSync (Zheng et al., arXiv 2003.03477) ran 24
#: Hogwild threads on 20 cores.
THREADS_PER_CORE = 1.2
#: Replicas unless told otherwise: the commonest number of trainers of a job (Acun et al., HPCA 2021, figure 9).
MAX_REPLICAS = 15
#: Elastic rate times the number of groups (Zhang, Choromanska, LeCun, NIPS 2015: beta = p alpha = 0.9).
EASGD_BETA = 0.9


@dataclass(frozen=True)
class SolveOptions:
    """What the user decides.

    Parameters
    ----------
    batch, hogwild : int or None
        Samples per thread and step (None: the model's); threads per rank (None: 1.2 per core).
    ranks : int or None
        Ranks per group (None: all nodes).
    group_size : int or None
        Only this group size (None: all).
    max_replicas : int
        Most groups.
    max_elp : int or None
        Most samples in flight: batch * hogwild * ranks * groups.
    servers, sync_servers : int or None
        Number of embedding and of sync servers (None: chosen).
    pins : Mapping of str to Tag
        Tags of operators, components or patterns.
    sync_mode, sync_gap : str, int
        How several groups are kept together; elastic rate 0.9 / groups.
    time_limit_seconds : float
        Wall time of the whole search.
    gap : float
        Relative gap of the whole search that is good enough.
    seed : int
        Of the solver and of the plan.
    synchronous : bool
        Deterministic mode of the plan; needs ``hogwild`` 1.
    """

    batch: int | None = None
    hogwild: int | None = None
    ranks: int | None = None
    group_size: int | None = None
    max_replicas: int = MAX_REPLICAS
    max_elp: int | None = None
    servers: int | None = None
    sync_servers: int | None = None
    pins: Mapping[str, Tag] = field(default_factory=dict)
    sync_mode: Literal["background", "foreground"] = "background"
    sync_gap: int = 8
    time_limit_seconds: float = 60.0
    gap: float = 0.005
    seed: int = 0
    synchronous: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """One way to use the cluster.

    Parameters
    ----------
    group_size : int
        Nodes per group.
    groups, servers, sync_servers : tuples of Node
        The machines.
    ranks : int
        Ranks per group.
    bound_seconds : float
        Lower bound of the step of any of its groups.
    per_server : float or None
        Equal tables only, once refined: tables' work on a server that balances servers and ranks.
    refined : bool
        Whether ``bound_seconds`` counts the cuts of tables.
    """

    group_size: int
    groups: tuple[tuple[Node, ...], ...]
    servers: tuple[Node, ...]
    sync_servers: tuple[Node, ...]
    ranks: int
    bound_seconds: float = 0.0
    per_server: float | None = None
    refined: bool = False

    @property
    def machines(self) -> int:
        """Machines in use."""
        return self.group_size * len(self.groups) + len(self.servers) + len(self.sync_servers)


def usable(cluster: Cluster) -> tuple[Node, ...]:
    """Return the machines that can do anything; one without cores, memory or (on several hosts) a NIC cannot."""

    def works(node: Node) -> bool:
        speed = min(node.cores, node.flops_per_core_second, node.memory_bandwidth_bytes_per_second, node.memory_bytes)
        return speed > 0 and (cluster.is_local or node.nic_bytes_per_second > 0)

    return tuple(node for node in cluster.nodes if works(node))


class Shapes:
    """Enumerates shapes with their bounds.

    Parameters
    ----------
    model : Model
        What is trained.
    cluster : Cluster
        On what.
    costs : CostTable
        Costs for the batch.
    options : SolveOptions
        What the user decided; ``pins`` by operator already.
    batch, hogwild : int
        Samples per thread, threads per rank.
    """

    def __init__(
        self, model: Model, cluster: Cluster, costs: CostTable, options: SolveOptions, batch: int, hogwild: int
    ) -> None:
        self.model, self.costs, self.options, self.batch, self.hogwild = model, costs, options, batch, hogwild
        self.local = cluster.is_local
        nodes = usable(cluster)
        speed = {node.name: node.cores / costs.slowdown(node) for node in nodes}
        self.trainers = sorted((n for n in nodes if n.may_train), key=lambda n: -speed[n.name])
        spare = [n for n in reversed(nodes) if n.may_serve]
        self.hosts = sorted(spare, key=lambda n: (n.role != "server", speed[n.name]))
        self.server_bound: dict[int, float] = {}
        self._work = self._total_work()

    def all(self) -> list[Shape]:
        """Return all shapes, most promising first; of equally good ones the one with fewest machines.

        Raises
        ------
        BadInput
            When the options leave no shape.
        """
        found = [shape for servers in self._server_counts() for shape in self._with_servers(servers)]
        if not found:
            wanted = {
                k: getattr(self.options, k) for k in ("group_size", "ranks", "max_elp", "servers", "sync_servers")
            }
            allowed = (
                f"values that leave trainers: {len(self.trainers)} machines may train, {len(self.hosts)} may serve"
            )
            raise BadInput("options", "shape", {k: v for k, v in wanted.items() if v is not None}, allowed)
        return sorted(found, key=self.order)

    def order(self, shape: Shape) -> tuple[float, int, int]:
        """Sort key of shapes: most promising first, then fewest machines, then smallest groups."""
        return -self.rate(shape), shape.machines, shape.group_size

    def rate(self, shape: Shape) -> float:
        """Samples per second that a shape cannot exceed."""
        samples = len(shape.groups) * shape.ranks * self.batch
        return samples / shape.bound_seconds if shape.bound_seconds else float("inf")

    def _server_counts(self) -> Iterator[int]:
        if not self.model.tables:
            yield 0
        elif self.options.servers is not None:
            yield self.options.servers
        else:
            yield from range(1, max(2, len(self.hosts) + 1))

    def _with_servers(self, servers: int) -> Iterator[Shape]:
        """Shapes with a number of embedding servers."""
        chosen = tuple(self.hosts[:servers])
        if len(chosen) < servers:
            return
        needed = sum(table.total_bytes for table in self.model.tables)
        if needed > sum(node.memory_bytes for node in chosen) and servers < len(self.hosts):
            return
        if len(self.trainers) == 1 and chosen == tuple(self.trainers):  # one machine: it trains and serves
            yield from self._with_sync(chosen, (), self.trainers)
            return
        for syncs in self._sync_counts():
            sync = tuple(self.hosts[servers : servers + syncs])
            taken = {node.name for node in (*chosen, *sync)}
            if len(sync) == syncs:
                yield from self._with_sync(chosen, sync, [n for n in self.trainers if n.name not in taken])

    def _sync_counts(self) -> tuple[int, ...]:
        """No sync server (one group), or as many as asked for, or a few: more are tried only where one binds."""
        if self.options.sync_servers is not None:
            return (0, self.options.sync_servers) if self.options.sync_servers else (0,)
        most = sum(1 for op in self.model.graph if op.parameters)
        return tuple(n for n in (0, 1, 2, 4) if n <= max(1, most))

    def _with_sync(self, servers: tuple[Node, ...], sync: tuple[Node, ...], trainers: list[Node]) -> Iterator[Shape]:
        for size in self._sizes(len(trainers)):
            ranks = min(size, self.options.ranks or size)
            groups = min(len(trainers) // size, self.options.max_replicas, self._most_groups(ranks))
            groups = min(groups, 1) if not sync else groups
            if groups < 1 or (sync and groups < 2):
                continue
            members = tuple(tuple(trainers[g * size : (g + 1) * size]) for g in range(groups))
            shape = Shape(size, members, servers, sync, ranks)
            yield self._bounded(shape)

    def _sizes(self, trainers: int) -> Iterator[int]:
        highest = max((tag for tag in self.options.pins.values() if tag != DP), default=0)
        for size in (self.options.group_size,) if self.options.group_size else range(1, trainers + 1):
            if int(highest) < size <= trainers and (self.options.ranks or 1) <= size:
                yield size

    def _most_groups(self, ranks: int) -> int:
        if self.options.max_elp is None:
            return len(self.trainers)
        return self.options.max_elp // (self.batch * self.hogwild * ranks)

    # ---- bounds

    def _total_work(self) -> tuple[PhaseCost, PhaseCost, float]:
        """One batch's work of all operators, of those that stay with the rank, and the longest path in core-seconds."""
        empty = GroupProblem(self.model, self.costs, tuple(self.trainers[:1]), self.batch, pins=self.options.pins)
        data = Contracted(empty)
        total = sum((work.work for work in data.work), PhaseCost())
        stay = [w.work for item, w in zip(data.items, data.work, strict=True) if data.item_of[item.ops[0]] == RANK]
        return total, sum(stay, PhaseCost()), self._longest_path(empty)

    def _longest_path(self, problem: GroupProblem) -> float:
        longest: dict[str, float] = {}
        for op in self.model.graph:
            cost = self.costs.ops.get(op.name)
            back = cost.backward.core_seconds if cost and runs_backward(problem, op) else 0.0
            own = cost.forward.core_seconds + back if cost else 0.0
            longest[op.name] = own + max((longest[name] for name in op.inputs), default=0.0)
        return max(longest.values(), default=0.0) + self.costs.next_batch_seconds + self.costs.metric_seconds

    def _bounded(self, shape: Shape) -> Shape:
        return replace(shape, bound_seconds=max(self._server_seconds(shape), self._group_seconds(shape)))

    def refine(self, shape: Shape) -> Shape:
        """Count what cutting tables costs, where all are equal: less work on a server means more shards for the ranks."""
        tables, count = self.model.tables, len(shape.servers)
        if not tables or len({replace(table, name="") for table in tables}) > 1 or self._shares_machine(shape):
            return replace(shape, refined=True)
        values = candidates(len(tables), count)
        first = bisect_left(values, True, key=lambda v: self._served(shape, v) >= self._pulled(shape, v))
        best = min(
            values[max(0, first - 1) : first + 1], key=lambda v: max(self._served(shape, v), self._pulled(shape, v))
        )
        seconds = max(shape.bound_seconds, self._served(shape, best), self._pulled(shape, best))
        return replace(shape, bound_seconds=seconds, per_server=best, refined=True)

    def _served(self, shape: Shape, per_server: float) -> float:
        """Step of a server that does the work of ``per_server`` equal tables, if it is the fastest one."""
        cost = self.costs.tables[self.model.tables[0].name]
        work = cost.lookup + cost.update
        one = min(
            max(
                work.core_seconds * self.costs.slowdown(node) / node.cores,
                work.traffic_bytes / node.memory_bandwidth_bytes_per_second,
            )
            for node in shape.servers
        )
        return per_server * one * shape.ranks * len(shape.groups)

    def _pulled(self, shape: Shape, per_server: float) -> float:
        """Step of the group, and of the servers' NICs, with the fewest cuts that allow ``per_server``."""
        parts = fewest_cuts(len(self.model.tables), len(shape.servers), per_server)
        if parts is None:
            return float("inf")
        cuts, step = cut_count(parts), len(shape.groups) * shape.ranks
        table = self.model.tables[0]
        arriving = (ids_bytes(table, self.batch) + pooled_bytes(table, self.batch)) * (len(self.model.tables) + cuts)
        rate = float("inf") if self.local else sum(node.nic_bytes_per_second for node in shape.servers)
        return max(self._group_seconds(shape, cuts), step * arriving / rate)

    def _group_seconds(self, shape: Shape, cuts: int = 0) -> float:
        """Lower bound of the step of the first (fastest) group, with some more shards than tables."""
        (total, stay, path), group = self._work, shape.groups[0]
        fixed = fixed_tally(self._pull_problem(shape, cuts))
        own = sum(part[0] for part in fixed.core.values()) if not self._shares_machine(shape) else 0.0
        slow = [self.costs.slowdown(node) for node in group]
        cores = sum(node.cores / s for node, s in zip(group, slow, strict=True))
        bandwidth = sum(node.memory_bandwidth_bytes_per_second for node in group)
        least = [(own + stay.core_seconds) * s / n.cores for n, s in zip(group[: shape.ranks], slow, strict=False)]
        nic = [
            max(fixed.tx[r], fixed.rx[r]) / node.nic_bytes_per_second
            for r, node in enumerate(group[: shape.ranks])
            if fixed.tx[r] and not self._shares_machine(shape)
        ]
        return max(
            shape.ranks * (own + total.core_seconds) / cores,
            shape.ranks * total.traffic_bytes / bandwidth,
            *least,
            *nic,
            path * min(slow) / self.hogwild,
        )

    def _shares_machine(self, shape: Shape) -> bool:
        return bool({n.name for n in shape.servers} & {n.name for group in shape.groups for n in group})

    def _pull_problem(self, shape: Shape, cuts: int) -> GroupProblem:
        """The group with servers that answer for free: as many messages as servers, as many bytes as shards."""
        more = 1 + cuts / max(1, len(self.model.tables))
        ids = int(more * sum(ids_bytes(table, self.batch) for table in self.model.tables))
        pooled = int(more * sum(pooled_bytes(table, self.batch) for table in self.model.tables))
        count = max(1, min(len(shape.servers), len(self.model.tables) + cuts))
        links = tuple(
            ServerLink(node, (), ids // count, pooled // count, PhaseCost(), PhaseCost())
            for node in shape.servers[:count]
        )
        return GroupProblem(
            self.model, self.costs, shape.groups[0], self.batch, self.hogwild, shape.ranks, servers=links
        )

    def _server_seconds(self, shape: Shape) -> float:
        """Lower bound of the busiest embedding server's step."""
        count = len(shape.servers)
        if count and count not in self.server_bound:
            state = Sharding(self.model, self.batch, shape.servers, self.costs, 1, local=self.local)
            self.server_bound[count] = state.bound()
        return self.server_bound.get(count, 0.0) * len(shape.groups) * shape.ranks


def sync_of(options: SolveOptions, groups: int) -> Sync | None:
    """Return the synchronisation of a number of groups: elastic rate 0.9 / groups; None with one group."""
    if groups < 2:
        return None
    return Sync(options.sync_mode, options.sync_gap, EASGD_BETA / groups)
