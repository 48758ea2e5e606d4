"""Instructions given DURATION: each instruction of the closed set becomes a few primitives of the simulator.

Costs are taken from the cost table here, scaled to the speed of the node, and rounded to nanoseconds once. Knows nothing
of the clock: how long a primitive takes beside others is the business of machines and network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cost_models.codecs import Message
from cost_models.costs import CostTable, PhaseCost
from placement.plan import Plan
from placement.tables.shares import shard_cost
from problem.cluster import Node
from programs.instructions import (
    AllReduce,
    Average,
    Compute,
    Instruction,
    Lookup,
    Metric,
    NextBatch,
    Place,
    Recv,
    Reduce,
    Role,
    Send,
    SyncStep,
    Update,
)
from programs.reduction import reduction
from programs.wire import coding_seconds, exchanged_messages, operator_of, passes_of
from programs.workers import Worker
from simulator.averages import moves
from simulator.engine import to_ns
from simulator.folding import UNFOLDED, Folding
from simulator.machines import Machine
from simulator.primitives import (
    Answer,
    Await,
    Emit,
    EveryGap,
    Lag,
    Mailbox,
    Meeting,
    Part,
    Primitive,
    Read,
    Reader,
    Work,
)

#: Bytes and tensors of a message.
Size = tuple[int, int]
NOTHING: Size = (0, 0)


class Lowering:
    """Turns the programs of a job into primitives.

    Parameters
    ----------
    plan : Plan
        What is run.
    costs : CostTable
        What everything costs.
    machines : Mapping of str to Machine
        By node name.
    folding : Folding
        What is simulated once for many.
    readers : Mapping of str to Reader
        By node name, readers that may be too slow.
    """

    def __init__(
        self,
        plan: Plan,
        costs: CostTable,
        machines: Mapping[str, Machine],
        folding: Folding = UNFOLDED,
        readers: Mapping[str, Reader] | None = None,
    ) -> None:
        self._readers = readers or {}
        self._plan, self._costs, self._machines, self._folding = plan, costs, machines, folding
        self._mailboxes: dict[tuple[Any, ...], Mailbox] = {}
        self._meetings: dict[tuple[Any, ...], Meeting] = {}

    @property
    def meetings(self) -> tuple[Meeting, ...]:
        """Where the ranks of a group meet in merged collectives."""
        return tuple(self._meetings.values())

    def lower(self, worker: Worker) -> tuple[tuple[Primitive, ...], ...]:
        """Return the primitives of each instruction of a worker; each has at least one, and only its last ends it."""
        return tuple(self.lower_one(worker, i) for i in worker.program)

    def lower_one(self, worker: Worker, instruction: Instruction) -> tuple[Primitive, ...]:
        """Return the primitives of one instruction of a worker."""
        return _ended(tuple(self._one(worker, instruction)))

    def inbox(self, sync_server: int) -> Mailbox:
        """Where the requests to a sync server arrive."""
        return self._mailbox("sync", sync_server)

    def _answer(self, server: int, step: SyncStep, back: Emit, node: int) -> Answer:
        """Return what a sync server does for one request: take it, move the centre, send the answer back.

        Where one group stands for G, the requests of all G come at once and the last of them is the one that is timed.
        """
        message, tensors = self._costs.message, len(step.exchange[server])
        seconds = message.receive(step.request_bytes(server), tensors) + message.send(back.bytes, tensors)
        seconds += self._exchange(step.exchange_bytes[server])
        seconds += sum(there.decode_seconds + again.encode_seconds for there, again in self._coded(step, server))
        at = self._plan.sync_servers[server]
        return Answer(self._work_at(at, seconds / self._machines[at.name].share), back, node)

    # ---- one function per instruction

    def _one(self, worker: Worker, instruction: Instruction) -> Iterator[Primitive]:
        match instruction:
            case Send() | Recv():
                yield from self._message(worker, instruction)
            case AllReduce() if self._folding.merged:
                yield from self._merged_all_reduce(worker, instruction)
            case AllReduce():
                yield from self._all_reduce(worker, instruction)
            case Update():
                yield from self._update(worker, instruction)
            case SyncStep() | Average():
                yield from self._sync(worker, instruction)
            case _:
                if isinstance(instruction, NextBatch) and worker.node.name in self._readers:
                    yield Read(self._readers[worker.node.name])
                yield self._local(worker, instruction)

    def _local(self, worker: Worker, instruction: Instruction) -> Work:
        """Work that needs nobody else."""
        costs = self._costs
        match instruction:
            case NextBatch():
                return self._work(worker, costs.next_batch_seconds)
            case Metric():
                return self._work(worker, costs.metric_seconds)
            case Lookup():
                return self._phase(worker, self._lookup(instruction))
            case Compute(op=op, phase=phase):
                return self._phase(worker, costs.ops[op].forward if phase == "forward" else costs.ops[op].backward)
            case Reduce():
                return self._work(worker, passes_of(instruction) * costs.summing(instruction.bytes))
            case _:
                raise NotImplementedError(f"the simulator has no duration for {instruction}")

    def _message(self, worker: Worker, message: Send | Recv) -> Iterator[Primitive]:
        """One end of a message between two places of a session."""
        box = self._mailbox(message.channel, worker.group, worker.rank, worker.thread)
        of_server, size = message.peer.role is Role.SERVER, (message.bytes, len(message.tensors))
        if isinstance(message, Recv):
            part = Part.PS_QUEUE if of_server else Part.PEER
            yield from self._receive(worker, box, size, part, coding_seconds(self._plan, message))
        else:
            nodes = self._plan.servers if of_server else self._plan.groups[worker.group]
            target = nodes[message.peer.index].name
            yield from self._send(worker, box, target, size, coding_seconds(self._plan, message))

    def _update(self, worker: Worker, update: Update) -> Iterator[Primitive]:
        cost = self._table_updates(update.shards)
        for op in update.ops:
            cost = cost + self._costs.ops[op].update
        if not update.ordered or worker.place is None:
            yield self._phase(worker, cost)
            return
        yield from self._in_rank_order(worker, worker.place, self._phase(worker, cost))

    def _in_rank_order(self, worker: Worker, place: Place, work: Work) -> Iterator[Primitive]:
        """Let the sessions' copies of a place work in rank order: all arrive, the turn is handed on, all go on together.

        The copies are on one machine and tell each other by empty messages, which cost their threads what they cost.
        """
        me, last = worker.rank, self._plan.ranks - 1
        node = worker.node.name

        def box(word: str, rank: int) -> Mailbox:
            return self._mailbox(word, place.role is Role.SERVER, place.index, worker.group, rank)

        if me == 0:
            for rank in range(1, last + 1):
                yield from self._receive(worker, box("arrived", rank), NOTHING, Part.PEER)
        else:
            yield from self._send(worker, box("arrived", me), node, NOTHING)
            yield from self._receive(worker, box("turn", me), NOTHING, Part.PEER)
        yield work
        if me < last:
            yield from self._send(worker, box("turn", me + 1), node, NOTHING)
            yield from self._receive(worker, box("go on", me), NOTHING, Part.PEER)
        else:
            for rank in range(last):
                yield from self._send(worker, box("go on", rank), node, NOTHING)

    def _all_reduce(self, worker: Worker, reduce: AllReduce) -> Iterator[Primitive]:
        """Direct reduce-scatter, then all-gather (``programs.collectives``), with the same thread of the other ranks."""
        group, thread, me = worker.group, worker.thread, worker.rank
        moves = reduction(self._plan, reduce)
        others = [rank for rank in range(self._plan.ranks) if rank != me]
        nodes, sizes = self._plan.groups[group], [(size, moves.tensors) for size in moves.wire]

        def box(phase: str, source: int, target: int) -> Mailbox:
            return self._mailbox("all-reduce", phase, group, thread, reduce.ops, source, target)

        for rank in others:
            yield from self._send(worker, box("scatter", me, rank), nodes[rank].name, sizes[rank], moves.encode[rank])
        for rank in others:
            yield from self._receive(worker, box("scatter", rank, me), sizes[me], Part.PEER, moves.decode[me])
            yield self._work(worker, self._costs.sum_seconds_per_byte * moves.adds[me])
        for rank in others if moves.gathers else ():
            encoding = moves.encode[me] / len(others)  # once for all messages
            yield from self._send(worker, box("gather", me, rank), nodes[rank].name, sizes[me], encoding)
        for rank in others if moves.gathers else ():
            taking = moves.decode[rank] + self._costs.sum_seconds_per_byte * moves.places[rank]
            yield from self._receive(worker, box("gather", rank, me), sizes[rank], Part.PEER, taking)

    def _merged_all_reduce(self, worker: Worker, reduce: AllReduce) -> Iterator[Primitive]:
        """Make both phases with one message per rank, as long as its slices together, to the next rank.

        It leaves after the core time of the first slice; a phase ends when the messages of all ranks have arrived. Each
        NIC carries the bytes that it carries with slices, so the wire time is the same for ranks in step.
        """
        ranks, me = self._plan.ranks, worker.rank
        moves, phases = reduction(self._plan, reduce), self._merged_phases(reduce, me)
        others = [moves.wire[rank] for rank in range(ranks) if rank != me]
        here = self._machines[worker.node.name].index
        then = (me + 1) % ranks // self._folding.ranks
        there = self._machines[self._plan.groups[worker.group][then].name].index
        for phase, (sends, receives) in phases.items():
            meeting = self._meeting(phase, worker.group, worker.thread, reduce.ops)
            if self._folding.ranks > 1 and phase == "scatter":
                yield Lag(self._folding.ranks, part=Part.PEER)
            yield self._work(worker, sends[0])
            yield Emit(meeting.inbox, here, there, sum(others) if phase == "scatter" else (ranks - 1) * moves.wire[me])
            yield self._work(worker, sum(sends[1:]))
            yield Await(meeting.boxes[me], part=Part.PEER)
            yield self._work(worker, receives)

    def _merged_phases(self, reduce: AllReduce, me: int) -> dict[str, tuple[list[float], float]]:
        """Seconds to send each message of a phase, and to take all of it."""
        moves, cost = reduction(self._plan, reduce), self._costs.message
        others = [rank for rank in range(self._plan.ranks) if rank != me]
        adding = self._costs.sum_seconds_per_byte * moves.adds[me]
        sends = [cost.send(moves.wire[rank], moves.tensors) + moves.encode[rank] for rank in others]
        takes = len(others) * (cost.receive(moves.wire[me], moves.tensors) + moves.decode[me] + adding)
        if not moves.gathers:
            return {"scatter": (sends, takes)}
        back = [cost.send(moves.wire[me], moves.tensors) + moves.encode[me] / len(others)] * len(others)
        taken = sum(cost.receive(moves.wire[rank], moves.tensors) + moves.decode[rank] for rank in others)
        taken += self._costs.sum_seconds_per_byte * sum(moves.places[rank] for rank in others)
        return {"scatter": (sends, takes), "gather": (back, taken)}

    def _meeting(self, *key: Any) -> Meeting:
        if key not in self._meetings:
            count = self._plan.ranks // self._folding.ranks
            boxes = tuple(self._mailbox("met", *key, rank) for rank in range(count))
            self._meetings[key] = Meeting(self._mailbox("meeting", *key), boxes, count)
        return self._meetings[key]

    def _sync(self, worker: Worker, step: SyncStep | Average) -> Iterator[Primitive]:
        """Exchange with the sync servers or average with the other groups; booked under sync."""
        exchange = self._exchanges(worker, step) if isinstance(step, SyncStep) else self._average(worker, step)
        found = [replace(primitive, part=Part.SYNC) for primitive in exchange]
        if worker.role == "shadow" or self._plan.sync is None:
            yield from found
        else:
            yield EveryGap(self._plan.sync.gap, len(found))
            yield from found
            yield Work(0, part=Part.SYNC)

    def _average(self, worker: Worker, step: Average) -> Iterator[Primitive]:
        """Go round all groups, move the centre and the parameters, pass the difference on, take those of the other ranks."""
        for move in moves(self._plan, self._folding, step, worker.group, self._node_index(worker)):
            size = move.bytes, 1
            if not move.box:
                yield self._work(worker, 2 * self._exchange(move.bytes))
            elif move.target:
                yield from self._send(worker, self._mailbox(*move.box), move.target, size)
            else:
                yield from self._receive(worker, self._mailbox(*move.box), size, Part.SYNC)
                yield self._work(worker, self._costs.sum_seconds_per_byte * move.added)

    def _exchanges(self, worker: Worker, step: SyncStep) -> Iterator[Primitive]:
        """Exchange with all sync servers at once, pass the difference on, take the leader's."""
        node, nodes = self._node_index(worker), self._plan.groups[worker.group]
        alike = self._folding.ranks
        asked = [(server, size) for server, size in enumerate(step.exchange_bytes) if size]
        here = self._machines[worker.node.name].index
        for server, _ in asked:
            there = self._machines[self._plan.sync_servers[server].name].index
            box = self._mailbox("sync answer", server, worker.group, node)
            back = Emit(box, there, here, step.answer_bytes(server))
            encoding = sum(request.encode_seconds for request, _ in self._coded(step, server))
            tensors = len(step.exchange[server])
            yield self._work(worker, self._costs.message.send(step.request_bytes(server), tensors) + encoding)
            answer = self._answer(server, step, back, node)
            yield Emit(self.inbox(server), here, there, step.request_bytes(server), answer)
        for server, size in asked:
            answer_size = step.answer_bytes(server), len(step.exchange[server])
            box = self._mailbox("sync answer", server, worker.group, node)
            decoding = sum(answer.decode_seconds for _, answer in self._coded(step, server))
            yield from self._receive(worker, box, answer_size, Part.SYNC, decoding)
            yield self._work(worker, self._exchange(size))
        for rank in step.followers:
            box = self._mailbox("sync difference", worker.group, rank)
            yield from self._send(
                worker, box, nodes[rank // alike * alike].name, (step.forward_bytes, len(step.forward))
            )
        if step.follow:
            box, size = self._mailbox("sync difference", worker.group, node), step.follow_bytes
            yield from self._receive(worker, box, (size, len(step.follow)), Part.SYNC)
            yield self._work(worker, self._costs.sum_seconds_per_byte * step.follow_bytes)

    def _coded(self, step: SyncStep, server: int) -> list[tuple[Message, Message]]:
        """Messages of a compressed exchange, there and back, by operator; none without a codec."""
        return exchanged_messages(self._plan, step.exchange[server]) if step.codec else []

    # ---- parts

    def _send(
        self, worker: Worker, box: Mailbox, target: str, size: Size, encoding: float = 0.0
    ) -> Iterator[Primitive]:
        yield self._work(worker, encoding + self._costs.message.send(*size))
        yield Emit(box, self._machines[worker.node.name].index, self._machines[target].index, size[0])

    def _receive(
        self, worker: Worker, box: Mailbox, size: Size, part: Part, decoding: float = 0.0
    ) -> Iterator[Primitive]:
        yield Await(box, part=part)
        yield self._work(worker, self._costs.message.receive(*size) + decoding)

    def _work(self, worker: Worker, seconds: float, traffic_bytes: float = 0.0) -> Work:
        return self._work_at(worker.node, seconds, traffic_bytes)

    def _work_at(self, node: Node, seconds: float, traffic_bytes: float = 0.0) -> Work:
        slowness = self._machines[node.name].slowness * self._costs.slowdown(node)
        return Work(to_ns(seconds * slowness), traffic_bytes)

    def _phase(self, worker: Worker, cost: PhaseCost) -> Work:
        return self._work(worker, cost.core_seconds, cost.traffic_bytes)

    def _lookup(self, lookup: Lookup) -> PhaseCost:
        """Cost of pooling: of each shard what it takes of the feature's (``shares.shard_cost``)."""
        total = PhaseCost()
        for index, output in zip(lookup.shards, lookup.outputs, strict=True):
            feature = self._plan.model.feature[operator_of(self._plan, output)]
            total = total + shard_cost(self._costs.tables[feature.name], feature, self._plan.shards[index]).lookup
        return total

    def _table_updates(self, shards: tuple[int, ...]) -> PhaseCost:
        """Cost of updating shards: of each what it takes of what all features of its table cost."""
        total = PhaseCost()
        for shard in (self._plan.shards[index] for index in shards):
            for feature in self._plan.model.readers[shard.table]:
                total = total + shard_cost(self._costs.tables[feature.name], feature, shard).update
        return total

    def _exchange(self, size: int) -> float:
        return self._costs.exchange_seconds_per_byte * size

    def _node_index(self, worker: Worker) -> int:
        """Index of a worker's node in its group."""
        return worker.rank if worker.place is None else worker.place.index

    def _mailbox(self, *key: Any) -> Mailbox:
        if key not in self._mailboxes:
            self._mailboxes[key] = Mailbox(" ".join(str(part) for part in key))
        return self._mailboxes[key]


def _ended(primitives: tuple[Primitive, ...]) -> tuple[Primitive, ...]:
    return (*primitives[:-1], replace(primitives[-1], last=True))
