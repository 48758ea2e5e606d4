"""What compression gains on the wall when NICs are slow: runs with throttled transports beside the simulator's prediction.

Usage: ``python -m experiments.bench_throttle [--backend processes|mpi] [--rate 40Mb/s] [--rounds 7]``.

Two plans, one bound by the all-reduce of its dense gradients and one by its embeddings, each without codecs and with some.
NICs are emulated by token buckets (``executor.throttle``), everything else is real: the wall clock, so other work on the
machine shows. What counts is the ratio to the run without codecs of the same round, a minute or two apart: the median of
the rounds, with the lowest and the highest beside it. In each round the runs of a plan take turns, each time beginning
with the next, so that none always comes first. The simulator is given costs that were measured here, before the runs, and
the same NICs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
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

#: Steps between two thresholds of DCT-DP.
THRESHOLD_EVERY = 5
#: Two thresholds' time are measured, behind the first: until the second threshold the error that grows from nothing sends up
#: to twice what is planned (measured here: 1.9 times in steps 0 to 4, 0.7 to 1.2 times later).
STEPS, WARMUP = 3 * THRESHOLD_EVERY, THRESHOLD_EVERY
#: What is compressed how: names, and codecs of the plan.
Cases = tuple[tuple[str, dict[str, str]], ...]
DENSE_CASES: Cases = (
    ("none", {}),
    ("fp16", {"allreduce": "fp16"}),
    ("dct-dp, 3 % kept", {"allreduce": f"dct-dp:0.03:{THRESHOLD_EVERY}"}),
)
SPARSE_CASES: Cases = (
    ("none", {}),
    *((name, {"pooled": name, "push": name}) for name in ("fp16", "rowwise8", "rowwise4")),
)


@dataclass(frozen=True)
class ThrottleRow:
    """A plan with codecs, measured and predicted.

    Parameters
    ----------
    plan, codecs : str
        Which.
    measured, predicted : float
        Samples per second; measured: the median of the rounds.
    speedup : tuple of float
        Over the run without codecs of the same round: lowest, median and highest of the rounds.
    predicted_speedup : float
        Likewise, as simulated.
    """

    plan: str
    codecs: str
    measured: float
    predicted: float
    speedup: tuple[float, float, float]
    predicted_speedup: float

    @property
    def told(self) -> bool:
        """Whether all rounds agree that the codec gains, or that it loses."""
        low, _, high = self.speedup
        return low > 1 or high < 1


def throttle_rows(bytes_per_second: float, backend: str = "processes", rounds: int = 7) -> Iterator[ThrottleRow]:
    """Run both plans with all their codecs."""
    for name, plan, cases in (("dense gradients", _dense(), DENSE_CASES), ("embeddings", _sparse(), SPARSE_CASES)):
        costs = profile_costs(measure_at(plan.model, plan.batch), plan.model, plan.batch, this_node())
        slow = [replace(with_nics(plan, bytes_per_second), codecs=codecs) for _, codecs in cases]
        rates = [_round(slow, backend, first) for first in range(rounds)]
        predicted = [_predicted(one, costs) for one in slow]
        for index, (label, _) in enumerate(cases):
            measured, expected = median(of_round[index] for of_round in rates), predicted[index]
            yield ThrottleRow(name, label, measured, expected, speedup(rates, index), expected / predicted[0])


def _round(plans: Sequence[Plan], backend: str, first: int) -> list[float]:
    """Run each plan once, beginning with number ``first``; return their rates in the order of the plans."""
    order = [(first + place) % len(plans) for place in range(len(plans))]
    found = {index: _measured(plans[index], backend) for index in order}
    return [found[index] for index in range(len(plans))]


def speedup(rates: Sequence[Sequence[float]], index: int) -> tuple[float, float, float]:
    """Return lowest, median and highest ratio of a case to the first of the same round; ``rates`` by round, then case."""
    ratios = [of_round[index] / of_round[0] for of_round in rates]
    return min(ratios), median(ratios), max(ratios)


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
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    heads = f"{'measured/s':>10} {'predicted/s':>11} {'speed-up (lowest to highest)':>28} {'predicted':>9}"
    print(f"{'plan':16} {'codecs':18} {heads}")
    for row in throttle_rows(parse_rate(chosen.rate), chosen.backend, chosen.rounds):
        low, middle, high = row.speedup
        told = f"{middle:.2f} ({low:.2f} to {high:.2f})" + (" " if row.told or row.codecs == "none" else "?")
        rates = f"{row.measured:10,.0f} {row.predicted:11,.0f}"
        print(f"{row.plan:16} {row.codecs:18} {rates} {told:>28} {row.predicted_speedup:9.2f}", flush=True)
    print("?: the rounds do not agree whether it is faster or slower")


if __name__ == "__main__":
    main()
