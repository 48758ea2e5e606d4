"""Checkpoints are complete or not there, whatever happens while one is written."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from typer.testing import CliRunner

from cost_models.roofline import roofline_costs
from executor.checkpoint import FILE_NAME, Done, save
from executor.errors import CheckpointFailed, WorkerFailed
from executor.run import RunOptions, run
from executor.state import JobState
from hiertrain.cli import app
from placement.plan import Plan
from placement.planfile import save_plan
from problem.readers import model_from_spec
from tests.executor.checkpoints import ROOT, STEPS, SYNCHRONOUS, adaptive, content, random_state, trained
from tests.executor.test_faults import Poisoned
from tests.programs import plans

pytestmark = pytest.mark.timeout(60)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk on which no file grows beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_ends_the_run_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    """The error names file, step and what the system says; the checkpoint before is untouched."""
    plan, path = plans.plan(adaptive()), tmp_path / FILE_NAME
    save(path, plan, random_state(plan, 1), Done(5, 5))
    before = path.read_bytes()
    with files_of_at_most(2000), pytest.raises(CheckpointFailed) as caught:
        save(path, plan, random_state(plan, 2), Done(6, 6))
    assert str(caught.value) == f"{path}: the checkpoint of step 6 could not be written: File too large"
    assert caught.value.exit_code == 4
    assert path.read_bytes() == before


def save_and_die(path: Path, plan: Plan, state: JobState, at: int) -> bool:
    """Save in a child process that is killed when it gets to the ``at``-th line; returns whether it got that far."""
    child = os.fork()
    if not child:
        left = [at]

        def count(frame: FrameType, event: str, argument: object) -> Any:
            del frame, argument
            left[0] -= event == "line"
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return count

        sys.settrace(count)
        save(path, plan, state, Done(6, 6))
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_a_kill_at_any_moment_of_a_save_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    """Killed at 60 points spread over all lines that a save runs through, in the libraries too: what is there is the last
    checkpoint or the new one, to the byte, and the next save is none the worse for what the killed one left."""
    plan, path = plans.plan(adaptive()), tmp_path / FILE_NAME
    states = [random_state(plan, seed) for seed in (1, 2)]
    complete = []
    for step, state in zip((5, 6), states, strict=True):
        save(path, plan, state, Done(step, step))
        complete.append(path.read_bytes())
    lines = 1
    while save_and_die(path, plan, states[1], lines):
        lines *= 2
    left = set()
    for at in range(1, lines, max(1, lines // 60)):
        save(path, plan, states[0], Done(5, 5))
        died = save_and_die(path, plan, states[1], at)
        left.add(complete.index(path.read_bytes()))
        assert died or path.read_bytes() == complete[1]
    assert left == {0, 1}


COORDINATOR = """
import sys
from pathlib import Path
from executor.data import SyntheticStream
from executor.run import RunOptions, run
from tests.executor.checkpoints import SYNCHRONOUS

plan = SYNCHRONOUS["two ranks"]
options = RunOptions(15, checkpoint=Path(sys.argv[1]), checkpoint_every=1, resume=True, watch=lambda s: print(s, flush=True))
run(plan, options, SyntheticStream(plan.model, 1))
"""


def test_a_run_killed_again_and_again_gets_to_the_same_end(tmp_path: Path) -> None:
    """A coordinator that saves after every step is killed at random moments and started again with the same command, until
    it gets through: each time it goes on from a complete checkpoint, and the last one is the unbroken run's to the byte."""
    moments, kills = random.Random(5), 0
    while True:
        command = [sys.executable, "-c", COORDINATOR, str(tmp_path / "killed")]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as coordinator:
            assert coordinator.stdout is not None
            coordinator.stdout.readline()
            time.sleep(moments.uniform(0.0, 0.4))
            if coordinator.poll() is None and kills < 3:
                coordinator.kill()
                kills += 1
            coordinator.stdout.read()
        if coordinator.returncode != -signal.SIGKILL:
            break
    assert coordinator.returncode == 0
    assert kills
    trained(SYNCHRONOUS["two ranks"], tmp_path / "unbroken", steps=15)
    assert content(tmp_path / "killed") == content(tmp_path / "unbroken")


def test_a_failed_run_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    """A loss that is not a number in the third segment: the step is named, and the run goes on from the second's end when
    the data has been mended."""
    plan = SYNCHRONOUS["one process"]
    options = RunOptions(steps=STEPS, checkpoint=tmp_path / "mended", checkpoint_every=3)
    with pytest.raises(WorkerFailed, match="loss is nan at step 7"):
        run(plan, options, Poisoned(plan, 7))
    mended = trained(plan, tmp_path / "mended", resume=True)
    trained(plan, tmp_path / "unbroken")
    assert mended.first_step == 6
    assert content(tmp_path / "mended") == content(tmp_path / "unbroken")


def test_the_command_line_saves_and_goes_on(tmp_path: Path) -> None:
    """``run --checkpoint`` twice with ``--resume``: the second starts where the first ended and is evaluated on the same
    held-out batches as an unbroken run, with the same quality to the bit."""
    found = [{"name": "user", "rows": 50, "optimizer": "rowwise_adagrad"}]
    spec = {"kind": "dlrm", "name": "small", "dense_features": 3, "embedding_dim": 4, "bottom_mlp": [4], "top_mlp": [1]}
    plan = plans.plan(model_from_spec(spec | {"optimizer": "adagrad", "tables": found}))
    save_plan(tmp_path / "plan.json", plan, roofline_costs(plan.model, plan.batch, plan.servers[0]))

    def outcome(folder: str, steps: int) -> Any:
        options = ["--steps", str(steps), "--checkpoint", str(tmp_path / folder), "--resume", "--json"]
        done = CliRunner().invoke(app, ["run", str(tmp_path / "plan.json"), *options])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    unbroken = outcome("unbroken", 20)
    assert outcome("broken", 8)["first_step"] == 0
    broken = outcome("broken", 20)
    assert broken["first_step"] == 8
    assert broken["normalized_entropy"] == unbroken["normalized_entropy"]
