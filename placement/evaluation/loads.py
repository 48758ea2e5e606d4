"""Loads of one step: what each machine does, sends, receives and holds while every rank finishes one batch.

Counts session by session, straight from the rules of the net transformation (design.md section 5), without any of the
solver's variables. Core-seconds are kept by part (the parts of a timeline), so that a difference between prediction and
measurement can be blamed. Knows nothing of critical paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cost_models.costs import PhaseCost
from cost_models.memory import in_flight_bytes, parameter_bytes, resident_bytes
from cost_models.network import Reduction, Wire, on_one_host
from placement.evaluation.averages import AverageCost
from placement.evaluation.group import GroupProblem, ServerLink
from placement.plan import DP, Tag
from problem.graph import FLOAT_BYTES, Kind, Operator

#: Parts that core-seconds are booked under; the same words as in a timeline.
PARTS = ("compute", "embedding", "message", "allreduce", "update", "sync", "other")


@dataclass
class Tally:
    """Running sums by machine, unscaled: core-seconds of the cost table, bytes, messages, bytes held."""

    problem: GroupProblem

    def __post_init__(self) -> None:
        count = len(self.problem.machines)
        self.index = {node.name: i for i, node in enumerate(self.problem.machines)}
        self.core = {part: [0.0] * count for part in PARTS}
        self.traffic, self.tx, self.rx = [0.0] * count, [0.0] * count, [0.0] * count
        self.messages, self.memory = [0.0] * count, [0.0] * count

    def work(self, at: int, part: str, cost: PhaseCost, times: float = 1.0) -> None:
        """Book core-seconds and memory traffic."""
        self.core[part][at] += times * cost.core_seconds
        self.traffic[at] += times * cost.traffic_bytes

    def message(self, source: int, target: int, wire: Wire, part: str = "message", times: float = 1.0) -> None:
        """Book messages: core-seconds at both ends, bytes on both NICs unless the hosts are one."""
        machines, cost = self.problem.machines, self.problem.costs.message
        self.core[part][source] += times * wire.sending(cost)
        self.core[part][target] += times * wire.receiving(cost)
        self.messages[source] += times
        self.messages[target] += times
        if not on_one_host(machines[source], machines[target]):
            self.tx[source] += times * wire.bytes
            self.rx[target] += times * wire.bytes

    def spread(self, source: int, targets: list[int], times: float) -> None:
        """Give ``targets`` and ``source`` an equal share of what ``source`` collected for ``times`` of them."""
        for sums in (*self.core.values(), self.traffic, self.tx, self.rx, self.messages, self.memory):
            for target in (*targets, source):
                sums[target] = sums[source] / times if target == source else sums[target] + sums[source] / times


def tally(problem: GroupProblem, tags: Mapping[str, Tag]) -> Tally:
    """Count everything that one step of the group loads.

    Parameters
    ----------
    problem : GroupProblem
        The group.
    tags : Mapping of str to Tag
        Tag of every operator but the LOOKUPs.
    """
    total = Tally(problem)
    for rank, times, twins in session_classes(problem, tags):
        _add_session(total, tags, rank, times)
        if twins:
            total.spread(rank, twins, times)
    _add_mp_copies(total, tags)
    _add_all_reduce(total, tags)
    _add_rank_state(total, tags)
    _add_servers(total)
    _add_sync(total, tags)
    return total


def fixed_tally(problem: GroupProblem) -> Tally:
    """Count only what does not depend on tags: ranks without their operators, and the embedding servers."""
    total = Tally(problem)
    for rank in range(problem.ranks):
        _add_fixed(total, rank, 1)
    _add_servers(total)
    return total


def server_seconds(fixed: Tally) -> float:
    """Seconds per step of the busiest resource of any embedding server, which no tag changes."""
    problem, longest = fixed.problem, 0.0
    for at in range(problem.size, len(problem.machines)):
        node, core = problem.machines[at], sum(part[at] for part in fixed.core.values())
        cores = core * problem.costs.slowdown(node) / node.cores
        nic = max(fixed.tx[at], fixed.rx[at])
        longest = max(
            longest,
            cores,
            fixed.traffic[at] / node.memory_bandwidth_bytes_per_second,
            nic / node.nic_bytes_per_second if nic else 0.0,
        )
    return longest


def session_classes(problem: GroupProblem, tags: Mapping[str, Tag]) -> Iterator[tuple[int, int, list[int]]]:
    """Yield ranks that stand for a class of equal sessions: (rank, size of the class, the other ranks of it).

    Ranks without MP operators have equal sessions, unless some nodes share a host or are embedding servers.
    """
    hosting = {tag for tag in tags.values() if tag != DP}
    plain = [rank for rank in range(problem.ranks) if rank not in hosting and problem.ranks_alike]
    if plain:
        yield plain[0], len(plain), plain[1:]
    yield from ((rank, 1, []) for rank in range(problem.ranks) if rank not in plain)


def home(op: Operator, tags: Mapping[str, Tag], rank: int) -> int:
    """Return the node that runs an operator for a rank's sessions; LOOKUP outputs live on the rank."""
    tag = DP if op.kind is Kind.LOOKUP else tags[op.name]
    return rank if tag == DP else int(tag)


