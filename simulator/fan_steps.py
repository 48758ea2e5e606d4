"""What a worker does with fans: it hands one to whoever carries fans, and waits until receiving can go on without a pause.

The two primitives of :mod:`simulator.fans` for ``simulator.interpreter``. Knows no costs and no queues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.engine import Engine
from simulator.fans import Carrier, Gather, Scatter
from simulator.primitives import Mailbox, Part
from simulator.runner import Runner

#: Looked up once: members of enumerations are slow to find, and these are asked for on the hot path.
COMPUTE, PS_QUEUE = Part.COMPUTE, Part.PS_QUEUE


class FanSteps:
    """Starts the primitives of fans.

    Parameters
    ----------
    engine : Engine
        The clock.
    carrier : Carrier
        Carries the fans.
    go_on : callable
        Told of a worker that has what it waited for.
    """

    def __init__(self, engine: Engine, carrier: Carrier, go_on: Callable[[Runner], None]) -> None:
        self._engine, self._env, self._carrier, self._go_on = engine, engine.env, carrier, go_on

    def starts(self) -> dict[Any, Callable[[Runner, Any], bool]]:
        """Return what starts each primitive; these tell whether it ended at once."""
        return {Scatter: self._scatter, Gather: self._gather}

    def _scatter(self, runner: Runner, scatter: Scatter) -> bool:
        self._carrier.scatter(scatter, runner.machine.index, runner.factor, self._answered)
        return True

    def _answered(self, delivery: tuple[Mailbox, Any]) -> None:
        mailbox, arrivals = delivery
        mailbox.arrived.append(arrivals)
        runner, mailbox.waiting = mailbox.waiting, None
        if runner is not None and self._collect(runner, runner.flat[runner.position]):
            self._go_on(runner)

    def _gather(self, runner: Runner, gather: Gather) -> bool:
        runner.since = runner.time(self._env._now)
        if not gather.mailbox.arrived:
            gather.mailbox.waiting = runner
            return False
        return self._collect(runner, gather)

    def _collect(self, runner: Runner, gather: Any) -> bool:
        """Wait until receiving can go on to its end without a pause; return whether it can at once."""
        arrivals: Any = gather.mailbox.arrived[0]
        if gather.final:
            gather.mailbox.arrived.popleft()
        now = runner.time(self._env._now)
        start = max(runner.since, now + self._carrier.receivable(gather, arrivals, now, runner.factor))
        runner.split[PS_QUEUE] += start - runner.since
        if start > now:
            if runner.own_core is not None:
                runner.clock = start
                return True
            self._engine.at(start, self._go_on, runner)
            return False
        runner.ahead_ns = now - start
        runner.split[COMPUTE] += now - start
        return True
