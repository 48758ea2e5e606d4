"""Single losses of nodes and the writing of checkpoints, as events in simulated time.

A node is lost at an instant, and the work of the step under way with it. Whoever needs the node ends that step all the same,
stands still until the loss has been noticed and a replacement has read the checkpoint, and then makes again every step since
that checkpoint, the one under way included, at whatever speed the cluster then allows. That is exact unless the replacement
is ready before the step would have ended: then as much is lost too much, at most a step. The node's group stands still, and
the others go on; all groups do if the node is a server, if the loss is of the whole job, or if groups average in every
exchange. Knows steps and instants; nothing of what a step is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from placement.plan import Plan
from simulator.conditions import Checkpoints, Conditions, NodeLoss
from simulator.engine import NANOSECONDS, Engine, to_ns
from simulator.primitives import Part
from simulator.runner import Runner

#: Workers that go through the steps of one session together: (group, thread).
Lane = tuple[int, int]


@dataclass(eq=False)
class _Hold:
    """At the end of ``step`` some workers stand still until ``until_ns``, then go on after step ``back_to``.

    One object for all of them: each makes the same steps again, however far apart they come to it.
    """

    step: int
    until_ns: int
    back_to: int
    workers: tuple[Runner, ...]


class Outages:
    """Stops and rewinds workers.

    Parameters
    ----------
    engine : Engine
        The clock.
    plan : Plan
        Which node belongs to which group.
    conditions : Conditions
        Losses and checkpoints.

    Attributes
    ----------
    happened : list of str
        Sentences: what happened when.
    """

    def __init__(self, engine: Engine, plan: Plan, conditions: Conditions) -> None:
        self._engine, self._plan, self._losses = engine, plan, conditions.losses
        self._checkpoints = conditions.checkpoints
        self._lanes: dict[Lane, list[Runner]] = defaultdict(list)
        self._holds: dict[Runner, list[_Hold]] = defaultdict(
            list
        )  # of each worker, in the order in which it comes to them
        self._go_on: Callable[[Runner], None] = lambda runner: None
        self.happened: list[str] = []

    def start(self, runners: Iterable[Runner], go_on: Callable[[Runner], None]) -> None:
        """Plan everything; ``go_on`` begins a worker's next step."""
        self._go_on = go_on
        for runner in runners:
            self._lanes[runner.worker.group, runner.worker.thread].append(runner)
        for loss in self._losses:
            self._engine.at(self._engine.begin_ns + to_ns(loss.at_seconds), self._lose, loss)
        if self._checkpoints is not None and self._checkpoints.write_seconds:
            first = self._engine.begin_ns + to_ns(self._checkpoints.interval_seconds)
            self._engine.at(first, self._write, self._checkpoints)

    def holds(self, runner: Runner, steps: int) -> bool:
        """At the end of a step: whether the worker, which makes so many, stands still now; it will be called on."""
        holds = self._holds.get(runner)
        if not holds or runner.step < holds[0].step:
            return False
        hold = holds.pop(0)
        if hold.back_to >= steps:  # nothing is left to do
            return False
        now = self._engine.now
        until = max(now, hold.until_ns)
        runner.rewind(hold.back_to)
        runner.split[Part.RECOVERY] += until - now
        self._engine.at(until, self._go_on, runner)
        return True

    def told(self) -> tuple[str, ...]:
        """Return what happened, and what would have happened after the end of the run."""
        passed = self._engine.now - self._engine.begin_ns
        late = [loss for loss in self._losses if to_ns(loss.at_seconds) > passed]
        ended = f"the run ended at {passed / NANOSECONDS:.4g} s, more steps are needed"
        return (*self.happened, *(f"{loss.node} is lost at {loss.at_seconds:g} s: {ended}." for loss in late))

    # ---- what happens

    def _lose(self, loss: NodeLoss) -> None:
        until = self._engine.now + to_ns(loss.detect_seconds + loss.restart_seconds)
        lanes = self._touched(loss)
        lost = self._hold(lanes, until, self._saved_ns())
        groups = sorted({group for group, _ in lanes})
        still = (until - self._engine.begin_ns) / NANOSECONDS
        who = f"group {groups[0]}" if len(groups) == 1 else f"all {len(groups)} groups"
        self.happened.append(
            f"{loss.node} was lost at {loss.at_seconds:g} s: {who} stood still until {still:.4g} s at least "
            f"and made up to {lost} steps again."
        )

    def _write(self, checkpoints: Checkpoints) -> None:
        until = self._engine.now + to_ns(checkpoints.write_seconds)
        self._hold(list(self._lanes), until, None)
        if self._engine.idle:  # nobody will ever go on: a deadlock, which checkpoints must not hide
            return
        self._engine.at(until + to_ns(checkpoints.interval_seconds), self._write, checkpoints)

    def _touched(self, loss: NodeLoss) -> list[Lane]:
        home = next((g for g, group in enumerate(self._plan.groups) if loss.node in {n.name for n in group}), -1)
        foreground = self._plan.sync is not None and self._plan.sync.mode == "foreground"
        if home < 0 or loss.whole_job or (self._plan.rounds and foreground):
            return list(self._lanes)
        return [lane for lane in self._lanes if lane[0] == home]

    def _saved_ns(self) -> int:
        """When the latest checkpoint was written: the start, without checkpoints."""
        begin = self._engine.begin_ns
        if self._checkpoints is None:
            return begin
        period = to_ns(self._checkpoints.interval_seconds + self._checkpoints.write_seconds)
        return begin + (self._engine.now - begin) // period * period

    def _hold(self, lanes: Sequence[Lane], until: int, saved_ns: int | None) -> int:
        """Hold lanes at the end of the steps under way; rewind to the checkpoint, if any; return the most steps lost."""
        every = [tuple(self._lanes[lane]) for lane in lanes]
        still_open = [lane for lane in every if not any(runner.finished for runner in lane)]
        if self._plan.rounds:  # exchanges of all groups must stay as many
            together = tuple(runner for lane in every for runner in lane)
            still_open = [together] if still_open == every else []
        return max([self._hold_together(lane, until, saved_ns) for lane in still_open], default=0)

    def _hold_together(self, workers: tuple[Runner, ...], until: int, saved_ns: int | None) -> int:
        """Hold workers that go through the same steps; return the most steps lost.

        A hold that none of them has come to yet is changed; else there is one more, after those that some still come to.
        Steps are counted as they will be then.
        """
        ahead = {runner: self._holds[runner][:] for runner in workers}
        same = self._shared(workers)
        if same is not None:
            for holds in ahead.values():
                holds.pop()
        step = 1 + max(holds[-1].back_to if holds else runner.step for runner, holds in ahead.items())
        back_to = step
        if saved_ns is not None:
            saved = [bisect_right(runner.done, saved_ns) for runner in workers]
            back_to = min(*saved, step, *(hold.back_to for holds in ahead.values() for hold in holds))
        if same is None:
            hold = _Hold(step, until, back_to, workers)
            for runner in workers:
                self._holds[runner].append(hold)
        else:
            same.step, same.until_ns = max(same.step, step), max(same.until_ns, until)
            same.back_to = min(same.back_to, back_to)
        return step - back_to

    def _shared(self, workers: tuple[Runner, ...]) -> _Hold | None:
        """Return the last hold of all these workers, if it is one, of no others, that none has come to yet."""
        last = self._holds[workers[0]][-1:]
        alike = bool(last) and last[0].workers == workers and all(self._holds[r][-1:] == last for r in workers)
        return last[0] if alike else None
