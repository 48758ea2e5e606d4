"""Cut programs compute to the bit what the untransformed graph computes: loop-back and processes against the oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from executor.data import SyntheticStream
from executor.loopback import Loopback
from executor.run import RunOptions, run
from executor.state import gather
from placement.errors import InvalidPlan
from placement.plan import Plan, Shard
from problem.readers import model_from_spec
from tests.executor.reference import Values, assert_same_bits, of_oracle, oracle_of, values
from tests.executor.tiny import dcn, dlrm, tables
from tests.programs import plans
from tests.programs.strategies import random_plans

STEPS = 12


def wide_dlrm(**settings: object) -> Plan:
    """A DLRM wide enough for rounding to matter, two ids a sample."""
    found = tables(3, 300, 16, pooling_factor=2)
    return plans.plan(dlrm([13, 32, 16], found, [32, 16, 1]), batch=64, **settings)  # type: ignore[arg-type]


def adagrad(table_optimizer: str) -> Plan:
    """A cut DLRM whose dense part and tables keep state."""
    found = tables(2, 200, 8, optimizer=table_optimizer)
    model = dlrm([13, 32, 8], found, [32, 1], optimizer="adagrad", learning_rate=0.02)
    return plans.plan(model, nodes=2, batch=64, tags={"top0": 1, "bottom0": 1})


def row_split() -> Plan:
    """Tables over two servers: one cut in three, two of the ranges on one server, with an empty range; cut layers too."""
    found = tables(2, 300, 16, pooling_factor=3)
    shards = [
        Shard("t0", 0, 0, 100),
        Shard("t0", 0, 100, 180),
        Shard("t0", 1, 180, 180),
        Shard("t0", 1, 180, 300),
        Shard("t1", 1, 0, 300),
    ]
    return plans.plan(dlrm([13, 32, 16], found, [32, 1]), servers=2, shards=shards, nodes=2, tags={"top0": 1}, batch=64)


def bags(pooling: str) -> Plan:
    """Bags of 0 to 5 ids, pooled by one rule, from a table over two servers and a whole one."""
    found = tables(2, 300, 16, pooling_factor=2.5, max_ids=5, pooling=pooling, optimizer="rowwise_adagrad")
    shards = [Shard("t0", 0, 0, 180), Shard("t0", 1, 180, 300), Shard("t1", 1, 0, 300)]
    return plans.plan(dlrm([13, 32, 16], found, [32, 1]), servers=2, shards=shards, nodes=2, tags={"top0": 1}, batch=64)


def mixed_dims() -> Plan:
    """Tables of two dims, one brought to the width of the other, meet in a factorization machine on another node."""
    spec = {
        "kind": "dlrm",
        "name": "mixed",
        "dense_features": 13,
        "bottom_mlp": [16, 8],
        "top_mlp": [16, 1],
        "interaction": "fm",
        "projection_dim": 8,
        "tables": [{"name": "a", "rows": 300, "dim": 8}, {"name": "b", "rows": 300, "dim": 20, "pooling": "mean"}],
    }
    return plans.plan(model_from_spec(spec), nodes=3, tags={"b_projection": 1, "interaction": 2}, batch=64)


def cut_columns(optimizer: str = "sgd") -> Plan:
    """Tables over three servers: one in three strips, two of them on one server, one whose strips have their rows cut."""
    found = tables(2, 300, 16, pooling_factor=3, optimizer=optimizer)
    shards = [
        Shard("t0", 0, 0, 300, (0, 5)),
        Shard("t0", 2, 0, 300, (5, 6)),
        Shard("t0", 0, 0, 300, (6, 16)),
        Shard("t1", 1, 0, 120, (0, 8)),
        Shard("t1", 2, 120, 300, (0, 8)),
        Shard("t1", 1, 0, 300, (8, 16)),
    ]
    model = dlrm([13, 32, 16], found, [32, 1])
    return plans.plan(model, servers=3, shards=shards, nodes=2, tags={"top0": 1}, batch=64)


def shared_table(optimizer: str = "sgd", **settings: object) -> Plan:
    """Three features that read one table, with one, two and five ids a sample, beside a table of its own."""
    found = tables(2, 300, 16, optimizer=optimizer)
    features = [replace(found[0], name=f"f{n}", shares="t0", pooling_factor=n) for n in (2, 5)]
    model = dlrm([13, 32, 16], [*found, *features], [32, 1])
    return plans.plan(model, batch=64, **settings)  # type: ignore[arg-type]


def branches(nodes: list[int]) -> Plan:
    """Four branches over nodes."""
    model = plans.branches(4, tables(4, 200, 8), width=24)
    return plans.plan(model, nodes=3, servers=2, tags=plans.branch_tags(4, nodes), batch=64)


def cross_layers(**tags: int) -> Plan:
    """A DCN whose concatenated input has consumers on several nodes."""
    return plans.plan(dcn(13, tables(1, 200, 16)[0], 8), nodes=3, tags=tags, batch=64)


def listed(plan: Plan, *first: str) -> Plan:
    """A plan that runs some operators, and what they need, before others."""
    names = sorted(plan.model.graph.order, key=lambda name: name not in first)
    return replace(plan, model=replace(plan.model, graph=plan.model.graph.in_order(names)))


PLANS = {
    "all dp": wide_dlrm(),
    "mp bottom": wide_dlrm(nodes=2, tags={"bottom0": 1, "bottom1": 1}),
    "mp interaction": wide_dlrm(nodes=2, tags={"interaction": 1}),
    "mp top": wide_dlrm(nodes=2, tags={"top0": 1, "top1": 1, "top2": 1}),
    "mp every second": wide_dlrm(nodes=3, tags={"bottom1": 1, "top0": 2, "top1": 0, "top2": 1}),
    "mp on the rank's node": wide_dlrm(nodes=1, tags={"bottom0": 0, "top0": 0}),
    "branches elsewhere": branches([1, 2]),
    "branches mixed": branches([0, 1, 2]),
    "branches in another order": listed(branches([0, 1, 2]), "b3b", "b1b", "b2a"),
    "fan in another order": listed(plans.fan(c0=1, c2=1, c4=2), "c5", "c2", "c6"),
    "rows split": row_split(),
    "mixed dims": mixed_dims(),
    "bags summed": bags("sum"),
    "bags averaged": bags("mean"),
    "bags weighted": bags("weighted"),
    "columns split": cut_columns(),
    "columns split, adagrad": cut_columns("adagrad"),
    "columns split, adam": cut_columns("adam"),
    "shared table": shared_table(),
    "shared table, adagrad": shared_table("adagrad"),
    "shared table, row-wise adagrad, rows split": shared_table(
        "rowwise_adagrad", servers=2, shards=[Shard("t0", 0, 0, 90), Shard("t0", 1, 90, 300), Shard("t1", 1, 0, 300)]
    ),
    "shared table, adam, columns split": shared_table(
        "adam",
        servers=2,
        shards=[Shard("t0", 1, 0, 300, (0, 7)), Shard("t0", 0, 0, 300, (7, 16)), Shard("t1", 1, 0, 300)],
    ),
    "adam": adagrad("adam"),
    "cross on two nodes": cross_layers(cross1=1, deep=2),
    "cross on one node": cross_layers(cross1=1, deep=1),
    "cross apart": cross_layers(x0=1, cross0=2, cross1=1, both=2),
    "fan over four nodes": plans.fan(c0=1, c2=2, c3=3),
    "fan of three on a node": plans.fan(c1=1, c3=1, c5=1),
    "fan of several on nodes": plans.fan(c0=1, c2=1, c3=1, c4=2, c5=2),
    "adagrad": adagrad("adagrad"),
    "rowwise adagrad": adagrad("rowwise_adagrad"),
}


def loop_back(plan: Plan, steps: int = STEPS) -> tuple[list[float], Values]:
    """Losses and parameters after a loop-back run."""
    loop = Loopback(plan, SyntheticStream(plan.model, 1), steps)
    losses = [loop.run_step(step) for step in range(steps)]
    return losses, values(*gather(plan, loop.state))


def by_oracle(plan: Plan, steps: int = STEPS) -> tuple[list[float], Values]:
    """Losses and parameters of the oracle."""
    oracle, stream = oracle_of(plan), SyntheticStream(plan.model, 1)
    return [oracle.step(stream.batch(step, plan.batch)) for step in range(steps)], of_oracle(oracle)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_loop_back_equals_the_oracle_to_the_bit(plan: Plan) -> None:
    """One rank, one thread: loss of every step, every dense parameter and every row are the oracle's, bit for bit."""
    losses, found = loop_back(plan)
    expected_losses, expected = by_oracle(plan)
    assert losses == expected_losses
    assert len(set(losses)) == STEPS
    assert_same_bits(found, expected)


