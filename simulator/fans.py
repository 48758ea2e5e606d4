"""Messages to all embedding servers at once: what a rank's program becomes at the level ``fifo`` in large clusters.

A step of a session asks S servers for pooled rows and later sends them S gradients: 3 S messages, each an event and more
for each server. Here the S messages of a session are one *fan*, data with an axis over the servers, which
``simulator.fan_network`` works out. Serving copies need no workers of their own. Knows programs and costs; no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from placement.plan import Plan
from programs.instructions import Compute, Instruction, Lookup, Metric, Place, Program, Recv, Reduce, Role, Send, Update
from programs.transform import JobPrograms, Session
from programs.workers import Worker
from simulator.lowering import Lowering
from simulator.machines import Machine, Sharing
from simulator.primitives import Emit, Mailbox, Part, Primitive, Work

#: Bytes, or nanoseconds of core time before they are multiplied by what varies.
Amounts = npt.NDArray[np.float64]
#: Instants and what lies between them, in whole nanoseconds: exact however late it is.
Times = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Fan:
    """Messages of one session to several servers, and what the servers do for them; arrays have the axis (servers).

    Parameters
    ----------
    servers : ndarray of int
        Machine of each.
    sent_bytes, answer_bytes : ndarray
        Of the messages to the servers, and of their answers (all 0: there are none).
    send_ns, serve_ns : ndarray
        Core time of the rank for each message, and of the server until it has answered.
    traffic_bytes : ndarray
        Memory traffic of the server for it.
    """

    servers: npt.NDArray[np.intp]
    sent_bytes: Amounts
    answer_bytes: Amounts
    send_ns: Amounts
    serve_ns: Amounts
    traffic_bytes: Amounts
    lead_ns: Amounts = field(init=False)
    total_bytes: int = field(init=False)
    answered: bool = field(init=False)

    def __post_init__(self) -> None:
        after = self.send_ns.sum() - np.cumsum(self.send_ns)
        object.__setattr__(self, "lead_ns", after)  # core time of the rank between a message and the last of the fan
        object.__setattr__(self, "total_bytes", round(float(self.sent_bytes.sum())))
        object.__setattr__(self, "answered", bool(self.answer_bytes.any()))


@dataclass(frozen=True, slots=True, eq=False)
class Scatter(Primitive):
    """Hand a fan to the network; answers go to the mailbox, all as one array of arrival times.

    Its core time is spent just before or, if it is sent ``early``, from now on.
    """

    fan: Fan
    mailbox: Mailbox


@dataclass(frozen=True, slots=True, eq=False)
class Gather(Primitive):
    """Wait for answers as long as that leaves exactly the core time of receiving them, which follows as work.

    ``chosen``: which answers, in the order in which they are received; ``after_ns``: core time from the start of receiving
    each to the end of all; ``final``: the scatter has no other gather; ``receipts``: both, as pairs.
    """

    mailbox: Mailbox
    chosen: npt.NDArray[np.intp]
    after_ns: Amounts
    final: bool
    receipts: tuple[tuple[int, float], ...] = field(init=False)

    def __post_init__(self) -> None:
        pairs = zip(self.chosen.tolist(), self.after_ns.tolist(), strict=True)
        object.__setattr__(self, "receipts", tuple(pairs))

    def receivable(self, arrivals: Times, now: int, factor: float) -> int:
        """Nanoseconds from now until the answers can be received without a pause, if core times vary by a factor."""
        after = self.after_ns * factor
        latest = arrivals[self.chosen] - now + after
        wait: float = (latest.max() - after[0]).item()
        return round(wait)


def fans_apply(job: JobPrograms, sharing: Sharing) -> bool:
    """Whether the messages to servers can be fanned: servers on hosts of their own that only answer and update."""
    plan = job.plan
    trainers = {node.host for group in plan.groups for node in group}
    servers = [node.host for node in plan.servers]
    apart = sharing is Sharing.NODE and len(set(servers)) == len(servers) and not trainers & set(servers)
    return apart and bool(servers) and all(_fannable(session) for session in job.sessions)


def _fannable(session: Session) -> bool:
    rank, *others = session.programs
    served = [program for program in others if program.place.role is Role.SERVER]
    shapes = all(_is_plain(program) for program in served)
    runs = [run for run in _runs(rank.instructions) if _kind(run[0][1]) == "send"]
    return shapes and bool(served) and bool(runs) and len(runs[0]) == len(served)


def _is_plain(program: Program) -> bool:
    match program.instructions:
        case (Recv(), Lookup(), Send(), Recv(), Update(ordered=False)):
            return True
        case _:
            return False


def without_servers(job: JobPrograms) -> JobPrograms:
    """Return the programs without those of the servers."""
    sessions = tuple(
        Session(s.rank, tuple(program for program in s.programs if program.place.role is not Role.SERVER))
        for s in job.sessions
    )
    return JobPrograms(job.plan, sessions, job.shadows)


def _kind(instruction: Instruction) -> str:
    """``send`` to a server, ``receive`` from one (and sums of what was received), or ``other``."""
    match instruction:
        case Send(peer=Place(role=Role.SERVER)):
            return "send"
        case Recv(peer=Place(role=Role.SERVER)):
            return "receive"
        case Reduce():
            return "sum"
        case _:
            return "other"


def _runs(program: Sequence[Instruction]) -> Iterator[list[tuple[int, Instruction]]]:
    """Cut a program into runs that become one fan or one gather; anything else is a run of its own."""
    run: list[tuple[int, Instruction]] = []
    for index, instruction in enumerate(program):
        kind = _kind(instruction)
        first = _kind(run[0][1]) if run else ""
        if run and not (first in {"send", "receive"} and (kind == first or (first == "receive" and kind == "sum"))):
            yield run
            run = []
        run.append((index, instruction))
    if run:
        yield run


#: Told the mailbox and when each answer arrives (:data:`Times`, or a list where fans are narrow).
Deliver = Callable[[tuple[Mailbox, Any]], None]


class Carrier(Protocol):
    """Carries fans: ``simulator.fan_network``, ``simulator.narrow_fans`` and ``simulator.stepped`` say how."""

    def scatter(self, scatter: Scatter, source: int, factor: float, deliver: Deliver) -> None:
        """Send a fan from a machine; its core times are to be multiplied by a factor."""

    def receivable(self, gather: Gather, arrivals: Any, now: int, factor: float) -> int:
        """Nanoseconds from now until the answers of a gather can be received without a pause."""


class FanLowering:
    """Lowers the programs of ranks with fans; what fans have in common is shared by groups and threads.

    Parameters
    ----------
    job : JobPrograms
        All programs, those of the servers too.
    lowering : Lowering
        Lowers everything else.
    machines : Mapping of str to Machine
        By node name.
    early : bool
        Whether a fan is handed over before its core time is spent, or after.
    """

    def __init__(
        self, job: JobPrograms, lowering: Lowering, machines: dict[str, Machine], *, early: bool = False
    ) -> None:
        self._plan: Plan = job.plan
        self._early = early
        self._lowering, self._machines = lowering, machines
        self._programs = {
            (session.rank, program.place.index): program
            for session in job.sessions
            for program in session.programs
            if program.place.role is Role.SERVER
        }
        self._cut: dict[int, list[list[tuple[int, Instruction]]]] = {}
        self._works: dict[tuple[int, str, float], tuple[Primitive, ...]] = {}
        self._fans: dict[tuple[int, str], Fan] = {}
        self._gathers: dict[tuple[int, str], tuple[npt.NDArray[np.intp], Amounts, int]] = {}

    def lower(self, worker: Worker) -> tuple[tuple[Primitive, ...], ...]:
        """Return the primitives of each instruction of a worker; those of a run belong to its first instruction."""
        code: list[tuple[Primitive, ...]] = [()] * len(worker.program)
        runs = self._runs_of(worker)
        mailbox, left = Mailbox(f"answers to {worker.name}"), sum(_kind(run[0][1]) == "receive" for run in runs)
        for run in runs:
            index, first = run[0]
            match _kind(first):
                case "send":
                    code[index] = self._scatter(worker, [i for _, i in run], mailbox)
                case "receive":
                    left -= 1
                    code[index] = self._gather(worker, [i for _, i in run], mailbox, final=not left)
                case _:
                    code[index] = self._plain(worker, first)
        return tuple(code)

    def _runs_of(self, worker: Worker) -> list[list[tuple[int, Instruction]]]:
        key = id(worker.program)  # the same object for all groups and threads of a rank; kept alive by the job
        if key not in self._cut:
            self._cut[key] = list(_runs(worker.program))
        return self._cut[key]

    def _plain(self, worker: Worker, instruction: Instruction) -> tuple[Primitive, ...]:
        """Lower work that needs nobody else once for all machines of a kind that are equally slow."""
        if not isinstance(instruction, Compute | Metric | Update) or getattr(instruction, "ordered", False):
            return self._lowering.lower_one(worker, instruction)
        key = id(instruction), worker.node.kind, self._machines[worker.node.name].slowness
        if key not in self._works:
            self._works[key] = self._lowering.lower_one(worker, instruction)
        return self._works[key]

    def _scatter(self, worker: Worker, run: list[Any], mailbox: Mailbox) -> tuple[Primitive, ...]:
        key = worker.rank, run[0].channel
        if key not in self._fans:
            self._fans[key] = self._fan(worker, run)
        fan = self._fans[key]
        work, scatter = Work(round(float(fan.send_ns.sum()))), Scatter(fan, mailbox)
        return (scatter, work) if self._early else (work, scatter)

    @property
    def fans(self) -> tuple[Fan, ...]:
        """All fans of the programs that were lowered."""
        return tuple(self._fans.values())

    def _fan(self, worker: Worker, run: list[Send]) -> Fan:
        rows = []
        for send in run:
            lookup, update, answer = self._served(worker.rank, send.peer.index)
            asks = self._programs[worker.rank, send.peer.index].instructions[0].channel == send.channel  # type: ignore[union-attr]
            core, traffic = lookup if asks else update
            own = self._lowering.lower_one(worker, send)[0]
            index = self._machines[self._plan.servers[send.peer.index].name].index
            rows.append((index, send.bytes, answer if asks else 0, getattr(own, "core_ns", 0), core, traffic))
        columns = list(zip(*rows, strict=True))
        return Fan(np.array(columns[0], dtype=np.intp), *(np.array(c, dtype=np.float64) for c in columns[1:]))

    def _served(self, rank: int, server: int) -> tuple[tuple[float, float], tuple[float, float], int]:
        """Core time and traffic of a server until it has answered, and after that; bytes of its answer."""
        program, node = self._programs[rank, server], self._plan.servers[server]
        copy = Worker("", node, "server", 0, rank, 0, program.place, program.instructions)
        parts, answer = [[0.0, 0.0], [0.0, 0.0]], 0
        for primitive in (p for primitives in self._lowering.lower(copy) for p in primitives):
            if isinstance(primitive, Work):
                part = parts[1 if answer else 0]
                part[0] += primitive.core_ns
                part[1] += primitive.traffic_bytes
            elif isinstance(primitive, Emit):
                answer = primitive.bytes
        (first, second), (third, fourth) = parts
        return (first, second), (third, fourth), answer

    def _gather(self, worker: Worker, run: list[Any], mailbox: Mailbox, final: bool) -> tuple[Primitive, ...]:
        key = worker.rank, run[0].channel
        if key not in self._gathers:
            self._gathers[key] = self._receipts(worker, run)
        chosen, after, total = self._gathers[key]
        return Gather(mailbox, chosen, after, final, part=Part.PS_QUEUE), Work(total)

    def _receipts(self, worker: Worker, run: list[Any]) -> tuple[npt.NDArray[np.intp], Amounts, int]:
        """Which answers of the ids' fan a run receives, and the core time from each to the end."""
        order = [place.index for _, place in sorted((i, p) for i, p in enumerate(self._asked(worker)))]
        chosen, costs = [], []
        for instruction in run:
            core = sum(p.core_ns for p in self._lowering.lower_one(worker, instruction) if isinstance(p, Work))
            if isinstance(instruction, Recv):
                chosen.append(order.index(instruction.peer.index))
                costs.append(float(core))
            else:
                costs[-1] += core
        return np.array(chosen, dtype=np.intp), np.cumsum(costs[::-1])[::-1], round(sum(costs))

    def _asked(self, worker: Worker) -> list[Place]:
        run = next(run for run in self._runs_of(worker) if _kind(run[0][1]) == "send")
        return [instruction.peer for _, instruction in run if isinstance(instruction, Send)]
