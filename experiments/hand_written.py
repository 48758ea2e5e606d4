"""The yardstick of the simulator's speed: a small model written by hand. ``python -m experiments.hand_written``.

An independent study measured models of the same job as SimPy callbacks, 5 N + 2 events a thread-iteration: a thread
computes, asks N servers, each request passes the rank's NIC, the server's NIC, its core and both NICs back, and the thread
computes once more when it has all answers. This is that model written again from its description, so that it can run on the
machine on which ``experiments.bench_simulator`` runs. It has one program, no all-reduce, no memory, no accounts of time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from random import Random
from typing import Any

import simpy
from simpy.events import Timeout

#: Seconds: computing, a message at a NIC, an answer at a NIC, service, latency.
COMPUTE, ASK, ANSWER, SERVE, LATENCY = 1e-3, 1e-6, 2e-6, 3e-6, 5e-6
#: Groups, nodes of each and threads of each node, with the thread's iterations.
SIZES = ((1, 4, 4, 300), (1, 8, 8, 60), (1, 8, 24, 20), (4, 8, 8, 20), (1, 16, 24, 12), (8, 16, 16, 3))


@dataclass(eq=False, slots=True)
class Thread:
    """A thread: the index of its rank's NIC, iterations made, answers missing."""

    nic: int
    made: int = 0
    missing: int = 0


class Model:
    """Threads and servers on next-free-time queues, one event for each stage of each request.

    Parameters
    ----------
    groups, nodes, threads, iterations : int
        Size; there are as many servers as nodes of a group.
    """

    def __init__(self, groups: int, nodes: int, threads: int, iterations: int) -> None:
        self.env, self.events, self.servers, self.iterations = simpy.Environment(), 0, nodes, iterations
        self._random = Random(1).random
        self._out, self._back = [0.0] * (groups * nodes), [0.0] * (groups * nodes)
        self._enter, self._cores, self._leave = ([0.0] * nodes for _ in range(3))
        self.threads = [Thread(nic) for nic in range(groups * nodes) for _ in range(threads)]

    def run(self) -> None:
        """Run all iterations."""
        for thread in self.threads:
            self._compute(thread)
        self.env.run()

    def _at(self, instant: float, then: Any, argument: Any) -> None:
        self.events += 1
        event = Timeout(self.env, max(0.0, instant - self.env.now), argument)
        event.callbacks.append(then)

    def _pass(self, queues: list[float], index: int, seconds: float) -> float:
        queues[index] = end = max(self.env.now, queues[index]) + seconds
        return end

    def _compute(self, thread: Thread) -> None:
        self._at(self.env.now + COMPUTE * self._random(), self._ask, thread)

    def _ask(self, event: Any) -> None:
        thread = event.value
        thread.missing = self.servers
        for server in range(self.servers):
            self._at(self._pass(self._out, thread.nic, ASK), self._arrive, (thread, server))

    def _arrive(self, event: Any) -> None:
        self._at(self._pass(self._enter, event.value[1], ASK) + LATENCY, self._serve, event.value)

    def _serve(self, event: Any) -> None:
        self._at(self._pass(self._cores, event.value[1], SERVE), self._answer, event.value)

    def _answer(self, event: Any) -> None:
        self._at(self._pass(self._leave, event.value[1], ANSWER) + LATENCY, self._receive, event.value)

    def _receive(self, event: Any) -> None:
        thread = event.value[0]
        self._at(self._pass(self._back, thread.nic, ANSWER), self._got, thread)

    def _got(self, event: Any) -> None:
        thread = event.value
        thread.missing -= 1
        if not thread.missing:
            self._at(self.env.now + COMPUTE / 2, self._made, thread)

    def _made(self, event: Any) -> None:
        thread = event.value
        thread.made += 1
        if thread.made < self.iterations:
            self._compute(thread)


def main() -> None:
    """Print thread-iterations and events per CPU second by size."""
    print(f"{'G x N x T':>10} {'its/CPU s':>10} {'events/it':>10} {'events/CPU s':>13}")
    for groups, nodes, threads, iterations in SIZES:
        model = Model(groups, nodes, threads, iterations)
        began = time.process_time()
        model.run()
        seconds, count = time.process_time() - began, len(model.threads) * iterations
        size = f"{groups}x{nodes}x{threads}"
        print(f"{size:>10} {count / seconds:10,.0f} {model.events / count:10.1f} {model.events / seconds:13,.0f}")


if __name__ == "__main__":
    main()
