"""The benchmark of the simulator measures what it says."""

from __future__ import annotations

import math
import time

import pytest

from experiments.bench_simulator import (
    Size,
    bounded_seconds,
    collective_seconds,
    line,
    measure,
    messages_of,
    plan_of,
    print_collectives,
    rows,
    shards_of,
)


@pytest.mark.parametrize("level", ["fifo", "fluid"])
def test_collectives_are_those_of_the_closed_form(level):
    """1 MiB among eight machines: ring 14 rounds of an eighth, all-to-all seven eighths at once."""
    part = (1 << 20) / 8
    assert collective_seconds("ring all-reduce", 8, level)[0] == pytest.approx(14 * (5e-6 + part / 1e9), rel=1e-6)
    assert collective_seconds("all-to-all", 8, level)[0] == pytest.approx(5e-6 + 7 * part / 1e9, rel=1e-6)


def test_a_row_counts_every_thread_of_every_step():
    """Two groups of two nodes with two threads make eight thread-iterations a step; the plan uses all its servers."""
    size = Size(2, 2, 2, 4)
    row = measure(size, "fifo", False, 0.0, steps=60)
    assert row.iterations == 60 * 8
    assert row.size == "2x2x2/4"
    assert "2x2x2/4" in line(row, None)
    plan = plan_of(size)
    assert {shard.server for shard in shards_of(plan.model, 4)} == {0, 1, 2, 3}


def test_collectives_of_no_size_print_the_head_alone(capsys):
    """Only sizes up to the given one are run."""
    print_collectives(0)
    assert "ASTRA-sim" in capsys.readouterr().out


def test_no_collective_takes_too_long():
    """One that would take hours, judged by a smaller one, is not run; the first of a kind is."""
    assert messages_of("ring all-reduce", 8) == 112
    known = {("all-to-all", "fifo"): (4, 1.0)}
    assert math.isnan(bounded_seconds("all-to-all", 1024, "fifo", known))
    assert bounded_seconds("ring all-reduce", 4, "fifo", known) < 60
    assert ("ring all-reduce", "fifo") in known


def test_no_row_begins_when_the_time_is_over(capsys):
    """What is left out is said."""
    assert list(rows([Size(2, 2, 2, 4)], ["fifo"], 0.0, until=time.monotonic() - 1)) == []
    assert "2x2x2/4 at fifo: left out" in capsys.readouterr().err