@settings(max_examples=40, deadline=None)
@given(plan=random_plans(max_ranks=1, max_groups=1))
def test_loop_back_of_any_graph_equals_the_oracle_to_the_bit(plan: Plan) -> None:
    """The same for random operator graphs, tags and shards."""
    losses, found = loop_back(plan, 2)
    expected_losses, expected = by_oracle(plan, 2)
    assert losses == expected_losses
    assert_same_bits(found, expected)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "name",
    [
        "all dp",
        "mp every second",
        "branches elsewhere",
        "rows split",
        "bags weighted",
        "columns split, adam",
        "shared table, adam, columns split",
        "cross apart",
        "adagrad",
    ],
)
def test_processes_equal_the_oracle_to_the_bit(name: str) -> None:
    """The same programs with one process for each worker."""
    plan = PLANS[name]
    result = run(plan, RunOptions(steps=STEPS), SyntheticStream(plan.model, 1))
    expected_losses, expected = by_oracle(plan)
    assert result.losses.tolist() == [expected_losses]
    assert_same_bits(values(result.dense, result.tables), expected)


def test_bug_two_row_ranges_on_one_server_are_added() -> None:
    """A server with two ranges of a table answered with the second range alone; it must send their sum."""
    plan = PLANS["rows split"]
    whole = replace(plan, shards=(Shard("t0", 0, 0, 300), Shard("t1", 1, 0, 300)))
    np.testing.assert_allclose(loop_back(plan, 3)[0], loop_back(whole, 3)[0], rtol=1e-5)


