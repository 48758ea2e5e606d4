"""The machine we run on, read from the operating system: usable cores, memory, the fingerprint that profiles carry.

Knows affinity masks and control groups (versions 1 and 2). Measures nothing: speeds are stated assumptions, which a
measured profile supersedes.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from problem.cluster import Node

HOST = "localhost"
FLOPS_PER_CORE_SECOND = 32e9
"""8 float32 lanes x 2 (multiply-add) x 2 GHz: one AVX2 unit of a current core. A stated assumption."""
MEMORY_BANDWIDTH_PER_CORE = 10e9
"""Bytes per second that one core can stream: one channel of DDR4-2666 (21 GB/s) for two cores. A stated assumption."""
COPY_BYTES_PER_SECOND = 4e9
"""Rate of messages through shared memory between processes, order of magnitude of pipe-signalled rings."""
COPY_LATENCY_SECONDS = 5e-6
"""Wake-up of a sleeping process through a pipe."""

ASSUMPTIONS = (
    "this machine, unmeasured: 32 GFLOP/s per core (one AVX2 unit at 2 GHz), 10 GB/s of memory bandwidth per core, "
    "messages as memory copies at 4 GB/s and 5 us; a profile supersedes them",
)

_CGROUP = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_NO_LIMIT = 2**60  # version 1 writes a huge number for "no limit"


def fingerprint() -> str:
    """Return a readable, stable id of this machine: costs measured under one id are not used under another.

    Holds what changes the speed of the kernels: processor, its logical cores, NumPy's version, the instruction set that
    OpenBLAS was told to use (``OPENBLAS_CORETYPE``), and the version of llvmlite, unless ``HIERTRAIN_NATIVE`` is 0, because
    the executor then has compiled kernels.
    """
    blas, numpy = os.environ.get("OPENBLAS_CORETYPE") or "auto", numpy_version()
    native = _version("llvmlite") if os.environ.get("HIERTRAIN_NATIVE", "1") != "0" else "none"
    compiled = f"; llvmlite {native}" if native != "none" else ""
    return f"{processor()}; {os.cpu_count()} cores; numpy {numpy}; blas {blas}{compiled}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def numpy_version() -> str:
    """Return the version of NumPy, without loading it."""
    return _version("numpy")


def processor() -> str:
    """Return the model name of the processor."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_flags() -> frozenset[str]:
    """Return the instruction sets of the processor as Linux names them; none where ``/proc/cpuinfo`` has no ``flags``."""
    return frozenset(_cpuinfo("flags").split())


def _cpuinfo(field: str) -> str:
    """Return a field of the first processor, with single blanks; nothing if there is none."""
    for line in _text(_PROC / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == field:
            return " ".join(value.split())
    return ""


def usable_cores() -> int:
    """Return the cores that this process may use: its affinity mask, and the quota of its control groups."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [int(quota) for quota in _cpu_quotas()]
    return max(1, min([allowed, *quotas]))


def usable_memory_bytes() -> int:
    """Return the memory of the machine, or the smallest limit of this process's control groups."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [int(text) for text in _group_files("memory.max", "memory", "memory.limit_in_bytes") if text.isdigit()]
    return min([total, *(limit for limit in limits if limit < _NO_LIMIT)])


def this_node(name: str = "local", *, role: str = "any", shares: int = 1) -> Node:
    """Return this machine as a node.

    Parameters
    ----------
    name : str
        Name of the node; its host is always :data:`HOST`.
    role : str
        ``trainer``, ``server`` or ``any``.
    shares : int
        Into how many nodes the memory of the machine is divided. Cores are not divided: nodes of one host share them.
    """
    cores = usable_cores()
    return Node(
        name=name,
        host=HOST,
        kind=fingerprint(),
        cores=cores,
        flops_per_core_second=FLOPS_PER_CORE_SECOND,
        memory_bandwidth_bytes_per_second=MEMORY_BANDWIDTH_PER_CORE * cores,
        memory_bytes=usable_memory_bytes() // shares,
        nic_bytes_per_second=COPY_BYTES_PER_SECOND,
        latency_seconds=COPY_LATENCY_SECONDS,
        role=role,
    )


def _cpu_quotas() -> Iterator[float]:
    """Yield the cores that each control group around this process grants."""
    for text in _group_files("cpu.max", "cpu", "cpu.cfs_quota_us"):
        quota, _, period = text.partition(" ")
        if quota.isdigit():
            yield int(quota) / int(
                period or 100_000
            )  # version 1 keeps the period apart; the kernel's default is 100 ms


def _group_files(name: str, controller: str, old_name: str) -> Iterator[str]:
    """Yield the text of a file of every control group around this process, innermost first, both versions."""
    for line in _text(_PROC / "self" / "cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        unified = not controllers
        root = _CGROUP if unified else _CGROUP / controller
        if unified or controller in controllers.split(","):
            inner = root / group.strip("/")
            for folder in (inner, *(parent for parent in inner.parents if parent.is_relative_to(root))):
                text = _text(folder / (name if unified else old_name)).strip()
                if text:
                    yield text


def _text(path: Path) -> str:
    """Return the text of a file of the operating system, or nothing where there is no such file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
