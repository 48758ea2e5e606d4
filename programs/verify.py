"""The verifier: what must hold for every set of programs, checked after every transformation.

1. Every Recv has exactly one Send of the same channel, tensors, bytes and codec, between the places that both name; the
   bytes are those of the tensors under the codec.
2. No tensor is used at a place before it was produced or received there, and no channel is used twice in a step.
3. All ranks of a group enter the same collectives in the same order.
4. No cyclic wait: the programs of all sessions can be run to the end together (a Send never waits: one slot per step).
5. Parameters, optimizer state and the tensors of a step fit the memory of each machine.
6. Where groups average among themselves, the nodes of a group average every trained parameter once, in chunks that hold it,
   and each rank takes what the others pass on.

A message names the place, the index of the instruction, the instruction, and what was expected. The check runs the
programs on names only; it knows no values and no time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from placement.errors import DoesNotFit
from placement.plan import DP
from problem.errors import HiertrainError
from problem.graph import FLOAT_BYTES, Kind
from programs.instructions import (
    AllReduce,
    Average,
    Compute,
    Instruction,
    Lookup,
    NextBatch,
    Place,
    Program,
    Recv,
    Reduce,
    Role,
    Send,
    Update,
)
from programs.transform import JobPrograms, Session
from programs.wire import gradients_of, message_bytes, operator_of, request_of, viewed


class BrokenProgram(HiertrainError):
    """A program breaks a rule. This is a fault of the transformation (or of an edited program): please report it."""

    def __init__(self, session: int, program: Program, index: int, expected: str) -> None:
        instruction = program.instructions[index] if index < len(program.instructions) else "end of the program"
        super().__init__(f"rank {session}, place {program.place}, instruction {index}: {instruction}: {expected}")


def verify(job: JobPrograms) -> JobPrograms:
    """Check all rules and return the job unchanged.

    Raises
    ------
    BrokenProgram
        A rule about messages, tensors, collectives or waiting is broken.
    DoesNotFit
        The tensors and parameters of a machine exceed its memory.
    """
    for session in job.sessions:
        _check_messages(session)
        for program in session.programs:
            _check_definitions(job, session, program)
        _check_bytes(job, session)
    _check_collectives(job.sessions)
    for session in job.sessions:
        _check_progress(session)
    _check_averages(job)
    _check_memory(job)
    return job


def _indexed(session: Session) -> Iterator[tuple[Program, int, Instruction]]:
    for program in session.programs:
        for index, instruction in enumerate(program.instructions):
            yield program, index, instruction


def _check_messages(session: Session) -> None:
    """Rule 1."""
    sends: dict[str, tuple[Program, Send]] = {}
    for program, index, instruction in _indexed(session):
        if isinstance(instruction, Send):
            if instruction.channel in sends:
                raise BrokenProgram(session.rank, program, index, "a channel carries one message a step")
            sends[instruction.channel] = (program, instruction)
    for program, index, instruction in _indexed(session):
        if isinstance(instruction, Recv):
            sender, send = sends.pop(instruction.channel, (None, None))
            if send is None or sender is None:
                raise BrokenProgram(session.rank, program, index, "expected one Send of this channel, found none")
            for what, differs in _differences(send, sender.place, instruction, program.place):
                if differs:
                    raise BrokenProgram(session.rank, program, index, f"expected {what}")
    for program, send in sends.values():
        raise BrokenProgram(session.rank, program, program.instructions.index(send), "expected a Recv of this channel")


def _differences(send: Send, source: Place, recv: Recv, target: Place) -> Iterator[tuple[str, bool]]:
    """What two ends of a channel must agree on, and whether they do not."""
    yield f"the tensors and bytes of {send}", (send.tensors, send.bytes) != (recv.tensors, recv.bytes)
    yield f"the codec of {send}", send.codec != recv.codec
    yield f"peers to match {send} at {source}", (send.peer, source) != (target, recv.peer)


def _check_bytes(job: JobPrograms, session: Session) -> None:
    """Rule 1, last part; a Recv has the bytes of its Send."""
    for program, index, instruction in _indexed(session):
        if isinstance(instruction, Send):
            size = message_bytes(job.plan, instruction.tensors, instruction.codec)
            if instruction.bytes != size:
                raise BrokenProgram(session.rank, program, index, f"expected {size} bytes, the size of its tensors")


def _reads(job: JobPrograms, instruction: Instruction) -> Iterable[str]:
    graph = job.plan.model.graph
    match instruction:
        case Compute(op, "forward"):
            return graph[op].inputs
        case Compute(op, _):
            incoming = (f"d.{op}",) if graph.consumers[op] else ()  # the last operator starts the backward pass
            return (*graph[op].inputs, op, *incoming)
        case Send(tensors=tensors):
            return [name if name in graph else viewed(name) for name in tensors]
        case Reduce(parts=parts):
            return parts
        case Lookup(outputs=outputs):
            return _requests(job, outputs)
        case Update(shards=shards):
            gradients = [name for s in shards for name in gradients_of(job.plan, job.plan.shards[s])]
            return [*_requests(job, gradients), *gradients]
        case _:
            return ()


def _requests(job: JobPrograms, tensors: Iterable[str]) -> list[str]:
    """Ids and weights of the features that pooled tensors, or gradients of them, belong to."""
    features = (job.plan.model.feature[operator_of(job.plan, name)] for name in tensors)
    return [name for feature in features for name in request_of(feature)]


def _writes(job: JobPrograms, instruction: Instruction) -> Iterable[str]:
    match instruction:
        case NextBatch():
            return [name for feature in job.plan.model.feature.values() for name in request_of(feature)]
        case Compute(op, "forward"):
            return (op,)
        case Compute(outputs=outputs) | Lookup(outputs=outputs):
            return [name for name in outputs if name]
        case Recv(tensors=tensors):
            return tensors
        case Reduce(target=target):
            return (target,)
        case _:
            return ()


def _check_definitions(job: JobPrograms, session: Session, program: Program) -> None:
    """Rule 2."""
    defined: set[str] = set()
    for index, instruction in enumerate(program.instructions):
        missing = [name for name in _reads(job, instruction) if name not in defined]
        if missing:
            raise BrokenProgram(session.rank, program, index, f"tensor {missing[0]!r} is used before it is defined")
        again = [name for name in _writes(job, instruction) if name in defined]
        if again:
            raise BrokenProgram(session.rank, program, index, f"tensor {again[0]!r} is defined twice")
        defined.update(_writes(job, instruction))


def _check_collectives(sessions: tuple[Session, ...]) -> None:
    """Rule 3."""
    first = [i for i in sessions[0].programs[0].instructions if isinstance(i, AllReduce)]
    for session in sessions[1:]:
        program = session.programs[0]
        found = [(k, i) for k, i in enumerate(program.instructions) if isinstance(i, AllReduce)]
        for position, (index, instruction) in enumerate(found):
            if position >= len(first) or instruction != first[position]:
                raise BrokenProgram(session.rank, program, index, "expected the collectives of rank 0 in its order")
        if len(found) < len(first):
            raise BrokenProgram(session.rank, program, len(program.instructions), f"expected {first[len(found)]}")


def _check_progress(session: Session) -> None:
    """Rule 4: run all programs together; a program stops only at a Recv whose message has not been sent."""
    at = [0] * len(session.programs)
    sent: set[str] = set()
    moved = True
    while moved:
        moved = False
        for number, program in enumerate(session.programs):
            start = at[number]
            at[number] = _advance(program, start, sent)
            moved = moved or at[number] > start
    for number, program in enumerate(session.programs):
        if at[number] < len(program.instructions):
            raise BrokenProgram(session.rank, program, at[number], "waits for ever: its message is never sent")


def _advance(program: Program, index: int, sent: set[str]) -> int:
    while index < len(program.instructions):
        instruction = program.instructions[index]
        if isinstance(instruction, Recv) and instruction.channel not in sent:
            break
        if isinstance(instruction, Send):
            sent.add(instruction.channel)
        index += 1
    return index


def _check_averages(job: JobPrograms) -> None:
    """Rule 6."""
    steps = {node: step for node, step in job.shadows.items() if isinstance(step, Average)}
    position: dict[str, int] = defaultdict(int)
    for node, step in steps.items():
        program = Program(Place(Role.NODE, node), (step,))
        for piece in step.pieces:
            if piece.begin != position[piece.op]:
                raise BrokenProgram(node, program, 0, f"expected {piece.op!r} from element {position[piece.op]} on")
            position[piece.op] = piece.end
        size = sum(piece.elements for piece in step.pieces) * FLOAT_BYTES
        if step.bytes != size or step.chunk_bytes * len(job.plan.groups) < size:
            raise BrokenProgram(node, program, 0, f"expected {size} bytes, and a chunk of them for each group")
        for peer, pieces in zip(step.peers, step.taken, strict=True):
            if peer not in steps or steps[peer].shared != pieces:
                raise BrokenProgram(node, program, 0, f"expected to take from n{peer} what it passes on")
    for op in job.plan.dp_ops + tuple(op for node in range(job.plan.group_size) for op in job.plan.mp_ops(node)):
        if steps and position[op] != job.plan.model.graph[op].parameters:
            raise BrokenProgram(0, job.sessions[0].programs[0], 0, f"expected an average of all parameters of {op!r}")


def tensor_bytes(job: JobPrograms, name: str) -> int:
    """Bytes of a tensor of one session's step, by its name (see ``programs.instructions``)."""
    return message_bytes(job.plan, [name])


