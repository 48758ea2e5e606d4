"""Checkpoints: complete or not there, keyed by parameter, and a resumed run is the unbroken one."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from cost_models.roofline import roofline_costs
from executor.checkpoint import FILE_NAME, Done, load, save
from executor.clock import ClockKind
from executor.data import Batch, SyntheticStream
from executor.errors import CheckpointFailed, WorkerFailed
from executor.job import segments
from executor.run import RunOptions, RunResult, run
from executor.state import JobState, allocate_state
from hiertrain.cli import app
from placement.plan import Plan, Shard, Sync
from placement.planfile import save_plan
from problem.errors import BadInput
from problem.model import Model
from problem.readers import model_from_spec
from programs.transform import transform
from programs.workers import workers
from tests.executor.reference import assert_same_bits, relative_error, values
from tests.executor.test_faults import Poisoned
from tests.executor.tiny import dlrm, tables
from tests.programs import plans

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).resolve().parents[2]
STEPS = 12


def adaptive(**settings: Any) -> Model:
    """A DLRM whose optimizers keep state: Adagrad for dense parameters, one accumulator an element or a row for tables."""
    found = [
        *tables(1, 60, 4, optimizer="adagrad"),
        dataclasses.replace(tables(2, 40, 4)[1], optimizer="rowwise_adagrad"),
    ]
    return dlrm([3, 8, 4], found, [8, 1], optimizer="adagrad", learning_rate=0.05, **settings)


def cut_elsewhere(model: Model) -> Plan:
    """Three nodes, MP operators on two of them, a table cut by rows over two servers."""
    shards = (Shard("t0", 1, 0, 25), Shard("t0", 0, 25, 60), Shard("t1", 1, 0, 40))
    return plans.plan(model, nodes=3, servers=2, tags={"top0": 2, "bottom1": 1}, shards=shards)


SYNCHRONOUS = {
    "one process": plans.plan(adaptive()),
    "cut": cut_elsewhere(adaptive()),
    "two ranks": plans.plan(adaptive(), nodes=3, ranks=2, tags={"top0": 2, "bottom0": 1}, synchronous=True),
}


def trained(plan: Plan, folder: Path, steps: int = STEPS, **settings: Any) -> RunResult:
    """Run with checkpoints in a folder."""
    return run(plan, RunOptions(steps=steps, checkpoint=folder, **settings), SyntheticStream(plan.model, 1))


def content(folder: Path) -> bytes:
    """The checkpoint in a folder."""
    return (folder / FILE_NAME).read_bytes()


# ---- resumed runs


@pytest.mark.parametrize("plan", SYNCHRONOUS.values(), ids=SYNCHRONOUS.keys())
def test_a_resumed_run_is_the_unbroken_one_to_the_bit(plan: Plan, tmp_path: Path) -> None:
    """Five steps, then the rest in a new run: losses, parameters and optimizer states (the whole final checkpoint) are
    those of a run without a break, and so they are when a checkpoint is written every three steps."""
    unbroken = trained(plan, tmp_path / "unbroken")
    first = trained(plan, tmp_path / "broken", steps=5)
    second = trained(plan, tmp_path / "broken", resume=True, checkpoint_every=3)
    assert (first.first_step, second.first_step) == (0, 5)
    losses = np.concatenate([first.losses, second.losses], axis=1)
    np.testing.assert_array_equal(losses, unbroken.losses)
    assert_same_bits(values(second.dense, second.tables), values(unbroken.dense, unbroken.tables))
    assert content(tmp_path / "broken") == content(tmp_path / "unbroken")
    assert second.next_batch == unbroken.next_batch == STEPS * plan.ranks


def test_a_run_goes_on_with_another_placement_and_other_shards(tmp_path: Path) -> None:
    """Five steps in one process, seven cut over three nodes and two servers that share a table's rows: to the bit what
    one process gives, and the other way round; optimizer states come along."""
    single, cut = SYNCHRONOUS["one process"], SYNCHRONOUS["cut"]
    trained(single, tmp_path / "unbroken")
    for name, first, second in (("there", single, cut), ("back", cut, single)):
        trained(first, tmp_path / name, steps=5)
        trained(second, tmp_path / name, resume=True)
        assert content(tmp_path / name) == content(tmp_path / "unbroken")


def resharded(optimizer: str) -> dict[str, Plan]:
    """A shared table and one of its own: whole, in strips, in row ranges, and in strips whose rows are cut."""
    found = tables(2, 60, 8, optimizer=optimizer)
    model = dlrm([3, 8], [*found, dataclasses.replace(found[0], name="f", shares="t0", pooling_factor=3)], [8, 1])
    cuts = {
        "whole": [Shard("t0", 0, 0, 60), Shard("t1", 1, 0, 60)],
        "strips": [Shard("t0", 1, 0, 60, (3, 8)), Shard("t0", 0, 0, 60, (0, 3)), Shard("t1", 2, 0, 60)],
        "rows": [Shard("t0", 2, 0, 60), Shard("t1", 1, 20, 60), Shard("t1", 0, 0, 20)],
        "both": [
            Shard("t0", 0, 0, 60, (0, 2)),
            Shard("t0", 1, 0, 60, (2, 8)),
            Shard("t1", 0, 0, 60, (0, 5)),
            Shard("t1", 2, 0, 33, (5, 8)),
            Shard("t1", 1, 33, 60, (5, 8)),
        ],
    }
    return {name: plans.plan(model, servers=3, shards=shards, synchronous=True) for name, shards in cuts.items()}


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_a_run_goes_on_with_columns_cut_otherwise(optimizer: str, tmp_path: Path) -> None:
    """Shards of rows and columns come and go every two steps; what is learnt is, to the bit, that of whole tables."""
    cuts = resharded(optimizer)
    unbroken = trained(cuts["whole"], tmp_path / "whole", steps=8)
    for number, name in enumerate(("strips", "rows", "both", "whole"), start=1):
        last = trained(cuts[name], tmp_path / "cut", steps=2 * number, resume=True)
    assert_same_bits(values(last.dense, last.tables), values(unbroken.dense, unbroken.tables))
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


def test_rowwise_state_follows_its_columns(tmp_path: Path) -> None:
    """Strips that are joined have the mean of their states by width; strips that are cut start from what they shared."""
    cuts, path = resharded("rowwise_adagrad"), tmp_path / FILE_NAME
    state, joined, again = random_state(cuts["strips"], 1), allocate_state(cuts["whole"]), allocate_state(cuts["both"])
    save(path, cuts["strips"], state, Done())
    for plan, other in ((cuts["whole"], joined), (cuts["both"], again)):
        load(path, plan, other)
    wide, narrow = (rows.state for rows in state.rows[:2] if rows is not None)
    np.testing.assert_allclose(joined.rows[0].state, (5 * wide + 3 * narrow) / 8, rtol=1e-6)  # type: ignore[union-attr]
    np.testing.assert_array_equal(again.rows[0].state, narrow)  # type: ignore[union-attr]
    np.testing.assert_allclose(again.rows[1].state, (5 * wide + narrow) / 6, rtol=1e-6)  # type: ignore[union-attr]


class Lines:
    """A stream that is a file: batch i of n samples is lines i n to (i + 1) n."""

    def __init__(self, model: Model, lines: int) -> None:
        self._whole = SyntheticStream(model, 1).batch(0, lines)

    def batch(self, index: int, size: int) -> Batch:
        """Return a batch."""
        part, whole = slice(index * size, (index + 1) * size), self._whole
        return Batch(whole.dense[part], {name: ids[part] for name, ids in whole.ids.items()}, whole.labels[part])


def test_a_run_goes_on_with_more_workers_at_the_sample_where_it_stopped(tmp_path: Path) -> None:
    """Five steps of one rank with batches of eight, seven of two ranks with batches of four: no sample is left out or read
    twice, so the parameters are those of one rank all along, to rounding."""
    model = dlrm([3, 8, 4], tables(2, 40, 4), [8, 1])
    one = plans.plan(model, batch=8)
    two = plans.plan(model, nodes=2, ranks=2, batch=4, synchronous=True)
    lines = Lines(model, 8 * STEPS)
    expected = run(one, RunOptions(steps=STEPS), lines)
    run(one, RunOptions(steps=5, checkpoint=tmp_path), lines)
    found = run(two, RunOptions(steps=STEPS, checkpoint=tmp_path, resume=True), lines)
    errors = relative_error(values(found.dense, found.tables), values(expected.dense, expected.tables))
    assert max(errors.values()) < 1e-6
    assert found.next_batch == 2 * STEPS
    np.testing.assert_allclose(found.losses.mean(axis=0), expected.losses[0, 5:], rtol=1e-6)


def test_segments_end_at_multiples() -> None:
    """A run is cut where the step's number is divisible by the distance, wherever it begins."""
    assert segments(range(10), 4) == [range(4), range(4, 8), range(8, 10)]
    assert segments(range(5, 12), 4) == [range(5, 8), range(8, 12)]
    assert segments(range(3), 1000) == [range(3)]


