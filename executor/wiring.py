"""Who is connected with whom: every channel of a job.

Derived from the programs alone, in a fixed order, and made by whatever transport the job uses. A channel is found by a
label; its two ends are worker names. Knows nothing of what the messages mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from executor.coded import coded_layouts, room
from executor.frame import Layout
from executor.pushing import pull_layout, push_layout
from executor.routing import request_rooms, routes
from executor.throttle import Nics
from executor.transport import Bell, Line, Link, Transport
from placement.plan import Plan
from problem.cluster import Node
from problem.graph import FLOAT_BYTES
from programs.collectives import slices
from programs.instructions import AllReduce, Average, Place, Send, SyncStep, Update
from programs.transform import JobPrograms
from programs.verify import tensor_bytes
from programs.workers import Worker, workers

Label = tuple[str | int, ...]
#: Sender, receiver and messages of a channel.
Ends = tuple[Worker, Worker, Layout]


@dataclass
class Wiring:
    """All workers of a job and the channels between them.

    Parameters
    ----------
    job : JobPrograms
        The programs.
    workers : tuple of Worker
        Its workers.
    transport : Transport
        What made the channels.
    channels : dict of label to Line
        Labels: ``("session", group, rank, thread, channel)``; ``("scatter" | "gather", group, thread, from, to)`` of an
        all-reduce; ``("arrive" | "turn" | "go", group, place, rank)`` of an ordered update; ``("push" | "pull", client,
        server)`` and ``("follow", group, node)`` of an exchange; ``("ring", group, node)`` to the next group and
        ``("average", group, from, to)`` of an average.
    triggers : dict of shadow worker to Bell
        Starts the exchanges of a shadow worker; rung by thread 0 of the group's rank 0.
    """

    job: JobPrograms
    workers: tuple[Worker, ...]
    transport: Transport
    channels: dict[Label, Line] = field(default_factory=dict)
    triggers: dict[str, Bell] = field(default_factory=dict)


def wire(job: JobPrograms, transport: Transport, nics: Nics | None = None) -> Wiring:
    """Make all channels of a job; NICs throttle them."""
    found = workers(job)
    wiring = Wiring(job, found, transport)
    for worker in found:
        for label, (source, target, layout) in _channels_of(job, worker, found):
            if label not in wiring.channels:  # copies may take turns twice in a step
                link = _link(source, target, layout, nics)
                wiring.channels[label] = transport.channel(source.name, target.name, layout, link)
        if worker.role == "shadow":
            wiring.triggers[worker.name] = transport.bell(_trigger_source(worker.name), worker.name)
    return wiring


def _trigger_source(shadow: str) -> str:
    return f"{shadow.partition('/')[0]}/n0/t0"


def link_seconds(source: Node, target: Node, size: int) -> float:
    """Time that the emulated network adds to a message: 0 on one host, else latency + bytes / slower NIC (no sharing)."""
    if source.host == target.host:
        return 0.0
    rate = min(source.nic_bytes_per_second, target.nic_bytes_per_second)
    return max(source.latency_seconds, target.latency_seconds) + size / rate


def _link(source: Worker, target: Worker, layout: Layout, nics: Nics | None) -> Link:
    """Link that takes the time of the arrays; the lengths that lead a coded message are the transport's own."""
    coded = any(dtype is np.uint8 for _, dtype in layout)
    sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in layout]
    seconds = link_seconds(source.node, target.node, sum(sizes[coded:]))
    per_byte = link_seconds(source.node, target.node, 1) - link_seconds(source.node, target.node, 0) if coded else 0.0
    throttle = nics.between(source, target) if nics is not None else None
    return Link(seconds, per_byte, sum(sizes[coded:]), throttle)


def _floats(elements: int) -> Layout:
    return [((elements,), np.float32)]


def _channels_of(job: JobPrograms, worker: Worker, everybody: tuple[Worker, ...]) -> Iterator[tuple[Label, Ends]]:
    """Channels that begin at a worker (and the answers of a sync server to it)."""
    for instruction in worker.program:
        match instruction:
            case Send():
                yield _session_channel(job, worker, instruction, everybody)
            case AllReduce():
                yield from _all_reduce_channels(job.plan, worker, instruction, everybody)
            case Update(ordered=True):
                yield from _turn_channels(job.plan, worker, everybody)
            case SyncStep():
                yield from _sync_channels(job.plan, worker, instruction, everybody)
            case Average():
                yield from _average_channels(job.plan, worker, instruction, everybody)
            case _:
                pass


def _session_channel(job: JobPrograms, worker: Worker, send: Send, everybody: tuple[Worker, ...]) -> tuple[Label, Ends]:
    session = (worker.group, worker.rank, worker.thread)
    peer = next(w for w in everybody if (w.group, w.rank, w.thread) == session and w.place == send.peer)
    return ("session", *session, send.channel), (worker, peer, message_layout(job, send))


