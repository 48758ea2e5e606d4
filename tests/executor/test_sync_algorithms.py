"""Groups kept together by averages, block momentum and gradient push: the rules by hand, and real runs against them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cost_models.codecs import Codec
from executor.arrays import generator
from executor.centre import block_momentum, model_average, parameter_server
from executor.codecs.dense import decode_dense, encode_dense
from executor.data import SyntheticStream
from executor.oracle import Oracle
from executor.parameters import Parameters
from executor.pushing import Pusher, PushMemory, pushed_parts
from executor.run import RunOptions, RunResult, run
from executor.state import JobState
from placement.codecs import parse_codec
from placement.errors import InvalidPlan
from placement.plan import Plan, Sync
from programs.transform import transform
from tests.executor.reference import assert_same_bits, oracle_of, values
from tests.executor.tiny import dlrm, tables
from tests.programs import plans

pytestmark = pytest.mark.timeout(30)
BATCH = 32
F32 = np.float32


def pair(groups: int = 2, **settings: Any) -> Plan:
    """Groups of one node and a model without tables, so that nothing but the exchange is shared."""
    sync = Sync("foreground", settings.pop("gap", 1), **settings.pop("sync"))
    return plans.plan(dlrm([3, 8, 4], [], [8, 1]), groups=groups, sync_servers=2, batch=BATCH, sync=sync, **settings)


def trained(plan: Plan, steps: int, **options: Any) -> RunResult:
    """The plan after some steps on the stream of seed 1."""
    return run(plan, RunOptions(steps=steps, **options), SyntheticStream(plan.model, 1))


def after_one_step(plan: Plan, step: int, start: Oracle | None = None) -> list[Oracle]:
    """Each group's own step on its own batch."""
    found = [oracle_of(plan) for _ in plan.groups]
    for group, oracle in enumerate(found):
        if start is not None:
            for name in oracle.parameters.operators:
                oracle.parameters.flat(name)[...] = start.parameters.flat(name)
        number = step * len(plan.groups) + group
        oracle.step(SyntheticStream(plan.model, 1).batch(number, BATCH))
    return found


def test_the_average_of_one_is_itself() -> None:
    """With one group MA changes nothing, to the bit, whatever its rate."""
    x = np.random.default_rng(0).normal(size=1000).astype(F32)
    (difference,) = model_average([x], np.zeros(1000, F32), 0.7)
    np.testing.assert_array_equal(difference, 0.0)


@pytest.mark.parametrize("groups", [2, 3, 4, 5])
def test_the_average_of_several_is_exact(groups: int) -> None:
    """Whole numbers whose mean is whole are averaged exactly; the centre is the mean and everybody moves there."""
    pushed = [np.arange(5, dtype=F32) + group - (groups - 1) / 2 for group in range(groups)]
    centre = np.full(5, 99.0, F32)
    differences = model_average(pushed, centre, 1.0)
    np.testing.assert_allclose(centre, np.arange(5), atol=1e-6)
    for values_, difference in zip(pushed, differences, strict=True):
        np.testing.assert_allclose(values_ + difference, np.arange(5), atol=1e-6)


def test_block_momentum_by_hand() -> None:
    """Centre 0, mean 1 in both rounds, momentum 1/2, rate 1: v = 1, c = 1; then v = 1/2 + 0, c = 3/2 (overshoots)."""
    sync, centre, velocity = Sync(algorithm="bmuf", momentum=0.5, alpha=1.0), np.zeros(1, F32), np.zeros(1, F32)
    pushed = [np.array([0.5], F32), np.array([1.5], F32)]
    assert [float(d[0]) for d in block_momentum(pushed, centre, velocity, sync)] == [0.5, -0.5]
    block_momentum(pushed, centre, velocity, sync)
    assert (float(velocity[0]), float(centre[0])) == (0.5, 1.5)


def test_block_momentum_without_momentum_is_the_average() -> None:
    """With momentum 0 and rate 1 BMUF moves the centre to where MA moves it."""
    draws = np.random.default_rng(1)
    pushed = [draws.normal(size=64).astype(F32) for _ in range(3)]
    first, second = np.zeros(64, F32), np.zeros(64, F32)
    model_average(pushed, first, 1.0)
    block_momentum(pushed, second, np.zeros(64, F32), Sync(algorithm="bmuf", momentum=0.0))
    np.testing.assert_allclose(second, first, atol=1e-6)


