"""Ids of a row shard alone: the same bits as all ids with the others passed over, compiled and not, alone and in runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cost_models.constants import Constant
from cost_models.roofline import roofline_costs
from executor import native
from executor.data import SyntheticStream
from executor.kernels_rows import Read, update_rows
from executor.kernels_sparse import chosen, pool
from executor.loopback import Loopback
from executor.parameters import TableRows, allocate_rows
from executor.run import RunOptions, run
from placement.evaluation.group import server_links
from placement.plan import Plan, Shard
from problem.model import EmbeddingTable
from programs.instructions import Send
from programs.transform import transform
from programs.wire import coding_seconds, message_bytes, rows_asked
from tests.executor.reference import assert_same_bits, values
from tests.executor.test_loopback import by_oracle, loop_back
from tests.executor.tiny import dlrm, tables
from tests.programs import plans

pytestmark = pytest.mark.timeout(60)

ROWS, BATCH, LENGTH, DIM = 50, 12, 7, 8
RANGES = [(0, 20), (20, 30), (50, 0), (0, 50)]


@pytest.fixture(params=[True, False], ids=["compiled", "numpy"])
def compiled(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Both ways; the switch is put back."""
    if request.param and native._llvm is None:
        pytest.skip("llvmlite, the optional extra 'fast', is not installed")
    before = native.use(request.param)
    yield request.param
    native.use(before)


def drawn() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids with empty and short bags, weights, and the gradient of pooled rows."""
    draw = np.random.default_rng(7)
    ids = draw.integers(-1, ROWS, (BATCH, LENGTH)).astype(np.int32)
    ids[:2] = -1
    return ids, draw.standard_normal((BATCH, LENGTH), np.float32), draw.standard_normal((BATCH, DIM), np.float32)


@pytest.mark.parametrize(("first", "count"), RANGES)
def test_the_ids_of_a_range_keep_their_bags_order_and_weights(compiled: bool, first: int, count: int) -> None:
    """Bag by bag what a list comprehension finds, whichever way it is done; bags without ids of the range are empty."""
    ids, weights, _ = drawn()
    bags, taken = chosen(ids, first, count, weights)
    assert taken is not None
    for bag in range(BATCH):
        here = slice(bags.offsets[bag], bags.offsets[bag + 1])
        mine = (ids[bag] >= first) & (ids[bag] < first + count)
        assert bags.ids[here].tolist() == ids[bag][mine].tolist()
        assert taken[here].tolist() == weights[bag][mine].tolist()
    assert len(bags.ids) == len(taken) == bags.offsets[-1]


@pytest.mark.parametrize("how", ["sum", "mean", "weighted"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("slack", [0, 10])
def test_a_shard_fed_its_own_ids_has_the_bits_of_one_fed_all(
    compiled: bool, how: str, optimizer: str, slack: int
) -> None:
    """Pooled rows and rows after an update are equal to the bit, also where ids of neighbouring rows come along."""
    first, count = 20, 20
    ids, weights, gradient = drawn()
    given = weights if how == "weighted" else None
    bags, taken = chosen(ids, first, count + slack, given)
    bags = bags._replace(counts=(ids >= 0).sum(axis=1).astype(np.int32))
    found = []
    for asked, factors in ((ids, given), (bags, taken)):
        held = allocate_rows(EmbeddingTable("t", ROWS, DIM, LENGTH, optimizer=optimizer), first, first + count)
        held.initialise(3)
        found.append(_bits(held, asked, factors, gradient, mean=how == "mean"))
    assert found[0] == found[1]


def _bits(held: TableRows, ids: object, weights: object, gradient: np.ndarray, *, mean: bool) -> tuple[bytes, bytes]:
    out = np.empty((BATCH, DIM), np.float32)
    pool(held.rows, held.row_begin, ids, out, weights, mean=mean)  # type: ignore[arg-type]
    update_rows(held, [Read(ids, gradient, weights, mean)], 0.1)  # type: ignore[arg-type]
    return out.tobytes(), held.rows.tobytes()


@pytest.fixture
def everything_routed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of row shards travel alone, however few they are."""
    monkeypatch.setattr("cost_models.routing.LEAST_SAVED", Constant(-1e9, "bytes", "test"))


