"""This machine as the operating system tells it, on made-up /proc and control groups."""

import os

import pytest

from problem import local


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without limits whose files the test writes."""
    monkeypatch.setattr(local, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(local, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


def test_no_limits(machine):
    """Without control groups the affinity mask and the physical memory count."""
    assert local.usable_cores() == 16
    assert local.usable_memory_bytes() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_unified_groups(machine):
    """Version 2: the tightest limit of any group around the process counts; part of a core counts as one core."""
    machine("proc/self/cgroup", "0::/a/b\n")
    machine("cgroup/a/cpu.max", "350000 100000\n")
    machine("cgroup/a/b/cpu.max", "max 100000\n")
    machine("cgroup/a/memory.max", "1000000\n")
    machine("cgroup/a/b/memory.max", "max\n")
    assert local.usable_cores() == 3
    assert local.usable_memory_bytes() == 1_000_000
    machine("cgroup/a/b/cpu.max", "50000 100000\n")
    assert local.usable_cores() == 1


def test_split_groups(machine):
    """Version 1: quota and limit of the controllers' own hierarchies; -1 and the huge default are no limit."""
    machine("proc/self/cgroup", "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n")
    machine("cgroup/cpu/job/cpu.cfs_quota_us", "200000\n")
    machine("cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    machine("cgroup/memory/job/memory.limit_in_bytes", "2000000\n")
    machine("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert local.usable_cores() == 2
    assert local.usable_memory_bytes() == 2_000_000


def test_fingerprint(machine, monkeypatch):
    """The fingerprint names processor, cores, NumPy, BLAS kernel and compiled kernels: another kernel is another machine."""
    machine("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some  CPU @ 2.0GHz\n")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setattr(local, "version", lambda package: f"1.0 of {package}")
    assert local.fingerprint().endswith("; numpy 1.0 of numpy; blas Haswell; llvmlite 1.0 of llvmlite")
    monkeypatch.setenv("HIERTRAIN_NATIVE", "0")
    text = local.fingerprint()
    assert text.startswith("Some CPU @ 2.0GHz; ")
    assert text.endswith("blas Haswell")
    monkeypatch.delenv("OPENBLAS_CORETYPE")
    assert local.fingerprint() != text


def test_node():
    """A node of this machine has its fingerprint as kind and a share of its memory."""
    whole, half = local.this_node(), local.this_node("half", role="server", shares=2)
    assert whole.kind == half.kind == local.fingerprint()
    assert half.memory_bytes == whole.memory_bytes // 2
    assert half.host == whole.host == "localhost"