@pytest.mark.parametrize("clock", list(ClockKind))
def test_clocks_go_on_over_checkpoints(clock: ClockKind, tmp_path: Path) -> None:
    """Exchanges in the background, gap 2, a checkpoint every 3 of 7 steps: no worker's clock goes back, every shadow makes
    its 3 exchanges, and the steps that are done are told from first to last."""
    plan = plans.plan(
        dlrm([3, 8, 4], tables(2, 40, 4), [8, 1]), groups=2, sync_servers=1, sync=Sync("background", 2), hogwild=2
    )
    durations = {worker.name: [1e-5] * len(worker.program) for worker in workers(transform(plan))}
    seen: list[int] = []
    options = RunOptions(7, clock=clock, durations=durations, watch=seen.append)
    result = run(plan, dataclasses.replace(options, checkpoint=tmp_path, checkpoint_every=3))
    assert result.samples_per_second > 0
    assert sorted(seen) == seen
    for worker in result.timeline.workers:
        assert len(worker.ends) == (3 if worker.role == "shadow" else 7)
        assert (np.diff(worker.ends.ravel()) >= 0).all()
        assert worker.starts.ravel()[0] >= 0


# ---- what is in the file


def random_state(plan: Plan, seed: int) -> JobState:
    """Parameters and states that differ everywhere, copies of DP operators in a group excepted."""
    draw, state = np.random.default_rng(seed), allocate_state(plan)
    held = [*state.dense.values(), *([state.centre] if state.centre else [])]
    for array in [*(p.flat(n) for p in held for n in p.operators), *(p.state(n) for p in held for n in p.operators)]:
        array[...] = draw.random(array.shape)
    for rows in (rows for rows in state.rows if rows is not None):
        rows.rows[...], rows.state[...] = draw.random(rows.rows.shape), draw.random(rows.state.shape)
    for (group, node), parameters in state.dense.items():
        for name in plan.dp_ops if node < plan.ranks else ():
            parameters.flat(name)[...] = state.dense[group, 0].flat(name)
            parameters.state(name)[...] = state.dense[group, 0].state(name)
    return state


