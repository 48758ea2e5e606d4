"""The net transformation: operator graph + plan -> one program for each place of a session.

Knows the rules by which a cut graph is stitched together with Send and Recv; knows nothing of time or of arithmetic.
The rules, each from the dossier on net transformation (Caffe2's ``insertCopies`` and ``AsyncNetBarrier``):

1. A tensor is sent once to each place that consumes it, right after it was produced; it is received right before its
   first use, so that transfers run under other work. Pooled features with the same consumers (and codec) are one message
   to a node, so are their gradients.
2. The gradient of a Recv is a Send and the reverse: each consuming place adds the parts of its own consumers, then
   sends one gradient back. The producer adds its own parts first, then those of the other places, in the order in which
   the backward pass reaches them (:func:`summation_order` tells the oracle the same order).
3. Requests to the embedding servers leave first, each with all ids of its tables or (``cost_models.routing``) those of the
   rows that are there; pooled rows are received when the first consumer needs them; the
   gradient for a server leaves as soon as that of its last feature is complete. One message each per server. A server
   gets and gives only the columns that it holds; the rank puts the parts of a pooled tensor together.
4. DP gradients are all-reduced over the ranks, then every parameter is updated where it lives.
5. With several groups, each node that holds parameters exchanges them with the sync servers, or averages them with the same
   node of the other groups, in the foreground (thread 0) or by a shadow worker (``programs.exchanges``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from placement.codecs import ALL_REDUCE, POOLED, PUSH
from placement.plan import DP, Plan
from placement.tables.shares import Part, parts_of
from problem.graph import Graph, Kind, Operator
from programs.exchanges import exchanges, parameter_bytes
from programs.instructions import (
    AllReduce,
    Average,
    Compute,
    Instruction,
    Lookup,
    Metric,
    NextBatch,
    Place,
    Program,
    Recv,
    Reduce,
    Role,
    Send,
    SyncStep,
    Update,
)
from programs.wire import gradients_of, message_bytes, request_of, route, strip_name


@dataclass(frozen=True)
class Session:
    """Programs of one session: the rank's place first, then other nodes, then servers, each in order of index."""

    rank: int
    programs: tuple[Program, ...]


@dataclass(frozen=True)
class JobPrograms:
    """All programs of a job: sessions are the same in every group and for every Hogwild thread.

    Parameters
    ----------
    plan : Plan
        What was transformed.
    sessions : tuple of Session
        One per rank.
    shadows : Mapping of int to SyncStep or Average
        By node of a group, the exchange it takes part in; empty with one group.
    """

    plan: Plan
    sessions: tuple[Session, ...]
    shadows: Mapping[int, SyncStep | Average] = field(default_factory=dict)


def transform(plan: Plan) -> JobPrograms:
    """Turn a plan into programs.

    Parameters
    ----------
    plan : Plan
        A valid plan (its constructor checks it).

    Returns
    -------
    JobPrograms
        One session per rank, and the exchanges between groups.
    """
    sessions = tuple(_SessionBuilder(plan, rank).build() for rank in range(plan.ranks))
    return JobPrograms(plan, sessions, exchanges(plan) if len(plan.groups) > 1 else {})


def backward_order(graph: Graph) -> tuple[Operator, ...]:
    """Return the operators in the order of the backward pass: reverse graph order, LOOKUPs as soon as they can be."""
    order: list[Operator] = []
    waiting = {op.name: len(graph.consumers[op.name]) for op in graph if op.kind is Kind.LOOKUP}
    for op in reversed(graph.operators):
        if op.kind is Kind.LOOKUP:
            continue
        order.append(op)
        for source in dict.fromkeys(op.inputs):
            if source in waiting:
                waiting[source] -= 1
                if not waiting[source]:
                    order.append(graph[source])
    return tuple(order)


