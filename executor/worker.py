"""The main loop of each kind of worker, from its first step to its last. Runs inside the worker's own process."""

from __future__ import annotations

from executor.centre import Clerk
from executor.errors import PeerGone
from executor.exchange import Endpoint
from executor.interpreter import Context, Interpreter
from placement.plan import Plan
from programs.workers import Worker


def turns_of(plan: Plan, worker: Worker, steps: range) -> range:
    """Numbers of the times that a worker runs its program in the given steps of a job: all steps, exchanges, or none."""
    if worker.role == "shadow":
        assert plan.sync is not None
        return range(steps.start // plan.sync.gap, steps.stop // plan.sync.gap)
    return range(0) if worker.role == "sync" else steps


def run_worker(end: Endpoint, context: Context, steps: range) -> None:
    """Run a worker for the given steps of a job.

    Raises
    ------
    PeerGone
        A worker that this one waits for has ended.
    NotFinite
        The loss is not finite.
    """
    if end.worker.role == "sync":
        _serve_exchanges(end, context, steps)
    elif end.worker.role == "shadow":
        _run_shadow(end, context, steps)
    else:
        _run_session(end, context, steps)
    channels = end.wiring.channels.items()
    end.wiring.transport.leave(channel for label, channel in channels if label[:2] == ("push", end.worker.name))


def _run_session(end: Endpoint, context: Context, steps: range) -> None:
    interpreter, me = Interpreter(end, context), end.worker
    leads = me.role == "rank" and me.rank == me.thread == 0
    shadows = [pipe for name, pipe in end.wiring.triggers.items() if leads and name.startswith(f"g{me.group}/")]
    gap = context.plan.sync.gap if context.plan.sync is not None else 1
    for step in steps:
        interpreter.run_step(step)
        if (step + 1) % gap == 0:
            for pipe in shadows:
                pipe.put(end.clock.now)


def _run_shadow(end: Endpoint, context: Context, steps: range) -> None:
    """Exchange each time that thread 0 of the group's first rank has made ``gap`` more steps; never make it wait."""
    interpreter, trigger = Interpreter(end, context), end.wiring.triggers[end.worker.name]
    for number in turns_of(context.plan, end.worker, steps):
        end.clock.meet(trigger.get(end.record))
        interpreter.run_step(number)


def _serve_exchanges(end: Endpoint, context: Context, steps: range) -> None:
    """Answer exchanges as they come, or round by round, until all clients have gone.

    On the virtual clocks clients do not queue here: an answer is as late as its request and the work on it.
    """
    assert context.plan.sync is not None
    clerk = Clerk(end, context.plan, context.state, steps.start // context.plan.sync.gap)
    inbox = end.wiring.transport.inbox(clerk.channels())
    left = len(clerk.clients)
    while left:
        for position in inbox.wait(end.record):
            try:
                clerk.take(position)
            except PeerGone:
                inbox.drop(position)
                left -= 1


def session_number(plan: Plan, worker: Worker) -> int:
    """Number of a worker's session: by group, then rank, then thread."""
    return (worker.group * plan.ranks + worker.rank) * plan.hogwild + worker.thread


def sessions(plan: Plan) -> int:
    """Number of sessions of a job."""
    return len(plan.groups) * plan.ranks * plan.hogwild
