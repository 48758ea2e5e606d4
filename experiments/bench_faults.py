"""What happens to a run when a worker dies, stops, starves or raises: ``python -m experiments.bench_faults``.

A small plan with workers of all five kinds (ranks, model-parallel copies, embedding servers, sync server, shadows) runs on
the paced clock, which takes seconds and next to no work; a worker drawn at random suffers at a random moment. Counted: runs
that ended, that named the right worker, processes and open files left behind (shared memory has no names and
goes with the last process); and the seconds from the fault to the end of the run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from executor.clock import ClockKind
from executor.errors import WorkerFailed
from executor.run import RunOptions, run
from executor.state import JobState
from placement.plan import DP, Plan, Shard, Sync, Tag
from problem.cluster import Cluster
from problem.cluster_io import load_cluster
from problem.graph import Kind
from problem.model import Model
from problem.readers import model_from_spec
from programs.transform import transform
from programs.workers import Worker, workers

KINDS = ("killed", "stopped", "out of memory", "raises")
LATEST_SECONDS = 0.6
"""The latest moment of a fault, after the first sign of life."""


@dataclass(frozen=True)
class Try:
    """One run: whether the right worker was named, what was left behind, and the seconds from fault to end."""

    named: bool
    left: int
    seconds: float


@dataclass
class Fault:
    """Sends a signal to a worker at a moment; told of progress by the run."""

    victim: str
    number: signal.Signals
    after_seconds: float
    at: float = 0.0
    pids: set[int] = field(default_factory=set)
    began: float = 0.0

    def __call__(self, steps: int) -> None:
        """Strike once the moment has come."""
        del steps
        now = time.monotonic()
        self.began = self.began or now
        children = {child.name: child.pid for child in multiprocessing.active_children() if child.pid is not None}
        self.pids.update(children.values())
        if not self.at and now >= self.began + self.after_seconds and self.victim in children:
            self.at = now
            os.kill(children[self.victim], self.number)


def job() -> Plan:
    """Return two groups of a rank and a model-parallel node, exchanged in the background: eleven workers."""
    spec = {
        "name": "tiny",
        "dense_features": 3,
        "bottom_mlp": [8, 4],
        "top_mlp": [8, 1],
        "batch": 8,
        "embedding_dim": 4,
    }
    model: Model = model_from_spec({**spec, "tables": [{"name": f"t{i}", "rows": 40} for i in range(2)]})
    cluster: Cluster = load_cluster("local:4")
    *trainers, server = cluster.nodes
    tags: dict[str, Tag] = {op.name: DP for op in model.graph if op.kind is not Kind.LOOKUP} | {"top_0": 1}
    return Plan(
        model=model,
        groups=(tuple(trainers[:2]), tuple(trainers[2:])),
        servers=(server,),
        sync_servers=(server.renamed("sync"),),
        batch=8,
        tags=tags,
        shards=tuple(Shard(table.name, 0, 0, table.rows) for table in model.tables),
        sync=Sync("background", 2),
        name="faults",
    )


def suffer(kind: str, draw: random.Random) -> Try:
    """Run the job with one fault of a kind."""
    plan = job()
    staff = workers(transform(plan))
    numbers = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
    fault = Fault(draw.choice(staff).name, numbers.get(kind, signal.SIGALRM), draw.uniform(0.0, LATEST_SECONDS))
    durations = {worker.name: [1e-3] * len(worker.program) for worker in staff}
    options = RunOptions(
        steps=400,
        clock=ClockKind.PACED,
        durations=durations,
        watch=fault,
        on_start=partial(_prepare, fault.victim, kind),
    )
    before = _open_files()
    try:
        run(plan, options)
    except WorkerFailed as failure:
        seconds = time.monotonic() - fault.at
        return Try(failure.worker == fault.victim, _left(fault.pids, before), seconds)
    return Try(False, _left(fault.pids, before), float("inf"))


def _prepare(victim: str, kind: str, worker: Worker, state: JobState) -> None:
    """Let the victim do what the kind says when it gets SIGALRM."""
    del state
    if worker.name == victim:
        signal.signal(signal.SIGALRM, lambda *_: _starve() if kind == "out of memory" else _raise())


def _starve() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(),) * 2)
    np.ones(1 << 23)


def _raise() -> None:
    raise RuntimeError("a fault on purpose")


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _left(pids: set[int], files_before: int) -> int:
    """Count processes that run, and files that are open."""
    return sum(_runs(pid) for pid in pids) + max(0, _open_files() - files_before)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


def table(tries: int, seed: int = 0, tell: Callable[[str], None] = lambda news: None) -> list[tuple[str, list[Try]]]:
    """Return the tries of every kind.

    Parameters
    ----------
    tries : int
        Of each kind.
    seed : int
        Of victims and moments.
    tell : callable
        Told what is going on.
    """
    draw, rows = random.Random(seed), []
    for kind in KINDS:
        tell(kind)
        rows.append((kind, [suffer(kind, draw) for _ in range(tries)]))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="faults of workers: ended, named, left behind")
    parser.add_argument("--tries", type=int, default=25, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    print(f"{'fault':<14} {'tries':>5} {'ended':>5} {'named':>5} {'left':>4} {'median s':>8} {'longest s':>9}")
    for kind, tries in table(options.tries, options.seed, lambda news: None):
        seconds = [one.seconds for one in tries]
        ended, named = sum(s < float("inf") for s in seconds), sum(one.named for one in tries)
        left = sum(one.left for one in tries)
        print(
            f"{kind:<14} {len(tries):>5} {ended:>5} {named:>5} {left:>4} {median(seconds):>8.2f} {max(seconds):>9.2f}"
        )


if __name__ == "__main__":
    main()