def memory_needed(job: JobPrograms) -> dict[str, tuple[int, int]]:
    """Return for each machine (by name) the bytes it needs and the bytes it has.

    Parameters and optimizer state once per machine, a gradient buffer and all tensors of a step once per worker. The
    size of an imported (FIXED) operator is taken as it came.
    """
    plan, needed = job.plan, defaultdict[str, int](int)
    machines = {node.name: node for group in plan.groups for node in group} | {n.name: n for n in plan.servers}
    copies = 1 + plan.model.dense_state_per_parameter
    for group in plan.groups:
        for index, node in enumerate(group):
            here = (DP, index) if index < plan.ranks else (index,)
            held = sum(op.parameters for op in plan.model.graph if plan.tags.get(op.name) in here)
            needed[node.name] += held * FLOAT_BYTES * copies
    for shard in plan.shards:
        needed[plan.servers[shard.server].name] += shard.bytes(plan.model.table[shard.table])
    for session in job.sessions:
        for program in session.programs:
            _add_step(job, program, needed)
    return {name: (size, machines[name].memory_bytes) for name, size in needed.items()}


def _add_step(job: JobPrograms, program: Program, needed: dict[str, int]) -> None:
    """Add the buffers of one program, once per Hogwild thread and (on servers) per group."""
    plan = job.plan
    tensors = [name for i in program.instructions for name in _writes(job, i)]
    trained = [name for i in program.instructions if isinstance(i, Update) for name in i.ops]
    gradients = sum(plan.model.graph[n].parameters for n in trained if plan.model.graph[n].kind is not Kind.FIXED)
    size = (sum(tensor_bytes(job, name) for name in tensors) + gradients * FLOAT_BYTES) * plan.hogwild
    for group in plan.groups:
        server = program.place.role == "server"
        node = plan.servers[program.place.index] if server else group[program.place.index]
        needed[node.name] += size


def _check_memory(job: JobPrograms) -> None:
    """Rule 5."""
    for name, (needed, available) in memory_needed(job).items():
        if needed > available:
            raise DoesNotFit("the parameters and tensors of the plan", f"node {name}", needed, available)
