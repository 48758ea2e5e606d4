"""Programs as text (for people and golden files) and as JSON (for other tools). Both only print what is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from programs.instructions import (
    AllReduce,
    Average,
    Compute,
    Instruction,
    Lookup,
    Metric,
    NextBatch,
    Piece,
    Program,
    Recv,
    Reduce,
    Send,
    SyncStep,
    Update,
)
from programs.transform import JobPrograms

FORMAT = "hiertrain-programs/1"
#: Names of a list that are written out.
MOST_NAMES = 8


def to_text(job: JobPrograms) -> str:
    """Return all programs as text: a block per place of each session, then the exchanges between groups."""
    blocks = [
        f"rank {session.rank} | {program.place.role} {program.place}\n" + _block(job, program)
        for session in job.sessions
        for program in session.programs
    ]
    blocks += [f"shadow | node n{node}\n  {describe(job, step)}" for node, step in sorted(job.shadows.items())]
    return "\n\n".join(blocks) + "\n"


def _block(job: JobPrograms, program: Program) -> str:
    return "\n".join(f"  {describe(job, instruction)}" for instruction in program.instructions)


def describe(job: JobPrograms, instruction: Instruction) -> str:
    """Return one instruction as a line."""
    match instruction:
        case NextBatch() | Metric():
            return type(instruction).__name__
        case Compute(op, phase, outputs):
            return f"Compute {op} {phase}" + (f" -> {_names([o or '_' for o in outputs])}" if outputs else "")
        case Lookup(shards, outputs):
            return f"Lookup {_names([_shard(job, s) for s in shards])} -> {_names(outputs)}"
        case Send() | Recv():
            return _describe_message(instruction)
        case Reduce(target, parts, size):
            return f"Reduce {target} = {' + '.join(parts)} ({size} B)"
        case AllReduce(ops, size, codec):
            return f"AllReduce {_names(ops)} ({_size(size, codec)})"
        case Update(ops, shards, ordered):
            names = [*ops, *(_shard(job, s) for s in shards)]
            return f"Update {_names(names) or 'nothing'}" + (" in rank order" if ordered else "")
        case SyncStep():
            return _describe_sync(instruction)
        case Average():
            return _describe_average(instruction)


def _describe_message(message: Send | Recv) -> str:
    what = "Send {} to" if isinstance(message, Send) else "Recv {} from"
    return f"{what.format(_names(message.tensors))} {message.peer} ({_size(message.bytes, message.codec)})"


def _size(size: int, codec: str) -> str:
    return f"{size} B as {codec}" if codec else f"{size} B"


def _names(names: Sequence[str]) -> str:
    """Join names; of a long list only its ends and its length are of use to a reader."""
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{names[0]}, {names[1]}, .. {names[-1]} ({len(names)} in all)"


def _shard(job: JobPrograms, index: int) -> str:
    shard = job.plan.shards[index]
    columns = "" if shard.columns is None else f", {shard.columns[0]}:{shard.columns[1]}"
    return f"{shard.table}[{shard.row_begin}:{shard.row_end}{columns}]"


def _describe_sync(step: SyncStep) -> str:
    exchanges = [
        f"exchange {', '.join(names)} with sync{server} ({size} B{_coded(step, server)})"
        for server, (names, size) in enumerate(zip(step.exchange, step.exchange_bytes, strict=True))
        if names
    ]
    if step.followers:
        exchanges.append(f"forward {step.forward_bytes} B to {', '.join(f'n{n}' for n in step.followers)}")
    if step.follow:
        exchanges.append(f"follow n0 ({step.follow_bytes} B)")
    return "SyncStep " + "; ".join(exchanges)


def _describe_average(step: Average) -> str:
    said = [
        f"{_names([_piece(piece) for piece in step.pieces])} of all groups ({step.bytes} B, chunks of {step.chunk_bytes} B)"
    ]
    if step.shared:
        said.append(f"pass {step.shared_bytes} B on to {', '.join(f'n{rank}' for rank in step.peers)}")
    said += [f"take {size} B from n{rank}" for rank, size in zip(step.peers, step.taken_bytes, strict=True) if size]
    return "Average " + "; ".join(said)


def _piece(piece: Piece) -> str:
    return f"{piece.op}[{piece.begin}:{piece.end}]"


def _coded(step: SyncStep, server: int) -> str:
    sizes = f"{step.request_bytes(server)} B there, {step.answer_bytes(server)} B back"
    return f", {sizes}, {step.codec}" if step.codec else ""


def to_json(job: JobPrograms) -> dict[str, Any]:
    """Return all programs as JSON-serialisable data, each instruction a mapping with its class under ``do``."""
    return {
        "format": FORMAT,
        "sessions": [{"rank": s.rank, "programs": [_program(p) for p in s.programs]} for s in job.sessions],
        "shadows": {f"n{node}": _data(step) for node, step in sorted(job.shadows.items())},
    }


def _program(program: Program) -> dict[str, Any]:
    place, code = program.place, program.instructions
    return {"place": str(place), "role": str(place.role), "instructions": [_data(i) for i in code]}


def _data(instruction: Instruction) -> dict[str, Any]:
    fields = asdict(instruction)
    if isinstance(instruction, Send | Recv):
        fields["peer"] = str(instruction.peer)
    return {"do": type(instruction).__name__, **fields}
