"""Where batches of a run come from: the same whoever reads them, short and absent ones at the end of the data."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from executor.data import SyntheticStream
from executor.data.batch import Batch, fill
from executor.data.rows import Passes, Rows
from executor.oracle import Oracle
from executor.pool import read_ahead
from executor.run import RunOptions, run
from placement.plan import Plan, Sync
from problem.errors import BadInput
from tests.executor.reference import assert_same_bits, relative_error, values
from tests.executor.tiny import dlrm, tables
from tests.programs import plans

MODEL = dlrm([3, 8, 4], tables(2, 40, 4, pooling_factor=2, optimizer="rowwise_adagrad"), [8, 1])


def rows(count: int) -> Rows:
    """So many samples of the synthetic stream."""
    drawn = SyntheticStream(MODEL, 3).batch(0, count)
    return Rows(drawn.dense, drawn.ids, drawn.labels, drawn.weights)


def same(first: Batch, second: Batch) -> bool:
    """Whether two batches hold the same."""
    return np.array_equal(first.dense, second.dense) and first.ids["t0"].tolist() == second.ids["t0"].tolist()


@pytest.mark.parametrize("room", [1, 1 << 28])
def test_a_step_reads_the_same_batch_before_the_run_and_in_a_thread(room: int) -> None:
    """Batch i * sessions + s of the stream is the i-th of session s, also from a step in the middle, ready or not."""
    stream = SyntheticStream(MODEL, 1)
    pool = read_ahead(stream, MODEL, 4, 2, 6, room, first_step=3, first_batch=6)
    assert len(pool.ready) == (2 if room == 1 else 12)
    for session in range(2):
        reader = pool.reader(session, range(4, 9))
        for step in range(4, 9):
            assert same(reader(step), stream.batch(2 * step + session, 4))


def test_a_run_longer_than_its_batches_reads_on(all_dp_plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether all batches were read before the run or one step's, losses and parameters are the same to the bit."""
    expected = run(all_dp_plan, RunOptions(steps=9))
    monkeypatch.setattr("executor.pool.read_ahead.__defaults__", (1,))
    found = run(all_dp_plan, RunOptions(steps=9))
    assert found.losses.tolist() == expected.losses.tolist()
    assert_same_bits(values(found.dense, found.tables), values(expected.dense, expected.tables))


def test_what_is_wrong_with_a_late_batch_is_told_where_it_is_needed() -> None:
    """An id outside its table in the second batch ends the reader's thread; the step that needs the batch says why."""
    data = rows(8)
    data.ids["t0"][6, 1] = 40
    reader = read_ahead(data, MODEL, 4, 1, 2, 1).reader(0, range(2))
    assert len(reader(0)) == 4
    with pytest.raises(BadInput, match=r"ids.t0\[2, 1\] = 40"):
        reader(1)


def test_passes_end_with_a_short_batch_and_then_none() -> None:
    """Seven rows in batches of four, twice: 4, 3, 4, 3, and nothing more."""
    stream = Passes(rows(7), 2)
    assert [stream.samples(i, 4) for i in range(6)] == [len(stream.batch(i, 4)) for i in range(6)] == [4, 3, 4, 3, 0, 0]
    assert same(stream.batch(1, 4), stream.batch(3, 4))
    assert (stream.steps(4, 1), stream.steps(4, 3)) == (4, 2)


def test_a_filled_batch_trains_like_a_short_one() -> None:
    """Five samples in a batch of eight: loss, gradients and rows are those of a batch of five, to rounding; rows that no
    sample names keep their bits."""
    short = SyntheticStream(MODEL, 3).batch(0, 5)
    one, other = Oracle(MODEL), Oracle(MODEL)
    before = other.tables["t0"].rows.copy()
    assert other.step(fill(short, 8)) == pytest.approx(one.step(short), rel=1e-6)
    errors = relative_error(values(other.parameters, other.tables), values(one.parameters, one.tables))
    assert max(errors.values()) < 1e-5
    untouched = np.setdiff1d(np.arange(40), short.ids["t0"])
    np.testing.assert_array_equal(other.tables["t0"].rows[untouched], before[untouched])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("count", [21, 24, 25, 31])
def test_a_run_to_the_end_of_the_data_is_the_oracle_on_what_there_is(count: int) -> None:
    """Two ranks, batches of four, one pass over a number of rows that does not divide: the last step has a short batch, or
    one rank has none. Both ranks end, and the mean is over the samples that are there."""
    model = dlrm([3, 8, 4], tables(2, 40, 4, pooling_factor=2), [8, 1])
    plan = plans.plan(model, nodes=2, ranks=2, batch=4, synchronous=True, tags={"top0": 1})
    data = rows(count)
    steps = Passes(data).steps(4, 2)
    found = run(plan, RunOptions(steps=steps), Passes(data))
    oracle = Oracle(model)
    losses = [oracle.step(data.chosen(slice(8 * step, min(8 * step + 8, count)))) for step in range(steps)]
    errors = relative_error(values(found.dense, found.tables), values(oracle.parameters, oracle.tables))
    assert max(errors.values()) < 1e-5
    counts = np.array([[Passes(data).samples(2 * step + rank, 4) for step in range(steps)] for rank in range(2)])
    np.testing.assert_array_equal(np.isnan(found.losses), counts == 0)
    means = np.nansum(found.losses * counts, axis=0) / counts.sum(axis=0)
    np.testing.assert_allclose(means, losses, rtol=1e-5)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("groups", [1, 3])
def test_a_run_far_beyond_the_data_ends(groups: int) -> None:
    """Seven rows in batches of four for threads and groups that mostly get nothing: every worker ends all steps."""
    exchange = {"sync_servers": 1, "sync": Sync("background", 2)} if groups > 1 else {}
    plan = plans.plan(MODEL, groups=groups, hogwild=2, batch=4, **exchange)  # type: ignore[arg-type]
    result = run(plan, RunOptions(steps=3), Passes(rows(7)))
    assert np.isfinite(result.losses).sum() == 2
    assert np.isfinite(result.dense.flat("top0")).all()


def test_an_id_where_no_sample_is_is_refused() -> None:
    """Places behind the last sample hold no ids."""
    whole = fill(SyntheticStream(MODEL, 3).batch(0, 3), 4)
    ids = {name: np.abs(found) for name, found in whole.ids.items()}
    with pytest.raises(BadInput, match=r"ids.t0\[0, 0\]"):
        Oracle(MODEL).step(dataclasses.replace(whole, ids=ids))
