"""NICs of a given rate, on the wall clock: token buckets that hold messages back, whatever the transport.

Each machine of a plan has two buckets, for what it sends and what it receives. A message takes its bytes from the sender's
bucket, then, from the moment when its first byte could leave, from the receiver's; it is there when both had enough. The
buckets of a job lie in memory without a name that all its processes open, on one host: real hosts have real NICs.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from executor.counter import Progress
from executor.homes import Home, home_of, node_home, server_home, sync_home
from placement.plan import Plan
from programs.workers import Worker

#: What a NIC may send at once after a pause: one Ethernet frame.
BURST_BYTES = 1500


@dataclass(frozen=True)
class TokenBucket:
    """Fills at a rate, up to a burst; a message takes its bytes and may leave the bucket in debt, which it waits for.

    In the form of a virtual clock (GCRA, ITU-T I.371): all that is kept is when the bucket will be full again.

    Parameters
    ----------
    bytes_per_second, burst_bytes : float
        Rate and size.
    """

    bytes_per_second: float
    burst_bytes: float = BURST_BYTES

    def take(self, full_at: float, now: float, size: int) -> tuple[float, float]:
        """Take bytes out.

        Parameters
        ----------
        full_at : float
            When the bucket would be full again without this message, seconds.
        now : float
            When the message is there, seconds.
        size : int
            Its bytes.

        Returns
        -------
        tuple of float
            When the bucket had enough for all of them, and when it will be full again.
        """
        full = max(now, full_at) + size / self.bytes_per_second
        return max(now, full - self.burst_bytes / self.bytes_per_second), full


class Nics:
    """The buckets of a job.

    Parameters
    ----------
    plan : Plan
        Gives the rate of every machine's NIC.
    path : str
        Where another process of this host has them open (:attr:`path`); empty: they are made.
    """

    def __init__(self, plan: Plan, path: str = "") -> None:
        self._plan = plan
        homes = _homes(plan)
        self._numbers = {home: number for number, home in enumerate(homes)}
        size = 2 * 8 * len(homes)
        self.descriptor = os.open(path, os.O_RDWR) if path else os.memfd_create("nics")
        if not path:
            os.ftruncate(self.descriptor, size)
        self._full_at: npt.NDArray[np.float64] = np.frombuffer(mmap.mmap(self.descriptor, size), np.float64)

    @property
    def path(self) -> str:
        """Path by which another process of this host opens the same buckets, as long as this one lives."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def close(self) -> None:
        """Close the descriptor of this process."""
        os.close(self.descriptor)

    def between(self, source: Worker, target: Worker) -> Wire | None:
        """Return the way of a message between two workers, None if it stays on one host."""
        if source.node.host == target.node.host:
            return None
        sends, receives = self._numbers[home_of(source)], self._numbers[home_of(target)]
        rates = source.node.nic_bytes_per_second, target.node.nic_bytes_per_second
        return Wire(self, (2 * sends, 2 * receives + 1), (TokenBucket(rates[0]), TokenBucket(rates[1])))

    def take(self, numbers: tuple[int, int], buckets: tuple[TokenBucket, TokenBucket], size: int, now: float) -> float:
        """Take a message out of two buckets, one after the other; returns when it has arrived."""
        (sends, receives), (out, into) = numbers, buckets
        with self._alone():
            left, self._full_at[sends] = out.take(float(self._full_at[sends]), now, size)
            begun = max(now, left - size / out.bytes_per_second)
            came, self._full_at[receives] = into.take(float(self._full_at[receives]), begun, size)
        return max(left, came)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the buckets; the kernel takes the lock from a process that dies."""
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)


@dataclass(frozen=True)
class Wire:
    """From one machine's NIC to another's.

    Parameters
    ----------
    nics : Nics
        All buckets.
    numbers, buckets
        Of the sender's bucket for sending and the receiver's for receiving.
    """

    nics: Nics
    numbers: tuple[int, int]
    buckets: tuple[TokenBucket, TokenBucket]

    def send(self, size: int) -> float:
        """Send bytes now; returns when they arrive, on ``time.perf_counter``."""
        return self.nics.take(self.numbers, self.buckets, size, time.perf_counter())

    @staticmethod
    def receive(arrival: float, progress: Progress) -> None:
        """Wait until a message has arrived."""
        left = arrival - time.perf_counter()
        if left > 0:
            progress.waiting(True)
            time.sleep(left)
            progress.waiting(False)


def _homes(plan: Plan) -> list[Home]:
    nodes = [node_home(group, node) for group in range(len(plan.groups)) for node in range(plan.group_size)]
    servers = [server_home(server) for server in range(len(plan.servers))]
    return [*nodes, *servers, *(sync_home(server) for server in range(len(plan.sync_servers)))]
