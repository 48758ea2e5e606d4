"""Planning at production size: value, bound, gap, seconds and memory beside the best heuristic.

    python -m experiments.bench_production [--time-limit S] [--tables FILE] [NAME ...]

A generated model of 1,000 linear layers in 200 branches (``experiments.autoctr``) on presets, some with narrower NICs or
less memory, where data parallelism alone is not the best or does not fit; and the job of a published plan of tables, with a
small dense part, if its FILE is given. Every instance runs in a process of its own, so that the memory is its own peak.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from experiments.autoctr import autoctr_model
from placement.result import PlacementResult
from placement.search.job import solve
from placement.search.options import SolveOptions
from problem.cluster import Cluster, Node
from problem.cluster_io import load_cluster
from problem.errors import BadInput
from problem.readers import load_model

HEADER = ("instance", "K", "R", "groups", "samples/s", "bound", "gap", "seconds", "CPU s", "best heuristic", "GiB")


@dataclass(frozen=True)
class Instance:
    """A cluster for a model, and how its group is limited.

    Parameters
    ----------
    clusters : tuple of str
        Presets with a count; more than one makes a cluster of unlike machines.
    options : SolveOptions
        What the user would decide.
    nic, memory : float
        Factors on NIC rate and memory of every machine.
    published : bool
        Whether the model is that of the file of tables, not the generated one.
    """

    clusters: tuple[str, ...]
    options: SolveOptions
    nic: float = 1.0
    memory: float = 1.0
    published: bool = False

    def machines(self) -> Cluster:
        """Return the cluster."""
        found = [node for preset in self.clusters for node in load_cluster(preset).nodes]
        return Cluster(" + ".join(self.clusters), tuple(map(self._changed, found)))

    def _changed(self, node: Node) -> Node:
        rate, memory = self.nic * node.nic_bytes_per_second, int(self.memory * node.memory_bytes)
        return replace(node, nic_bytes_per_second=rate, memory_bytes=memory)


INSTANCES = {
    "12 nodes": Instance(("fb-1s-18c:32",), SolveOptions(group_size=12)),
    "any group": Instance(("fb-1s-18c:32",), SolveOptions()),
    "narrow": Instance(("fb-1s-18c:32",), SolveOptions(group_size=12), nic=0.02),
    "narrow, 6 ranks": Instance(("fb-1s-18c:32",), SolveOptions(group_size=12, ranks=6), nic=0.02),
    "narrow, any ranks": Instance(("fb-1s-18c:32",), SolveOptions(group_size=12, ranks="auto"), nic=0.02),
    "small batch": Instance(("fb-1s-18c:32",), SolveOptions(group_size=12, batch=32), nic=0.1),
    "128 nodes": Instance(("fb-1s-18c:128",), SolveOptions(group_size=12)),
    "unlike": Instance(("fb-2s:16", "fb-1s-18c:20"), SolveOptions(group_size=6)),
    "unlike, narrow, any group": Instance(("fb-2s:8", "fb-1s-18c:8"), SolveOptions(), nic=0.02),
    "published tables": Instance(("fb-2s:128",), SolveOptions(), published=True),
}


def measure(name: str, time_limit: float, tables: Path | None = None) -> tuple[str, ...]:
    """Plan one instance; return a row of the table, with a reason where the file of tables is missing."""
    instance = INSTANCES[name]
    if instance.published and tables is None:
        return (name, "not run: --tables FILE names no published plan", *[""] * (len(HEADER) - 2))
    model = load_model(str(tables)) if instance.published else autoctr_model()
    began, options = time.process_time(), replace(instance.options, time_limit_seconds=time_limit)
    result = solve(model, instance.machines(), options=options)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return row_of(name, result, time.process_time() - began, peak)


def row_of(name: str, result: PlacementResult, cpu_seconds: float, gibibytes: float) -> tuple[str, ...]:
    """Return a row of the table: see :data:`HEADER`."""
    plan, best = result.plan, result.best_baseline
    return (
        name,
        str(plan.group_size),
        str(plan.ranks),
        str(len(plan.groups)),
        f"{result.objective:,.0f}",
        f"{result.bound:,.0f}",
        f"{100 * result.gap:.2f} %",
        f"{result.solve_seconds:.1f}",
        f"{cpu_seconds:.0f}",
        f"{best.samples_per_second:,.0f} {best.name}" if best else "none fits",
        f"{gibibytes:.2f}",
    )


def rows(
    names: Iterable[str], time_limit: float, run: Callable[..., tuple[str, ...]] = measure, *more: Path | None
) -> None:
    """Print the table, each instance measured in a fresh process."""
    print("| " + " | ".join(HEADER) + " |")
    print("|" + " --- |" * len(HEADER))
    for name in names:
        with ProcessPoolExecutor(1, get_context("spawn")) as one:
            print("| " + " | ".join(one.submit(run, name, time_limit, *more).result()) + " |", flush=True)


def main() -> None:
    """Plan the instances that are named, or all."""
    parser = argparse.ArgumentParser(description="Planning at production size.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(INSTANCES)}")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--tables", type=Path, metavar="FILE", help="published plan of tables (TorchRec's, as CSV)")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in INSTANCES]
    if unknown:
        parser.error(f"{unknown[0]!r}: instances are {', '.join(INSTANCES)}")
    if given.tables and not given.tables.is_file():
        parser.error(f"--tables {given.tables}: no such file")
    elif given.tables:
        try:
            load_model(str(given.tables))
        except BadInput as error:
            parser.error(str(error))
    rows(given.names or INSTANCES, given.time_limit, measure, given.tables)


if __name__ == "__main__":
    main()
