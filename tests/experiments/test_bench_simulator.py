"""The benchmark of the simulator measures what it says."""

from __future__ import annotations

import pytest

from experiments.bench_simulator import Size, collective_seconds, line, measure, plan_of, print_collectives, shards_of


@pytest.mark.parametrize("level", ["fifo", "fluid"])
def test_collectives_are_those_of_the_closed_form(level):
    """1 MiB among eight machines: ring 14 rounds of an eighth, all-to-all seven eighths at once."""
    part = (1 << 20) / 8
    assert collective_seconds("ring all-reduce", 8, level)[0] == pytest.approx(14 * (5e-6 + part / 1e9), rel=1e-6)
    assert collective_seconds("all-to-all", 8, level)[0] == pytest.approx(5e-6 + 7 * part / 1e9, rel=1e-6)


def test_a_row_counts_every_thread_of_every_step():
    """Two groups of two nodes with two threads make eight thread-iterations a step; the plan uses all its servers."""
    size = Size(2, 2, 2, 4)
    row = measure(size, "fifo", False, 0.0)
    assert row.iterations == 60 * 8
    assert row.size == "2x2x2/4"
    assert "2x2x2/4" in line(row, None)
    plan = plan_of(size)
    assert {shard.server for shard in shards_of(plan.model, 4)} == {0, 1, 2, 3}


def test_collectives_of_no_size_print_the_head_alone(capsys):
    """Only sizes up to the given one are run."""
    print_collectives(0)
    assert "ASTRA-sim" in capsys.readouterr().out
