"""Checkpoints: everything that a job has learnt, in one file, keyed by parameter and not by worker.

The file is a ZIP of NumPy arrays without compression (``numpy.load`` opens it):

==============================  ===========================================================================================
``manifest.json``               format, steps and samples done, seed, number of groups, and what the model is
``group0/top_0.npy``            parameters of an operator in a replica, flat; optimizer state as ``group0/top_0.state.npy``
``centre/top_0.npy``            the same of the centre, if there is one, wherever it is kept
``left/0/0/0/1/top_0.npy``      what node 1 has not sent to group 0, rank 0, thread 0 under top-k with feedback, flat
``group0/rank0/top_0.npy``      what a rank remembers of an operator's gradients under DCT-DP: the error, then the threshold
``table/user.npy``              all rows of a table, (rows, dim); optimizer state as ``table/user.state.npy``
                                (``checkpoint_tables``)
==============================  ===========================================================================================

So a job may go on with another placement, other shards, or another number of workers. DP operators are taken from the
first rank of a group; the copies of the others are equal but for what lock-free updates made of them.

It is written beside its place, flushed to the disk, and renamed: whatever happens and whenever, the last complete one is
there. Every array is checked on reading (CRC-32 of the ZIP). Knows nothing of processes or steps.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from executor.arrays import Floats
from executor.checkpoint_tables import Entry, fill_tables, table_entries, table_facts
from executor.coded import LeftOutKey
from executor.errors import CheckpointFailed
from executor.parameters import Parameters
from executor.state import JobState, centre_of, remember, velocity_of
from placement.plan import DP, Plan
from problem.errors import BadInput
from problem.graph import Operator
from problem.model import Model

FORMAT = "hiertrain-checkpoint/1"
FILE_NAME = "checkpoint.npz"
_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Done:
    """How far a job is.

    Parameters
    ----------
    step : int
        Steps that every session has done.
    samples : int
        Samples that were taken from the stream, by all sessions.
    """

    step: int = 0
    samples: int = 0


def save(path: Path, plan: Plan, state: JobState, done: Done) -> None:
    """Write a checkpoint; until it is complete the one that was there stays.

    Parameters
    ----------
    path : Path
        The file. ``.partial`` is added to its name while it is being written.
    plan, state : Plan, JobState
        What to save; nobody may be training it.
    done : Done
        How far the job is.

    Raises
    ------
    CheckpointFailed
        The file cannot be written (a full disk, say); the last one is still there.
    """
    manifest = {
        "format": FORMAT,
        "step": done.step,
        "samples": done.samples,
        "seed": plan.seed,
        "groups": len(plan.groups),
        "ranks": plan.ranks,
        "batch": plan.batch,
        "model": identity(plan.model),
        "tables": table_facts(state.rows),
    }
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            _write(file, manifest, _entries(plan, state))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        raise CheckpointFailed(path, done.step, error.strerror or str(error)) from None


def load(path: Path, plan: Plan, state: JobState) -> Done:
    """Fill the parameters of a job from a checkpoint.

    With the number of groups that it was made with, every replica goes on where it was. With another number, every
    replica starts from the centre (from the one replica, if there was no centre) with the optimizer state of a replica
    of the checkpoint, in turn. With another number of ranks, the first of a group takes all gradients that DCT-DP has
    not sent yet.

    Parameters
    ----------
    path : Path
        A file that :func:`save` wrote.
    plan, state : Plan, JobState
        What to fill, of any placement.

    Returns
    -------
    Done
        How far the job was.

    Raises
    ------
    BadInput
        The file cannot be read, is damaged, or is of another model or seed; names what differs.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = _checked_manifest(archive, plan, path)
            groups = int(manifest["groups"])
            for group in range(len(plan.groups)):
                _load_replica(archive, plan, state, group, groups)
            centre = centre_of(plan, state)
            if centre is not None:
                source = "centre" if groups > 1 else "group0"
                _load_parameters(archive, source, source, centre)
                remember(state, "centre", centre)
            _load_feedback(archive, plan, state, groups, int(manifest["ranks"]))
            if manifest.get("batch") == plan.batch:
                _load_left_out(archive, state)
            _load_sync(archive, plan, state, groups)
            for entry in fill_tables(state.rows, manifest.get("tables", {})):
                _read(archive, *entry)
            return Done(int(manifest["step"]), int(manifest["samples"]))
    except OSError as error:
        raise BadInput(path, "checkpoint", error.strerror or str(error), "a file that can be read") from None
    except (zipfile.BadZipFile, KeyError, EOFError, ValueError) as error:
        raise BadInput(path, "checkpoint", error.args[0], "a complete, undamaged checkpoint") from None


