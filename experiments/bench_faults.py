"""What happens to a run when a worker dies, stops, starves, raises, diverges or cannot save: a table of counts.

Usage: ``python -m experiments.bench_faults [--backend mpi]``.

A small plan with workers of all five kinds (ranks, model-parallel copies, embedding servers, sync server, shadows) runs on
the paced clock, which takes seconds and next to no work; a worker drawn at random suffers at a random moment. Counted: runs
that ended, that named the right worker, processes, open files and names in shared memory left behind; and the seconds from
the fault to the end of the run. A loss that is not finite is a rank's; a disk is full from its moment on, and the next
checkpoint, one every twenty steps, fails. ``--backend mpi`` does the same under ``mpiexec``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

from executor.clock import ClockKind
from executor.errors import CheckpointFailed, WorkerFailed
from executor.run import RunOptions, run
from experiments.faults import SIGNALS, Strikes, fill_disk, prepare
from experiments.launch import BACKENDS, launch
from placement.plan import DP, Plan, Shard, Sync, Tag
from problem.cluster import Cluster
from problem.cluster_io import load_cluster
from problem.graph import Kind
from problem.model import Model
from problem.readers import model_from_spec
from programs.transform import transform
from programs.workers import workers

KINDS = ("killed", "stopped", "out of memory", "raises", "loss not finite", "full disk")
SAVED_EVERY = 20
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
    """Sends a signal to a worker at a moment, or does something else; told of progress by the run."""

    victim: str
    number: signal.Signals
    after_seconds: float
    strike: Callable[[], None] | None = None
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
        if self.at or now < self.began + self.after_seconds:
            return
        if self.strike is not None:
            self.at = now
            self.strike()
        elif self.victim in children:
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


def suffer(kind: str, draw: random.Random, backend: str = "processes") -> Try:
    """Run the job with one fault of a kind."""
    plan = job()
    staff = [worker for worker in workers(transform(plan)) if kind != "loss not finite" or worker.role == "rank"]
    victim, after = draw.choice(staff).name, draw.uniform(0.0, LATEST_SECONDS)
    durations = {worker.name: [1e-3] * len(worker.program) for worker in workers(transform(plan))}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        saved = {"checkpoint": folder / "saved", "checkpoint_every": SAVED_EVERY} if kind == "full disk" else {}
        options = RunOptions(steps=400, clock=ClockKind.PACED, durations=durations, **saved)  # type: ignore[arg-type]
        if backend == "mpi":
            return _among_ranks(plan, options, Strikes(victim, kind, after, folder))
        return _among_processes(plan, options, Fault(victim, SIGNALS.get(kind, signal.SIGALRM), after), kind)


def _among_processes(plan: Plan, options: RunOptions, fault: Fault, kind: str) -> Try:
    before, limit = _open_files(), resource.getrlimit(resource.RLIMIT_FSIZE)
    if kind == "full disk":
        fault.victim, fault.strike = "", fill_disk
    try:
        run(plan, replace(options, watch=fault, on_start=partial(prepare, fault.victim, kind)))
    except (WorkerFailed, CheckpointFailed) as failure:
        seconds = time.monotonic() - fault.at
        named = getattr(failure, "worker", "") == fault.victim or (
            kind == "loss not finite" and "loss is" in str(failure)
        )
        return Try(named, _left(fault.pids, before), seconds)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    return Try(False, _left(fault.pids, before), float("inf"))


def _among_ranks(plan: Plan, options: RunOptions, strikes: Strikes) -> Try:
    names = _mpich_names()
    with launch(strikes.folder, plan, replace(options, on_start=strikes), "mpi") as ranks:
        said, ended = ranks.communicate()[1], time.time()
    pids = [int(path.stem) for path in strikes.folder.glob("*.pid")]
    _wait_for(lambda: not any(map(_runs, pids)) and _mpich_names() <= names)
    left = sum(map(_runs, pids)) + len(_mpich_names() - names)
    named = ranks.returncode == WorkerFailed.exit_code and _is_named(strikes, said)
    return Try(named, left, ended - strikes.moment.stat().st_mtime if strikes.moment.exists() else float("inf"))


def _mpich_names() -> set[Path]:
    """Names of MPICH's in shared memory; others use it, too."""
    return set(Path("/dev/shm").glob("mpich*"))


def _is_named(strikes: Strikes, said: str) -> bool:
    """Whether one line names the fault. Of losses there may be two: exchanges carry what is not a number to other groups."""
    if strikes.kind == "loss not finite":
        return bool(said) and all("loss is" in line for line in said.splitlines())
    sign = "the checkpoint of step" if strikes.kind == "full disk" else f"hiertrain: worker {strikes.victim}: "
    return sign in said and said.count("\n") == 1


def _wait_for(happened: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not happened() and time.monotonic() < end:
        time.sleep(0.01)


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


def table(
    tries: int, seed: int = 0, tell: Callable[[str], None] = lambda news: None, backend: str = "processes"
) -> Iterator[tuple[str, list[Try]]]:
    """Yield the tries of every kind.

    Parameters
    ----------
    tries : int
        Of each kind.
    seed : int
        Of victims and moments.
    tell : callable
        Told what is going on.
    backend : str
        ``processes`` or ``mpi``.
    """
    draw = random.Random(seed)
    for kind in KINDS:
        tell(kind)
        yield kind, [suffer(kind, draw, backend) for _ in range(tries)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="faults of workers: ended, named, left behind")
    parser.add_argument("--tries", type=int, default=25, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=BACKENDS, default="processes")
    options = parser.parse_args(arguments)
    print(f"{'fault':<15} {'tries':>5} {'ended':>5} {'named':>5} {'left':>4} {'median s':>8} {'longest s':>9}")
    for kind, tries in table(options.tries, options.seed, backend=options.backend):
        seconds = [one.seconds for one in tries]
        ended, named = sum(s < float("inf") for s in seconds), sum(one.named for one in tries)
        left = sum(one.left for one in tries)
        print(
            f"{kind:<15} {len(tries):>5} {ended:>5} {named:>5} {left:>4} {median(seconds):>8.2f} {max(seconds):>9.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
