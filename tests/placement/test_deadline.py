"""Deadlines, on clocks that tests move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

import placement.tagging.solve as solve_module
from placement.deadline import Deadline
from placement.evaluation.evaluate import evaluate
from placement.result import PlacementResult
from placement.search.job import solve
from placement.search.judging import Judge
from placement.search.options import SolveOptions
from placement.search.outcome import Solved
from placement.search.shapes import Shape
from problem.cluster import Cluster
from tests.instances import two_layers
from tests.placement.test_search import _model, nodes


@dataclass
class Hand:
    """A clock that stands still until it is moved."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Priced(Deadline):
    """A deadline whose phases take a second for a size of so much, and are written down with the time of their start."""

    sizes: dict[str, float] = field(default_factory=dict)
    started: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str, size: float = 1.0) -> Iterator[None]:
        self.started.append((name, self.clock()))
        with super().phase(name, size):
            yield
            if isinstance(self.clock, Hand):
                self.clock.now += size / self.sizes.get(name, 10.0)


def _solved(deadline: Deadline, machines: int = 9, **options: int) -> PlacementResult:
    found = SolveOptions(max_replicas=3, hogwild=2, **options)  # type: ignore[arg-type]
    return solve(_model(), Cluster("c", nodes(machines)), None, found, None, deadline)


def test_what_is_left_is_reckoned_from_what_phases_took() -> None:
    """A phase of three seconds for a size of two makes one of size four expected to take six; one that is reserved, too."""
    clock = Hand()
    deadline = Deadline.after(10.0, clock, clock)
    assert deadline.allows(("a", 1e9))
    with deadline.phase("a", 2.0):
        clock.now += 3.0
    assert deadline.expected(("a", 4.0)) == 6.0
    assert deadline.allows(("a", 4.0))
    assert not deadline.allows(("a", 4.0), ("a", 1.0))
    deadline.reserve(("a", 1.0))
    assert deadline.left == pytest.approx(5.5)
    assert not deadline.allows(("a", 4.0))
    assert deadline.before(("a", 2.0)).left == pytest.approx(2.5)
    assert deadline.share(0.5).end == pytest.approx(clock.now + 2.75)
    assert deadline.share(1.0, 0.5).end == pytest.approx(clock.now + 0.5)
    assert deadline.no_sooner(20.0).left == pytest.approx(18.5)
    deadline.stop()
    assert deadline.passed


def test_a_busy_machine_makes_phases_longer() -> None:
    """A run that has had a quarter of the processor so far expects two seconds of work to take eight."""
    clock, work = Hand(), Hand()
    deadline = Deadline.after(100.0, clock, work)
    with deadline.phase("a"):
        clock.now, work.now = clock.now + 8.0, work.now + 2.0
    assert deadline.expected(("a", 1.0)) == 8.0
    clock.now, work.now = clock.now + 2.0, work.now + 3.0
    assert deadline.expected(("a", 1.0)) == 4.0


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("seconds", [0.0, 1.0, 3.0, 10.0, 40.0])
def test_no_phase_starts_after_the_end(seconds: float, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a placement needs that was begun in time, or a first plan, and the last evaluation, start late, each once.

    Groups are small or, with a limit of two open items, solved by local search. The first phase of a name may be the one
    that is too long: nobody knows before.
    """
    if large:
        monkeypatch.setattr(solve_module, "MOST_ITEMS", 2)
    clock = Hand()
    deadline = Priced(clock() + seconds, clock, clock, sizes={"evaluation": 50.0, "bounding": 20.0})
    result = _solved(deadline)
    late = [name for name, start in deadline.started if start > deadline.end]
    assert set(late) <= {"sharding", "all data-parallel", "evaluation", "answer"}
    assert len(set(late)) == len(late)
    assert result.objective > 0
    assert result.bound >= result.objective


def test_time_for_the_last_evaluation_is_reserved() -> None:
    """Evaluations that take a second each leave one for the end: the clock then shows no more than the time limit."""
    clock = Hand()
    deadline = Priced(clock() + 60.0, clock, clock, sizes={"evaluation": 10.0, "answer": 1.0, "bounding": 1e9})
    _solved(deadline)
    assert deadline.started[-1][0] == "answer"
    assert clock.now <= deadline.end


def test_more_shapes_than_there_is_time_to_bound_still_give_a_bound() -> None:
    """With a second for each shape's bound most keep what all cores would do: a bound that is finite and no lower."""
    clock = Hand()
    deadline = Priced(clock() + 20.0, clock, clock, sizes={"bounding": 1.0})
    found = _solved(deadline)
    assert sum(name == "bounding" for name, _ in deadline.started) < 20
    best = _solved(Deadline())
    assert best.objective <= best.bound <= found.bound < float("inf")


def test_bug_what_was_evaluated_in_time_was_dropped_at_the_end() -> None:
    """A proposal whose value is known costs nothing more: it counts although the end has passed meanwhile."""
    clock = Hand()
    group = two_layers()
    judge = Judge(group.batch, None, 0.0, Deadline(clock() - 1.0, clock, clock))
    judge.needed = False
    machines = Shape(2, (group.nodes,), (), (), 2)
    found = Solved(machines, (), (group,), 0.0)
    tags = dict.fromkeys((op.name for op in group.model.graph), "dp")
    judge.offer(found, [(group, 1)], "", tags, evaluate(group, tags))  # type: ignore[arg-type]
    assert found.tags == tags
