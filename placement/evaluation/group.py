"""One group's placement problem: everything that the ILP and the evaluator need, and nothing that they decide.

A :class:`GroupProblem` fixes the machines, the number of ranks and threads, the batch, the embedding servers with their
shards, and the synchronisation between groups. Open is only the tag of each operator. Derived quantities that both the
evaluator and the formulation use (which server holds which centre, the byte count of a tensor) are computed here once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cost_models.costs import CostTable, PhaseCost
from cost_models.memory import pooled_bytes, shard_in_flight_bytes, tensor_bytes
from cost_models.network import Wire
from cost_models.routing import ids_bytes
from placement.evaluation.averages import AverageCost
from placement.evaluation.wires import Wires
from placement.plan import Shard, Sync, Tag
from placement.tables.requests import request_wire, routed_rows
from placement.tables.shares import shard_cost
from problem.cluster import Node
from problem.model import Model


@dataclass(frozen=True, slots=True)
class ServerLink:
    """An embedding server that holds shards, as one session sees it: messages and work of one batch.

    Parameters
    ----------
    node : Node
        The machine.
    tables : tuple of str
        Features of the tables with rows on it, in shard order.
    ids_bytes, pooled_bytes : int
        Bytes of the request (ids) and of the answer (pooled rows; the gradient has as many).
    lookup, update : PhaseCost
        Work of one batch, at the speed of the cost table.
    resident_bytes, session_bytes : int
        Memory of rows and state, and of one session's buffers.
    widths : tuple of int
        Columns of each part of the answer, a tensor each; codecs go by parts.
    requests : int
        Tensors of the request.
    choosing_seconds, taking_seconds : float
        Of a request that has the ids of the server's rows only: core-seconds at either end.
    """

    node: Node
    tables: tuple[str, ...]
    ids_bytes: int
    pooled_bytes: int
    lookup: PhaseCost
    update: PhaseCost
    resident_bytes: int = 0
    session_bytes: int = 0
    widths: tuple[int, ...] = ()
    requests: int = 0
    choosing_seconds: float = 0.0
    taking_seconds: float = 0.0

    @property
    def request(self) -> Wire:
        """The request as a message."""
        return Wire(self.ids_bytes, self.choosing_seconds, self.taking_seconds, self.requests)


@dataclass(frozen=True)
class GroupProblem:
    """The placement problem of one group.

    Parameters
    ----------
    model : Model
        What is trained.
    costs : CostTable
        Costs for ``batch`` samples; other machines scale them by ``CostTable.slowdown``.
    nodes : tuple of Node
        The K machines; the first ``ranks`` of them read data.
    batch, hogwild, ranks : int
        Samples per thread and step, Hogwild threads per rank, ranks.
    pins : Mapping of str to Tag
        Tags that the user has decided, by operator (see ``candidates.resolve_pins``).
    servers : tuple of ServerLink
        Embedding servers that hold shards.
    split_tables : Mapping of str to float
        Of each feature whose pooled tensor comes in parts, how often it is gone through to put them together
        (``shares.passes``).
    groups : int
        Groups that share the servers; each loads them equally.
    sync : Sync or None
        How groups are kept together; None with one group.
    sync_servers : tuple of Node
        Machines that hold the centre; without them averages are an all-reduce among the groups (``ring``).
    codecs : Mapping of str to str
        How messages are compressed, by edge as in a plan.
    open_codecs : Mapping of str to tuple of str
        Edges whose codec is open, with what they may take besides float32: the problem is then a relaxation of all the
        problems with one of these codecs for each (``wires``).
    forbids : Mapping of str to set of Tag
        Tags that operators may not have (see ``candidates.forbidden_tags``).
    near : tuple of (bool, bool)
        For each node, whether the same node of the next group, and that of the one before, is on its host; empty: none is.
    """

    model: Model
    costs: CostTable
    nodes: tuple[Node, ...]
    batch: int
    hogwild: int = 1
    ranks: int = 1
    pins: Mapping[str, Tag] = field(default_factory=dict)
    servers: tuple[ServerLink, ...] = ()
    split_tables: Mapping[str, float] = field(default_factory=dict)
    groups: int = 1
    sync: Sync | None = None
    sync_servers: tuple[Node, ...] = ()
    codecs: Mapping[str, str] = field(default_factory=dict)
    open_codecs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    forbids: Mapping[str, frozenset[Tag]] = field(default_factory=dict)
    near: tuple[tuple[bool, bool], ...] = ()

    @property
    def size(self) -> int:
        """Nodes of the group (K)."""
        return len(self.nodes)

    @property
    def sessions(self) -> int:
        """Sessions of the group: ranks times Hogwild threads."""
        return self.ranks * self.hogwild

    @property
    def samples_per_step(self) -> int:
        """Samples that all groups train in one step: every rank finishes one batch."""
        return self.groups * self.ranks * self.batch

    @cached_property
    def slowdown(self) -> tuple[float, ...]:
        """Core-seconds on each node per core-second of the cost table."""
        return tuple(self.costs.slowdown(node) for node in self.nodes)

    @property
    def steps_per_exchange(self) -> float:
        """Steps of the group between two exchanges of a node: a thread makes one step while its rank makes H."""
        return float(self.sync.gap * self.hogwild) if self.sync else 1.0

    @cached_property
    def average(self) -> AverageCost | None:
        """What it costs to average among the groups; None if they do not."""
        if self.groups == 1 or self.sync_servers or self.sync is None or not self.sync.averages:
            return None
        return AverageCost(self.costs, self.groups, self.ranks, self.sync)

    def abroad(self, node: int) -> tuple[bool, bool]:
        """Whether a node's average leaves by its NIC, and whether it comes by it."""
        there, back = self.near[node] if self.near else (False, False)
        return not there, not back

    @cached_property
    def sync_server_of(self) -> Mapping[str, int]:
        """Sync server of each operator with parameters: largest operator first, to the least loaded server."""
        if self.groups == 1 or not self.sync_servers:
            return {}
        load = [0] * len(self.sync_servers)
        chosen: dict[str, int] = {}
        for op in sorted((op for op in self.model.graph if op.parameters), key=lambda op: -op.parameters):
            server = load.index(min(load))
            load[server] += op.parameters
            chosen[op.name] = server
        return chosen

    @cached_property
    def one_host(self) -> bool:
        """Whether all nodes of the group are on one host: then no message inside the group touches a NIC."""
        return len({node.host for node in self.nodes}) == 1

    @cached_property
    def hosts_mixed(self) -> bool:
        """Whether some but not all nodes of the group share a host."""
        return not self.one_host and len({node.host for node in self.nodes}) < self.size

    @cached_property
    def ranks_alike(self) -> bool:
        """Whether ranks that host nothing have equal sessions: hosts are one or all distinct, and no node is a server."""
        names = {node.name for node in self.nodes}
        return not self.hosts_mixed and (self.size == 1 or not any(link.node.name in names for link in self.servers))

    @cached_property
    def links_of(self) -> Mapping[str, tuple[int, ...]]:
        """Numbers of the servers that hold rows for each feature, rising."""
        found: dict[str, list[int]] = {}
        for number, link in enumerate(self.servers):
            for table in link.tables:
                found.setdefault(table, []).append(number)
        return {table: tuple(numbers) for table, numbers in found.items()}

    @cached_property
    def wires(self) -> Wires:
        """What messages take under the codecs."""
        return Wires(self.model.graph, self.batch, self.codecs, self.open_codecs)

    @cached_property
    def ids_bytes(self) -> int:
        """Bytes of the ids of all features for one batch."""
        return sum(ids_bytes(feature, self.batch) for feature in self.model.feature.values())

    def bytes_of(self, name: str) -> int:
        """Bytes of an operator's output for one batch."""
        return self._output_bytes[name]

    @cached_property
    def _output_bytes(self) -> Mapping[str, int]:
        return {op.name: tensor_bytes(op, self.batch) for op in self.model.graph}

    @cached_property
    def machines(self) -> tuple[Node, ...]:
        """Every machine of the job that loads are booked on: the group's nodes, servers, sync servers, each once."""
        links = tuple(link.node for link in self.servers)
        found = {node.name: node for node in (*self.nodes, *links, *self.sync_servers)}
        return tuple(found.values())


