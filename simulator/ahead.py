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


def give_cores(machines: Iterable[Machine], runners: Iterable[Runner]) -> None:
    """Give each worker a core of its own on machines that have enough of them."""
    free = {id(m) for m in machines if m.memory is None and m.workers <= m.cores.capacity}
    for runner in runners:
        if id(runner.machine) in free:
            runner.own_core = runner.machine.own_core()


class Ahead:
    """Moves the workers with cores of their own.

    Parameters
    ----------
    engine : Engine
        The clock.
    starts : Mapping of type to callable
        What starts each primitive but work; most of them only when the clock is there.
    go_on : callable
        Starts the next primitive of a worker.
    end_step : callable
        Ends the last primitive of a step; returns whether the worker goes on at once.
    """

    def __init__(
        self,
        engine: Engine,
        starts: Mapping[type[Primitive], Start],
        go_on: Callable[[Runner], None],
        end_step: Callable[[Runner], bool],
    ) -> None:
        self._env, self._at, self._go_on, self._end_step = engine.env, engine.at, go_on, end_step
        self._starts = {kind: (start, kind not in INWARD) for kind, start in starts.items()}

    def advance(self, runner: Runner) -> None:
        """Start primitives until one waits, for others or for the clock, or the worker has ended."""
        now, starts, flat, split = self._env._now, self._starts, runner.flat, runner.split
        machine, core, last = runner.machine, runner.own_core, len(flat) - 1
        while True:
            primitive: Any = flat[runner.position]
            if primitive.__class__ is Work:  # in line: it is most of what there is
                core_ns = round(primitive.core_ns * runner.factor)
                if runner.ahead_ns:
                    core_ns, runner.ahead_ns = max(0, core_ns - runner.ahead_ns), 0
                begin = runner.clock
                if begin <= now:
                    begin = now
                    core.clear()
                runner.clock = end = begin + core_ns
                core.append((begin, end, primitive.traffic_bytes))
                machine.own_ns += core_ns
                machine.traffic_bytes += primitive.traffic_bytes
                split[primitive.part] += core_ns
            else:
                start, outward = starts[primitive.__class__]
                if outward and runner.clock > now:
                    self._at(runner.clock, self._go_on, runner)
                    return
                if not start(runner, primitive):
                    return
            if runner.position < last:
                runner.position += 1
            elif not self._end_step(runner):
                return
