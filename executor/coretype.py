"""Which of OpenBLAS's kernels multiply fastest on this CPU: measured in processes of their own, and remembered.

OpenBLAS chooses kernels ("core type") by the processor when it is loaded, and not always the fastest: on Zen 4 it takes
those for AVX-512, though its AVX2 kernels are 5 to 10 % faster there. The choice can be overruled by ``OPENBLAS_CORETYPE``,
but only before NumPy is loaded; so this module loads neither NumPy nor anything that does. Kernels differ in the order of
additions, so all that shall agree to the bit must run under one core type: what was measured is kept in a file, and changes
only when the processor or NumPy does, or the file is deleted. A user's own ``OPENBLAS_CORETYPE`` is never touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from problem.errors import BadInput
from problem.local import cpu_flags, numpy_version, processor
from problem.whole_file import whole_file

VARIABLE = "OPENBLAS_CORETYPE"
#: Folder for what is remembered, by default the user's cache folder; empty: nothing is measured or remembered.
FOLDER = "HIERTRAIN_CACHE"
#: Core types of OpenBLAS for x86-64 with kernels of their own for float32 products, and what they need of ``/proc/cpuinfo``.
CORE_TYPES: Mapping[str, frozenset[str]] = {
    "Haswell": frozenset({"avx2", "fma"}),
    "SkylakeX": frozenset({"avx2", "fma", "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}),
}
#: How much faster another core type must be than one before it in the list to be preferred: above the noise.
MARGIN = 1.03
#: Products that are timed, (samples, inputs, outputs) of a layer: of DLRM's presets, 0.1 GFLOP or more.
SHAPES = ((200, 2560, 256), (200, 1024, 256), (128, 367, 512))
ROUNDS, REPEATS = 2, 8


def candidates() -> list[str]:
    """Return the core types to choose from, in order of preference: OpenBLAS's own choice (empty), then the CPU's."""
    flags = cpu_flags()
    return ["", *(name for name, needed in CORE_TYPES.items() if needed <= flags)]


def measure(names: Iterable[str]) -> dict[str, float]:
    """Time each core type in fresh processes, in turn; returns the best Gflop/s of each. One that fails is left out."""
    found: dict[str, float] = {}
    for name in list(names) * ROUNDS:
        done = subprocess.run(
            [sys.executable, "-m", "executor.coretype"],
            cwd=Path(__file__).resolve().parents[1],
            env=environment(name) | {"OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            found[name] = max(found.get(name, 0.0), float(done.stdout))
    return found


def environment(core_type: str) -> dict[str, str]:
    """Return this process's environment with a core type; with OpenBLAS's own choice for an empty one."""
    rest = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return rest | ({VARIABLE: core_type} if core_type else {})


def fastest(speeds: Mapping[str, float]) -> str:
    """Return the core type to use: the first of those that no other is clearly faster than (:data:`MARGIN`)."""
    best = max(speeds.values(), default=0.0)
    return next((name for name, speed in speeds.items() if speed * MARGIN >= best), "")


def settle(*, measured: bool = False) -> str:
    """Have NumPy, when it is loaded, use the core type that is remembered for this machine.

    Does nothing where the user has chosen one, NumPy is loaded already, or :data:`FOLDER` is empty.

    Parameters
    ----------
    measured : bool
        Measure (two seconds), and remember, where nothing is remembered yet.

    Returns
    -------
    str
        The core type that was set; empty if none was.
    """
    path = _path()
    if VARIABLE in os.environ or "numpy" in sys.modules or path is None:
        return ""
    kept = _read(path)
    if not kept and not measured:
        return ""
    machine = f"{processor()}; numpy {numpy_version()}"  # NumPy's wheels bring OpenBLAS along: one version for both
    if measured and machine not in kept:
        speeds = measure(candidates())
        _remember(path, kept | {machine: {"core_type": fastest(speeds), "gflops_per_second": speeds}})
        kept = _read(path)
    chosen = str(kept.get(machine, {}).get("core_type", ""))
    if chosen:
        os.environ[VARIABLE] = chosen
    return chosen


def _path() -> Path | None:
    """File of what is remembered, None if nothing shall be."""
    folder = os.environ.get(FOLDER)
    if folder is not None:
        return Path(folder) / "openblas.json" if folder else None
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hiertrain" / "openblas.json"


def _remember(path: Path, kept: Mapping[str, Mapping[str, object]]) -> None:
    """Write the file, where that is possible."""
    with contextlib.suppress(OSError, BadInput):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            json.dump(kept, file, indent=1)


def _read(path: Path) -> dict[str, dict[str, object]]:
    """Return what is remembered, by machine; nothing if the file is not there or is damaged."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) and all(isinstance(entry, dict) for entry in kept.values()) else {}


def _gflops_per_second() -> float:
    """Speed of the products of a layer's forward and backward pass in this process; the best of several times."""
    import numpy as np  # noqa: PLC0415 - only in a process that measures

    flops = seconds = 0.0
    for batch, inputs, outputs in SHAPES:
        x, weight, d_output = (np.ones(s, np.float32) for s in ((batch, inputs), (inputs, outputs), (batch, outputs)))
        for left, right in ((x, weight), (x.T, d_output), (d_output, weight.T)):
            times = []
            for _ in range(REPEATS):
                times.append(-time.thread_time())
                np.matmul(left, right)
                times[-1] += time.thread_time()
            seconds += min(times)
            flops += 2.0 * batch * inputs * outputs
    return flops / seconds / 1e9


if __name__ == "__main__":
    print(_gflops_per_second())
