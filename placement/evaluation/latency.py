"""The critical path: how long one session takes for one step when it has the machines to itself.

A session's rank thread, its serving copies and its copies on the embedding servers each run their program in order and
wait only for messages. The order is that of the net transformation: requests to the servers first, operators in graph
order, a tensor sent as soon as it exists and received before its first use, the backward pass in reverse, gradients of
tables pushed as soon as those of a server are complete, then all-reduce, updates and metric. Two steps are played, and
what the slowest clock gains in the second counts: it starts while the copies still apply the updates of the first, and
a copy takes up an operator again only after it has updated it.

This is a max-plus recursion without queues: the network is free, only the pooled rows that arrive at the rank pass its
NIC one after another. Contention is bounded by the loads (``loads``) and simulated elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.costs import PhaseCost
from cost_models.network import Wire, all_reduce_seconds, latency_seconds, occupancy_seconds, wire_seconds
from placement.evaluation.averages import AverageCost
from placement.evaluation.group import GroupProblem, ServerLink
from placement.evaluation.loads import (
    averaged_bytes,
    dp_parameters,
    exchanges_of,
    home,
    reduction_of,
    runs_backward,
    session_classes,
)
from placement.plan import DP, Tag
from problem.graph import Kind, Operator


def latency(problem: GroupProblem, tags: Mapping[str, Tag]) -> float:
    """Return the seconds of one step of the slowest session of a group, without contention."""
    slowest = max(session_seconds(problem, tags, rank) for rank in representative_ranks(problem, tags))
    return slowest + stall_seconds(problem, tags)


def representative_ranks(problem: GroupProblem, tags: Mapping[str, Tag]) -> tuple[int, ...]:
    """Return one rank of each class of equal sessions on equal machines, in order."""
    found: dict[object, int] = {}
    for rank, _, twins in session_classes(problem, tags):
        for other in (rank, *twins):
            node = problem.nodes[other]
            kind = (problem.slowdown[other], node.nic_bytes_per_second, node.latency_seconds)
            found.setdefault((kind, None if twins else other, _server_hosts(problem, other)), other)
    return tuple(sorted(found.values()))


def _server_hosts(problem: GroupProblem, rank: int) -> tuple[bool, ...]:
    return tuple(problem.nodes[rank].host == link.node.host for link in problem.servers)


def session_seconds(problem: GroupProblem, tags: Mapping[str, Tag], rank: int) -> float:
    """Return the seconds of one step of a rank's session in the steady state: what the slowest clock gains in a step."""
    session = Session(problem, tags, rank)
    session.step()
    before = [*session.nodes, *session.servers]
    session.step()
    after = [*session.nodes, *session.servers]
    return max(late - early for early, late in zip(before, after, strict=True))


def pull_times(problem: GroupProblem, rank: int) -> tuple[float, dict[str, float]]:
    """Return when a rank's thread has sent its requests, and when each table's pooled rows can be there.

    Seconds from the start of a step in an idle system, the messages received, so no step is faster.
    """
    session = Session(problem, {op.name: DP for op in problem.model.graph}, rank)
    start = session.begin()
    ready: dict[str, float] = {}
    for table in session.waiting:
        pooled, session.nodes[rank] = dict(session.pooled), start
        session.fetch(table)
        ready[table], session.pooled = session.nodes[rank], pooled
    return start, ready


def stall_seconds(problem: GroupProblem, tags: Mapping[str, Tag]) -> float:
    """Return what foreground synchronisation adds to a step, averaged over threads: thread 0 stops every gap steps."""
    if problem.sync is None or problem.groups == 1 or problem.sync.mode != "foreground":
        return 0.0
    if problem.average is not None:
        return _average_seconds(problem, tags, problem.average) / problem.steps_per_exchange
    costs, longest = problem.costs, 0.0
    together = problem.groups if problem.sync.averages else 1  # requests that a server answers at once
    for node, exchanges in enumerate(exchanges_of(problem, tags)):
        seconds = 0.0
        for server, exchange in zip(problem.sync_servers, exchanges, strict=True):
            if size := exchange.bytes:
                there, back, moved = exchange.request, exchange.answer, costs.exchange_seconds_per_byte * size
                mine = there.sending(costs.message) + back.receiving(costs.message) + moved
                its = there.receiving(costs.message) + back.sending(costs.message) + moved
                seconds += problem.slowdown[node] * mine + together * costs.slowdown(server) * its
                seconds += sum(wire_seconds(problem.nodes[node], server, one) for one in (there.bytes, back.bytes))
        longest = max(longest, seconds)
    return longest / problem.steps_per_exchange


