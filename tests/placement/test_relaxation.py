"""The linear relaxation of large groups: never above the best placement, and what it sees that a spread of work does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placement.deadline import Deadline
from placement.evaluation.group import GroupProblem
from placement.tagging import branching
from placement.tagging.branching import least_step
from placement.tagging.limits import Limits
from placement.tagging.linear_program import LinearProgram
from placement.tagging.nets import Contracted
from placement.tagging.relaxation import Case, Place, Relaxation
from placement.tagging.solve import solve_group
from tests.instances import exhaustive, random_group, two_layers


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every item and net is worth a decision; how many nodes of two and more need a net is decided by halves."""
    monkeypatch.setattr(branching, "HUB", 0.0)
    monkeypatch.setattr(branching, "HEAVY", 0.0)
    monkeypatch.setattr(branching, "MANY", 1)


def _ratios(seeds: range, most: int) -> list[float]:
    """Bounds over optima of random groups that have one, for limits at the optimum and above."""
    found = []
    for seed in seeds:
        best, _ = exhaustive(problem := random_group(seed))
        if 0 < best < float("inf"):
            for limit in (1.0, 1.3):
                bound = least_step(Contracted(problem), limit * best, Deadline(), most=most)
                assert bound <= best * (1 + 1e-9), f"seed {seed}: the bound is not one"
                found.append(bound / best)
    return found


@pytest.mark.usefixtures("everything")
def test_the_bound_holds_on_random_groups() -> None:
    """On 12 random groups, unlike nodes, pins and memory included, no bound is above the optimum; most are near."""
    ratios = _ratios(range(78, 90), most=8)
    assert len(ratios) > 12
    assert sum(ratio > 0.95 for ratio in ratios) > len(ratios) / 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("everything")
@pytest.mark.parametrize("most", [1, 5, 40])
def test_the_bound_holds_on_many_random_groups(most: int) -> None:
    """The same on 400, whatever is decided."""
    assert len(_ratios(range(400), most)) > 600


@pytest.mark.usefixtures("everything")
def test_bug_a_net_without_other_readers_was_taken_for_one_that_ranks_read() -> None:
    """An item whose inner tensor nobody else reads: messages to all ranks were counted, and the bound was 0.2 % too high."""
    best, _ = exhaustive(problem := random_group(93))
    assert least_step(Contracted(problem), 1.3 * best, Deadline(), most=12) <= best * (1 + 1e-9)


def _slow(problem: GroupProblem, rate: float) -> GroupProblem:
    return replace(problem, nodes=tuple(replace(n, nic_bytes_per_second=rate) for n in problem.nodes))


@pytest.mark.usefixtures("everything")
def test_two_layers_by_hand() -> None:
    """Two layers on a slow NIC: the best placement takes 8 ms, which the relaxation alone does not see; two decisions do."""
    data = Contracted(_slow(two_layers(), 0.4e9))
    relaxation = Relaxation(data, 8.1e-3)
    assert relaxation.seconds(relaxation.root) < 7.9e-3
    assert least_step(data, 8.1e-3, Deadline()) == pytest.approx(8e-3, rel=1e-3)


def test_nothing_is_proven_beyond_what_is_known() -> None:
    """Asked about steps below the optimum, it says no more than that there are none; without a limit or time, nothing."""
    data = Contracted(_slow(two_layers(), 0.4e9))
    assert least_step(data, 4e-3, Deadline()) == pytest.approx(4e-3)
    assert least_step(data, float("inf"), Deadline()) == 0.0
    assert least_step(data, 8e-3, Deadline(0.0)) == 0.0


@pytest.mark.usefixtures("everything")
def test_large_groups_are_bounded_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where local search takes the place of the integer program, the bound is that of the relaxation, and holds."""
    monkeypatch.setattr("placement.tagging.solve.MOST_ITEMS", 0)
    data = Contracted(_slow(two_layers(), 0.4e9))
    found = solve_group(data)
    assert found.seconds == pytest.approx(8e-3, rel=1e-3)
    assert found.bound_seconds == pytest.approx(8e-3, rel=1e-3)
    assert solve_group(data, Limits(relaxes=False)).bound_seconds == 0.0


@pytest.mark.parametrize("many", [1, 7])
def test_every_number_of_nodes_is_in_one_case(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By halves or one by one, the cases of a net that five like nodes may need are 0 to 5 of them, each once."""
    monkeypatch.setattr(branching, "MANY", many)
    open_, leaves = [Case((Place((0, 1, 2, 3, 4)), Place((5,), hosts=frozenset({3}), takes=frozenset({9}))))], []
    while open_:
        cases = list(branching._counted(case := open_.pop(), 9))
        open_ += cases
        leaves += [] if cases else [case]
    counts = sorted(sum(len(p.nodes) for p in case.places if 9 in p.takes) - 1 for case in leaves)
    assert counts == [0, 1, 2, 3, 4, 5]
    assert all(sorted(node for p in case.places for node in p.nodes) == [0, 1, 2, 3, 4, 5] for case in leaves)
    assert all(len(case.places) <= 3 for case in leaves)


def test_shorter_steps_prove_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case with nothing left to decide is asked about shorter steps: at twice the optimum, 50 % become 97 %."""
    best, _ = exhaustive(problem := random_group(54))
    proven = []
    for times in (0, 4):
        monkeypatch.setattr(branching, "TIMES", times)
        proven.append(least_step(Contracted(problem), 2 * best, Deadline()) / best)
    assert proven[0] < 0.6
    assert 0.95 < proven[1] <= 1 + 1e-9


def test_a_place_is_split() -> None:
    """The first nodes of a place, and the rest, know the same of nets."""
    first, rest = Place((3, 4, 5), takes=frozenset({7})).split(1)
    assert (first.nodes, rest.nodes) == ((3,), (4, 5))
    assert first.takes == rest.takes == {7}


def test_a_bound_of_a_linear_program_is_safe() -> None:
    """x + y >= 1, x <= 0.25, y costs 2 and x 1: 1.75, rounded down; a program without a solution has no bound."""
    program = LinearProgram()
    x, y = program.variable(0.25, 1.0), program.variable(1.0, 2.0)
    program.at_most([(x, -1.0), (y, -1.0)], -1.0)
    assert 1.75 - 1e-8 < program.bound(10.0) < 1.75
    program.equal([(x, 1.0), (y, 1.0)], 3.0)
    assert program.bound(10.0) == -float("inf")