def test_a_parameter_server_adds_what_everybody_moved() -> None:
    """Two moves arrive one after the other: the first client sees its own, the second both."""
    answers = parameter_server([np.array([1.0], F32), np.array([2.0], F32)], np.zeros(1, F32))
    assert [float(answer[0]) for answer in answers] == [1.0, 3.0]


def test_a_run_of_model_average(held: list[JobState]) -> None:
    """One step and one exchange of three groups: every replica and the centre are the mean of the groups' own steps, to
    the bit, summed in the order of the groups."""
    plan = pair(3, sync={"algorithm": "ma", "alpha": 1.0})
    trained(plan, 1)
    stepped, (state,) = after_one_step(plan, 0), held
    assert state.centre is not None
    for name in state.centre.operators:
        copies = [oracle.parameters.flat(name) for oracle in stepped]
        mean = (copies[0] + copies[1] + copies[2]) * F32(1 / 3)
        np.testing.assert_array_equal(state.centre.flat(name), mean)
        for group in range(3):
            np.testing.assert_array_equal(state.dense[group, 0].flat(name), copies[group] + (mean - copies[group]))


def test_a_run_of_block_momentum(held: list[JobState]) -> None:
    """Two steps with two exchanges of two groups equal the rule applied to the groups' own steps."""
    plan = pair(sync={"algorithm": "bmuf", "alpha": 1.0, "momentum": 0.5, "rate": 1.0})
    trained(plan, 2)
    start, (state,) = oracle_of(plan), held
    velocity = {name: np.zeros_like(start.parameters.flat(name)) for name in start.parameters.operators}
    for step in range(2):
        stepped = after_one_step(plan, step, start)
        for name, v in velocity.items():
            mean = (stepped[0].parameters.flat(name) + stepped[1].parameters.flat(name)) * F32(0.5)
            v[...] = F32(0.5) * v + (mean - start.parameters.flat(name))
            start.parameters.flat(name)[...] += v
    assert state.centre is not None
    for name in velocity:
        np.testing.assert_allclose(state.centre.flat(name), start.parameters.flat(name), rtol=1e-5, atol=1e-7)


def test_a_run_of_gradient_push(held: list[JobState]) -> None:
    """One step and one push of two groups: the server has the start and both groups' moves; the group that came second
    has the server's values, the first those with its own move."""
    plan = pair(sync={"algorithm": "push"})
    trained(plan, 1)
    start, stepped, (state,) = oracle_of(plan).parameters, after_one_step(plan, 0), held
    assert state.centre is not None
    for name in start.operators:
        moves = [oracle.parameters.flat(name) - start.flat(name) for oracle in stepped]
        np.testing.assert_allclose(state.centre.flat(name), start.flat(name) + moves[0] + moves[1], atol=1e-6)
        ends = [state.dense[group, 0].flat(name) for group in range(2)]
        last = [np.allclose(end, state.centre.flat(name), atol=1e-6) for end in ends]
        alone = [np.allclose(ends[g], start.flat(name) + moves[g], atol=1e-6) for g in range(2)]
        assert any(last[g] and alone[1 - g] for g in range(2))


def test_a_compressed_push_loses_nothing(held: list[JobState]) -> None:
    """Under DCT-DP a tenth travels (layers below 256 elements whole); what the server lacks is what is kept as error."""
    plan = pair(sync={"algorithm": "push"}, codecs={"exchange": "dct-dp:0.1:1"}, synchronous=True)
    plan = replace(plan, model=dlrm([3, 64, 32], [], [32, 1]))
    trained(plan, 1)
    start, stepped, (state,) = oracle_of(plan).parameters, after_one_step(plan, 0), held
    assert state.centre is not None
    for name in start.operators:
        moved = sum(oracle.parameters.flat(name) - start.flat(name) for oracle in stepped)
        unsent = sum(state.pushed[group, 0].unsent[name][:-1] for group in range(2))
        np.testing.assert_allclose(state.centre.flat(name) - start.flat(name) + unsent, moved, atol=1e-6)
    elements = len(start.flat("bottom1"))
    arrived = np.count_nonzero(state.centre.flat("bottom1") != start.flat("bottom1"))
    assert 0.1 * elements <= arrived <= 0.2 * elements + 2