def routed_plan(pooling: str = "sum", **settings: Any) -> Plan:
    """Two servers: a table in three ranges, the first and the last on one server, a whole one, one in strips and ranges."""
    found = tables(3, 60, 16, pooling_factor=4.5, max_ids=6, pooling=pooling, optimizer="adagrad")
    shards = [
        *plans.row_split(found[0], [20, 45], [0, 1, 0]),
        Shard("t1", 1, 0, 60),
        Shard("t2", 0, 0, 60, (0, 8)),
        Shard("t2", 1, 0, 25, (8, 16)),
        Shard("t2", 0, 25, 60, (8, 16)),
    ]
    return plans.plan(dlrm([3, 16], found, [8, 1]), servers=2, shards=shards, batch=32, **settings)


@pytest.mark.usefixtures("everything_routed")
@pytest.mark.parametrize("pooling", ["sum", "mean", "weighted"])
def test_training_with_routed_ids_is_the_oracle_to_the_bit(compiled: bool, pooling: str) -> None:
    """Losses and all parameters; server 1 has rows 20 to 45 of one table and 0 to 25 of another, server 0 parts of both but
    no range of its own: it gets all ids."""
    plan = routed_plan(pooling)
    sends = [i for i in transform(plan).sessions[0].programs[0].instructions if isinstance(i, Send)]
    assert [send.codec for send in sends[:2]] == ["", "route:1"]
    assert rows_asked(plan, "route:1") == {"t0": (20, 45), "t2": (0, 25)}
    losses, found = loop_back(plan, 4)
    expected_losses, expected = by_oracle(plan, 4)
    assert losses == expected_losses
    assert_same_bits(found, expected)


@pytest.mark.usefixtures("everything_routed")
def test_two_synchronous_ranks_with_codecs_do_not_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes, pooled rows and gradients compressed: the bits of a run in which every shard gets all ids."""
    plan = routed_plan("weighted", nodes=2, ranks=2, synchronous=True, codecs={"pooled": "fp16", "push": "rowwise8"})
    routed = run(plan, RunOptions(steps=4), SyntheticStream(plan.model, 1))
    monkeypatch.setattr("cost_models.routing.LEAST_SAVED", Constant(1e9, "bytes", "test"))
    everything = run(plan, RunOptions(steps=4), SyntheticStream(plan.model, 1))
    np.testing.assert_array_equal(routed.losses, everything.losses)
    assert_same_bits(values(routed.dense, routed.tables), values(everything.dense, everything.tables))


@pytest.mark.usefixtures("everything_routed")
@pytest.mark.parametrize("pooling", ["sum", "mean", "weighted"])
def test_bytes_on_the_wire_are_those_expected(pooling: str) -> None:
    """Twenty requests carry, on average, within 4 % of the bytes that the program promises, which are the cost model's; what
    leads the ids is exact, what is sent whole, too."""
    plan = replace(routed_plan(pooling), batch=128)
    loop, carried = Loopback(plan, SyntheticStream(plan.model, 1), 20), []
    send = next(i for i in loop.workers[0].program if isinstance(i, Send) and i.codec)
    for step in range(loop.steps):
        loop.run_step(step)
        carried.append(int(loop._channels["session", 0, 0, 0, send.channel]._arrays[0].sum()))
    links = server_links(
        plan.model, plan.batch, plan.servers, plan.shards, roofline_costs(plan.model, 128, plan.servers[1])
    )
    assert send.bytes == links[1].ids_bytes
    assert np.mean(carried) == pytest.approx(send.bytes, rel=0.04)
    assert max(carried) < message_bytes(plan, send.tensors)
    assert links[1].request.encode_seconds == coding_seconds(plan, send)