def test_loop_back_takes_one_session() -> None:
    """A plan of two threads cannot run in one process; it is refused, not cut short."""
    plan = wide_dlrm(hogwild=2)
    with pytest.raises(InvalidPlan, match="one group, one rank and one thread"):
        Loopback(plan, SyntheticStream(plan.model, 1), 1)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_column_strips_train_like_whole_tables_to_the_bit(optimizer: str) -> None:
    """Cutting columns changes no sum: losses and parameters are those of the tables whole on one server."""
    plan = cut_columns(optimizer)
    strips = [s for s in plan.shards if s.table == "t0"] + [
        Shard("t1", 1, 0, 300, (0, 9)),
        Shard("t1", 0, 0, 300, (9, 16)),
    ]
    whole = [Shard("t0", 0, 0, 300), Shard("t1", 0, 0, 300)]
    losses, found = loop_back(replace(plan, shards=tuple(strips)))
    expected_losses, expected = loop_back(replace(plan, shards=tuple(whole)))
    assert losses == expected_losses
    assert_same_bits(found, expected)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_more_servers_than_rows_train_like_one(rows: int) -> None:
    """A table of fewer rows than servers leaves servers with empty shards: processes and loop-back run, and the losses are
    those of the table on one server."""
    model = dlrm([3, 8, 4], tables(2, rows, 4), [8, 1])
    cuts = [min(server, rows) for server in range(1, 4)]
    split = [shard for table in model.tables for shard in plans.row_split(table, cuts, range(4))]
    losses = [loss.tolist() for loss in run(plans.plan(model, servers=4, shards=split), RunOptions(steps=4)).losses]
    whole = [loss.tolist() for loss in run(plans.plan(model), RunOptions(steps=4)).losses]
    np.testing.assert_allclose(losses, whole, rtol=1e-5)