def identity(model: Model) -> dict[str, str]:
    """Return what makes parameters those of one model and no other: operators, shapes of tables, optimizers."""
    operators = {f"operators.{op.name}": _describe(op) for op in model.graph}
    tables = {f"tables.{t.name}": f"{t.rows} rows of {t.dim}, {t.optimizer}" for t in model.tables}
    return {"optimizer": model.optimizer} | operators | tables


def _describe(op: Operator) -> str:
    parts = [str(op.kind), f"of {', '.join(op.inputs)}" if op.inputs else "", f"{op.width} wide"]
    parts += [f"of table {op.table}"] if op.table != op.name and op.table else []
    return " ".join(filter(None, [*parts, op.activation, f"{op.parameters} parameters" if op.parameters else ""]))


def _checked_manifest(archive: zipfile.ZipFile, plan: Plan, path: Path) -> Mapping[str, Any]:
    """Return the manifest; refuse that of another format, seed or model."""
    manifest: dict[str, Any] = json.loads(archive.read(_MANIFEST))
    if manifest.get("format") != FORMAT:
        raise BadInput(path, "format", manifest.get("format"), repr(FORMAT))
    if manifest["seed"] != plan.seed:
        raise BadInput(path, "seed", manifest["seed"], f"the plan's, {plan.seed}: batches are drawn by it")
    found, expected = manifest["model"], identity(plan.model)
    for field in [*expected, *found]:
        if found.get(field) != expected.get(field):
            allowed = f"the plan's model has {expected.get(field, 'no such part')!r}"
            raise BadInput(path, f"model.{field}", found.get(field), allowed)
    return manifest


# ---- what is in the file


def _entries(plan: Plan, state: JobState) -> Iterator[Entry]:
    for group in range(len(plan.groups)):
        for name in _trained(plan):
            yield from _parameter_entries(f"group{group}", name, state.dense[group, _home(plan, name)])
    centre = centre_of(plan, state)
    if centre is not None:
        for name in centre.operators:
            yield from _parameter_entries("centre", name, centre)
    for (group, rank), memories in state.feedback.items():
        for op, memory in memories.items():
            yield f"group{group}/rank{rank}/{op}", memory.shape, [memory]
    yield from _sync_entries(state, velocity_of(plan, state))
    for key, memory in state.left_out.items():
        yield _left_out_name(key), memory.shape, [memory]
    yield from table_entries(state.rows)


def _sync_entries(state: JobState, velocity: Parameters | None) -> Iterator[Entry]:
    """What the rules of synchronisation remember: block momentum; what is known (gradient push) and unsent."""
    if velocity is not None:
        for name in velocity.operators:
            flat = velocity.flat(name)
            yield f"velocity/{name}", flat.shape, [flat]
    for (group, _), memory in state.pushed.items():
        for name in memory.known.operators:
            flat = memory.known.flat(name)
            yield f"group{group}/known/{name}", flat.shape, [flat]
        for name, unsent in memory.unsent.items():
            yield f"group{group}/unsent/{name}", unsent.shape, [unsent]


def _load_sync(archive: zipfile.ZipFile, plan: Plan, state: JobState, groups: int) -> None:
    """Fill what the rules remember; with another number of groups, or of another rule, start from the parameters."""
    state.settle()
    names, velocity = set(archive.namelist()), velocity_of(plan, state)
    for name, shape, parts in _sync_entries(state, velocity) if groups == len(plan.groups) else ():
        if f"{name}.npy" in names:
            _read(archive, name, shape, parts)
    if velocity is not None:
        remember(state, "velocity", velocity)