def grouped(groups: int, **settings: Any) -> Plan:
    """Groups of two ranks and an MP operator."""
    sync = Sync("foreground", 4) if groups > 1 else None
    settings |= {"sync": sync, "sync_servers": int(groups > 1)}
    return plans.plan(adaptive(), nodes=2, ranks=2, groups=groups, tags={"top0": 1}, **settings)


def assert_same_state(found: JobState, expected: JobState) -> None:
    """Every buffer of two states of one plan is the same."""
    for key, held in expected.dense.items():
        for name in held.operators:
            np.testing.assert_array_equal(found.dense[key].flat(name), held.flat(name))
            np.testing.assert_array_equal(found.dense[key].state(name), held.state(name))
    for mine, theirs in zip(found.rows, expected.rows, strict=True):
        assert mine is not None
        assert theirs is not None
        np.testing.assert_array_equal(mine.rows, theirs.rows)
        np.testing.assert_array_equal(mine.state, theirs.state)
    if expected.centre is not None:
        assert found.centre is not None
        for name in expected.centre.operators:
            np.testing.assert_array_equal(found.centre.flat(name), expected.centre.flat(name))


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("cut", ["whole", "both"])
def test_everything_comes_back(groups: int, cut: str, tmp_path: Path) -> None:
    """Parameters and optimizer states of every replica, rows and their states, and the centre: what was saved is loaded."""
    plan = grouped(groups) if cut == "whole" else resharded("rowwise_adagrad")[cut]
    state, empty, path = random_state(plan, 1), allocate_state(plan), tmp_path / FILE_NAME
    save(path, plan, state, Done(7, 700))
    assert load(path, plan, empty) == Done(7, 700)
    assert_same_state(empty, state)


