"""How fast the simulator is, by size of the cluster. ``python -m experiments.bench_simulator``.

Rows: the sizes of an independent study of SimPy models of the same job (groups x nodes of a group x threads of a node), and
1,024 nodes (groups of 8, 8 threads, 64 embedding and 8 sync servers, background EASGD). Every row runs in a process of its
own, so that its peak memory is its own. Then collectives message by message, beside ASTRA-sim on the same work.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from cost_models.roofline import roofline_costs
from experiments.collectives import NETWORKS, Cluster
from placement.plan import DP, Plan, Shard, Sync
from problem.cluster import Node
from problem.cluster_io import load_cluster
from problem.graph import Kind
from problem.model import Model
from problem.readers import load_model
from simulator.simulate import simulate

MODEL, NODE, BATCH = "dlrm-kaggle", "fb-1s-18c:1", 512
#: Steps of a thread at most, as many as in the study; half width of the interval at which growing clusters end.
STEPS, PRECISION = 300, 0.01
#: CPU seconds above which a collective is not run, judged by the one before it.
MOST_SECONDS = 60.0


@dataclass(frozen=True)
class Size:
    """A cluster: ``groups`` of ``nodes`` with ``threads`` each, ``servers`` embedding and ``centres`` sync servers."""

    groups: int
    nodes: int
    threads: int
    servers: int
    centres: int = 1

    def __str__(self) -> str:
        return f"{self.groups}x{self.nodes}x{self.threads}/{self.servers}"


#: Sizes with, for each, thread-iterations per second of SimPy callbacks and of a bare heapq loop in the study, with N
#: servers; none was measured for the last.
STUDY = (
    (Size(1, 4, 4, 4), 66_000, 137_000),
    (Size(1, 8, 8, 8), 32_000, 62_000),
    (Size(1, 8, 24, 8), 29_000, 52_000),
    (Size(4, 8, 8, 8), 30_000, 55_000),
    (Size(1, 16, 24, 16), 12_800, 22_000),
    (Size(8, 16, 16, 16), 8_500, 17_000),
)
#: Growing clusters up to 1,024 nodes in all: groups of 8 nodes, 64 embedding and 8 sync servers.
GROWING = tuple(Size(groups, 8, 8, 64, 8) for groups in (4, 16, 119))


@dataclass(frozen=True)
class Row:
    """What simulating one size took."""

    size: str
    level: str
    folded: bool
    iterations: int
    events: int
    cpu_seconds: float
    samples_per_second: float
    relative_ci95: float
    peak_bytes: int

    @property
    def rate(self) -> float:
        """Thread-iterations simulated per CPU second; a folded one counts for all it stands for."""
        return self.iterations / self.cpu_seconds


def shards_of(model: Model, servers: int) -> tuple[Shard, ...]:
    """One shard on each server: the largest tables are cut, or small tables share a server, as the numbers demand."""
    by_size = sorted(model.tables, key=lambda table: -table.rows)
    pieces = dict.fromkeys((table.name for table in by_size), 1)
    for extra in range(servers - len(by_size)):
        pieces[by_size[extra % 8].name] += 1
    shards, server = [], 0
    for table in by_size:
        cuts = [table.rows * index // pieces[table.name] for index in range(pieces[table.name] + 1)]
        for begin, end in itertools.pairwise(cuts):
            shards.append(Shard(table.name, server % servers, begin, end))
            server += 1
    return tuple(shards)


def plan_of(size: Size, seed: int = 0) -> Plan:
    """Return an all data-parallel plan of :data:`MODEL` for a size, on machines of their own."""
    model, machine = load_model(MODEL), load_cluster(NODE).nodes[0]

    def machines(kind: str, count: int) -> tuple[Node, ...]:
        return tuple(machine.renamed(f"{kind}{index}") for index in range(count))

    return Plan(
        model=model,
        groups=tuple(machines(f"g{group}n", size.nodes) for group in range(size.groups)),
        servers=machines("ps", size.servers),
        sync_servers=machines("sync", size.centres if size.groups > 1 else 0),
        batch=BATCH,
        tags={op.name: DP for op in model.graph if op.kind is not Kind.LOOKUP},
        shards=shards_of(model, size.servers),
        hogwild=size.threads,
        ranks=size.nodes,
        sync=Sync("background", gap=8) if size.groups > 1 else None,
        seed=seed,
    )


def measure(size: Size, level: str, fold: bool, precision: float, seed: int = 0, steps: int = STEPS) -> Row:
    """Simulate a size to an interval (0: all steps); building the plan is not counted, transforming and staging it is."""
    plan = plan_of(size, seed)
    costs = roofline_costs(plan.model, plan.batch, plan.groups[0][0])
    began = time.process_time()
    found = simulate(plan, costs, steps=steps, precision=precision, fidelity=level, fold=fold, record=False)
    seconds = time.process_time() - began
    return Row(
        size=str(size),
        level=str(found.fidelity),
        folded=fold,
        iterations=found.steps * size.groups * size.nodes * size.threads,
        events=found.events,
        cpu_seconds=seconds,
        samples_per_second=found.samples_per_second,
        relative_ci95=found.ci95 / found.samples_per_second,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def rows(
    sizes: Sequence[Size],
    levels: Sequence[str],
    precision: float,
    until: float = math.inf,
    folds: Sequence[bool] = (True, False),
    seeds: int = 1,
) -> Iterator[Row]:
    """Measure every size at every level, folded and unfolded, each in a process of its own; none begins after ``until``."""
    context = multiprocessing.get_context("spawn")
    for size, level, fold, seed in itertools.product(sizes, levels, folds, range(seeds)):
        if time.monotonic() > until:
            print(f"{size} at {level}: left out, the time is over", file=sys.stderr)
            continue
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            yield pool.submit(measure, size, level, fold, precision, seed).result()


def line(row: Row, study: tuple[int, int] | None) -> str:
    """One line of the table."""
    beside = f"{study[0]:10,} {study[1]:10,}" if study else f"{'':>10} {'':>10}"
    interval = "-" if math.isnan(row.relative_ci95) else f"{row.relative_ci95:.2%}"
    return (
        f"{row.size:>11} {row.level:>6} {'folded' if row.folded else 'all':>7} {row.iterations:11,} {row.events:11,} "
        f"{row.cpu_seconds:8.2f} {row.rate:11,.0f} {beside} {row.samples_per_second:14,.0f} {interval:>7} "
        f"{row.peak_bytes / 2**20:6.0f}"
    )


#: CPU seconds of ASTRA-sim 2.0's congestion-aware analytical back-end (commit 518bd51) for collectives of 1 MiB by number
#: of machines, measured by an independent study on a machine of the same kind.
ASTRA_SIM = (
    ("ring all-reduce", 64, 0.037),
    ("ring all-reduce", 256, 0.43),
    ("ring all-reduce", 1024, 8.5),
    ("all-to-all", 64, 0.06),
    ("all-to-all", 256, 1.9),
    ("all-to-all", 512, 9.1),
)


def collective_seconds(kind: str, machines: int, level: str) -> tuple[float, float]:
    """Simulated seconds of a collective of 1 MiB on NICs of 1 GB/s and 5 us, and the CPU seconds that it took."""
    began = time.process_time()
    cluster = Cluster(machines, 1e9, 5e-6, level)
    run = cluster.ring_all_reduce if kind == "ring all-reduce" else cluster.all_to_all
    return run(1 << 20), time.process_time() - began


def messages_of(kind: str, machines: int) -> int:
    """Messages of a collective."""
    return machines * (machines - 1) * (2 if kind == "ring all-reduce" else 1)


def bounded_seconds(kind: str, machines: int, level: str, known: dict[tuple[str, str], tuple[int, float]]) -> float:
    """CPU seconds of a collective; NaN, and it is not run, if it would take more than :data:`MOST_SECONDS`.

    ``known`` holds machines and seconds of the last of each kind and level. A message is taken to cost as many times more as
    there are more machines, which is above what was measured.
    """
    fewer, seconds = known.get((kind, level), (machines, 0.0))
    growth = messages_of(kind, machines) / messages_of(kind, fewer) * machines / fewer
    if not seconds * growth <= MOST_SECONDS:
        return math.nan
    found = collective_seconds(kind, machines, level)[1]
    known[kind, level] = machines, found
    return found


def print_collectives(most: int) -> None:
    """Print the table of collectives among at most so many machines, a row as soon as it is known."""
    levels = tuple(NETWORKS)
    print(
        f"{'collective, 1 MiB':>18} {'machines':>8} {'messages':>9} "
        + " ".join(f"{f'{n}: CPU s':>13}" for n in levels),
        end="",
    )
    print(f" {'ASTRA-sim':>10}")
    known: dict[tuple[str, str], tuple[int, float]] = {}
    for kind, machines, theirs in (row for row in ASTRA_SIM if row[1] <= most):
        found = [bounded_seconds(kind, machines, level, known) for level in levels]
        ours = " ".join(f"{'not run' if math.isnan(cpu) else f'{cpu:.2f}':>13}" for cpu in found)
        print(f"{kind:>18} {machines:8} {messages_of(kind, machines):9,} {ours} {theirs:10.2f}", flush=True)


def print_sizes(levels: Sequence[str], growing_only: bool = False, until: float = math.inf, **rest: Any) -> None:
    """Print the table of cluster sizes, a row as soon as it is known; ``until`` and the rest as of :func:`rows`."""
    study = {str(size): (callbacks, bare) for size, callbacks, bare in STUDY}
    head = f"{'G x N x T/S':>11} {'level':>6} {'':>7} {'thread-its':>11} {'events':>11} {'CPU s':>8} {'its/CPU s':>11}"
    print(f"{head} {'callbacks':>10} {'heapq':>10} {'samples/s':>14} {'+-':>7} {'MiB':>6}")
    sizes = () if growing_only else [size for size, *_ in STUDY]
    for row in itertools.chain(
        rows(sizes, levels, 0.0, until, **rest), rows(GROWING, levels, PRECISION, until, **rest)
    ):
        print(line(row, study.get(row.size)), flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", nargs="+", default=["fifo"], choices=["bound", "fifo", "fluid"])
    parser.add_argument("--growing", action="store_true", help="the clusters up to 1,024 nodes only")
    parser.add_argument("--folded", action="store_true", help="folded rows only")
    parser.add_argument("--seeds", type=int, default=1, help="so many rows of each kind, drawn anew")
    settings = parser.parse_args()
    folds = (True,) if settings.folded else (True, False)
    print_sizes(settings.levels, settings.growing, folds=folds, seeds=settings.seeds)
    if not settings.growing:
        print_collectives(1024)


if __name__ == "__main__":
    main()