def near_neighbours(groups: tuple[tuple[Node, ...], ...], group: int) -> tuple[tuple[bool, bool], ...]:
    """Return :attr:`GroupProblem.near` of a group."""
    around = groups[(group + 1) % len(groups)], groups[group - 1]
    hosts = [tuple(node.host for node in members) for members in (groups[group], *around)]
    found = tuple((here == then, here == before) for here, then, before in zip(*hosts, strict=True))
    return found if any(map(any, found)) else ()


def server_links(
    model: Model, batch: int, nodes: tuple[Node, ...], shards: tuple[Shard, ...], costs: CostTable
) -> tuple[ServerLink, ...]:
    """Return how a session sees each server that holds rows.

    Parameters
    ----------
    model : Model
        Gives the tables.
    batch : int
        Samples per batch.
    nodes : tuple of Node
        Server machines, by number.
    shards : tuple of Shard
        Parts of the tables (``shares.shard_cost`` says how much of the work each takes).
    costs : CostTable
        Costs of the job; servers of another kind scale them.
    """
    links = []
    for number, node in enumerate(nodes):
        here = [shard for shard in shards if shard.server == number and shard.rows]
        if here:
            links.append(_link(model, batch, node, here, costs))
    return tuple(links)


def _link(model: Model, batch: int, node: Node, shards: list[Shard], costs: CostTable) -> ServerLink:
    lookup, update, session = PhaseCost(), PhaseCost(), 0
    reads = [(shard, feature) for shard in shards for feature in model.readers[shard.table]]
    for shard, feature in reads:
        cost = shard_cost(costs.tables[feature.name], feature, shard)
        lookup, update = lookup + cost.lookup, update + cost.update
        session += shard_in_flight_bytes(feature, batch, shard.width(feature))
    names = tuple(dict.fromkeys(feature.name for _, feature in reads))
    parts = {(feature.name, shard.span(feature)): shard.width(feature) for shard, feature in reads}
    held = sum(shard.bytes(model.table[shard.table]) for shard in shards)
    asked = routed_rows(model, batch, shards)
    ids = sum((request_wire(model.feature[name], batch, asked.get(name)) for name in names), Wire())
    pooled = sum(pooled_bytes(model.feature[name], batch, width) for (name, _), width in parts.items())
    coding = ids.encode_seconds, ids.decode_seconds
    widths, requests = tuple(parts.values()), int(ids.tensors)
    return ServerLink(node, names, int(ids.bytes), pooled, lookup, update, held, session, widths, requests, *coding)
