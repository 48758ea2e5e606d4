"""The workers of a job: one for each program that runs, with its name and its machine.

Both interpreters start from this list, so that a worker has one name everywhere: ``g0/n1/t0`` is thread 0 of the rank
on node 1 of group 0; ``g0/n2/serves-n1t0`` the copy of node 2's MP operators that serves it; ``ps0/serves-g0n1t0`` the
copy of embedding server 0 that serves it; ``g0/n1/shadow`` the node's background sync worker; ``sync0`` a sync server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from problem.cluster import Node
from programs.instructions import Instruction, Metric, Place, Program, Role, Update
from programs.transform import JobPrograms


@dataclass(frozen=True)
class Worker:
    """One worker.

    Parameters
    ----------
    name : str
        Unique name.
    node : Node
        Machine it runs on.
    role : str
        ``rank``, ``node``, ``server``, ``shadow`` or ``sync``.
    group, rank, thread : int
        Its session, -1 where it has none; ``rank`` of a shadow worker is its node's index, of a sync server its own.
    place : Place or None
        Place inside the session; None for shadow and sync workers.
    program : tuple of Instruction
        What it does in a step; a sync server's is empty (it answers requests until the job ends).
    """

    name: str
    node: Node
    role: str
    group: int
    rank: int
    thread: int
    place: Place | None
    program: tuple[Instruction, ...]


def workers(job: JobPrograms, wanted: Callable[[int, int], bool] | None = None) -> tuple[Worker, ...]:
    """Return the workers of a job: sessions in order of group, rank, thread; then shadow workers; then sync servers.

    Parameters
    ----------
    job : JobPrograms
        What every place does.
    wanted : callable, optional
        Of a group and a rank (of a shadow worker: its node's index), whether its workers are wanted; all are if None.
    """
    found = [
        _session_worker(job, group, session.rank, thread, program)
        for group in range(len(job.plan.groups))
        for session in job.sessions
        if wanted is None or wanted(group, session.rank)
        for thread in range(job.plan.hogwild)
        for program in session.programs
    ]
    syncs = (w for w in _sync_workers(job) if wanted is None or w.role == "sync" or wanted(w.group, w.rank))
    return (*found, *syncs)


def _session_worker(job: JobPrograms, group: int, rank: int, thread: int, program: Program) -> Worker:
    place, plan = program.place, job.plan
    node = plan.servers[place.index] if place.role is Role.SERVER else plan.groups[group][place.index]
    code = _with_foreground_sync(job, program, rank, thread)
    return Worker(_session_name(place, group, rank, thread), node, str(place.role), group, rank, thread, place, code)


def _session_name(place: Place, group: int, rank: int, thread: int) -> str:
    if place.role is Role.RANK:
        return f"g{group}/n{rank}/t{thread}"
    if place.role is Role.NODE:
        return f"g{group}/n{place.index}/serves-n{rank}t{thread}"
    return f"ps{place.index}/serves-g{group}n{rank}t{thread}"


def _with_foreground_sync(job: JobPrograms, program: Program, rank: int, thread: int) -> tuple[Instruction, ...]:
    """Add the exchange to thread 0 of a node: its rank's thread, or the copy serving rank 0 where it has none.

    In synchronous mode no other copy of the node's MP operators goes on before: all meet in an update of nothing.
    """
    place, code, plan = program.place, program.instructions, job.plan
    step = job.shadows.get(place.index)
    if plan.sync is None or plan.sync.mode != "foreground" or thread or place.role is Role.SERVER or step is None:
        return code
    serves = rank == place.index if place.index < plan.ranks else rank == 0
    meet = plan.synchronous and plan.ranks > 1 and plan.mp_ops(place.index)
    added = ((step,) if serves else ()) + ((Update(ordered=True),) if meet else ())
    last = isinstance(code[-1], Metric)
    return (*code[:-1], *added, code[-1]) if last else (*code, *added)


def _sync_workers(job: JobPrograms) -> Iterator[Worker]:
    plan = job.plan
    if plan.sync is not None and plan.sync.mode == "background":
        for g, group in enumerate(plan.groups):
            for n, step in sorted(job.shadows.items()):
                yield Worker(f"g{g}/n{n}/shadow", group[n], "shadow", g, n, -1, None, (step,))
    if job.shadows:
        for s, node in enumerate(plan.sync_servers):
            yield Worker(f"sync{s}", node, "sync", -1, s, -1, None, ())
