"""Several ranks and groups: synchronous runs equal the oracle on the global batch, lock-free ones learn."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from executor.data import SyntheticStream
from executor.run import RunOptions, RunResult, run
from executor.state import JobState
from placement.plan import DP, Plan, Shard, Sync
from problem.model import Model
from tests.executor.reference import assert_same_bits, global_batch, of_oracle, oracle_of, relative_error, values
from tests.executor.tiny import dcn, dlrm, tables
from tests.programs import plans

pytestmark = pytest.mark.timeout(30)

STEPS, BATCH = 20, 32


def wide() -> Model:
    """A DLRM in which rounding matters, two ids a sample."""
    return dlrm([13, 32, 16], tables(3, 300, 16, pooling_factor=2), [32, 16, 1])


def split_rows() -> tuple[Shard, ...]:
    """One table cut by rows over two servers, the others whole."""
    return (Shard("t0", 0, 0, 100), Shard("t0", 1, 100, 300), Shard("t1", 1, 0, 300), Shard("t2", 0, 0, 300))


synchronous = functools.partial(plans.plan, batch=BATCH, synchronous=True)
PLANS = {
    "two ranks, all dp": synchronous(wide(), nodes=2, ranks=2),
    "two ranks, mp on a rank": synchronous(wide(), nodes=2, ranks=2, tags={"top0": 0, "bottom0": 1}),
    "two ranks, mp on a third node": synchronous(wide(), nodes=3, ranks=2, tags={"top0": 2, "top1": 2}),
    "two ranks, rows split": synchronous(
        wide(), nodes=2, ranks=2, servers=2, shards=split_rows(), tags={"interaction": 1}
    ),
    "two ranks, cross": synchronous(dcn(13, tables(1, 200, 16)[0], 8), nodes=2, ranks=2, tags={"cross1": 1, "deep": 0}),
    "three ranks, mp on a rank": synchronous(wide(), nodes=3, ranks=3, tags={"top0": 1}),
    "three ranks, branches": synchronous(
        plans.branches(3, tables(3, 200, 8), width=24), nodes=3, ranks=3, tags=plans.branch_tags(3, [0, 1, 2])
    ),
}


def trained(plan: Plan) -> RunResult:
    """The plan after STEPS steps on the stream of seed 1."""
    return run(plan, RunOptions(steps=STEPS), SyntheticStream(plan.model, 1))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_synchronous_ranks_equal_the_oracle_on_the_global_batch(plan: Plan) -> None:
    """After 20 SGD steps every dense parameter and table is the oracle's to 1e-6 relative (two ranks; 1.5e-6 three), and
    the mean loss of the ranks is the global batch's."""
    result, stream = trained(plan), SyntheticStream(plan.model, 1)
    oracle = oracle_of(plan)
    losses = [oracle.step(global_batch(stream, step, plan.ranks, BATCH)) for step in range(STEPS)]
    np.testing.assert_allclose(result.losses.mean(axis=0), losses, rtol=1e-6)
    errors = relative_error(values(result.dense, result.tables), of_oracle(oracle))
    assert max(errors.values()) < 0.5e-6 * plan.ranks, errors


@pytest.mark.parametrize("name", ["two ranks, mp on a rank", "three ranks, mp on a rank"])
def test_synchronous_runs_repeat_to_the_bit(name: str) -> None:
    """Same seed, same losses and parameters: sums and updates have a fixed order whatever process is faster."""
    first, second = trained(PLANS[name]), trained(PLANS[name])
    np.testing.assert_array_equal(first.losses, second.losses)
    assert_same_bits(values(first.dense, first.tables), values(second.dense, second.tables))


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_reduce_keeps_the_copies_of_all_ranks_equal(ranks: int, held: list[JobState]) -> None:
    """After a run each rank's copy of the DP parameters and of their optimizer state has the same bits, and has moved."""
    model = dlrm([13, 32, 8], tables(2, 200, 8), [32, 1], optimizer="adagrad", learning_rate=0.02)
    plan = plans.plan(model, nodes=ranks, ranks=ranks, batch=BATCH)
    trained(plan)
    (state,) = held
    for name in plan.dp_ops:
        for rank in range(1, ranks):
            np.testing.assert_array_equal(state.dense[0, rank].flat(name), state.dense[0, 0].flat(name))
            np.testing.assert_array_equal(state.dense[0, rank].state(name), state.dense[0, 0].state(name))
        assert state.dense[0, 0].state(name).any()


