"""The MPI back-end: the same numbers as processes, to the bit; the right number of ranks; deaths that are named."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from executor.homes import home_of
from executor.run import RunOptions, RunResult, run
from executor.run_mpi import crew_of
from experiments.launch import command_of, launch, mpiexec, result_in
from placement.plan import Plan, Sync
from programs.transform import transform
from programs.workers import Worker
from tests import shared_memory
from tests.executor.test_faults import slowly
from tests.executor.tiny import dlrm, tables
from tests.programs import plans

pytest.importorskip("mpi4py", reason="needs mpi4py")
pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not mpiexec(), reason="needs mpiexec"),
]


def two_ranks(**settings: object) -> Plan:
    """Two synchronous ranks, an MP layer on the second, one server: 6 workers, and every message of a step compressed."""
    chosen: dict[str, object] = {"codecs": {"interaction": "bf16", "push": "rowwise8", "allreduce": "dct-dp:0.1"}}
    model = dlrm([3, 8, 4], tables(2, 40, 4), [64, 6, 1], optimizer="adagrad")
    return plans.plan(model, nodes=2, ranks=2, tags={"top1": 1}, synchronous=True, **chosen | settings)  # type: ignore[arg-type]


def exchanging() -> Plan:
    """Two groups of a rank and an MP node, kept together in the background: 11 workers of all five kinds."""
    model = dlrm([3, 8, 4], tables(2, 40, 4), [8, 1])
    return plans.plan(model, nodes=2, groups=2, sync_servers=1, tags={"top0": 1}, sync=Sync("background", 2))


def under_mpi(folder: Path, plan: Plan, options: RunOptions, **settings: int) -> tuple[int, str]:
    """Run a plan under ``mpiexec``; returns exit code and what was said on stderr."""
    with launch(folder, plan, options, "mpi", **settings) as job:
        said = job.communicate(timeout=50)[1]
    return job.returncode, said


def assert_equal(found: RunResult, expected: RunResult) -> None:
    """Losses and all trained parameters are equal to the bit."""
    np.testing.assert_array_equal(found.losses, expected.losses)
    for name in expected.dense.operators:
        np.testing.assert_array_equal(found.dense.flat(name), expected.dense.flat(name))
    for name, rows in expected.tables.items():
        np.testing.assert_array_equal(found.tables[name].rows, rows.rows)


def test_ranks_give_what_processes_give_and_go_on_where_they_stopped(tmp_path: Path) -> None:
    """Synchronous, with codecs: a run of 12 steps under MPI, saved on the way, then 8 more in processes from its checkpoint,
    equals 20 in processes to the bit; so does a run of 20 under MPI that goes on from 12 in processes."""
    plan, whole = two_ranks(), run(two_ranks(), RunOptions(steps=20))
    saved, other = tmp_path / "saved", tmp_path / "other"
    assert under_mpi(tmp_path, plan, RunOptions(steps=12, checkpoint=saved, checkpoint_every=5)) == (0, "")
    first = result_in(tmp_path)
    np.testing.assert_array_equal(first.losses, whole.losses[:, :12])
    assert len(first.workers) == 5
    assert_equal(
        dataclasses.replace(run(plan, RunOptions(steps=20, checkpoint=saved, resume=True)), losses=whole.losses), whole
    )
    run(plan, RunOptions(steps=12, checkpoint=other))
    assert under_mpi(tmp_path, plan, RunOptions(steps=20, checkpoint=other, resume=True)) == (0, "")
    rest = result_in(tmp_path)
    assert rest.first_step == 12
    assert_equal(dataclasses.replace(rest, losses=np.hstack([first.losses, rest.losses])), whole)


def test_messages_in_parts_and_coded_ones_arrive_and_channels_end() -> None:
    """Without arrays, of one part, of several, and as long as their bytes: five of each arrive whole, then the end."""
    command = command_of("mpi", 2, "tests.executor.mpi_messages")
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=40, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_all_kinds_of_workers_run_as_ranks(tmp_path: Path) -> None:
    """Shadow workers are woken, sync servers end when their clients have: 11 ranks run to the end, and the centre moved."""
    assert under_mpi(tmp_path, exchanging(), RunOptions(steps=8)) == (0, "")
    result = result_in(tmp_path)
    assert sorted(result.workers) == sorted(worker.name for worker in crew_of(transform(exchanging())))
    start = run(exchanging(), RunOptions(steps=2))
    assert not np.array_equal(result.dense.flat("bottom0"), start.dense.flat("bottom0"))
    shadows = [worker for worker in result.timeline.workers if worker.role == "shadow"]
    assert [len(worker.ends) for worker in shadows] == [4] * 4


def test_another_number_of_ranks_is_refused_once(tmp_path: Path) -> None:
    """One line, from the first rank, with the number that is needed."""
    code, said = under_mpi(tmp_path, two_ranks(), RunOptions(steps=2), ranks=3)
    assert code == 2
    assert said == "hiertrain: mpiexec: -n = 3: 5: a rank for each worker of the plan (see --dry-run)\n"


@dataclasses.dataclass(frozen=True)
class KillsItself:
    """A worker that is killed a little after its start."""

    victim: str
    pids: Path

    def __call__(self, worker: Worker, state: object) -> None:
        """Note the process and set the alarm."""
        (self.pids / str(os.getpid())).touch()
        if worker.name == self.victim:
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            signal.setitimer(signal.ITIMER_REAL, 0.2)


@pytest.mark.parametrize("victim", ["ps0/serves-g0n1t0", pytest.param("g0/n0/t0", marks=pytest.mark.slow)])
def test_a_rank_that_dies_ends_the_job_with_its_name(victim: str, tmp_path: Path) -> None:
    """The worker is named, no process and no shared memory is left."""
    pids, before = tmp_path / "pids", shared_memory.names()
    pids.mkdir()
    options = slowly(two_ranks(), lambda _: None, on_start=KillsItself(victim, pids))
    code, said = under_mpi(tmp_path, two_ranks(), dataclasses.replace(options, watch=None))
    assert code == 4
    assert said == f"hiertrain: worker {victim}: was killed by SIGKILL\n"
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline and any(Path("/proc", pid.name).exists() for pid in pids.iterdir()):
        time.sleep(0.02)
    assert len(list(pids.iterdir())) == 5
    assert not [pid.name for pid in pids.iterdir() if Path("/proc", pid.name).exists()]
    assert not shared_memory.left_since(before)


def test_ranks_are_in_the_order_of_machines() -> None:
    """All workers of a machine follow each other, the first rank reads for the first group, and nobody is left out."""
    programs = transform(plans.easgd_plan("background", hogwild=2))
    crew = crew_of(programs)
    homes = [home_of(worker) for worker in crew]
    assert crew[0].name == "g0/n0/t0"
    assert len({worker.name for worker in crew}) == len(crew)
    assert [home for home, after in zip(homes, [*homes[1:], None], strict=True) if home != after] == list(
        dict.fromkeys(homes)
    )