def _average_seconds(problem: GroupProblem, tags: Mapping[str, Tag], cost: AverageCost) -> float:
    """Return the seconds of an average of the slowest node: 2 (G - 1) chunks in a row, then what ranks pass on."""
    ranks, shared, longest = problem.ranks, dp_parameters(problem, tags).bytes, 0.0
    for index, size in enumerate(averaged_bytes(problem, tags)):
        node, passes = problem.nodes[index], index < ranks and ranks > 1 and shared
        core = cost.ring.seconds(size) + (cost.passed_on.seconds(shared) if passes else 0.0)
        seconds = problem.slowdown[index] * core
        if size and any(problem.abroad(index)):
            chunk = size / problem.groups
            seconds += 2 * (problem.groups - 1) * (node.latency_seconds + chunk / node.nic_bytes_per_second)
        if passes and not problem.one_host:
            sent = cost.passed_on.sent_per_byte * shared
            seconds += node.latency_seconds + sent / node.nic_bytes_per_second
        longest = max(longest, seconds)
    return longest


class Session:
    """Clocks of the places of one session.

    Parameters
    ----------
    problem : GroupProblem
        The group.
    tags : Mapping of str to Tag
        Tag of every operator but the LOOKUPs.
    rank : int
        Whose session it is.
    """

    def __init__(self, problem: GroupProblem, tags: Mapping[str, Tag], rank: int) -> None:
        self.problem, self.tags, self.rank = problem, tags, rank
        self.graph, self.costs = problem.model.graph, problem.costs
        self.nodes = [0.0] * problem.size
        self.servers = [0.0] * len(problem.servers)
        self.home = {op.name: home(op, tags, rank) for op in self.graph}
        self.users = {op.name: self._users(op) for op in self.graph}
        self.links, self.wires = problem.links_of, problem.wires
        self.reduction = reduction_of(problem, tags)

    def _users(self, op: Operator) -> dict[int, int]:
        """Consumers by node."""
        found: dict[int, int] = {}
        for consumer in self.graph.consumers[op.name]:
            found[self.home[consumer]] = found.get(self.home[consumer], 0) + 1
        return found

    def begin(self) -> float:
        """Take a batch and ask the servers; return when the rank thread has done so."""
        self.arrived: dict[tuple[str, int], float] = {}  # (tensor or its gradient, node) -> arrival, until received
        self.parts: dict[tuple[str, int], int] = {}
        self.fetched: set[str] = set()
        self.pooled: dict[int, float] = {}
        self.pending = [len(link.tables) for link in self.problem.servers]
        self.waiting = {op.name: len(self.graph.consumers[op.name]) for op in self.graph if op.kind is Kind.LOOKUP}
        self.nodes = [max(clock, self.nodes[self.rank]) for clock in self.nodes]  # no copy runs ahead of its rank
        self._spend(self.rank, self.costs.next_batch_seconds)
        self._request()
        return self.nodes[self.rank]

    def step(self) -> float:
        """Play one step; return when the rank thread is done."""
        self.begin()
        for op in self.graph:
            if op.kind is not Kind.LOOKUP:
                self._forward(op)
        for op in reversed(self.graph.operators):
            if op.kind is not Kind.LOOKUP:
                self._backward(op)
                self._push_ready(op)
        self._update()
        return self.nodes[self.rank]

    def _spend(self, node: int, seconds: float) -> None:
        self.nodes[node] += seconds * self.problem.slowdown[node]

    def _post(self, channel: str, wire: Wire, source: int, target: int) -> None:
        """Send a tensor (or a gradient) to another node of the group."""
        self._spend(source, wire.sending(self.costs.message))
        seconds = wire_seconds(self.problem.nodes[source], self.problem.nodes[target], wire.bytes)
        self.arrived[channel, target] = self.nodes[source] + seconds

    def _take(self, channel: str, wire: Wire, node: int) -> None:
        """Receive a tensor, unless it is there already."""
        arrival = self.arrived.pop((channel, node), None)
        if arrival is not None:
            self.nodes[node] = max(self.nodes[node], arrival)
            self._spend(node, wire.receiving(self.costs.message))

    # ---- embedding servers

    def _request(self) -> None:
        """Send the ids, let the servers pool, and note when the pooled rows reach the rank, whose NIC takes turns."""
        me, free = self.problem.nodes[self.rank], 0.0
        for number, link in enumerate(self.problem.servers):
            self._spend(self.rank, link.request.sending(self.costs.message))
            self._serve(number, link, self.nodes[self.rank], link.request, link.lookup)
            slow, pooled = self.costs.slowdown(link.node), self.wires.pooled(link)
            self.servers[number] += slow * pooled.sending(self.costs.message)
            free = max(free, self.servers[number]) + occupancy_seconds(link.node, me, pooled.bytes)
            self.pooled[number] = free + latency_seconds(link.node, me)

    def _serve(self, number: int, link: ServerLink, sent: float, wire: Wire, work: PhaseCost) -> None:
        arrival = sent + wire_seconds(self.problem.nodes[self.rank], link.node, wire.bytes)
        seconds = wire.receiving(self.costs.message) + work.core_seconds
        self.servers[number] = max(self.servers[number], arrival) + seconds * self.costs.slowdown(link.node)

    def fetch(self, table: str) -> None:
        """Receive on the rank the messages that hold a table's pooled rows, and add the parts of a split table."""
        self.fetched.add(table)
        for number in self.links.get(table, ()):
            if number in self.pooled:
                self.nodes[self.rank] = max(self.nodes[self.rank], self.pooled.pop(number))
                pooled = self.wires.pooled(self.problem.servers[number])
                self._spend(self.rank, pooled.receiving(self.costs.message))
        passes = self.problem.split_tables.get(table, 0.0)
        self._spend(self.rank, passes * self.costs.summing(self.problem.bytes_of(table)))

    def _push_ready(self, op: Operator) -> None:
        """Push the gradients of tables whose last consumer was ``op``, once those of a server are complete."""
        for table in dict.fromkeys(op.inputs):
            if table not in self.waiting:
                continue
            self.waiting[table] -= 1
            if not self.waiting[table]:
                self._complete(table)
                for number in self.links.get(table, ()):
                    self._push(number, self.problem.servers[number])

    def _push(self, number: int, link: ServerLink) -> None:
        self.pending[number] -= 1
        if not self.pending[number]:
            wire = self.wires.push(link)
            self._spend(self.rank, wire.sending(self.costs.message))
            self._serve(number, link, self.nodes[self.rank], wire, link.update)

    # ---- operators

    def _forward(self, op: Operator) -> None:
        place = self.home[op.name]
        for source in dict.fromkeys(op.inputs):
            if self.graph[source].kind is Kind.LOOKUP:
                self._bring(source, place)
            self._take(self._first(source), self.wires.message(source, gradient=False), place)
        self._spend(place, self.costs.ops[op.name].forward.core_seconds)
        for target in self.users[op.name]:
            if target != place:
                self._post(op.name, self.wires.message(op.name, gradient=False), place, target)

    def _first(self, name: str) -> str:
        """Name that stands for all tensors that travel in one message."""
        return self.wires.bundle(name)[0]

    def _bring(self, table: str, place: int) -> None:
        """Fetch pooled rows on the rank, and send them on, with those that travel together, to another node once."""
        if (self._first(table), place) in self.parts:
            return
        for name in self.wires.bundle(table) if place != self.rank else (table,):
            if name not in self.fetched:
                self.fetch(name)
        first = self._first(table)
        if place != self.rank:
            self.parts[first, place] = 0
            self._post(first, self.wires.message(table, gradient=False), self.rank, place)

    def _complete(self, name: str) -> None:
        """At a tensor's home: receive the gradients from other nodes, and add everything up."""
        at = self.home[name]
        remote = [node for node in self.users[name] if node != at]
        for node in remote:
            self._take(f"d.{self._first(name)}@{node}", self.wires.message(name, gradient=True), at)
        groups = len(self.users[name])
        if groups > 1:
            self._spend(at, (groups - 1) * self.costs.summing(self.problem.bytes_of(name)))

    def _backward(self, op: Operator) -> None:
        if not runs_backward(self.problem, op):
            return
        place = self.home[op.name]
        self._complete(op.name)
        self._spend(place, self.costs.ops[op.name].backward.core_seconds)
        for source in dict.fromkeys(op.inputs):
            if self.graph.needs_gradient[source]:
                self._collect(source, place)

    def _collect(self, source: str, place: int) -> None:
        """Count a part of a gradient; with the last one of this node add them up and send the sum home."""
        key, all_parts = (f"d.{source}", place), self.users[source][place]
        self.parts[key] = self.parts.get(key, 0) + 1
        if self.parts[key] < all_parts:
            return
        self._spend(place, (all_parts - 1) * self.costs.summing(self.problem.bytes_of(source)))
        first = self._first(source)
        done = self.parts[f"done {first}", place] = self.parts.get((f"done {first}", place), 0) + 1
        if place != self.home[source] and done == len(self.wires.bundle(source)):
            self._post(f"d.{first}@{place}", self.wires.message(source, gradient=True), place, self.home[source])

    def _update(self) -> None:
        problem, ranks = self.problem, self.problem.nodes[: self.problem.ranks]
        others = (ranks[self.rank], *(node for i, node in enumerate(ranks) if i != self.rank))
        if self.reduction is not None:
            slow = problem.slowdown[self.rank]
            self.nodes[self.rank] += all_reduce_seconds(self.costs, self.reduction, others, slow)
        for op in self.graph:
            if op.parameters and op.kind is not Kind.LOOKUP:
                at = self.rank if self.tags[op.name] == DP else int(self.tags[op.name])
                self._spend(at, self.costs.ops[op.name].update.core_seconds)
        self._spend(self.rank, self.costs.metric_seconds)