def test_more_ranks_than_parameters_all_reduce_empty_slices() -> None:
    """A DP operator of two parameters over three ranks: one slice is empty, the sum is still whole."""
    model = dlrm([3, 1], [], [1])
    tags = {op.name: 0 for op in model.graph if op.parameters > 2} | {"top0": DP}
    plan = synchronous(model, nodes=3, ranks=3, tags=tags)
    assert sum(model.graph[name].parameters for name in plan.dp_ops) == 2
    result, stream, oracle = trained(plan), SyntheticStream(model, 1), oracle_of(plan)
    for step in range(STEPS):
        oracle.step(global_batch(stream, step, 3, BATCH))
    assert max(relative_error(values(result.dense, result.tables), of_oracle(oracle)).values()) < 1e-6


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(plans.plan(wide(), hogwild=2, batch=64), id="hogwild 2"),
        pytest.param(
            plans.plan(wide(), nodes=2, ranks=2, hogwild=2, batch=64, tags={"top0": 1}), id="two ranks, hogwild 2, mp"
        ),
        pytest.param(
            plans.plan(wide(), groups=2, sync_servers=1, sync=Sync("background", 4), batch=64), id="easgd background"
        ),
        pytest.param(
            plans.plan(
                wide(),
                nodes=3,
                ranks=2,
                groups=2,
                sync_servers=2,
                sync=Sync("background", 4),
                hogwild=2,
                batch=64,
                tags={"top0": 2, "top1": 1},
            ),
            id="easgd background, two ranks, hogwild 2, mp",
        ),
        pytest.param(plans.easgd_plan("foreground"), id="easgd foreground"),
    ],
)
def test_lock_free_plans_run_and_learn(plan: Plan) -> None:
    """Every session's loss falls from the first to the last quarter of 120 steps."""
    steps = 120
    result = run(plan, RunOptions(steps=steps), SyntheticStream(plan.model, 1))
    losses = result.losses
    assert losses.shape == (len(plan.groups) * plan.ranks * plan.hogwild, steps)
    assert losses[:, -30:].mean() < losses[:, :30].mean() - 0.02
    assert np.isfinite(losses).all()


def test_an_exchange_keeps_the_ranks_of_a_group_equal(held: list[JobState]) -> None:
    """The leader's elastic difference reaches the other ranks: in the foreground their DP copies stay equal to the bit,
    and not those of the two groups."""
    plan = plans.easgd_plan("foreground")
    trained(plan)
    dense = held[0].dense
    for name in plan.dp_ops:
        for group in range(2):
            np.testing.assert_array_equal(dense[group, 1].flat(name), dense[group, 0].flat(name))
        assert not np.array_equal(dense[0, 0].flat(name), dense[1, 0].flat(name))


def test_an_exchange_is_the_elastic_rule(held: list[JobState]) -> None:
    """One step and one exchange of two groups: x += alpha (centre - x), centre += alpha (x - centre), one group after the
    other, with the values that each group's own step gives (a model without tables, so nothing else is shared)."""
    model, alpha = dlrm([3, 8, 4], [], [8, 1]), np.float32(0.25)
    plan = plans.plan(model, groups=2, sync_servers=2, batch=BATCH, sync=Sync("foreground", 1, 0.25))
    run(plan, RunOptions(steps=1), SyntheticStream(model, 1))
    stepped = [oracle_of(plan), oracle_of(plan)]
    for group, oracle in enumerate(stepped):
        oracle.step(SyntheticStream(model, 1).batch(group, BATCH))
    start, (state,) = oracle_of(plan).parameters, held
    assert state.centre is not None
    for name in start.operators:
        found = [state.dense[0, 0].flat(name), state.dense[1, 0].flat(name), state.centre.flat(name)]
        possible = []
        for order in ((0, 1), (1, 0)):  # a server answers whoever comes first
            x, centre = [oracle.parameters.flat(name).copy() for oracle in stepped], start.flat(name).copy()
            for group in order:
                difference = alpha * (centre - x[group])
                x[group] += difference
                centre -= difference
            possible.append([*x, centre])
        assert any(all(map(np.array_equal, found, expected)) for expected in possible), name


def test_background_shadows_exchange_once_every_gap_steps() -> None:
    """20 steps with a gap of 2 make 10 exchanges of every node that holds parameters, in both groups."""
    plan = plans.easgd_plan("background")
    result = run(plan, RunOptions(steps=STEPS), SyntheticStream(plan.model, 1))
    shadows = [worker for worker in result.timeline.workers if worker.role == "shadow"]
    assert len(shadows) == 6
    for worker in shadows:
        assert worker.ends.shape == (STEPS // 2, 1)
        assert (np.diff(worker.ends[:, 0]) > 0).all()
