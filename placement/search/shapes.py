"""Shapes of a job: which machines train, in groups of which size, and which serve.

A shape is (group size, embedding servers, sync servers, and for equal tables how much they are cut). Knows nothing of
time; ``bounds`` gives each shape a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from cost_models.costs import CostTable
from placement.errors import ConstraintsConflict
from placement.plan import DP
from placement.search.options import SolveOptions
from placement.tables.table_rules import NO_RULES, TableRules, check_count
from problem.cluster import Cluster, Node
from problem.model import Model

Side = Literal["both", "fewer", "more"]


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
        Lower bound of the step of any of its groups; of unlike groups, of the harmonic mean of their steps.
    per_server : float or None
        Equal tables only: tables' work that a server may take, which decides how many of them are cut.
    side : str
        Which other values of ``per_server`` remain to be looked at: ``both``, ``fewer`` or ``more`` cuts.
    refined : bool
        Whether ``bound_seconds`` counts the cuts of tables; for any kind of machines, what there is of each kind.
    composed : bool
        Whether it stands for these machines; if not, for as many of any kind.
    mixed : bool
        Whether its groups are unlike each other.
    bounded : bool
        Whether ``bound_seconds`` is more than the work of all operators on the cores of all trainers.
    """

    group_size: int
    groups: tuple[tuple[Node, ...], ...]
    servers: tuple[Node, ...]
    sync_servers: tuple[Node, ...]
    ranks: int
    bound_seconds: float = 0.0
    per_server: float | None = None
    side: Side = "both"
    refined: bool = False
    composed: bool = True
    mixed: bool = False
    bounded: bool = True

    @property
    def form(self) -> tuple[int, int]:
        """Nodes and ranks per group."""
        return self.group_size, self.ranks

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


class Order(Protocol):
    """An order of machines that an earlier plan suggests."""

    def trainers(self, nodes: Sequence[Node]) -> list[Node]:
        """Return machines in the order in which they join groups."""

    def hosts(self, nodes: Sequence[Node]) -> list[Node]:
        """Return machines in the order in which they become servers."""

    def form(self, size: int) -> tuple[int, int] | None:
        """Return ranks a group and number of groups that are to be tried as well for groups of a size."""


