"""What tests of checkpoints share: a model with state, plans that repeat to the bit, and a run that saves."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from executor.checkpoint import FILE_NAME
from executor.data import SyntheticStream
from executor.run import RunOptions, RunResult, run
from executor.state import JobState, allocate_state
from placement.plan import Plan, Shard
from problem.model import Model
from tests.executor.tiny import dlrm, tables
from tests.programs import plans

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
