"""Throughput and its confidence interval from the ends of steps."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest

from simulator import statistics


def steps_of(rng: Random, count: int, mean: float, spread: float) -> list[int]:
    """Ends of steps of independent lengths."""
    return list(itertools.accumulate(round(rng.uniform(mean - spread, mean + spread)) for _ in range(count)))


def test_steady_steps_have_no_interval():
    """Equal steps of 1 us with 8 samples: 8 million samples a second for each session, half width 0."""
    done = [[1000 * (i + 1) for i in range(40)]] * 3
    rate, half_width = statistics.estimate(done, [0] * 3, 8, 10)
    assert rate == pytest.approx(24e6)
    assert half_width == pytest.approx(0.0, abs=1e-3)


def test_the_warm_up_does_not_count():
    """Ten slow steps at the start leave no trace."""
    done = [list(itertools.accumulate([9000] * 10 + [1000] * 30))]
    assert statistics.estimate(done, [0], 1, 10)[0] == pytest.approx(1e6)
    assert statistics.estimate(done, [0], 1, 0)[0] < 0.5e6


def test_what_a_session_does_alone_at_the_end_does_not_count():
    """The second session speeds up when the first has gone; its steps after that are left out."""
    done = [[2000 * (i + 1) for i in range(10)], list(itertools.accumulate([4000] * 5 + [1000] * 5))]
    assert statistics.kept_steps(done, 0) == [10, 5]
    assert statistics.estimate(done, [0, 0], 1, 0)[0] == pytest.approx(1e9 / 2000 + 1e9 / 4000)


def test_whole_periods_are_counted():
    """Every third step takes longer: 20 steps are counted as six periods, whatever the warm-up cuts off."""
    done = [list(itertools.accumulate([1000, 1000, 4000] * 8))]
    rate, half_width = statistics.estimate(done, [0], 1, 4, period=3)
    assert rate == pytest.approx(1e9 / 2000)
    assert half_width == pytest.approx(0.0, abs=1e-3)


def test_too_few_steps_have_no_interval():
    """Three steps give a rate and no half width."""
    rate, half_width = statistics.estimate([[10, 20, 30]], [0], 1, 0)
    assert rate == pytest.approx(1e8)
    assert math.isnan(half_width)


def test_coverage_of_the_interval():
    """Over 300 runs of independent steps the 95 % interval holds the true throughput in 90 to 99 % of them."""
    inside = 0
    for seed in range(300):
        rng = Random(seed)
        rate, half_width = statistics.estimate([steps_of(rng, 60, 10_000, 5_000)], [0], 1, 10)
        inside += abs(rate - 1e5) <= half_width
    assert 0.90 <= inside / 300 <= 0.99


def test_default_warm_up():
    """A third of the steps, at most ten, none of one or two."""
    assert [statistics.default_warmup(n) for n in (1, 2, 3, 12, 60, 600)] == [0, 0, 1, 4, 10, 10]


def test_the_control_variate_takes_out_what_the_draws_explain():
    """Steps of 1 us times a factor of mean 1, and 2 % of noise: the interval is a fifth or less, and the figure right."""
    rng = Random(1)
    factors = [[rng.uniform(0.5, 1.5) for _ in range(84)] for _ in range(4)]
    done = [list(itertools.accumulate(round(1e6 * (f + rng.uniform(-0.03, 0.03))) for f in drawn)) for drawn in factors]
    plain = statistics.estimate(done, [0] * 4, 1, 4, 4)
    rate, half_width = statistics.estimate(done, [0] * 4, 1, 4, 4, factors)
    assert half_width < 0.2 * plain[1]
    assert rate == pytest.approx(4000, rel=0.005)
    assert abs(rate - 4000) < abs(plain[0] - 4000)


def test_a_control_that_explains_nothing_changes_nothing():
    """Factors that are all 1 leave the estimate as it is."""
    done = [steps_of(Random(i), 40, 1000, 100) for i in range(3)]
    ones = [[1.0] * 40] * 3
    assert statistics.estimate(done, [0] * 3, 8, 10, 1, ones) == statistics.estimate(done, [0] * 3, 8, 10)