class Shapes:
    """Enumerates shapes.

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
    rules : TableRules
        What the user demands of tables.
    order : Order, optional
        An earlier plan, whose machines keep their roles where they can.
    """

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        costs: CostTable,
        options: SolveOptions,
        batch: int,
        hogwild: int,
        rules: TableRules = NO_RULES,
        order: Order | None = None,
    ) -> None:
        self.rules = rules
        self.model, self.options, self.batch, self.hogwild = model, options, batch, hogwild
        nodes = usable(cluster)
        speed = {node.name: node.cores / costs.slowdown(node) for node in nodes}
        trainers, spare = [n for n in nodes if n.may_train], [n for n in reversed(nodes) if n.may_serve]
        hosts = sorted(spare, key=lambda n: (n.role != "server", speed[n.name]))
        self.order = order
        if order is not None:
            trainers, hosts = order.trainers(trainers), order.hosts(hosts)
        self.trainers, self.hosts = sorted(trainers, key=lambda n: -speed[n.name]), hosts

    def all(self) -> list[Shape]:
        """Return all shapes.

        Raises
        ------
        ConstraintsConflict
            When the options leave no shape, or the rules of tables need more servers than there are.
        """
        most = self.options.servers or max(len(self.hosts), sum(node.may_serve for node in self.trainers))
        check_count(self.rules, most)
        found = [shape for servers in self._server_counts() for shape in self._with_servers(servers)]
        found = found or [shape for servers in self._server_counts() for shape in self._shared(servers)]
        if not found:
            wanted = {
                k: getattr(self.options, k) for k in ("group_size", "ranks", "max_elp", "servers", "sync_servers")
            }
            wanted |= {"a pin to node": self._highest_pin or None}
            named = ", ".join(
                f"{name.replace('_', ' ')} {value}" for name, value in wanted.items() if value is not None
            )
            raise ConstraintsConflict(
                f"no group can be had ({named or 'of any size'}): {len(self.trainers)} machines may train, "
                f"{len(self.hosts)} may serve, and a rank has {self.batch * self.hogwild:,} samples in flight",
                (),
            )
        return found

    def _server_counts(self) -> Iterator[int]:
        if not self.model.tables:
            yield 0
        elif self.options.servers is not None:
            yield self.options.servers
        else:
            fewest = self.rules.fewest_servers
            yield from range(fewest, max(fewest + 1, len(self.hosts) + 1))

    def _with_servers(self, servers: int) -> Iterator[Shape]:
        """Shapes with a number of embedding servers."""
        chosen = tuple(self.hosts[:servers])
        if len(chosen) < servers:
            return
        needed = sum(table.total_bytes for table in self.model.tables)
        if needed > sum(node.memory_bytes for node in chosen) and servers < len(self.hosts):
            return
        for syncs in self._sync_counts():
            sync = tuple(self.hosts[servers : servers + syncs])
            taken = {node.name for node in (*chosen, *sync)}
            if len(sync) == syncs:
                yield from self._with_sync(chosen, sync, [n for n in self.trainers if n.name not in taken])

    def _shared(self, servers: int) -> Iterator[Shape]:
        """Shapes in which trainers serve as well: where there are too few machines for both."""
        chosen = tuple(node for node in self.trainers if node.may_serve)[:servers]
        if len(chosen) == servers:
            yield from self._with_sync(chosen, (), self.trainers)

    def _sync_counts(self) -> tuple[int, ...]:
        """No sync server (one group, or a ring), or as many as asked for, or a few: more are tried only where one binds."""
        if self.options.sync_servers is not None:
            return (0, self.options.sync_servers) if self.options.sync_servers else (0,)
        if self.options.ring:
            return (0,)
        most = sum(1 for op in self.model.graph if op.parameters)
        return tuple(n for n in (0, 1, 2, 4) if n <= max(1, most))

    def _with_sync(self, servers: tuple[Node, ...], sync: tuple[Node, ...], trainers: list[Node]) -> Iterator[Shape]:
        for size in self._sizes(len(trainers)):
            for ranks, groups in self._forms(size, len(trainers), one=not (sync or self.options.ring)):
                if groups >= (2 if sync else 1):
                    members = tuple(tuple(trainers[g * size : (g + 1) * size]) for g in range(groups))
                    yield Shape(size, members, servers, sync, ranks)

    def _forms(self, size: int, trainers: int, *, one: bool) -> dict[tuple[int, int], None]:
        """Ranks and numbers of groups for a group size: as many groups as there may be, and as in the earlier plan."""

        def most(ranks: int) -> int:
            return min(trainers // size, 1 if one else self.options.most_groups, self._most_groups(ranks))

        found = [(ranks, most(ranks)) for ranks in self.options.ranks_of(size)]
        kept = self.order.form(size) if self.order else None
        if kept is not None:
            ranks = min(size, self.options.fixed_ranks or kept[0])
            found.append((ranks, min(most(ranks), kept[1])))
        return dict.fromkeys(found)

    @property
    def _highest_pin(self) -> int:
        return max((int(tag) for tag in self.options.pins.values() if tag != DP), default=0)

    def _sizes(self, trainers: int) -> Iterator[int]:
        for size in (self.options.group_size,) if self.options.group_size else range(1, trainers + 1):
            if self._highest_pin < size <= trainers and (self.options.fixed_ranks or 1) <= size:
                yield size

    def _most_groups(self, ranks: int) -> int:
        if self.options.max_elp is None:
            return len(self.trainers)
        return self.options.max_elp // (self.batch * self.hogwild * ranks)
