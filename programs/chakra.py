"""Writes a job as Chakra execution traces (schema 0.0.4): one file for each machine, ``PREFIX.N.et``, of one step.

Every worker of a machine (threads, serving copies) is a chain of nodes: an instruction waits for the one before it, but
nothing waits for a ``Send`` to be over, as the transport sends in the background. Computation carries its busy time from a
timeline, in whole microseconds (the format's unit), rounded so that a worker's sums stay right;
messages carry bytes, sender, receiver and a tag that is the same on
both sides, and no time, which is for the reader's network to find. All-reduces are collectives of a process group, listed
in ``PREFIX.groups.json`` as ASTRA-sim's communicator groups. A message to a worker of the same machine is a dependency.

The exchange between groups happens once every few steps: in the background it is left out, in the foreground it takes no
time.

Field types are those that ASTRA-sim's reader takes (astra-sim/workload/Workload.cc): ``comm_size`` 64 bits, ``comm_src``,
``comm_dst`` and ``comm_tag`` 32 bits, ``pg_name`` the number of a group as text, above 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from problem.formats import chakra
from problem.formats.chakra import Field
from problem.formats.wire import put, put_delimited
from problem.whole_file import check_parent
from programs.instructions import AllReduce, Average, Instruction, Recv, Send, SyncStep
from programs.text import describe
from programs.timeline import Timeline
from programs.transform import JobPrograms
from programs.workers import Worker, workers

COMPUTATION = 4
ALL_REDUCE = 0
Session = tuple[int, int, int]


def write_chakra(prefix: str | Path, job: JobPrograms, timeline: Timeline) -> list[Path]:
    """Write the traces of a job.

    Parameters
    ----------
    prefix : str or Path
        Beginning of the file names; its folder exists.
    job : JobPrograms
        Programs of all workers.
    timeline : Timeline
        Busy times: of a worker with the same program, as not all workers need have been simulated.

    Returns
    -------
    list of Path
        The traces, by machine in the order of the plan, and the file of process groups.

    Raises
    ------
    BadInput
        When the folder is not there, or may not be written to.
    """
    prefix = Path(prefix)
    check_parent(prefix)
    writer, paths = _Writer(job, timeline), []
    for number, nodes in enumerate(writer.traces()):
        paths.append(prefix.with_name(f"{prefix.name}.{number}.et"))
        paths[-1].write_bytes(put_delimited(put(1, chakra.VERSIONS[-1])) + b"".join(map(put_delimited, nodes)))
    groups = prefix.with_name(f"{prefix.name}.groups.json")
    groups.write_text(json.dumps(writer.groups) + "\n", encoding="utf-8")
    return [*paths, groups]


class _Writer:
    """Turns the workers of a job into nodes of traces."""

    def __init__(self, job: JobPrograms, timeline: Timeline) -> None:
        plan = job.plan
        names = [*(node.name for group in plan.groups for node in group), *(node.name for node in plan.servers)]
        self._job = job
        self._machine = {name: number for number, name in enumerate(dict.fromkeys(names))}
        timed = [worker for worker in timeline.workers if worker.busy.size]  # a sync server has no instructions
        self._micros = {worker.instructions: _whole_micros(worker.busy.mean(axis=0)) for worker in timed}
        self._workers = [worker for worker in workers(job) if worker.place is not None]
        self._place = {(_session(worker), worker.place): self._machine[worker.node.name] for worker in self._workers}
        self._first, self._tags, self._sent = self._numbered()
        self.groups = {
            str(g + 1): [self._machine[node.name] for node in group[: plan.ranks]]
            for g, group in enumerate(plan.groups)
        }

    def traces(self) -> list[list[bytes]]:
        """Return the nodes of each machine."""
        found: list[list[bytes]] = [[] for _ in self._machine]
        for worker in self._workers:
            found[self._machine[worker.node.name]] += self._nodes(worker)
        return found

    def _numbered(self) -> tuple[dict[str, int], dict[tuple[Session, str], int], dict[tuple[Session, str], int]]:
        """Return the id of each worker's first instruction, and tag and id of each message's Send."""
        count = [1] * len(self._machine)
        first: dict[str, int] = {}
        tags: dict[tuple[Session, str], int] = {}
        sent: dict[tuple[Session, str], int] = {}
        for worker in self._workers:
            machine = self._machine[worker.node.name]
            first[worker.name] = count[machine]
            for i, instruction in enumerate(worker.program):
                if isinstance(instruction, Send):
                    key = (_session(worker), instruction.channel)
                    tags[key], sent[key] = len(tags), count[machine] + i
            count[machine] += len(worker.program)
        return first, tags, sent

    def _nodes(self, worker: Worker) -> Iterator[bytes]:
        """Yield the nodes of a worker; nothing waits for a Send to be over, nor for an exchange between groups."""
        micros, before = self._micros.get(worker.program), 0
        for i, instruction in enumerate(worker.program):
            identifier = self._first[worker.name] + i
            kind, attributes, waits = self._what(worker, instruction)
            duration = 0 if kind != COMPUTATION or micros is None else int(micros[i])
            name = f"{worker.name}: {describe(self._job, instruction)}"
            yield _node(identifier, name, kind, [*([before] if before else []), *waits], attributes, duration)
            before = before if isinstance(instruction, Send | SyncStep | Average) else identifier

    def _what(self, worker: Worker, instruction: Instruction) -> tuple[int, dict[str, int | str], list[int]]:
        """Return type, attributes and further dependencies of an instruction."""
        match instruction:
            case Send() | Recv():
                return self._message(worker, instruction)
            case AllReduce():
                attributes: dict[str, int | str] = {"comm_type": ALL_REDUCE, "comm_size": instruction.bytes}
                return chakra.COLLECTIVE, attributes | {"pg_name": str(worker.group + 1)}, []
            case _:
                return COMPUTATION, {}, []

    def _message(self, worker: Worker, one: Send | Recv) -> tuple[int, dict[str, int | str], list[int]]:
        """Return what a message is: between workers of a machine no transfer, but a dependency of the receiver."""
        session, sends = _session(worker), isinstance(one, Send)
        here, there = self._machine[worker.node.name], self._place[(session, one.peer)]
        if here == there:
            return COMPUTATION, {}, [] if sends else [self._sent[(session, one.channel)]]
        ends = {"comm_src": here, "comm_dst": there} if sends else {"comm_src": there, "comm_dst": here}
        attributes = ends | {"comm_size": one.bytes, "comm_tag": self._tags[(session, one.channel)]}
        return chakra.SEND if sends else chakra.RECV, dict(attributes), []


def _whole_micros(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return durations in whole microseconds whose sums stay within half a microsecond of the exact ones.

    Parameters
    ----------
    seconds : ndarray of float64, shape (instructions,)
        Busy time of each instruction.
    """
    ends = (1e6 * np.cumsum(seconds)).round().astype(np.int64)
    return ends - np.concatenate(([0], ends[:-1]))


def _session(worker: Worker) -> Session:
    return worker.group, worker.rank, worker.thread


def _node(
    identifier: int, name: str, kind: int, depends: list[int], attributes: Mapping[str, int | str], micros: int
) -> bytes:
    """Return a ``Node`` message."""
    message = put(chakra.ID, identifier) + put(chakra.NAME, name) + put(chakra.TYPE, kind)
    message += b"".join(put(chakra.CTRL_DEPS, number) for number in depends)
    message += put(chakra.DURATION, micros) if micros else b""
    message += put(chakra.ATTRIBUTE, put(Field.NAME, "is_cpu_op") + put(Field.BOOL, 0))
    return message + b"".join(put(chakra.ATTRIBUTE, _attribute(key, value)) for key, value in attributes.items())


def _attribute(name: str, value: int | str) -> bytes:
    if isinstance(value, str):
        return put(Field.NAME, name) + put(Field.STRING, value)
    return put(Field.NAME, name) + put(Field.INT64 if name in {"comm_size", "comm_type"} else Field.INT32, value)
