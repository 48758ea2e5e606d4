"""The simulator's parts agree with closed forms: queues, closed networks, shares, collectives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.closed_forms import certain, exact_mva, queues, traced
from tests.problem.shared import SHARED, needs_shared

QUEUES = tuple(queues())


@pytest.mark.parametrize("queue", QUEUES, ids=lambda queue: queue.name)
def test_queues_agree_with_their_closed_forms(queue):
    """The exact mean lies in the 99 % interval of ten runs from fixed seeds."""
    row = queue.row(runs=10)
    assert row.agrees, row
    assert row.interval < 0.15 * row.expected


def test_a_wrong_closed_form_is_noticed():
    """The interval is narrow enough to tell M/D/1 from M/M/1 and a closed network of ten customers from one of nine."""
    by_name = {queue.name.split(",")[0]: queue for queue in QUEUES}
    assert not replace(by_name["M/D/1"], expected=1000 / 0.3).row(runs=10).agrees
    nine = 1000 * exact_mva((3000.0, 2000.0), 30_000.0, 9)
    assert not replace(by_name["10 customers"], expected=nine).row(runs=10).agrees


@pytest.mark.parametrize("row", list(certain()), ids=lambda row: row.name)
def test_what_is_not_random_is_exact(row):
    """Ring all-reduce, all-to-all and textbook shares are hit to the nanosecond, at both levels."""
    assert row.interval == 0.0
    assert row.simulated == pytest.approx(row.expected, rel=1e-9)


@needs_shared
def test_chakra_microbenchmarks():
    """All-reduce and all-to-all of 1 MB among four machines, as the public traces have them, take the alpha-beta times."""
    rows = list(traced(SHARED / "inputs" / "traces" / "astrasim_4npus_1MB"))
    assert len(rows) == 4
    assert all(row.agrees for row in rows)