def runs_backward(problem: GroupProblem, op: Operator) -> bool:
    """Whether an operator has a backward computation of its own: LOOKUPs pass their gradient on to the servers."""
    return op.kind not in {Kind.LOOKUP, Kind.DENSE_INPUT} and problem.model.graph.needs_gradient[op.name]


def session_memory(problem: GroupProblem, op: Operator) -> int:
    """Bytes that one session holds for an operator where it runs, gradients of its inputs included."""
    if op.kind is Kind.FIXED:
        return 0
    graph = problem.model.graph
    gradients = sum(problem.bytes_of(name) for name in dict.fromkeys(op.inputs) if graph.needs_gradient[name])
    return in_flight_bytes(op, problem.batch) + gradients


def _add_session(total: Tally, tags: Mapping[str, Tag], rank: int, times: int) -> None:
    problem, costs = total.problem, total.problem.costs
    for op in problem.model.graph:
        at = home(op, tags, rank)
        if op.kind is not Kind.LOOKUP:
            total.work(at, "compute", costs.ops[op.name].forward, times)
            if runs_backward(problem, op):
                total.work(at, "compute", costs.ops[op.name].backward, times)
            if op.parameters:
                total.work(at, "update", costs.ops[op.name].update, times)
            total.memory[at] += times * problem.hogwild * session_memory(problem, op)
        _add_tensor(total, tags, op, rank, times)
    _add_fixed(total, rank, times)


def _add_fixed(total: Tally, rank: int, times: int) -> None:
    """Book what a rank's session does whatever the tags: take a batch, pull and push embeddings, record the loss."""
    problem, costs = total.problem, total.problem.costs
    total.core["other"][rank] += times * (costs.next_batch_seconds + costs.metric_seconds)
    total.memory[rank] += times * problem.hogwild * problem.ids_bytes
    for link in problem.servers:
        _add_pull(total, link, rank, times)
    for feature, passes in problem.split_tables.items():
        total.core["compute"][rank] += times * passes * costs.summing(problem.bytes_of(feature))
        total.memory[rank] += times * problem.hogwild * problem.bytes_of(feature)


def _add_tensor(total: Tally, tags: Mapping[str, Tag], op: Operator, rank: int, times: int) -> None:
    """Book the messages of a tensor and of its gradient, and the additions of partial gradients.

    Tensors that travel together are one message, which is booked with the first of them.
    """
    problem, graph, size = total.problem, total.problem.model.graph, total.problem.bytes_of(op.name)
    source, gradient = home(op, tags, rank), graph.needs_gradient[op.name]
    first = problem.wires.bundle(op.name)[0] == op.name and problem.wires.message(op.name, gradient=False).bytes
    users: dict[int, int] = {source: 0}
    for consumer in graph.consumers[op.name]:
        place = home(graph[consumer], tags, rank)
        users[place] = users.get(place, 0) + 1
    for place, count in users.items():
        if place != source:
            if first:
                total.message(source, place, problem.wires.message(op.name, gradient=False), times=times)
            total.memory[place] += times * problem.hogwild * size
            if gradient:
                if first:
                    total.message(place, source, problem.wires.message(op.name, gradient=True), times=times)
                total.memory[source] += times * problem.hogwild * size
        if gradient:
            local = count - 1 if place != source else max(0, count + len(users) - 2)
            total.core["compute"][place] += times * local * problem.costs.summing(size)
            total.memory[place] += times * problem.hogwild * local * size


