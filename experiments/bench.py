"""``make bench``: the nine model presets planned on one cluster, a row each; then how fast the simulator is.

Three and a half minutes on two cores at a load of 3 to 4 (2 min 15 s of CPU). No row of the simulator begins after
:data:`MOST_SECONDS`, and none takes more than one minute and a half there, so that it ends.

``python -m experiments.bench``.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from cost_models.roofline import roofline_costs
from experiments.bench_simulator import print_collectives, print_sizes
from experiments.planning import planned
from placement.search.options import SolveOptions
from problem.cluster_io import load_cluster
from problem.readers import load_model

PRESETS = ("dlrm-kaggle", "dlrm-terabyte", "mlperf-dlrm-dcnv2", "rm1", "rm2", "rm3", "m1", "m2", "m3")
CLUSTER, MAX_REPLICAS = "fb-1s-18c:32", 4
#: Seconds after which no further row of the simulator begins.
MOST_SECONDS = 480.0


@dataclass(frozen=True)
class Row:
    """What planning one preset gave; rates in samples per second."""

    preset: str
    group_size: int
    groups: int
    servers: int
    samples_per_second: float
    bound: float
    gap: float
    best_baseline: str
    baseline_samples_per_second: float
    seconds: float


def rows(cluster: str = CLUSTER, max_replicas: int = MAX_REPLICAS) -> Iterator[Row]:
    """Plan every preset on a cluster with roofline costs."""
    machines = load_cluster(cluster)
    for name in PRESETS:
        model = load_model(name)
        costs_for = functools.partial(roofline_costs, model)
        result = planned(model, machines, costs_for, SolveOptions(max_replicas=max_replicas))
        baseline = result.best_baseline
        yield Row(
            preset=name,
            group_size=result.plan.group_size,
            groups=len(result.plan.groups),
            servers=len(result.plan.servers),
            samples_per_second=result.samples_per_second,
            bound=result.bound,
            gap=result.gap,
            best_baseline=baseline.name if baseline else "none fits",
            baseline_samples_per_second=(baseline.samples_per_second or 0.0) if baseline else 0.0,
            seconds=result.solve_seconds,
        )


def main() -> None:
    """Print the table, a row as soon as it is known."""
    until = time.monotonic() + MOST_SECONDS
    head = f"{'preset':18} {'K':>3} {'groups':>6} {'servers':>7} {'samples/s':>12} {'bound':>12} {'gap %':>6}"
    print(f"{CLUSTER}, at most {MAX_REPLICAS} replicas, roofline costs", file=sys.stderr)
    print(f"{head} {'best baseline':>22} {'samples/s':>12} {'s':>6}")
    for row in rows():
        print(
            f"{row.preset:18} {row.group_size:3} {row.groups:6} {row.servers:7} {row.samples_per_second:12,.0f} "
            f"{row.bound:12,.0f} {100 * row.gap:6.2f} {row.best_baseline:>22} "
            f"{row.baseline_samples_per_second:12,.0f} {row.seconds:6.1f}",
            flush=True,
        )
    print("\nsimulator: thread-iterations per CPU second by size of the cluster, beside a study's SimPy models")
    print_sizes(["fifo"], until=until)
    print("\nthe same, messages worked out fairly", flush=True)
    print_sizes(["fluid"], growing_only=True, until=until)
    print("\nmessage by message, beside ASTRA-sim on the same work", flush=True)
    print_collectives(256)


if __name__ == "__main__":
    main()
