"""What the validation says of a miss: which part of a step, and behind a wait, which work of the servers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from experiments.compare import Comparison, Round
from experiments.validation import EIGHT, eight_plans, eight_text, split_half_taus, validation_text
from placement.plan import Plan
from programs.timeline import PARTS
from tests.executor.tiny import dlrm, tables
from tests.programs import plans


def parts(**seconds: float) -> dict[str, float]:
    """Seconds by part, 0 where nothing is said."""
    return dict.fromkeys(PARTS, 0.0) | seconds


def comparison(**found: dict[str, float]) -> Comparison:
    """A plan with a server, one round."""
    settings = {"predicted_parts": parts(), "measured_parts": parts(), "predicted_servers": parts()}
    times = settings | {"measured_servers": parts()} | found
    plan = plans.plan(dlrm([3, 8, 4], tables(1, 20, 4), [8, 1]))
    return Comparison(
        plan, 2, (Round(100.0, 90.0, 100.0, 90.0, first_loss=0.7, last_loss=0.6, free_cores=1.0, **times),)
    )


def test_work_is_blamed_by_its_part() -> None:
    """Computing took 3 ms instead of 1: that is the verdict, whatever servers did."""
    found = comparison(
        predicted_parts=parts(compute=1e-3), measured_parts=parts(compute=3e-3), measured_servers=parts(embedding=9e-3)
    )
    assert found.verdict() == "compute 1.00 > 3.00 ms"


def test_behind_a_wait_is_what_servers_did() -> None:
    """Ranks waited 5 ms instead of 1: the servers' lookups took that long, not their own waiting."""
    found = comparison(
        predicted_parts=parts(waiting=1e-3, compute=1e-3),
        measured_parts=parts(waiting=5e-3, compute=1.5e-3),
        predicted_servers=parts(embedding=0.5e-3, waiting=0.0),
        measured_servers=parts(embedding=4e-3, waiting=9e-3),
    )
    assert found.verdict() == "waiting 1.00 > 5.00 ms; its servers' embedding 0.50 > 4.00 ms"


def test_eight_plans_are_laid_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plans named are those that are compared; a line each has rates, ratio with range, and what differs most."""
    asked: list[str] = []

    def found(plans: Sequence[Plan], **_: object) -> tuple[Comparison, ...]:
        asked.extend(plan.name for plan in plans)
        return (comparison(predicted_parts=parts(compute=1e-3), measured_parts=parts(compute=3e-3)),)

    monkeypatch.setattr("experiments.validation.compare", found)
    lines = eight_text(eight_plans()).splitlines()
    assert asked == list(EIGHT)
    assert len(lines) == 2
    assert "1.11 (1.11-1.11)" in lines[1]
    assert lines[1].endswith("compute 1.00 > 3.00 ms")


def test_short_iterations_are_shown_and_summed_up_apart() -> None:
    """Every row stands in the text with its blame; short ones come last and have a line of their own."""
    rows = [
        {
            "role": role,
            "model": "m",
            "plan": plan,
            "step_seconds": step,
            "measured": 1 / step,
            "calibrated": (1 + error) / step,
            "error": error,
            "blame": "compute 1 > 2 ms",
            "rounds": rounds,
        }
        for role, plan, step, error, rounds in (
            ("short", "tiny", 5e-4, 1.15, (1, 1, 1)),
            ("held out", "second", 2e-2, -0.02, (50, 49, 48)),
            ("held out", "third", 2.05e-2, 0.04, (48, 50, 47)),
            ("held out", "fourth", 4e-2, 0.03, (25, 25, 25)),
            ("calibration", "three groups", 2e-2, 0.0, (50, 50, 50)),
        )
    ]
    text = validation_text(rows)
    assert text.index("three groups") < text.index("second") < text.index("third") < text.index("tiny")
    assert "held out: 3 plans, median error 3.0%" in text
    assert "short: 1 plans, median error 115.0%" in text
    assert "mean 0.33 (m 0.33); 1 pairs change places" in text
    assert text.endswith("m: second (-2.0%) is 2.5% faster than third (+4.0%), in 2 of 3 rounds")


def test_halves_of_the_rounds_rank_plans_as_far_as_they_agree() -> None:
    """Of two rounds, one pair of three changes places; of four, whose halves agree, none; one round has no halves."""
    plans = ((30.0, 31.0, 30.0, 31.0), (20.0, 9.0, 20.0, 20.0), (10.0, 10.0, 10.0, 10.0))

    def found(count: int) -> dict[str, float]:
        return split_half_taus([{"model": "m", "rounds": rounds[:count]} for rounds in plans])

    assert found(2) == {"m": pytest.approx(1 / 3)}
    assert found(4) == {"m": 1.0}
    assert found(1) == {}
