"""Workers that go ahead of the clock where nobody can hold them up.

On a machine with a core for each of its workers, work ends when it ends, whatever others do, queued or shared: no event has
to tell. Such a worker has a time of its own, at or after the clock's, which work and what it receives move on. Before it
does something that others can notice (a message, the end of a step) it waits for the clock. What it did is the same to the
nanosecond; only the order of what happens at one and the same nanosecond can be another. Knows no costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from simulator.engine import Engine
from simulator.fans import Gather
from simulator.machines import Machine
from simulator.primitives import Await, EveryGap, Primitive, Work
from simulator.runner import Runner

#: Starts a primitive of a worker; whether it has ended.
Start = Callable[[Runner, Any], bool]
#: Primitives that nobody else can notice before the worker goes on.
INWARD = (Await, EveryGap, Gather)
#: Works of a worker after which they are counted.
MOST_UNCOUNTED = 16


def give_cores(machines: Iterable[Machine], runners: Iterable[Runner]) -> None:
    """Give each worker a core of its own on machines that have enough of them."""
    free = {id(m) for m in machines if m.memory is None and m.workers <= m.cores.capacity}
    for runner in runners:
        if id(runner.machine) in free:
            runner.own_core = runner.machine.own_core()


class Ahead:
    """Starts the primitives of workers with cores of their own.

    Parameters
    ----------
    engine : Engine
        The clock.
    go_on : callable
        Starts the next primitive of a worker.
    """

    def __init__(self, engine: Engine, go_on: Callable[[Runner], None]) -> None:
        self._engine, self._env, self._go_on = engine, engine.env, go_on

    def starts(self, others: Mapping[type[Primitive], Start]) -> dict[type[Primitive], Start]:
        """Return what starts each primitive, given what does so for other workers."""
        found = {kind: start if kind in INWARD else self._in_time(start) for kind, start in others.items()}
        return found | {Work: self._work}

    def _work(self, runner: Runner, work: Work) -> bool:
        core_ns, now = work.core_ns, self._env._now
        if runner.factor != 1.0:
            core_ns = round(core_ns * runner.factor)
        if runner.ahead_ns:
            core_ns, runner.ahead_ns = max(0, core_ns - runner.ahead_ns), 0
        begin, core = runner.clock, runner.own_core
        if begin <= now:
            begin = now
            if len(core) > MOST_UNCOUNTED:
                runner.machine.count(core, now)
        runner.clock = end = begin + core_ns
        core.append((begin, end, work.traffic_bytes))
        runner.split[work.part] += core_ns
        return True

    def _in_time(self, start: Start) -> Start:
        """Let a primitive begin when the clock is there."""
        env, at, go_on = self._env, self._engine.at, self._go_on

        def in_time(runner: Runner, primitive: Any) -> bool:
            if runner.clock > env._now:
                at(runner.clock, go_on, runner)
                return False
            return start(runner, primitive)

        return in_time
