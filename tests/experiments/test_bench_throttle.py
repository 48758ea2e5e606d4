"""The benchmark of throttled NICs: what counts is the ratio of runs of one round, and who comes first takes turns."""

from __future__ import annotations

import pytest

from experiments import bench_throttle
from experiments.bench_throttle import DENSE_CASES, SPARSE_CASES, ThrottleRow, _dense, _round, _sparse, speedup
from placement.codecs import check_codec


def test_a_slow_round_does_not_count_as_a_slow_codec() -> None:
    """The machine was half as fast in the second round: the codec gains 1.5, 2.0 and 1.6 times, whatever the rates."""
    rates = [[100.0, 150.0], [50.0, 100.0], [100.0, 160.0]]
    assert speedup(rates, 1) == (1.5, 1.6, 2.0)
    assert speedup(rates, 0) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("ratios", "told"), [((1.1, 1.2, 1.3), True), ((0.9, 1.2, 1.3), False), ((0.7, 0.8, 0.9), True)]
)
def test_rounds_that_disagree_tell_nothing(ratios: tuple[float, float, float], told: bool) -> None:
    """A codec gains or loses only if it did so in every round."""
    assert ThrottleRow("a", "b", 1.0, 1.0, ratios, 1.0).told is told


def test_every_case_comes_first_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """In round i the runs begin with case i; rates come back in the order of the cases."""
    ran: list[str] = []

    def measured(plan: str, backend: str) -> float:
        ran.append(plan)
        return float(plan)

    monkeypatch.setattr(bench_throttle, "_measured", measured)
    assert [_round(["0", "1", "2"], "processes", first) for first in (0, 1, 5)] == [[0.0, 1.0, 2.0]] * 3  # type: ignore[list-item]
    assert ran == ["0", "1", "2", "1", "2", "0", "2", "0", "1"]


def test_the_plans_can_have_the_codecs() -> None:
    """Every codec of both plans is one that its edge can have."""
    for plan, cases in ((_dense(), DENSE_CASES), (_sparse(), SPARSE_CASES)):
        for _, codecs in cases:
            for edge, codec in codecs.items():
                check_codec(edge, codec, plan.model)
