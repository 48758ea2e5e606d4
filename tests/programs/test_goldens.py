"""Golden texts: what the transformation makes of a few plans, line by line, so that a change of a program is seen."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from placement.plan import Plan
from programs.text import to_text
from programs.transform import transform
from programs.verify import verify
from tests.executor.tiny import dlrm, tables
from tests.programs import plans

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"


def all_dp() -> Plan:
    """One rank, nothing cut."""
    return plans.plan(dlrm([3, 8, 4], tables(2, 40, 4, pooling_factor=2), [8, 1]))


def mp_cut() -> Plan:
    """One rank, two nodes: the interaction and the first top layer on node 1."""
    model = dlrm([3, 8, 4], tables(2, 40, 4), [8, 1])
    return plans.plan(model, nodes=2, tags={"interaction": 1, "top0": 1})


def grouped_branches() -> Plan:
    """Two synchronous ranks, three nodes: one branch on each rank, one on the third node."""
    model = plans.branches(3, tables(3, 40, 4))
    tags = plans.branch_tags(3, [0, 1, 2])
    return plans.plan(model, nodes=3, ranks=2, tags=tags, synchronous=True)


def row_split() -> Plan:
    """One rank, tables over two servers: the first cut by rows, the second whole."""
    found = tables(2, 40, 4)
    shards = [*plans.row_split(found[0], [25], [0, 1]), plans.Shard("t1", 1, 0, 40)]
    return plans.plan(dlrm([3, 4], found, [1]), servers=2, shards=shards)


CASES = [all_dp, mp_cut, grouped_branches, row_split, plans.easgd_plan]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_text_of_programs_is_the_golden_text(case: Callable[[], Plan]) -> None:
    """The text form of each plan's programs equals tests/goldens; UPDATE_GOLDENS=1 rewrites it."""
    path, text = GOLDENS / f"{case.__name__}.txt", to_text(verify(transform(case())))
    if os.environ.get("UPDATE_GOLDENS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