def _add_pull(total: Tally, link: ServerLink, rank: int, times: int) -> None:
    """Book one session's traffic with an embedding server, and the memory of what the rank receives."""
    problem, server = total.problem, total.index[link.node.name]
    for source, target, wire in (
        (rank, server, link.request),
        (server, rank, problem.wires.pooled(link)),
        (rank, server, problem.wires.push(link)),
    ):
        total.message(source, target, wire, "embedding", times)
    total.memory[rank] += times * problem.hogwild * link.pooled_bytes


def _add_mp_copies(total: Tally, tags: Mapping[str, Tag]) -> None:
    """Book the one copy of parameters and state of each MP operator."""
    for op in total.problem.model.graph:
        tag = tags.get(op.name, DP)
        if tag != DP:
            total.memory[int(tag)] += resident_bytes(op, total.problem.model)


def dp_operators(problem: GroupProblem, tags: Mapping[str, Tag]) -> list[Operator]:
    """Return the DP operators with parameters."""
    return [op for op in problem.model.graph if op.parameters and tags.get(op.name) == DP]


def dp_parameters(problem: GroupProblem, tags: Mapping[str, Tag]) -> Wire:
    """Return the parameters of the DP operators as a message, a tensor each."""
    held = dp_operators(problem, tags)
    return Wire(sum(op.parameters for op in held) * FLOAT_BYTES, tensors=len(held))


def reduction_of(problem: GroupProblem, tags: Mapping[str, Tag]) -> Reduction | None:
    """Return the all-reduce of the DP operators; None with one rank or without parameters."""
    held = dp_operators(problem, tags)
    if problem.ranks == 1 or not held:
        return None
    return sum((problem.wires.reduced(op, problem.ranks) for op in held), problem.wires.empty_reduction())


def _add_all_reduce(total: Tally, tags: Mapping[str, Tag]) -> None:
    problem, ranks, size = total.problem, total.problem.ranks, dp_parameters(total.problem, tags).bytes
    reduction = reduction_of(problem, tags)
    if reduction is None:
        return
    count = reduction.messages(ranks)
    busy = reduction.thread_seconds(problem.costs, ranks)
    hosts = [node.host for node in problem.nodes[:ranks]]
    for rank in range(ranks):
        total.core["allreduce"][rank] += busy
        total.messages[rank] += 2 * count
        abroad = reduction.sent * (ranks - hosts.count(hosts[rank])) / (ranks - 1)
        total.tx[rank] += abroad
        total.rx[rank] += abroad
        total.memory[rank] += problem.hogwild * size


def _add_rank_state(total: Tally, tags: Mapping[str, Tag]) -> None:
    """Book each rank's own copy of the DP operators."""
    problem = total.problem
    held = sum(resident_bytes(op, problem.model) for op in problem.model.graph if tags.get(op.name) == DP)
    for rank in range(problem.ranks):
        total.memory[rank] += held


def _add_servers(total: Tally) -> None:
    """Book the work of the servers: the messages of the other groups, lookups and updates of all groups, rows."""
    problem = total.problem
    for link in problem.servers:
        at, batches = total.index[link.node.name], problem.groups * problem.ranks
        for sums in (total.core["embedding"], total.tx, total.rx, total.messages):
            if at >= problem.size:
                sums[at] *= problem.groups
        total.work(at, "embedding", link.lookup + link.update, batches)
        total.memory[at] += link.resident_bytes + problem.groups * problem.sessions * link.session_bytes


