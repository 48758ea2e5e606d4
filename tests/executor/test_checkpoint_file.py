"""What is in a checkpoint, keyed by parameter, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.checkpoint import FILE_NAME, Done, load, save
from executor.run import RunOptions, run
from executor.state import JobState, allocate_state
from placement.plan import Plan, Sync
from problem.errors import BadInput
from tests.executor.checkpoints import adaptive, content, random_state, resharded, trained
from tests.executor.tiny import dlrm
from tests.programs import plans

pytestmark = pytest.mark.timeout(60)


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
        ({"resume": True}, "run: resume = True: only with a checkpoint folder"),
        ({"checkpoint_every": 0}, "run: checkpoint_every = 0: at least 1 step"),
        ({"checkpoint": Path(__file__)}, "a folder, or a place where one can be made"),
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