def summation_order(plan: Plan, rank: int) -> dict[str, tuple[tuple[str, ...], ...]]:
    """For each tensor that has a gradient, its consumers by place: each group is summed, then the sums one after the other.

    The group of the producer's own place comes first, the others in the order in which the backward pass reaches them.
    """
    graph, visited = plan.model.graph, {op.name: i for i, op in enumerate(backward_order(plan.model.graph))}
    groups: dict[str, tuple[tuple[str, ...], ...]] = {}
    for op in (op for op in graph if graph.needs_gradient[op.name]):
        by_place: dict[Place, list[str]] = defaultdict(list)
        home = _home(plan, rank, op)
        by_place[home] = []
        for consumer in sorted(graph.consumers[op.name], key=visited.__getitem__):
            by_place[_home(plan, rank, graph[consumer])].append(consumer)
        groups[op.name] = tuple(tuple(names) for names in by_place.values() if names)
    return groups


def _home(plan: Plan, rank: int, op: Operator) -> Place:
    """Place of an operator in a session: MP operators on the rank's own node run in the rank's thread."""
    tag = DP if op.kind is Kind.LOOKUP else plan.tags[op.name]
    return Place(Role.RANK, rank) if tag in (DP, rank) else Place(Role.NODE, int(tag))


class _SessionBuilder:
    """Builds the programs of one rank's session, walking the graph forward, then backward."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.plan, self.graph, self.rank = plan, plan.model.graph, Place(Role.RANK, rank)
        self.code: dict[Place, list[Instruction]] = defaultdict(list)
        self.home = {op.name: _home(plan, rank, op) for op in self.graph}
        self.groups = summation_order(plan, rank)
        self.servers = [Place(Role.SERVER, p) for p in range(len(plan.servers)) if plan.server_shards(p)]
        self.pooled: set[Place] = set()  # servers whose answer the rank has received
        self.present: set[tuple[Place, str]] = set()  # tensors sent to a place and received there
        self.sent: set[str] = set()  # channels of forward tensors that have their Send
        self.parts: dict[tuple[str, Place], list[str]] = defaultdict(list)
        self.ready: Counter[tuple[str, Place]] = Counter()  # complete gradients of a bundle, by its first tensor
        self.pieces = parts_of(plan.model, plan.shards)
        self.bundles: dict[str, tuple[str, ...]] = {}
        self.features = {server: self._pools(server) for server in self.servers}

    def build(self) -> Session:
        self.code[self.rank].append(NextBatch())
        for server in self.servers:
            self._request(server)
        for op in self.graph:
            if op.kind is not Kind.LOOKUP:
                self._forward(op)
        pending = {server: len(self.features[server]) for server in self.servers}
        for op in backward_order(self.graph):
            if op.kind is Kind.LOOKUP:
                self._push(op, pending)
            elif op.kind is not Kind.DENSE_INPUT:
                self._backward(op)
        self._updates()
        return Session(self.rank.index, self._programs())

    # ---- messages

    def _message(self, source: Place, target: Place, label: str, tensors: tuple[str, ...], codec: str = "") -> None:
        channel, size = f"{source}>{target}:{label}", message_bytes(self.plan, tensors, codec)
        self.code[source].append(Send(channel, target, tensors, size, codec))
        self.code[target].append(Recv(channel, source, tensors, size, codec))

    def _bundle(self, op: str) -> tuple[str, ...]:
        """Operators whose outputs, and whose gradients, travel in one message with those of ``op``."""
        if op not in self.bundles:
            codec = self.plan.codec(op)
            self.bundles[op] = tuple(name for name in self.graph.message_of(op) if self.plan.codec(name) == codec)
        return self.bundles[op]

    def _send(self, source: Place, target: Place, op: str, tensors: tuple[str, ...]) -> Send:
        """Send of the outputs of an operator's bundle, or of their gradients; the channel has the name of the first."""
        first, codec = self._bundle(op)[0], self.plan.codec(op)
        label = first if tensors[0] == first else f"d.{first}"
        return Send(f"{source}>{target}:{label}", target, tensors, message_bytes(self.plan, tensors, codec), codec)

    def _receive(self, source: Place, target: Place, op: str, tensors: tuple[str, ...]) -> Recv:
        """Recv of the message that :meth:`_send` sends from ``source`` to ``target``."""
        send = self._send(source, target, op, tensors)
        return Recv(send.channel, source, send.tensors, send.bytes, send.codec)

    def _gradients(self, op: str, place: Place) -> tuple[str, ...]:
        """Names of the gradients of an operator's bundle that come from the consumers at a place."""
        whole = len(self.groups[op]) == 1
        return tuple(f"d.{name}" if whole else f"d.{name}@{place}" for name in self._bundle(op))

    def _bytes(self, name: str) -> int:
        return self.plan.batch * self.graph[name].output_bytes_per_sample

    # ---- embeddings

    def _pools(self, server: Place) -> list[str]:
        """Features that a server pools for, each once, in the order of its shards."""
        tables = dict.fromkeys(shard.table for shard in self.plan.server_shards(server.index))
        return [feature.name for table in tables for feature in self.plan.model.readers[table]]

    def _pooled(self, feature: str, part: Part) -> str:
        """Name of a part of a feature's pooled tensor: of the tensor itself, if it is the only part."""
        table = self.plan.model.feature[feature]
        if len(self.pieces[table.storage]) == 1:
            return feature
        (begin, end), server = part
        strip = feature if end - begin == table.dim else strip_name(feature, (begin, end))
        return f"{strip}@{Place(Role.SERVER, server)}"

    def _parts(self, feature: str, server: Place | None = None) -> tuple[str, ...]:
        """Names of the parts of a feature's pooled tensor, all of them or those of a server, in order."""
        found = self.pieces[self.plan.model.feature[feature].storage]
        return tuple(self._pooled(feature, part) for part in found if server is None or part[1] == server.index)

    def _request(self, server: Place) -> None:
        plan, features = self.plan, self.features[server]
        requests = tuple(name for feature in features for name in request_of(plan.model.feature[feature]))
        self._message(self.rank, server, "ids", requests, route(plan, server.index))
        reads = [
            (index, self._pooled(feature.name, (shard.span(feature), shard.server)))
            for index, shard in enumerate(plan.shards)
            for feature in (plan.model.readers[shard.table] if shard.server == server.index and shard.rows else ())
        ]
        self.code[server].append(Lookup(tuple(i for i, _ in reads), tuple(output for _, output in reads)))

    def _fetch_pooled(self, feature: str) -> None:
        """Receive a feature's pooled rows on the rank, from every server that holds some."""
        holders = [server for server in self.servers if feature in self.features[server]]
        for server in holders:
            if server not in self.pooled:
                self.pooled.add(server)
                parts = tuple(part for name in self.features[server] for part in self._parts(name, server))
                self._message(server, self.rank, "pooled", parts, self.plan.codec(POOLED))
        parts = self._parts(feature)
        if len(parts) > 1:
            self.code[self.rank].append(Reduce(feature, parts, self._bytes(feature)))

    def _push(self, op: Operator, pending: dict[Place, int]) -> None:
        """Complete the gradient of a feature's output; send it off with those of the same server."""
        self._complete(op)
        for server in self.servers:
            if op.name in self.features[server]:
                pending[server] -= 1
                if not pending[server]:
                    shards = self.plan.server_shards(server.index)
                    gradients = dict.fromkeys(name for shard in shards for name in gradients_of(self.plan, shard))
                    self._message(self.rank, server, "grads", tuple(gradients), self.plan.codec(PUSH))

    # ---- forward and backward

    def _forward(self, op: Operator) -> None:
        place = self.home[op.name]
        for source in dict.fromkeys(op.inputs):
            self._bring(source, place)
        self.code[place].append(Compute(op.name, "forward"))
        for consumer in self.graph.consumers[op.name]:
            self._deliver(op.name, self.home[consumer])

    def _bring(self, source: str, place: Place) -> None:
        """Make a tensor present at a place, right before its use."""
        home, bundle = self.home[source], self._bundle(source)
        if self.graph[source].kind is Kind.LOOKUP:
            for name in bundle if place != home else (source,):
                if (home, name) not in self.present:
                    self.present.add((home, name))
                    self._fetch_pooled(name)
            self._deliver(source, place)
        if (place, bundle[0]) not in self.present and place != home:
            self.present.add((place, bundle[0]))
            self.code[place].append(self._receive(home, place, source, bundle))

    def _deliver(self, name: str, place: Place) -> None:
        """Send a tensor, with its bundle, to a place that consumes it, once."""
        home = self.home[name]
        send = self._send(home, place, name, self._bundle(name))
        if place != home and send.channel not in self.sent:
            self.sent.add(send.channel)
            self.code[home].append(send)

    def _backward(self, op: Operator) -> None:
        place = self.home[op.name]
        if not self.graph.needs_gradient[op.name]:
            return
        self._complete(op)
        sources = tuple(dict.fromkeys(op.inputs))
        outputs = tuple(self._part(source, op.name) for source in sources)
        self.code[place].append(Compute(op.name, "backward", outputs))
        for source, part in zip(sources, outputs, strict=True):
            if part:
                self._collect(source, place, part)

    def _part(self, source: str, consumer: str) -> str:
        """Name of the gradient of ``source`` that ``consumer`` produces: the whole one if it is the only part."""
        if not self.graph.needs_gradient[source]:
            return ""
        groups = self.groups[source]
        group = next(g for g in groups if consumer in g)
        if len(group) > 1:
            return f"d.{source} <- {consumer}"
        return f"d.{source}" if len(groups) == 1 else f"d.{source}@{self.home[consumer]}"

    def _collect(self, source: str, place: Place, part: str) -> None:
        """Note a part; when a place's last consumer has produced its own, add them up and send them home."""
        parts, home = self.parts[source, place], self.home[source]
        parts.append(part)
        group = next(g for g in self.groups[source] if self.home[g[0]] == place)
        if len(parts) < len(group):
            return
        bundle, gradients = self._bundle(source), self._gradients(source, place)
        if len(parts) > 1:
            name = gradients[bundle.index(source)]
            self.code[place].append(Reduce(name, tuple(parts), self._bytes(source)))
        self.ready[bundle[0], place] += 1
        if place != home and self.ready[bundle[0], place] == len(bundle):
            self.code[place].append(self._send(place, home, source, gradients))

    def _complete(self, op: Operator) -> None:
        """At an operator's home: receive the other places' gradients and add everything up."""
        home, groups, bundle = self.home[op.name], self.groups[op.name], self._bundle(op.name)
        names = []
        for group in groups:
            place = self.home[group[0]]
            gradients = self._gradients(op.name, place)
            names.append(gradients[bundle.index(op.name)])
            if place != home and (home, gradients[0]) not in self.present:
                self.present.add((home, gradients[0]))
                self.code[home].append(self._receive(place, home, op.name, gradients))
        if len(names) > 1:
            self.code[home].append(Reduce(f"d.{op.name}", tuple(names), self._bytes(op.name)))

    # ---- updates

    def _updates(self) -> None:
        plan, rank = self.plan, self.rank.index
        ordered = plan.synchronous and plan.ranks > 1
        own = self.code[self.rank]
        if plan.dp_ops:
            if plan.ranks > 1:
                own.append(AllReduce(plan.dp_ops, parameter_bytes(plan, plan.dp_ops), plan.codec(ALL_REDUCE)))
            own.append(Update(plan.dp_ops))
        for node in range(plan.group_size):
            if plan.mp_ops(node):
                place = self.rank if node == rank else Place(Role.NODE, node)
                self.code[place].append(Update(plan.mp_ops(node), ordered=ordered))
        for server in self.servers:
            lookup = next(i for i in self.code[server] if isinstance(i, Lookup))
            self.code[server].append(Update(shards=tuple(dict.fromkeys(lookup.shards)), ordered=ordered))
        own.append(Metric())

    def _programs(self) -> tuple[Program, ...]:
        rest = sorted(place for place in self.code if place != self.rank)
        return tuple(Program(place, tuple(self.code[place])) for place in (self.rank, *rest))