def test_numpy_reads_the_file(tmp_path: Path) -> None:
    """The arrays have the names that the module promises, and numpy.load opens them."""
    plan = grouped(2)
    state = random_state(plan, 1)
    save(tmp_path / FILE_NAME, plan, state, Done())
    with np.load(tmp_path / FILE_NAME) as file:
        np.testing.assert_array_equal(file["group1/top0"], state.dense[1, 1].flat("top0"))
        np.testing.assert_array_equal(file["group0/bottom0.state"], state.dense[0, 0].state("bottom0"))
        assert file["table/t0"].shape == file["table/t0.state"].shape == (60, 4)
        assert file["table/t1.state"].shape == (40,)
        assert state.centre is not None
        np.testing.assert_array_equal(file["centre/top1"], state.centre.flat("top1"))


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (3, 2)])
def test_another_number_of_groups_starts_from_the_centre(before: int, after: int, tmp_path: Path) -> None:
    """Every replica and the centre get the values of the centre, or of the only replica; optimizer states are those of the
    old replicas in turn."""
    old, new = grouped(before), grouped(after)
    state, found = random_state(old, 1), allocate_state(new)
    save(tmp_path / FILE_NAME, old, state, Done(1, 1))
    load(tmp_path / FILE_NAME, new, found)
    for (group, node), held in found.dense.items():
        for name in held.operators:
            whole = state.centre or state.dense[0, node]
            np.testing.assert_array_equal(held.flat(name), whole.flat(name))
            np.testing.assert_array_equal(held.state(name), state.dense[group % before, node].state(name))
    if found.centre is not None:
        for name in found.centre.operators:
            whole = state.centre or state.dense[0, 1 if name == "top0" else 0]
            np.testing.assert_array_equal(found.centre.flat(name), whole.flat(name))


# ---- what is refused


def refused(folder: Path, plan: Plan, **settings: Any) -> str:
    """What the run says about the checkpoint."""
    with pytest.raises(BadInput) as caught:
        trained(plan, folder, **settings)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(str(folder), "DIR")


def test_a_checkpoint_of_another_model_is_refused_by_field_and_value(tmp_path: Path) -> None:
    """Another width, number of rows, optimizer, table, or seed: the message names field, value and what is expected."""
    plan = plans.plan(adaptive())
    trained(plan, tmp_path, steps=2)
    wider = dlrm([3, 16, 4], list(plan.model.tables), [8, 1], optimizer="adagrad")
    expected = (
        "DIR/checkpoint.npz: model.operators.bottom0 = 'linear of dense 8 wide relu 32 parameters': "
        "the plan's model has 'linear of dense 16 wide relu 64 parameters'"
    )
    assert refused(tmp_path, plans.plan(wider), resume=True) == expected
    longer = dlrm([3, 8, 4], [dataclasses.replace(plan.model.tables[0], rows=61), plan.model.tables[1]], [8, 1])
    longer = dataclasses.replace(longer, optimizer="adagrad")
    assert "model.tables.t0 = '60 rows of 4, adagrad': the plan's model has '61 rows of 4, adagrad'" in refused(
        tmp_path, plans.plan(longer), resume=True
    )
    other = dataclasses.replace(plan.model, optimizer="sgd")
    assert "model.optimizer = 'adagrad'" in refused(tmp_path, plans.plan(other), resume=True)
    fewer = dlrm([3, 8, 4], list(plan.model.tables[:1]), [8, 1], optimizer="adagrad")
    assert "model.operators.interaction" in refused(tmp_path, plans.plan(fewer), resume=True)
    assert "seed = 0: the plan's, 3" in refused(tmp_path, plans.plan(adaptive(), seed=3), resume=True)


