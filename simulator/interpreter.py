"""Runs the primitives of all workers on one clock.

A worker goes through its primitives until one makes it wait; what it waited for calls it on. There is one event per
primitive that takes time and none for the others. Workers that can go on at the same instant do so in the order in which
they were called on. Knows nothing of costs (``simulator.lowering``) nor of what the times are used for.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from simulator.ahead import Ahead
from simulator.engine import Engine
from simulator.errors import Deadlock
from simulator.fan_steps import FanSteps
from simulator.fans import Carrier
from simulator.fifo import FifoNetwork, FifoResource
from simulator.lowering import Lowering
from simulator.meetings import Meetings
from simulator.network import Network
from simulator.outages import Outages
from simulator.primitives import Await, Emit, EveryGap, Lag, Mailbox, Message, Part, Primitive, Read, Work
from simulator.runner import Runner, Shadow, SyncServer

#: Looked up once: members of enumerations are slow to find, and these are asked for on the hot path.
TRANSFER, CONTENTION, SYNC = Part.TRANSFER, Part.CONTENTION, Part.SYNC


class Interpreter:
    """Carries out the programs of a job.

    Parameters
    ----------
    engine : Engine
        The clock.
    network : Network
        Carries the messages.
    lowering : Lowering
        Says what an answer of a sync server costs.
    steps : int
        Steps that every session makes.
    record : bool
        Whether to keep the end of every instruction.
    on_step : callable
        Called with a runner at the end of each of its steps, shadow workers left out.
    notices : callable
        Whether the step that a runner is in is to be told at the instant at which it ends, or may be told before.
    fans : Carrier, optional
        Carries the fans, if there are any.
    outages : Outages, optional
        Stops workers, if anything happens.

    Attributes
    ----------
    steps : int
        Steps that every session makes; :meth:`finish` may lower it.
    """

    def __init__(
        self,
        engine: Engine,
        network: Network,
        lowering: Lowering,
        steps: int,
        record: bool,
        on_step: Callable[[Runner], None],
        notices: Callable[[Runner], bool] = lambda _: True,
        fans: Carrier | None = None,
        outages: Outages | None = None,
    ) -> None:
        self._outages = outages
        self.steps = steps
        self._engine, self._network, self._lowering = engine, network, lowering
        self._env = engine.env  # read directly on the hot path
        self._record, self._on_step, self._notices = record, on_step, notices
        self._noted = record  # whether every end of a primitive matters
        self._runners: tuple[Runner, ...] = ()
        self._paced: dict[Runner, list[Shadow]] = defaultdict(list)
        self._shadows: dict[Runner, Shadow] = {}
        self._unfinished = 0
        self._ready: deque[Runner] = deque()
        self._moving = False
        self._start: dict[type[Primitive], Callable[[Runner, Any], bool]] = {
            Work: self._queue if isinstance(network, FifoNetwork) else self._work,
            Emit: self._emit,
            Await: self._await,
            EveryGap: self._every_gap,
            Read: self._read,
            Lag: self._lag,
        }
        if fans is not None:
            self._start |= FanSteps(engine, fans, self._go_on).starts()
        self._meetings = Meetings(engine, network, self._arrived)
        self._postings: dict[Emit, tuple[int, Callable[[Any], None]]] = {}  # nanoseconds on an idle network, what then
        self._advance_own = Ahead(engine, self._start, self._move, self._passed).advance

    def run(
        self,
        runners: Sequence[tuple[Runner, int]],
        shadows: Iterable[Shadow] = (),
        servers: Iterable[SyncServer] = (),
    ) -> None:
        """Run all steps.

        Parameters
        ----------
        runners : sequence of (Runner, int)
            Workers of sessions and when each starts, in nanoseconds.
        shadows : iterable of Shadow
            Background sync workers; what they have under way when the last session ends is left undone.
        servers : iterable of SyncServer
            Sync servers.

        Raises
        ------
        Deadlock
            Nothing is left to happen and a session is unfinished.
        """
        self._runners = tuple(runner for runner, _ in runners)
        self._unfinished = len(self._runners)
        for shadow in shadows:
            self._paced[shadow.pace].append(shadow)
            self._shadows[shadow.runner] = shadow
        for server in servers:
            self._open(server)
        for meeting in self._lowering.meetings:
            self._meetings.add(meeting)
        if self._outages is not None:
            self._outages.start(self._runners, self._begin)
        for runner, offset in runners:
            self._engine.at(offset, self._begin, runner)
        if not self._engine.run():
            raise Deadlock(tuple(self._waits()))

    def finish(self) -> None:
        """Let every session end after the step that the foremost is in."""
        self.steps = min(self.steps, 1 + max(runner.step for runner in self._runners))

    # ---- going on

    def _begin(self, runner: Runner) -> None:
        runner.begin_step(self._engine.now)
        self._move(runner)

    def _go_on(self, runner: Runner) -> None:
        """The primitive under way has ended: go on with the next."""
        if not self._noted and runner.position + 1 < len(runner.flat):  # what _passed does then
            runner.position += 1
            self._move(runner)
        elif self._passed(runner):
            self._move(runner)

    def _move(self, runner: Runner) -> None:
        """Start what comes next; a worker that is called on while another moves waits for its turn."""
        ready = self._ready
        if self._moving:
            ready.append(runner)
            return
        self._moving = True
        while True:
            if runner.own_core is None:
                self._advance(runner)
            else:
                self._advance_own(runner)
            if not ready:
                break
            runner = ready.popleft()
        self._moving = False

    def _advance(self, runner: Runner) -> None:
        """Start primitives until one takes time or the worker has ended."""
        start, flat, passed, last = self._start, runner.flat, self._passed, -1 if self._noted else len(runner.flat) - 1
        while True:
            primitive = flat[runner.position]
            if not start[primitive.__class__](runner, primitive):
                return
            if runner.position < last:  # what _passed does if nobody notes it, without a call for each
                runner.position += 1
            elif not passed(runner):
                return

    def _passed(self, runner: Runner) -> bool:
        """Note the end of a primitive; return whether the worker goes on at once."""
        position = runner.position
        if self._record and runner.flat[position].last:
            runner.ends.append(self._engine.now)
        runner.position = position = position + 1
        if position < len(runner.flat):
            return True
        if runner.clock > self._env._now and self._others_notice(runner):
            self._engine.at(runner.clock, self._step_ended, runner)
            return False
        return self._end_step(runner)

    def _others_notice(self, runner: Runner) -> bool:
        """Whether anybody else does anything at the end of a worker's step."""
        watched = runner in self._paced or runner in self._shadows or self._outages is not None
        return watched or self._notices(runner)

    def _step_ended(self, runner: Runner) -> None:
        if self._end_step(runner):
            self._move(runner)

    def _end_step(self, runner: Runner) -> bool:
        runner.step += 1
        runner.position, now = 0, runner.time(self._env._now)
        runner.done.append(now)
        shadow = self._shadows.get(runner)
        if shadow is not None:
            shadow.idle = True
            self._exchange_if_due(shadow)
            return False
        if self._outages is not None and self._outages.holds(runner, self.steps):
            return False
        self._on_step(runner)
        for shadow in self._paced.get(runner, ()):
            self._exchange_if_due(shadow)
        if runner.step < self.steps:
            runner.begin_step(now)
            return True
        runner.finished = True
        self._unfinished -= 1
        if not self._unfinished:
            self._engine.stop()
        return False

    # ---- primitives: each returns whether it ended at once

    def _work(self, runner: Runner, work: Work) -> bool:
        core_ns, machine = work.core_ns, runner.machine
        if not core_ns and not work.traffic_bytes:
            return True
        runner.since = self._env._now
        if runner.factor != 1.0:
            core_ns = round(core_ns * runner.factor)
        if runner.ahead_ns:
            core_ns, runner.ahead_ns = max(0, core_ns - runner.ahead_ns), 0
        runner.core_ns = core_ns
        if machine.memory is None:
            machine.traffic_bytes += work.traffic_bytes
            machine.cores.add(core_ns, self._worked, runner)
        else:
            machine.run(core_ns, work.traffic_bytes, self._worked, runner)
        return False

    def _queue(self, runner: Runner, work: Work) -> bool:
        """Start work at level fifo: unless memory has a say as well, it is known now when it will have ended."""
        core_ns, machine, cores = work.core_ns, runner.machine, runner.machine.cores
        if machine.memory is not None or not core_ns or runner.ahead_ns or not isinstance(cores, FifoResource):
            return self._work(runner, work)
        machine.traffic_bytes += work.traffic_bytes
        core_ns, now, part = round(core_ns * runner.factor), self._env._now, work.part
        end = cores.reserve(now, core_ns)
        runner.split[part] += core_ns
        runner.split[part if part is SYNC else CONTENTION] += end - now - core_ns
        self._engine.at(end, self._go_on, runner)
        return False

    def _worked(self, runner: Runner) -> None:
        work: Any = runner.flat[runner.position]
        elapsed, ideal, part = self._env._now - runner.since, runner.core_ns, work.part
        if runner.machine.memory is not None:
            ideal = runner.machine.ideal_ns(ideal, work.traffic_bytes)
        if elapsed > ideal:  # else the time is that of an idle machine, to the rounding of its end
            runner.split[part if part is SYNC else CONTENTION] += elapsed - ideal
            elapsed = ideal
        runner.split[part] += elapsed
        if self._passed(runner):
            self._move(runner)

    def _emit(self, _: Runner, emit: Emit) -> bool:
        self._post(emit)
        return True

    def _post(self, emit: Emit) -> None:
        posting = self._postings.get(emit)
        if posting is None:
            ideal = self._network.ideal_ns(emit.source, emit.target, emit.bytes)
            posting = self._postings[emit] = ideal, self._meetings.then(emit.mailbox)
        message = Message(self._env._now, posting[0], emit.answer)
        self._network.send(emit.source, emit.target, emit.bytes, posting[1], (emit.mailbox, message))

    def _arrived(self, delivery: tuple[Mailbox, Message]) -> None:
        mailbox, message = delivery
        if mailbox.serve is not None:
            mailbox.serve(message)
        elif mailbox.waiting is None:
            mailbox.arrived.append(message)
        else:
            runner, mailbox.waiting = mailbox.waiting, None
            if self._env._now > runner.since:
                self._book_wait(runner, message)
            self._go_on(runner)

    def _await(self, runner: Runner, wait: Await) -> bool:
        if wait.mailbox.arrived:
            wait.mailbox.arrived.popleft()
            return True
        runner.since = runner.time(self._env._now)
        wait.mailbox.waiting = runner
        return False

    def _book_wait(self, runner: Runner, message: Message) -> None:
        """Split a wait: before the message was sent, on the wire alone, and what sharing the wire added."""
        part, now, since, split = runner.flat[runner.position].part, self._env._now, runner.since, runner.split
        sent = message.sent_ns
        on_wire = now - (sent if sent > since else since)
        transfer = min(on_wire, message.ideal_ns)
        split[part] += now - since - on_wire
        synchronising = part is SYNC
        split[SYNC if synchronising else TRANSFER] += transfer
        split[SYNC if synchronising else CONTENTION] += on_wire - transfer

    def _every_gap(self, runner: Runner, every: EveryGap) -> bool:
        if (runner.step + 1) % every.gap:
            runner.position += every.skip
        return True

    def _read(self, runner: Runner, read: Read) -> bool:
        ready, now = read.reader.take(self._engine.now), self._engine.now
        if ready <= now:
            return True
        runner.split[Part.READER] += ready - now
        self._engine.at(ready, self._go_on, runner)
        return False

    def _lag(self, runner: Runner, lag: Lag) -> bool:
        behind = runner.lag_ns(lag.ranks)
        if behind:
            runner.split[Part.PEER] += behind
            self._engine.at(self._engine.now + behind, self._go_on, runner)
        return not behind

    # ---- synchronisation between groups

    def _exchange_if_due(self, shadow: Shadow) -> None:
        if shadow.due():
            shadow.idle = False
            shadow.paced_at.append(shadow.pace.step)
            self._begin(shadow.runner)

    def _open(self, server: SyncServer) -> None:
        """Let a sync server answer: one request, or one round of all groups, after the other, in the order of arrival."""

        def serve(message: Message) -> None:
            together = server.admit(message)
            if together:
                server.queue.append(together)
                if len(server.queue) == 1:
                    answer()

        def answer() -> None:
            core_ns = sum(one.work.core_ns for one in server.queue[0])
            server.machine.run(core_ns, 0.0, answered, None)

        def answered(_: None) -> None:
            together = server.queue.popleft()
            if server.queue:
                answer()
            for one in together:
                self._post(one.reply)

        server.inbox.serve = serve

    # ---- what is wrong

    def _waits(self) -> Iterable[str]:
        for runner in self._runners:
            if not runner.finished:
                index, instruction = runner.under_way()
                wait = runner.flat[runner.position]
                what = f"the message {wait.mailbox.label!r}" if isinstance(wait, Await) else "nothing"
                where = f"step {runner.step}, instruction {index}, {type(instruction).__name__}"
                yield f"{runner.worker.name} ({where}) waits for {what}"
