"""A resumed run is the unbroken one, on the same plan and on others."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from executor.checkpoint import FILE_NAME, Done, load, save
from executor.clock import ClockKind
from executor.data import Batch, SyntheticStream
from executor.job import segments
from executor.run import RunOptions, run
from executor.state import allocate_state
from placement.plan import Plan, Sync
from problem.model import Model
from programs.transform import transform
from programs.workers import workers
from tests.executor.checkpoints import STEPS, SYNCHRONOUS, content, random_state, resharded, trained
from tests.executor.reference import assert_same_bits, relative_error, values
from tests.executor.tiny import dlrm, tables
from tests.programs import plans

pytestmark = pytest.mark.timeout(60)


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


def test_a_run_goes_on_with_operators_in_another_order(tmp_path: Path) -> None:
    """Two plans that run seven layers over one layer in opposite orders add its gradient in opposite orders: each goes on
    from the other's checkpoint, and learns what it would have learnt alone but for rounding."""
    one = plans.fan(c0=1)
    graph = one.model.graph
    other = dataclasses.replace(one, model=dataclasses.replace(one.model, graph=graph.in_order(graph.order[::-1])))
    unbroken = [trained(plan, tmp_path / f"unbroken {i}") for i, plan in enumerate((one, other))]
    for number, (first, second) in enumerate(((one, other), (other, one))):
        trained(first, tmp_path / f"{number}", steps=5)
        found = trained(second, tmp_path / f"{number}", resume=True)
        for alone in unbroken:
            errors = relative_error(values(found.dense, found.tables), values(alone.dense, alone.tables))
            assert max(errors.values()) < 1e-5


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