def message_layout(job: JobPrograms, send: Send) -> Layout:
    """Arrays of a message of one session's step (``executor.coded`` for those of a coded one)."""
    if not send.codec:
        return [tensor_layout(job, name) for name in send.tensors]
    rooms = request_rooms(job.plan, send) if routes(send) else [room(job.plan, send.codec, n) for n in send.tensors]
    return [((len(send.tensors),), np.int32), *(((size,), np.uint8) for size in rooms)]


def tensor_layout(job: JobPrograms, name: str) -> tuple[tuple[int, ...], type[np.float32] | type[np.int32]]:
    """Shape and element type of a tensor of one session's step."""
    rows = job.plan.batch
    dtype = np.int32 if name.startswith("ids.") and name not in job.plan.model.graph else np.float32
    return (rows, tensor_bytes(job, name) // (rows * FLOAT_BYTES)), dtype


def _all_reduce_channels(
    plan: Plan, worker: Worker, instruction: AllReduce, everybody: tuple[Worker, ...]
) -> Iterator[tuple[Label, Ends]]:
    for peer in everybody:
        if peer.role == "rank" and (peer.group, peer.thread) == (worker.group, worker.thread) and peer is not worker:
            ends = (worker.group, worker.thread, worker.rank, peer.rank)
            for phase, layout in _all_reduce_layouts(plan, instruction, worker.rank, peer.rank).items():
                yield (phase, *ends), (worker, peer, layout)


def _all_reduce_layouts(plan: Plan, instruction: AllReduce, source: int, target: int) -> dict[str, Layout]:
    """Messages of an all-reduce from one rank to another, by phase."""
    if instruction.codec:
        return coded_layouts(plan, instruction, source, target)
    sizes = [size // FLOAT_BYTES for size in slices(instruction.bytes, plan.ranks)]
    return {"scatter": _floats(sizes[target]), "gather": _floats(sizes[source])}


def copies_at(plan: Plan, group: int, place: Place, everybody: tuple[Worker, ...]) -> list[Worker]:
    """Workers that run a place's programs in a group (thread 0), by rank: what an ordered update puts in order."""
    found = [
        w
        for w in everybody
        if w.group == group and w.thread == 0 and w.place is not None and _same_machine(w.place, place)
    ]
    return sorted(found, key=lambda w: w.rank)


def _same_machine(a: Place, b: Place) -> bool:
    return a.index == b.index and (a.role == "server") == (b.role == "server")


def _turn_channels(plan: Plan, worker: Worker, everybody: tuple[Worker, ...]) -> Iterator[tuple[Label, Ends]]:
    assert worker.place is not None
    copies, key = copies_at(plan, worker.group, worker.place, everybody), (worker.group, str(worker.place))
    for label, target in (("arrive", copies[0]), ("turn", copies[(worker.rank + 1) % len(copies)])):
        if target is not worker and not (label == "turn" and worker is copies[-1]):
            yield (label, *key, worker.rank), (worker, target, ())
    if worker is copies[-1]:
        for other in copies[:-1]:
            yield ("go", *key, other.rank), (worker, other, ())


def _sync_channels(
    plan: Plan, worker: Worker, step: SyncStep, everybody: tuple[Worker, ...]
) -> Iterator[tuple[Label, Ends]]:
    graph = plan.model.graph
    for server in (w for w in everybody if w.role == "sync" and step.exchange and step.exchange[w.rank]):
        names = step.exchange[server.rank]
        yield ("push", worker.name, server.rank), (worker, server, push_layout(plan, step, names))
        yield ("pull", worker.name, server.rank), (server, worker, pull_layout(plan, step, names))
    for follower in step.followers:
        target = next(w for w in everybody if w.group == worker.group and _syncs(w) and node_of(w) == follower)
        layout = [((graph[name].parameters,), np.float32) for name in step.forward]
        yield ("follow", worker.group, follower), (worker, target, layout)


def _average_channels(
    plan: Plan, worker: Worker, step: Average, everybody: tuple[Worker, ...]
) -> Iterator[tuple[Label, Ends]]:
    group, node = worker.group, node_of(worker)
    at = {(w.group, node_of(w)): w for w in everybody if _syncs(w)}
    if step.bytes:
        then = at[(group + 1) % len(plan.groups), node]
        yield ("ring", group, node), (worker, then, _floats(step.chunk_bytes // FLOAT_BYTES))
    for peer in step.peers if step.shared else ():
        yield ("average", group, node, peer), (worker, at[group, peer], _floats(step.shared_bytes // FLOAT_BYTES))


def _syncs(worker: Worker) -> bool:
    return any(isinstance(i, SyncStep | Average) for i in worker.program)


def node_of(worker: Worker) -> int:
    """Index, in its group, of the node that a worker runs on."""
    return worker.rank if worker.place is None else worker.place.index
