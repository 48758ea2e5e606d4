"""The table of faults: every kind ends, is named, and leaves nothing."""

import multiprocessing
import os
import random
import signal
import time

import pytest

from experiments.bench_faults import KINDS, Fault, _left, _open_files, main, suffer, table
from experiments.launch import mpiexec


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_of_each_kind_is_named(kind):
    """One run of each kind ends with the victim's name and nothing left."""
    found = suffer(kind, random.Random(3))
    assert found.named
    assert found.left == 0


@pytest.mark.skipif(not mpiexec(), reason="needs mpiexec")
@pytest.mark.timeout(60)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_of_each_kind_is_named_under_mpi(kind):
    """The same among ranks: one line names the victim, mpiexec ends with exit code 4, and nothing is left."""
    pytest.importorskip("mpi4py", reason="needs mpi4py")
    found = suffer(kind, random.Random(3), "mpi")
    assert found.named
    assert found.left == 0


def test_what_is_left_is_counted(tmp_path):
    """An open file and a process that runs (this one) count as left behind."""
    before = _open_files()
    with (tmp_path / "open").open("w"):
        assert _left(set(), before) == 1
    assert _left({os.getpid()}, before) == 1


def test_a_fault_waits_for_its_moment_and_its_victim():
    """A worker is left alone before the moment and if it is not the victim, and is killed after it."""
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), name="victim")
    worker.start()
    early, other = Fault("victim", signal.SIGKILL, 1e9), Fault("nobody", signal.SIGKILL, 0.0)
    early(1)
    other(1)
    assert (early.at, other.at) == (0.0, 0.0)
    assert worker.is_alive()
    fault = Fault("victim", signal.SIGKILL, 0.0)
    fault(1)
    worker.join()
    assert fault.at > 0.0
    assert worker.exitcode == -signal.SIGKILL


def test_the_table_has_a_row_for_each_kind(monkeypatch, capsys):
    """Kinds in order, with as many tries as asked for."""
    monkeypatch.setattr("experiments.bench_faults.KINDS", ("killed",))
    assert [(kind, len(tries)) for kind, tries in table(1)] == [("killed", 1)]
    main(["--tries", "1"])
    assert "killed              1     1     1    0" in capsys.readouterr().out