RULES = {
    "ma": {"algorithm": "ma", "alpha": 1.0},
    "bmuf": {"algorithm": "bmuf", "alpha": 1.0, "momentum": 0.5},
    "easgd": {"algorithm": "easgd", "alpha": 0.3},
    "push": {"algorithm": "push"},
}


@pytest.mark.parametrize("rule", RULES)
def test_foreground_exchanges_of_synchronous_plans_repeat_to_the_bit(rule: str) -> None:
    """Groups are taken in their order whoever comes first: two runs have the same losses and parameters."""
    plan = pair(3, sync=dict(RULES[rule]), gap=2, synchronous=True)
    first, second = trained(plan, 8), trained(plan, 8)
    np.testing.assert_array_equal(first.losses, second.losses)
    assert_same_bits(values(first.dense, first.tables), values(second.dense, second.tables))


@pytest.mark.parametrize(
    ("rule", "codecs"),
    [
        ("bmuf", {}),
        ("push", {}),
        ("push", {"exchange": "dct-dp:0.2:3"}),
        ("easgd", {"exchange": "rowwise4"}),
        ("bmuf", {"exchange": "bf16"}),
    ],
)
def test_a_resumed_run_goes_on_to_the_bit(rule: str, codecs: dict[str, str], tmp_path: Path) -> None:
    """Block momentum, what is known and what is unsent are in the checkpoint: 4 + 4 steps are 8 steps."""
    plan = replace(pair(sync=dict(RULES[rule]), gap=2, synchronous=True), codecs=codecs)
    whole = trained(plan, 8)
    trained(plan, 4, checkpoint=tmp_path)
    resumed = trained(plan, 8, checkpoint=tmp_path, resume=True)
    assert_same_bits(values(whole.dense, whole.tables), values(resumed.dense, resumed.tables))


@pytest.mark.parametrize(
    ("rule", "mode"),
    [
        ("ma", "background"),
        ("bmuf", "foreground"),
        ("push", "background"),
        pytest.param("ma", "foreground", marks=pytest.mark.slow),
        pytest.param("bmuf", "background", marks=pytest.mark.slow),
        pytest.param("push", "foreground", marks=pytest.mark.slow),
    ],
)
def test_every_rule_learns(rule: str, mode: Any) -> None:
    """Ranks, MP layers, a row-split table, two sync servers: the loss falls with every rule, in either mode."""
    settings = dict(RULES[rule]) | ({"momentum": 0.3} if rule == "bmuf" else {})
    plan = replace(plans.easgd_plan(), sync=Sync(mode, 2, **settings), batch=64)
    losses = trained(plan, 80).losses
    assert np.isfinite(losses).all()
    assert losses[:, -20:].mean() < losses[:, :20].mean()


@pytest.mark.parametrize(
    ("sync", "message"),
    [
        (Sync(gap=0), "sync gap 0"),
        (Sync(alpha=0.0), "sync alpha 0"),
        (Sync(algorithm="bmuf", momentum=1.0), "sync momentum 1"),
        (Sync(algorithm="bmuf", rate=0.0), "rate 0"),
    ],
)
def test_settings_out_of_range_are_refused(sync: Sync, message: str) -> None:
    """The plan says which setting and what is allowed."""
    with pytest.raises(InvalidPlan, match=message):
        replace(pair(sync={}), sync=sync)


def test_what_travels_goes_by_the_rule() -> None:
    """DCT-DP is for gradient push, rounding for the others."""
    with pytest.raises(InvalidPlan, match=r"codec 'dct-dp:0\.1': with 'ma' allowed are codecs that"):
        pair(sync={"algorithm": "ma"}, codecs={"exchange": "dct-dp:0.1"})
    with pytest.raises(InvalidPlan, match="codec 'bf16': with 'push' allowed are dct-dp:KEEP"):
        pair(sync={"algorithm": "push"}, codecs={"exchange": "bf16"})


def rounded(values_: np.ndarray[Any, Any], draw: np.random.Generator) -> np.ndarray[Any, Any]:
    """What arrives of a narrow layer's values in 8 bits: they are one row."""
    out = np.empty((1, len(values_)), F32)
    decode_dense(Codec.ROWWISE8, encode_dense(Codec.ROWWISE8, values_.reshape(out.shape), draw), out)
    return out.reshape(-1)


