"""Slurm node lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from problem.slurm import expand_nodelist
from tests.problem.shared import EDGE_CASES, needs_shared


def test_examples():
    """Names, ranges, lists and two brackets in one name expand in order with leading zeros kept."""
    assert expand_nodelist("nodeA,nodeB[001,003-004],nodeC") == ("nodeA", "nodeB001", "nodeB003", "nodeB004", "nodeC")
    assert expand_nodelist("r[1-2]n[08-09]x") == ("r1n08x", "r1n09x", "r2n08x", "r2n09x")


@needs_shared
def test_public_lists():
    """The five public lists expand to 5, 2, 2, 4 and 6 hosts."""
    lines = (EDGE_CASES / "s14_slurm_nodelists.txt").read_text().splitlines()
    assert [len(expand_nodelist(line)) for line in lines] == [5, 2, 2, 4, 6]


@pytest.mark.parametrize(
    "text", ["", "a[1", "a]1", "a[]", "a[2-1]", "a,,b", ",a", "a b", "a[x]", "a[1-999999999]", "[1-400][1-400]"]
)
def test_refused(text):
    """Broken and huge lists are refused."""
    with pytest.raises(ValueError, match="must"):
        expand_nodelist(text)


@given(st.integers(0, 500), st.integers(0, 40), st.integers(1, 6))
def test_ranges(first, length, digits):
    """A range names each number once, padded to the width of its first number."""
    hosts = expand_nodelist(f"n[{first:0{digits}d}-{first + length}]")
    assert [int(host[1:]) for host in hosts] == list(range(first, first + length + 1))
    assert all(len(host) > digits for host in hosts)
