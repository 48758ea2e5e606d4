"""What compression gains on the wall when NICs are slow: runs with throttled transports beside the simulator's prediction.

Usage: ``python -m experiments.bench_throttle [--backend processes|mpi] [--rate 40Mb/s] [--rounds 3]``.

Two plans, one bound by the all-reduce of its dense gradients and one by its embeddings, each without codecs and with some.
NICs are emulated by token buckets (``executor.throttle``), everything else is real: the wall clock, so other work on the
machine shows. Runs of a plan take turns; the median of the rounds counts. The simulator is given costs that were measured
here, before the runs, and the same NICs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from cost_models.costs import CostTable
from cost_models.profile_costs import profile_costs
from executor.clock import ClockKind
from executor.run import RunOptions
from experiments.compare import measure_at
from experiments.launch import BACKENDS, launch, result_in
from experiments.training import with_nics
from placement.plan import DP, Plan, Shard
from problem.graph import Kind
from problem.local import this_node
from problem.model import Model
from problem.readers import model_from_spec
from problem.units import parse_rate
from simulator.fidelity import Fidelity
from simulator.simulate import simulate

STEPS, WARMUP = 8, 2
#: What is compressed how: names, and codecs of the plan.
Cases = tuple[tuple[str, dict[str, str]], ...]
DENSE_CASES: Cases = (
    ("none", {}),
    ("fp16", {"allreduce": "fp16"}),
    ("dct-dp, 3 % kept", {"allreduce": "dct-dp:0.03:5"}),
)
SPARSE_CASES: Cases = (
    ("none", {}),
    *((name, {"pooled": name, "push": name}) for name in ("fp16", "rowwise8", "rowwise4")),
)


@dataclass(frozen=True)
class ThrottleRow:
    """A plan with codecs: samples per second measured and predicted, both also over those without codecs."""

    plan: str
    codecs: str
    measured: float
    predicted: float
    speedup: float
    predicted_speedup: float


def throttle_rows(bytes_per_second: float, backend: str = "processes", rounds: int = 3) -> Iterator[ThrottleRow]:
    """Run both plans with all their codecs."""
    for name, plan, cases in (("dense gradients", _dense(), DENSE_CASES), ("embeddings", _sparse(), SPARSE_CASES)):
        costs = profile_costs(measure_at(plan.model, plan.batch), plan.model, plan.batch, this_node())
        slow = [replace(with_nics(plan, bytes_per_second), codecs=codecs) for _, codecs in cases]
        rates = [[_measured(one, backend) for one in slow] for _ in range(rounds)]
        measured = [median(column) for column in zip(*rates, strict=True)]
        predicted = [_predicted(one, costs) for one in slow]
        for (label, _), found, expected in zip(cases, measured, predicted, strict=True):
            yield ThrottleRow(name, label, found, expected, found / measured[0], expected / predicted[0])


def _measured(plan: Plan, backend: str) -> float:
    options = RunOptions(steps=STEPS, warmup=WARMUP, clock=ClockKind.WALL, throttled=True)
    with tempfile.TemporaryDirectory() as folder, launch(Path(folder), plan, options, backend) as job:
        said = job.communicate()[1]
        if job.returncode:
            raise RuntimeError(said)
        return result_in(Path(folder)).wall_samples_per_second


def _predicted(plan: Plan, costs: CostTable) -> float:
    """As token buckets serve: one message behind the other."""
    found = simulate(
        plan, costs, steps=STEPS, warmup=WARMUP, variation=0.0, record=False, fidelity=Fidelity.FIFO, fold=False
    )
    return found.samples_per_second


def _dense() -> Plan:
    """Two ranks with 0.9 million dense parameters and one small table."""
    return _plan(_model("dense", [512, 64], [1024, 512, 1], rows=1000, pooling=1, count=1))


def _sparse() -> Plan:
    """Two ranks with 16 tables and few dense parameters."""
    return _plan(_model("sparse", [64], [64, 1], rows=20_000, pooling=4, count=16))


def _model(name: str, bottom: list[int], top: list[int], *, rows: int, pooling: int, count: int) -> Model:
    table = {"name": "t", "rows": rows, "pooling_factor": pooling, "count": count}
    return model_from_spec(
        {
            "kind": "dlrm",
            "name": name,
            "dense_features": 256,
            "embedding_dim": 64,
            "bottom_mlp": bottom,
            "top_mlp": top,
            "batch": 256,
            "tables": [table],
        }
    )


def _plan(model: Model) -> Plan:
    first = this_node()
    nodes = [replace(first, name=name) for name in ("a", "b", "server")]
    return Plan(
        model,
        groups=(tuple(nodes[:2]),),
        servers=(nodes[2],),
        batch=model.batch,
        ranks=2,
        synchronous=True,
        tags={op.name: DP for op in model.graph if op.kind is not Kind.LOOKUP},
        shards=tuple(Shard(table.name, 0, 0, table.rows) for table in model.tables),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", choices=BACKENDS, default="processes")
    parser.add_argument("--rate", default="40Mb/s")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    print(f"{'plan':16} {'codecs':18} {'measured/s':>10} {'predicted/s':>11} {'speed-up':>8} {'predicted':>9}")
    for row in throttle_rows(parse_rate(chosen.rate), chosen.backend, chosen.rounds):
        rates = f"{row.measured:10,.0f} {row.predicted:11,.0f}"
        print(f"{row.plan:16} {row.codecs:18} {rates} {row.speedup:8.2f} {row.predicted_speedup:9.2f}", flush=True)


if __name__ == "__main__":
    main()