def test_a_run_of_rounded_elastic_exchanges(held: list[JobState]) -> None:
    """One step and one exchange of two groups in 8 bits, by hand: the centre and a group move towards each other by what
    arrives of their difference, and a group keeps what rounding took from its parameters."""
    plan = pair(sync=dict(RULES["easgd"]), codecs={"exchange": "rowwise8"}, synchronous=True)
    trained(plan, 1)
    stepped, (state,) = after_one_step(plan, 0), held
    assert state.centre is not None
    for name in state.centre.operators:
        centre = oracle_of(plan).parameters.flat(name).copy()
        for group, oracle in enumerate(stepped):
            mine = oracle.parameters.flat(name)
            arrived = rounded(mine, generator(plan.seed, "exchange", name, group, 0))
            np.testing.assert_array_equal(state.pushed[group, 0].unsent[name][:-1], mine - arrived)
            draw = generator(plan.seed, "exchange", name, group, 0, "answer")
            back = rounded(np.multiply(centre - arrived, F32(0.3)), draw)
            centre -= back
            np.testing.assert_array_equal(state.dense[group, 0].flat(name), mine + back)
        np.testing.assert_array_equal(state.centre.flat(name), centre)


def test_wide_layers_are_rounded_by_rows_of_their_weights() -> None:
    """300 inputs, 64 outputs and a bias are 301 rows of 64; 7 outputs, or parameters that are no such rows, are one row."""
    rows = [
        parse_codec("rowwise8").exchanged(*sizes)[0] for sizes in ((301 * 64, 64), (301 * 7, 7), (301 * 64 + 1, 64))
    ]
    assert [(message.rows, message.cols) for message in rows] == [(301, 64), (1, 2107), (1, 19265)]
    assert rows[0].bytes == 301 * (10 + 64)


def test_what_rounding_takes_is_sent_later() -> None:
    """Parameters that stay as they are, two bits by rows: what arrived in 40 exchanges, and what is kept, is 40 times the
    parameters; what is kept stays below their range (a third of it, fed back to a row that is two thirds wider)."""
    plan = pair(sync=dict(RULES["easgd"]), codecs={"exchange": "rowwise2"})
    step, held_ = transform(plan).shadows[0], Parameters(plan.model)
    held_.initialise(3)
    names = step.exchange[0]
    unsent = {name: np.zeros(len(held_.flat(name)) + 1, F32) for name in names}
    pusher = Pusher(plan, step, held_, PushMemory(Parameters(plan.model, operators=()), unsent), group=0)
    read, total = pushed_parts(plan, step, names), dict.fromkeys(names, 0.0)
    for number in range(40):
        for name, part in zip(names, read(pusher.message(names, number)), strict=True):
            total[name] = total[name] + part.astype(np.float64)
    for name in names:
        np.testing.assert_allclose(total[name] + unsent[name][:-1], 40 * held_.flat(name), atol=1e-4)
        assert 0 < np.abs(unsent[name]).max() <= np.ptp(held_.flat(name))


def test_ranks_of_a_group_stay_equal(held: list[JobState]) -> None:
    """The leader's difference reaches the other ranks under every rule, also from compressed pushes and rounded answers."""
    for rule, codec in (("ma", ""), ("bmuf", ""), ("push", ""), ("easgd", "rowwise4")):
        plan = replace(plans.easgd_plan(), sync=Sync("foreground", 2, **RULES[rule]))  # type: ignore[arg-type]
        plan = replace(plan, codecs={"exchange": codec} if codec else {})
        trained(plan, 4)
        dense = held[-1].dense
        for name in plan.dp_ops:
            for group in range(2):
                np.testing.assert_allclose(dense[group, 1].flat(name), dense[group, 0].flat(name), atol=1e-6)


def test_tables_are_shared_whatever_the_rule() -> None:
    """Embedding rows have one copy: they are not exchanged, and a run with tables returns them."""
    plan = plans.plan(
        dlrm([3, 8, 4], tables(1, 50, 4), [8, 1]),
        groups=2,
        sync_servers=1,
        batch=BATCH,
        sync=Sync("foreground", 2, 1.0, "ma"),
    )
    assert set(trained(plan, 4).tables) == {"t0"}
