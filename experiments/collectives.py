"""Collectives as messages on the simulator's network, machine by machine: for closed forms and for speed.

The algorithms are the textbook's (Thakur, Rabenseifner and Gropp 2005): a ring all-reduce sends 1 / n of the buffer to the
next machine in 2 (n - 1) rounds, each machine when it has received the round before; an all-to-all sends 1 / n of it to
everybody else at once. Knows the network only, no plans and no programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.engine import NANOSECONDS, Engine
from simulator.fifo import FifoNetwork
from simulator.network import Network, Nic

#: How messages share links, by level.
NETWORKS: dict[str, type[Network]] = {"fifo": FifoNetwork, "fluid": Network}


class Cluster:
    """Machines with equal NICs on hosts of their own.

    Parameters
    ----------
    count : int
        Machines.
    bytes_per_second, latency_seconds : float
        Of each NIC.
    level : str
        ``fifo`` or ``fluid``.
    """

    def __init__(self, count: int, bytes_per_second: float, latency_seconds: float, level: str = "fluid") -> None:
        self.count, self.engine = count, Engine()
        nics = [Nic(f"host{index}", bytes_per_second, latency_seconds) for index in range(count)]
        self.network = NETWORKS[level](self.engine, nics)

    def ring_all_reduce(self, size_bytes: int) -> float:
        """Seconds until all machines have the sum of a buffer of so many bytes, a multiple of their number."""
        rounds, part = 2 * (self.count - 1), size_bytes // self.count

        def arrived(message: tuple[int, int]) -> None:
            machine, made = message
            if made < rounds:
                send(machine, made)

        def send(machine: int, made: int) -> None:
            target = (machine + 1) % self.count
            self.network.send(machine, target, part, arrived, (target, made + 1))

        return self._seconds(send)

    def all_to_all(self, size_bytes: int) -> float:
        """Seconds until every machine has sent its part of so many bytes to every other."""
        part = size_bytes // self.count

        def send(machine: int, _: int) -> None:
            for step in range(1, self.count):
                self.network.send(machine, (machine + step) % self.count, part, _nothing, None)

        return self._seconds(send)

    def _seconds(self, send: Callable[[int, int], None]) -> float:
        for machine in range(self.count):
            send(machine, 0)
        self.engine.run()
        return self.engine.now / NANOSECONDS


def _nothing(_: Any) -> None:
    pass