def _trained(plan: Plan) -> tuple[str, ...]:
    return tuple(op.name for op in plan.model.graph if op.parameters)


def _home(plan: Plan, name: str) -> int:
    """Node of a group whose copy of an operator counts."""
    tag = plan.tags[name]
    return 0 if tag == DP else int(tag)


def _parameter_entries(prefix: str, name: str, held: Parameters) -> Iterator[Entry]:
    for suffix, flat in (("", held.flat(name)), (".state", held.state(name))):
        if flat.size:
            yield f"{prefix}/{name}{suffix}", flat.shape, [flat]


def _load_replica(archive: zipfile.ZipFile, plan: Plan, state: JobState, group: int, groups: int) -> None:
    """Fill the parameters on all nodes of a group; ``groups`` is the number of groups in the file."""
    own = f"group{group % groups}"
    source = "centre" if groups not in {1, len(plan.groups)} else own
    for node in range(plan.group_size):
        _load_parameters(archive, source, own, state.dense[group, node])


def _load_feedback(archive: zipfile.ZipFile, plan: Plan, state: JobState, groups: int, ranks: int) -> None:
    """Fill what ranks remember of gradients; operators that the checkpoint has none of start with nothing."""
    state.forget()
    names = set(archive.namelist())
    for (group, rank), memories in state.feedback.items():
        for op, memory in memories.items():
            for old in range(ranks) if ranks != plan.ranks else (rank,):
                name = f"group{group % groups}/rank{old}/{op}"
                if f"{name}.npy" in names and (rank == 0 or ranks == plan.ranks):
                    found = np.empty_like(memory)
                    _read(archive, name, memory.shape, [found])
                    memory[:-1] += found[:-1]
                    memory[-1] = found[-1]


def _left_out_name(key: LeftOutKey) -> str:
    return "/".join(("left", *map(str, key)))


def _load_left_out(archive: zipfile.ZipFile, state: JobState) -> None:
    """Fill what cuts have not sent of gradients: by place in the batch, so that another batch starts with nothing."""
    names = set(archive.namelist())
    for key, memory in state.left_out.items():
        name = _left_out_name(key)
        if f"{name}.npy" in names:
            _read(archive, name, memory.shape, [memory])


def _load_parameters(archive: zipfile.ZipFile, source: str, state_source: str, held: Parameters) -> None:
    for name in held.operators:
        for prefix, suffix, flat in ((source, "", held.flat(name)), (state_source, ".state", held.state(name))):
            if flat.size:
                _read(archive, f"{prefix}/{name}{suffix}", flat.shape, [flat])


# ---- how it is in the file


def _write(file: IO[bytes], manifest: Mapping[str, Any], entries: Iterator[Entry]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        with archive.open(_MANIFEST, "w") as out:
            out.write(json.dumps(manifest, indent=1).encode())
        for name, shape, parts in entries:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as out:
                header = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(out, header)
                for part in parts:
                    out.write(part.reshape(-1).view(np.uint8).data)


def _read(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], parts: Iterable[Floats]) -> None:
    """Read an array into its pieces; the end of the member, which is read, is where its checksum is compared."""
    with archive.open(f"{name}.npy") as file:
        np.lib.format.read_magic(file)
        found, _, dtype = np.lib.format.read_array_header_1_0(file)
        if found != shape or dtype != np.dtype("<f4"):
            raise ValueError(f"{name} is {dtype} of shape {found}, not float32 of shape {shape}")
        for part in parts:
            _read_exactly(file, part.reshape(-1).view(np.uint8).data)
        if file.read(1):
            raise ValueError(f"{name} is longer than its shape")


def _read_exactly(file: IO[bytes], out: memoryview) -> None:
    at = 0
    while at < len(out):
        count = file.readinto(out[at:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError("the file ends too early")
        at += count


def _flush_folder(folder: Path) -> None:
    """Make a rename in a folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
