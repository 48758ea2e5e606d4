"""How groups are kept together: the exchange of each node of a group, with sync servers or with the other groups.

With sync servers, node 0 exchanges all DP operators and passes the difference on to the other ranks; MP operators are
exchanged by the node that holds them. Operators are divided over the servers by size, largest first.

Without (``Plan.ring``), each node averages with its counterparts in the other groups. The S bytes of the DP operators are
then cut into one part a rank: R ranks send 2 (G - 1) / G of S / R each and pass (R - 1) / R of S on, where a leader alone
would send 2 (G - 1) / G of S and R - 1 times S (and if every rank averaged all of S, copies of a group would drift apart).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from placement.codecs import EXCHANGE
from placement.plan import Plan
from problem.graph import FLOAT_BYTES
from programs.collectives import ring_chunk, slices
from programs.instructions import Average, Piece, SyncStep
from programs.wire import exchanged_messages


def exchanges(plan: Plan) -> dict[int, SyncStep] | dict[int, Average]:
    """Return, by node of a group, the exchange that it takes part in; nodes without parameters have none."""
    return _averages(plan) if plan.ring else _with_servers(plan)


def parameter_bytes(plan: Plan, names: Iterable[str]) -> int:
    """Bytes of the parameters of some operators."""
    return sum(plan.model.graph[name].parameters for name in names) * FLOAT_BYTES


def sync_server_of(plan: Plan) -> dict[str, int]:
    """Sync server that holds the centre of each operator: largest operators first, to the least loaded server."""
    load = [0] * len(plan.sync_servers)
    chosen: dict[str, int] = {}
    with_parameters = [op for op in plan.model.graph if op.parameters]
    for op in sorted(with_parameters, key=lambda op: -op.parameters):
        server = load.index(min(load))
        load[server] += op.parameters
        chosen[op.name] = server
    return chosen


def _with_servers(plan: Plan) -> dict[int, SyncStep]:
    """Node 0 leads for the DP operators, the other ranks follow."""
    dp_bytes, followers = parameter_bytes(plan, plan.dp_ops), tuple(range(1, plan.ranks))
    steps: dict[int, SyncStep] = {}
    codec = plan.codec(EXCHANGE)
    for node in range(plan.group_size):
        own = (plan.dp_ops if node == 0 else ()) + plan.mp_ops(node)
        leads, follows = node == 0 and bool(plan.dp_ops and followers), node in followers and bool(plan.dp_ops)
        if own or follows:
            exchange = _by_server(plan, own)
            coded = [exchanged_messages(plan, names) for names in exchange] if codec else []
            steps[node] = SyncStep(
                exchange=exchange,
                exchange_bytes=tuple(parameter_bytes(plan, names) for names in exchange),
                forward=plan.dp_ops if leads else (),
                forward_bytes=dp_bytes if leads else 0,
                followers=followers if leads else (),
                follow=plan.dp_ops if follows else (),
                follow_bytes=dp_bytes if follows else 0,
                codec=codec,
                pushed_bytes=tuple(sum(there.bytes for there, _ in messages) for messages in coded),
                answered_bytes=tuple(sum(back.bytes for _, back in messages) for messages in coded),
            )
    return steps


def _by_server(plan: Plan, names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    chosen = sync_server_of(plan)
    return tuple(tuple(n for n in names if chosen[n] == s) for s in range(len(plan.sync_servers)))


def _averages(plan: Plan) -> dict[int, Average]:
    parts = [tuple(_cut(plan, begin, end)) for begin, end in _parts(plan)]
    found = {}
    for node in range(plan.group_size):
        shared, own = parts[node] if node < plan.ranks else (), _whole(plan, plan.mp_ops(node))
        peers = tuple(rank for rank in range(plan.ranks) if rank != node) if node < plan.ranks and plan.dp_ops else ()
        if shared or own or peers:
            elements = _elements((*shared, *own))
            found[node] = Average(
                pieces=(*shared, *own),
                bytes=elements * FLOAT_BYTES,
                chunk_bytes=ring_chunk(elements, len(plan.groups)) * FLOAT_BYTES,
                shared=shared if peers else (),
                shared_bytes=_elements(shared) * FLOAT_BYTES if peers else 0,
                peers=peers,
                taken=tuple(parts[rank] for rank in peers),
                taken_bytes=tuple(_elements(parts[rank]) * FLOAT_BYTES for rank in peers),
            )
    return found


def _elements(pieces: Iterable[Piece]) -> int:
    return sum(piece.elements for piece in pieces)


def _whole(plan: Plan, names: Iterable[str]) -> tuple[Piece, ...]:
    return tuple(Piece(name, 0, plan.model.graph[name].parameters) for name in names)


def _parts(plan: Plan) -> list[tuple[int, int]]:
    """Elements, begin and end, of all DP parameters in a row that each rank averages."""
    found, begin = [], 0
    for size in slices(parameter_bytes(plan, plan.dp_ops), plan.ranks):
        found.append((begin, begin + size // FLOAT_BYTES))
        begin = found[-1][1]
    return found


def _cut(plan: Plan, begin: int, end: int) -> Iterator[Piece]:
    """Pieces of the DP operators between two places of their parameters in a row."""
    start = 0
    for piece in _whole(plan, plan.dp_ops):
        first, last = max(begin, start), min(end, start + piece.end)
        if first < last:
            yield Piece(piece.op, first - start, last - start)
        start += piece.end