def test_a_checkpoint_is_not_overwritten_unasked(tmp_path: Path) -> None:
    """Without ``resume`` a folder with a checkpoint is refused; with it, a run that has nothing left to do is."""
    plan = plans.plan(adaptive())
    trained(plan, tmp_path, steps=2)
    assert refused(tmp_path, plan) == ("run: checkpoint = 'DIR': holds a checkpoint: resume it, or take another folder")
    assert refused(tmp_path, plan, resume=True, steps=2) == "run: steps = 2: more than the 2 that DIR has done"


def test_nothing_to_resume_starts_from_the_beginning_and_says_so(tmp_path: Path) -> None:
    """The same command works before the first checkpoint and after it; the notes tell which of the two it was."""
    plan, folder = plans.plan(adaptive()), tmp_path / "new" / "folder"
    assert trained(plan, folder, steps=2, resume=True).notes == (f"nothing in {folder} to go on from",)
    assert trained(plan, folder, steps=3, resume=True).notes == (f"went on from step 2 of {folder}",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"resume": True}, "run: resume = True: needs the folder"),
        ({"checkpoint_every": 0}, "run: checkpoint_every = 0: at least 1 step"),
        ({"checkpoint": Path(__file__)}, "a folder: File exists"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    """A resume from nowhere, a distance of no steps, a file for a folder."""
    with pytest.raises(BadInput, match=message):
        run(plans.plan(adaptive()), RunOptions(steps=2, **settings))


def flip(data: bytearray) -> None:
    """Change one bit in the rows of a table."""
    data[data.index(b"NUMPY", data.index(b"table/t0.npy")) + 200] ^= 1


def cut_short(data: bytearray) -> None:
    """Leave the second half out."""
    del data[len(data) // 2 :]


def other_file(data: bytearray) -> None:
    """Something else."""
    data[:] = b"checkpoint"


@pytest.mark.parametrize("damage", [flip, cut_short, other_file])
def test_a_damaged_file_is_refused(damage: Callable[[bytearray], None], tmp_path: Path) -> None:
    """One wrong bit in any array, a file that ends too early, a file of another kind: refused, never half loaded."""
    plan = plans.plan(adaptive())
    trained(plan, tmp_path, steps=2)
    data = bytearray(content(tmp_path))
    damage(data)
    (tmp_path / FILE_NAME).write_bytes(data)
    assert "a complete, undamaged checkpoint" in refused(tmp_path, plan, resume=True)


def test_another_format_and_missing_arrays_are_refused(tmp_path: Path) -> None:
    """A file of a later version, and one in which an array is missing, too long or of another shape."""
    plan, path = plans.plan(adaptive()), tmp_path / FILE_NAME
    save(path, plan, random_state(plan, 1), Done(1, 1))
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}

    def written(changes: dict[str, bytes | None]) -> str:
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in {**members, **changes}.items():
                if data is not None:
                    archive.writestr(name, data)
        return refused(tmp_path, plan, resume=True)

    manifest = json.loads(members["manifest.json"]) | {"format": "hiertrain-checkpoint/2"}
    assert "format = 'hiertrain-checkpoint/2'" in written({"manifest.json": json.dumps(manifest).encode()})
    assert "no item named 'group0/top0.npy'" in written({"group0/top0.npy": None})
    assert "longer than its shape" in written({"table/t0.npy": members["table/t0.npy"] + b"more"})
    wrong = {"group0/bottom0.npy": members["group0/top1.npy"]}
    assert "group0/bottom0 is float32 of shape (9,), not float32 of shape (32,)" in written(wrong)


# ---- whatever happens while it is written


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
from tests.executor.test_checkpoint import SYNCHRONOUS

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
