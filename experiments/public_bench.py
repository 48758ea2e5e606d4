"""``hiertrain bench``: public placement instances solved in their own objectives, beside what others reached.

Knows which files make up a suite and where the published values come from:

* ``msr``: ``msr_best_known.json`` beside the folder, if there is one (best value known; contiguous optimum of the
  authors' exact program);
* ``pipedream``: printed by the authors' optimizer_graph_hierarchical.py with ``-b 1250000000``, one level of 4 or 16
  machines, on the same profiles;
* ``piper``: printed by the authors' algo.cpp on the same inputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from placement.public.msr_latency import solve_latency
from placement.public.msr_throughput import solve_contiguous, solve_throughput
from placement.public.pipedream import solve_pipedream
from placement.public.piper import solve_piper
from placement.public.result import BenchResult
from problem.errors import BadInput
from problem.public_graphs import read_msr, read_pipedream, read_piper

PIPEDREAM_SECONDS = {
    ("vgg16", 4): 0.174498,
    ("vgg16", 16): 0.046587,
    ("alexnet", 4): 0.022901,
    ("alexnet", 16): 0.007060,
    ("resnet50", 4): 0.111497,
    ("resnet50", 16): 0.029212,
    ("resnext101", 4): 0.140525,
    ("resnext101", 16): 0.035765,
    ("gnmt", 4): 0.025868,
    ("gnmt", 16): 0.017125,
    ("gnmt_large", 4): 0.137129,
    ("gnmt_large", 16): 0.058971,
}
"""Seconds of the slowest stage, by profile and machines: the authors' program."""

PIPEDREAM_MACHINES = (4, 16)

PIPER_SECONDS = {
    ("bert32a100", 8, 80.0): 0.122007269,
    ("bert32a100", 64, 8.0): 0.0202005503,
    ("bert32a100", 64, 2.0): 0.0320300812,
    ("bert32a100", 512, 8.0): 0.00256112785,
    ("resnet", 8, 4.0): 73.493286,
    ("resnet", 16, 4.0): 35.3334375,
    ("resnet", 32, 2.0): 24.6258985,
    ("gnmt", 2, 2.5): 263.354289,
}
"""Seconds per sample (the files of resnet and gnmt count in milliseconds), by file, devices and GiB of a device: the
authors' program. The configurations are among those of its experiments."""

PIPER_GIB_PER_SECOND = 25.0
"""The bandwidth of those experiments."""

GIB = 1 << 30


@dataclass(frozen=True)
class BenchOptions:
    """What to run.

    Parameters
    ----------
    seconds : float
        Time limit of an instance, where there is one.
    contiguous : bool
        Of the throughput instances: contiguous splits, exactly.
    only : str
        Run instances whose name contains this.
    seed, workers : int
        Of the solvers.
    """

    seconds: float = 60.0
    contiguous: bool = False
    only: str = ""
    seed: int = 0
    workers: int = 2


@dataclass(frozen=True)
class Row:
    """One instance; lower values are better; ``published`` is None where nobody has printed a value."""

    instance: str
    value: float
    bound: float
    gap: float
    seconds: float
    published: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON data."""
        return asdict(self)


Case = tuple[str, float | None, Callable[[], BenchResult]]


def bench(suite: str, folder: Path, options: BenchOptions) -> Iterator[Row]:
    """Solve the instances of a suite one after the other.

    Raises
    ------
    BadInput
        When the suite is unknown, or the folder holds none of its instances.
    """
    if suite not in SUITES:
        raise BadInput("bench", "SUITE", suite, f"one of {', '.join(SUITES)}")
    cases = [case for case in SUITES[suite](folder, options) if options.only in case[0]]
    if not cases:
        part = f", one with {options.only!r} in its name" if options.only else ""
        raise BadInput("bench", "DIR", str(folder), f"a folder with instances of {suite}{part}")
    for name, published, solve in cases:
        result = replace(solve(), instance=name)
        yield Row(name, result.value, result.bound, result.gap, result.seconds, published)


def _msr(folder: Path, options: BenchOptions) -> list[Case]:
    known = _known(folder.parent / "msr_best_known.json")
    field = "contiguous_optimum" if options.contiguous else "best_found"
    cases: list[Case] = []
    for path in sorted(folder.glob("throughput-inputs/*/*.json")):
        key = f"{path.parent.name}/{path.stem}"
        published = known.get("throughput", {}).get(key, {}).get(field)
        cases.append((f"throughput {key}", published, partial(_throughput, path, options)))
    for path in () if options.contiguous else sorted(folder.glob("latency-inputs/*/*.json")):
        key = f"{path.parent.name}/{path.stem}"
        published = known.get("latency", {}).get(key, {}).get("best_found")
        cases.append((f"latency {key}", published, partial(_latency, path, options)))
    return cases


def _latency(path: Path, options: BenchOptions) -> BenchResult:
    return solve_latency(read_msr(path), options.seconds, options.seed, options.workers)


def _throughput(path: Path, options: BenchOptions) -> BenchResult:
    instance = read_msr(path)
    if options.contiguous:
        return solve_contiguous(instance)
    return solve_throughput(instance, options.seconds, options.seed, options.workers)


def _known(path: Path) -> dict[str, Any]:
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return known


def _pipedream(folder: Path, options: BenchOptions) -> list[Case]:
    del options  # exact programs: no limit, no seed
    paths = [path for path in sorted(folder.glob("*.txt")) if path.stem != "LICENSE"]
    return [
        (
            f"{path.stem} n={n}",
            PIPEDREAM_SECONDS.get((path.stem, n)),
            partial(_stages, path, n),
        )
        for path in paths
        for n in PIPEDREAM_MACHINES
    ]


def _stages(path: Path, machines: int) -> BenchResult:
    return solve_pipedream(read_pipedream(path), machines)


def _piper(folder: Path, options: BenchOptions) -> list[Case]:
    del options  # exact programs: no limit, no seed
    return [
        (f"{stem} {devices} x {gib:g} GiB", published, partial(_pipeline, folder / f"{stem}.json", devices, gib))
        for (stem, devices, gib), published in PIPER_SECONDS.items()
        if (folder / f"{stem}.json").exists()
    ]


def _pipeline(path: Path, devices: int, gib: float) -> BenchResult:
    instance = read_piper(path)
    memory, bandwidth = gib * GIB, PIPER_GIB_PER_SECOND * GIB
    return solve_piper(replace(instance, devices=devices, memory_bytes=memory, bandwidth=bandwidth))


SUITES: dict[str, Callable[[Path, BenchOptions], list[Case]]] = {
    "msr": _msr,
    "pipedream": _pipedream,
    "piper": _piper,
}
