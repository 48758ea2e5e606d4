"""The simulator's parts against closed forms: expected, simulated, interval. ``python -m experiments.closed_forms``.

Queues with random arrivals are run several times, each from its own seed; the interval is the half width of the 99 %
confidence interval of the mean over the runs (Student's t), so one row in a hundred may miss by chance. Times without
chance must be hit to the nanosecond. Units: nanoseconds, customers per microsecond, or none (ratios).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from scipy.special import stdtrit

from experiments.collectives import Cluster
from problem.formats.chakra import read_nodes
from problem.formats.content import Content
from simulator.engine import Engine
from simulator.fifo import FifoNetwork, FifoResource
from simulator.links import max_min_rates
from simulator.network import Network, Nic
from simulator.shared import SharedResource

RUNS, CUSTOMERS, WARMUP = 60, 4000, 800
SERVICE = 1000.0  # mean, nanoseconds
#: NIC and latency of the collectives.
RATE, LATENCY = 1e9, 5e-6

#: Of ``comm_type`` in a Chakra trace (et_def.proto).
ALL_REDUCE = 0

Add = Callable[[float, Callable[[Any], None], Any], None]
Draw = Callable[[Random], float]


@dataclass(frozen=True)
class Row:
    """One closed form; ``interval`` is 0 where nothing is random."""

    name: str
    source: str
    expected: float
    simulated: float
    interval: float

    @property
    def agrees(self) -> bool:
        """Whether the expected value lies within the interval."""
        return abs(self.simulated - self.expected) <= max(self.interval, 1e-9 * self.expected)


@dataclass(frozen=True)
class Queue:
    """A queue with random arrivals or customers: ``run`` simulates it once from a seed."""

    name: str
    source: str
    expected: float
    run: Callable[[int], float]

    def row(self, runs: int = RUNS) -> Row:
        """Simulate it several times."""
        found = [self.run(seed) for seed in range(runs)]
        half = float(stdtrit(runs - 1, 0.995)) * float(np.std(found, ddof=1)) / math.sqrt(runs)
        return Row(self.name, self.source, self.expected, float(np.mean(found)), half)


def exponential(rng: Random) -> float:
    """Exponential work of mean :data:`SERVICE`."""
    return rng.expovariate(1.0 / SERVICE)


def constant(_: Random) -> float:
    """The same work every time."""
    return SERVICE


def bimodal(rng: Random) -> float:
    """One fifth of the mean or nine fifths of it."""
    return SERVICE * (0.2 if rng.random() < 0.5 else 1.8)


def sojourn(engine: Engine, servers: Sequence[Add], load: float, draw: Draw, seed: int) -> float:
    """Mean time in nanoseconds from a Poisson arrival to the end of its work at every server, after the warm-up."""
    rng, arrived, spent = Random(seed), 0, 0.0
    missing = dict.fromkeys(range(CUSTOMERS), len(servers))

    def arrive(customer: int) -> None:
        nonlocal arrived
        arrived += 1
        if arrived < CUSTOMERS:
            engine.at(engine.now + round(rng.expovariate(load / SERVICE)), arrive, customer + 1)
        for add in servers:
            add(draw(rng), end, (customer, engine.now))

    def end(job: tuple[int, int]) -> None:
        nonlocal spent
        missing[job[0]] -= 1
        if not missing[job[0]] and job[0] >= WARMUP:
            spent += engine.now - job[1]

    engine.at(0, arrive, 0)
    engine.run()
    return spent / (CUSTOMERS - WARMUP)


def resource_sojourn(kind: type[Any], servers: int, cores: int, load: float, draw: Draw) -> Callable[[int], float]:
    """A run of ``servers`` resources side by side, of so many cores each, at a load of each core."""

    def run(seed: int) -> float:
        engine = Engine()
        return sojourn(engine, [kind(engine, cores, 1).add for _ in range(servers)], load * cores, draw, seed)

    return run


def link_sojourn(kind: type[Network], load: float, draw: Draw) -> Callable[[int], float]:
    """A run of messages from one machine to another over a NIC of 1 byte per nanosecond."""

    def run(seed: int) -> float:
        engine = Engine()
        network = kind(engine, [Nic(name, 1e9, 0.0) for name in ("a", "b")])

        def add(work: float, then: Callable[[Any], None], argument: Any) -> None:
            network.send(0, 1, max(1, round(work)), then, argument)

        return sojourn(engine, [add], load, draw, seed)

    return run


def closed_rate(kind: type[Any], demands: Sequence[float], think: float, draw: Draw) -> Callable[[int], float]:
    """Throughput (per microsecond) of ten customers who think and then visit each server once."""

    def run(seed: int) -> float:
        engine, rng, ends = Engine(), Random(seed), list[int]()
        servers = [kind(engine, 1, 1) for _ in demands]

        def go(place: tuple[int, int]) -> None:
            customer, index = place
            if index < len(servers):
                servers[index].add(demands[index] * draw(rng) / SERVICE, go, (customer, index + 1))
                return
            ends.append(engine.now)
            if len(ends) < CUSTOMERS:
                engine.at(engine.now + round(think * draw(rng) / SERVICE), go, (customer, 0))

        for customer in range(CLOSED):
            engine.at(round(think * customer / CLOSED), go, (customer, 0))
        engine.run()
        last = CUSTOMERS - 1
        return 1000.0 * (last - WARMUP) / (ends[last] - ends[WARMUP])

    return run


CLOSED = 10  # customers of the closed network


def exact_mva(demands: Sequence[float], think: float, customers: int) -> float:
    """Throughput of a closed network of single servers (Reiser and Lavenberg 1980), in customers per unit of time."""
    queues, throughput = [0.0] * len(demands), 0.0
    for n in range(1, customers + 1):
        residence = [demand * (1 + queue) for demand, queue in zip(demands, queues, strict=True)]
        throughput = n / (think + sum(residence))
        queues = [throughput * spent for spent in residence]
    return throughput


def erlang_c(cores: int, load: float) -> float:
    """Probability that a customer of M/M/c waits, at a load of each core."""
    offered = cores * load
    waits = offered**cores / math.factorial(cores) / (1 - load)
    return waits / (sum(offered**k / math.factorial(k) for k in range(cores)) + waits)


def queues() -> Iterator[Queue]:
    """Closed forms of queues with chance in them."""
    yield from _served_in_order()
    yield from _shared()
    demands, think = (3000.0, 2000.0), 30_000.0
    exact = 1000.0 * exact_mva(demands, think, CLOSED)
    for name, source, kind, draw in (
        ("fifo, exponential", "exact MVA", FifoResource, exponential),
        ("shared, exponential", "exact MVA", SharedResource, exponential),
        ("shared, bimodal", "the same: insensitive", SharedResource, bimodal),
    ):
        yield Queue(f"{CLOSED} customers, {name}: rate", source, exact, closed_rate(kind, demands, think, draw))


def _served_in_order() -> Iterator[Queue]:
    """Resources and NICs of the level fifo."""
    one = resource_sojourn(FifoResource, 1, 1, 0.7, exponential)
    four = resource_sojourn(FifoResource, 1, 4, 0.8, exponential)
    yield _sojourn("M/M/1, a core at 0.7", "S / (1 - rho)", 1 / 0.3, one)
    yield _sojourn("M/M/4, four cores at 0.8", "Erlang C", 1 + erlang_c(4, 0.8) / (4 * 0.2), four)
    for name, draw, square in (("M/D/1", constant, 1.0), ("M/G/1 bimodal", bimodal, 1.64)):
        stretch = 1 + square * 0.7 / (2 * 0.3)
        yield _sojourn(f"{name}, a NIC at 0.7", "Pollaczek-Khinchine", stretch, link_sojourn(FifoNetwork, 0.7, draw))
    two = resource_sojourn(FifoResource, 2, 1, 0.7, exponential)
    yield _sojourn("fork and join of two M/M/1 at 0.7", "Flatto and Hahn 1984", (12 - 0.7) / 8 / 0.3, two)


def _shared() -> Iterator[Queue]:
    """Resources and NICs of the level fluid: processor sharing, S / (1 - rho) whatever the work."""
    for name, draw in (("M/M/1-PS", exponential), ("M/D/1-PS", constant)):
        run = resource_sojourn(SharedResource, 1, 1, 0.7, draw)
        yield _sojourn(f"{name}, a core at 0.7", "S / (1 - rho)", 1 / 0.3, run)
    yield _sojourn("M/G/1-PS bimodal, a NIC at 0.7", "S / (1 - rho)", 1 / 0.3, link_sojourn(Network, 0.7, bimodal))


def _sojourn(name: str, source: str, stretch: float, run: Callable[[int], float]) -> Queue:
    return Queue(f"{name}: sojourn", source, SERVICE * stretch, run)


def certain() -> Iterator[Row]:
    """Closed forms without chance: collectives in seconds, max-min shares of links of rate 1."""
    for level in ("fifo", "fluid"):
        for count in (4, 16):
            for all_reduce in (True, False):
                yield collective(f"{count} x 1 MiB, {level}", count, 1 << 20, level, all_reduce)
    lot = max_min_rates([(0, 1, 2, 3, 1), *((link, 1) for link in range(4))], [1.0] * 4)
    yield Row("parking lot of 4 links: the long flow", "1 / 2", 0.5, lot[0], 0.0)
    yield Row("parking lot of 4 links: the short flows", "1 / 2", 0.5, min(lot[1:]), 0.0)
    uneven = max_min_rates([(0, 3), (0, 1, 1), (1, 1)], [1.0, 2.0])
    yield Row("3 flows on A (1), 1 on A and B (2), 1 on B", "2 - 1 / 4", 1.75, uneven[2], 0.0)


def collective(name: str, count: int, size: int, level: str, all_reduce: bool) -> Row:
    """A ring all-reduce, or an all-to-all, of so many bytes among so many machines."""
    cluster = Cluster(count, RATE, LATENCY, level)
    if all_reduce:
        expected = 2 * (count - 1) * (LATENCY + size / count / RATE)
        return Row(
            f"ring all-reduce, {name}: s", "2 (n - 1) (a + S / n B)", expected, cluster.ring_all_reduce(size), 0.0
        )
    expected = LATENCY + (count - 1) / count * size / RATE
    return Row(f"all-to-all, {name}: s", "a + (n - 1) / n S / B", expected, cluster.all_to_all(size), 0.0)


def traced(folder: Path) -> Iterator[Row]:
    """Chakra microbenchmarks of a folder (``all_reduce.0.et``, ``all_to_all.0.et``, a file for each machine)."""
    for name in ("all_reduce", "all_to_all"):
        count = len(list(folder.glob(f"{name}.*.et")))
        ((_, said),) = read_nodes(Content(folder / f"{name}.0.et"))
        size = int(said["comm_size"])
        for level in ("fifo", "fluid"):
            yield collective(f"Chakra trace, {level}", count, size, level, said["comm_type"] == ALL_REDUCE)


def line(row: Row) -> str:
    """One line of the table."""
    return (
        f"{row.name:50} {row.source:24} {row.expected:12.6g} {row.simulated:12.6g} {row.interval:10.2g} "
        f"{row.simulated / row.expected - 1:+8.2%}  {'yes' if row.agrees else 'NO'}"
    )


def main() -> None:
    """Print the table, a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, help="folder of Chakra microbenchmarks to add")
    settings = parser.parse_args()
    print(f"{'':50} {'closed form':24} {'expected':>12} {'simulated':>12} {'interval':>10} {'off':>8}  agrees")
    for queue in queues():
        print(line(queue.row()), flush=True)
    for row in certain():
        print(line(row))
    for row in traced(settings.traces) if settings.traces else ():
        print(line(row))


if __name__ == "__main__":
    main()