def _add_sync(total: Tally, tags: Mapping[str, Tag]) -> None:
    """Book the exchanges with the sync servers, spread over the steps between two of them."""
    problem = total.problem
    if problem.groups == 1 or problem.sync is None:
        return
    often = 1.0 / problem.steps_per_exchange
    if problem.average is not None:
        _add_average(total, tags, problem.average, often)
        return
    for node, exchanges in enumerate(exchanges_of(problem, tags)):
        for server, exchange in enumerate(exchanges):
            if exchange.bytes:
                _add_exchange(total, node, total.index[problem.sync_servers[server].name], exchange, often)
    forward = dp_parameters(problem, tags)
    for rank in range(1, problem.ranks if forward.bytes else 1):
        total.message(0, rank, forward, "sync", often)
        total.core["sync"][rank] += often * problem.costs.sum_seconds_per_byte * forward.bytes
    for op, server in problem.sync_server_of.items():
        at = total.index[problem.sync_servers[server].name]
        total.memory[at] += problem.model.graph[op].parameters * FLOAT_BYTES


def _add_average(total: Tally, tags: Mapping[str, Tag], cost: AverageCost, often: float) -> None:
    """Book the averages of all groups, spread likewise."""
    problem, passed = total.problem, cost.passed_on
    for node, size in enumerate(averaged_bytes(problem, tags)):
        if size:
            total.core["sync"][node] += often * cost.ring.seconds(size)
            total.messages[node] += often * cost.ring.messages
            there, back = problem.abroad(node)
            total.tx[node] += there * often * cost.ring.sent_per_byte * size
            total.rx[node] += back * often * cost.ring.sent_per_byte * size
            total.memory[node] += cost.ring.held_per_byte * size
    shared = dp_parameters(problem, tags).bytes
    hosts = [node.host for node in problem.nodes[: problem.ranks]]
    for rank in range(problem.ranks if shared and problem.ranks > 1 else 0):
        outside = (problem.ranks - hosts.count(hosts[rank])) / (problem.ranks - 1)
        total.core["sync"][rank] += often * passed.seconds(shared)
        total.messages[rank] += often * passed.messages
        total.tx[rank] += outside * often * passed.sent_per_byte * shared
        total.rx[rank] += outside * often * passed.sent_per_byte * shared


def averaged_bytes(problem: GroupProblem, tags: Mapping[str, Tag]) -> list[float]:
    """Return the bytes that each node averages with the other groups: its MP operators, and 1 / R of the DP operators."""
    part = dp_parameters(problem, tags).bytes / problem.ranks
    found = [part if node < problem.ranks else 0.0 for node in range(problem.size)]
    for op in problem.model.graph:
        if op.parameters and tags[op.name] != DP:
            found[int(tags[op.name])] += parameter_bytes(op)
    return found


def _add_exchange(total: Tally, node: int, server: int, exchange: Exchange, often: float) -> None:
    """Book one node's exchange with one sync server; the server answers the same node of every group."""
    problem, moved = total.problem, total.problem.costs.exchange_seconds_per_byte * exchange.bytes
    alone = Tally(problem)
    alone.message(node, server, exchange.request, "sync", often)
    alone.message(server, node, exchange.answer, "sync", often)
    for at, times in ((node, 1), (server, problem.groups)):
        total.core["sync"][at] += times * (alone.core["sync"][at] + often * moved)
        total.tx[at] += times * alone.tx[at]
        total.rx[at] += times * alone.rx[at]
        total.messages[at] += times * alone.messages[at]


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a node exchanges with a sync server: the request, the answer, and the bytes of the parameters as they are."""

    request: Wire
    answer: Wire
    bytes: int


def exchanges_of(problem: GroupProblem, tags: Mapping[str, Tag]) -> list[list[Exchange]]:
    """Return what each node exchanges with each sync server; node 0 stands for the DP operators."""
    found, wires = [[Exchange(Wire(), Wire(), 0) for _ in problem.sync_servers] for _ in problem.nodes], problem.wires
    for name, server in problem.sync_server_of.items():
        op, tag = problem.model.graph[name], tags[name]
        at = found[0 if tag == DP else int(tag)]
        request, answer = at[server].request + wires.pushed(op), at[server].answer + wires.answered(op)
        at[server] = Exchange(request, answer, at[server].bytes + parameter_bytes(op))
    return found
