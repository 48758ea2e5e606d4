"""The oracle told what a plan changes in the order of additions, and comparisons of trained parameters with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from executor.data import Batch, Stream
from executor.oracle import Block, Oracle
from executor.parameters import Parameters, TableRows
from placement.plan import Plan
from programs.transform import summation_order

Values = dict[str, npt.NDArray[np.float32]]


def oracle_of(plan: Plan) -> Oracle:
    """The oracle that adds in the order of rank 0's programs, and pools tables by their shards."""
    blocks: dict[str, list[Block]] = {}
    for shard in sorted(plan.shards, key=lambda s: s.server):
        if shard.rows:
            columns = shard.span(plan.model.table[shard.table])
            blocks.setdefault(shard.table, []).append((shard.row_begin, shard.row_end, columns))
    return Oracle(plan.model, plan.seed, partial_sums=summation_order(plan, 0), blocks=blocks)


def merged(batches: Iterable[Batch]) -> Batch:
    """Several batches as one."""
    found = list(batches)
    return Batch(
        np.concatenate([batch.dense for batch in found]),
        {name: np.concatenate([batch.ids[name] for batch in found]) for name in found[0].ids},
        np.concatenate([batch.labels for batch in found]),
    )


def global_batch(stream: Stream, step: int, sessions: int, size: int) -> Batch:
    """What all sessions of a job read in one step: session s reads batch ``step * sessions + s``."""
    return merged(stream.batch(step * sessions + session, size) for session in range(sessions))


def values(dense: Parameters, tables: Mapping[str, TableRows]) -> Values:
    """All parameters by name."""
    found = {name: dense.flat(name) for name in dense.operators}
    return found | {f"table {name}": held.rows for name, held in tables.items()}


def of_oracle(oracle: Oracle) -> Values:
    """All parameters of an oracle by name."""
    return values(oracle.parameters, oracle.tables)


def assert_same_bits(found: Values, expected: Values) -> None:
    """Every parameter is the same to the bit."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def relative_error(found: Values, expected: Values) -> dict[str, float]:
    """For every parameter the largest absolute difference over the largest absolute value."""
    assert found.keys() == expected.keys()
    return {
        name: float(np.max(np.abs(found[name].astype(np.float64) - array)) / np.max(np.abs(array)))
        for name, array in expected.items()
    }
