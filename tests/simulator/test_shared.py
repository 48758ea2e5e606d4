"""Processor sharing: textbook cases, the M/G/1-PS formula, conservation."""

from __future__ import annotations

import math
from random import Random
from statistics import mean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine import Engine
from simulator.shared import SharedResource


def ends_of(capacity: float, limit: float, jobs: list[tuple[int, float]]) -> list[int]:
    """Ends of jobs given as (arrival, work), in the order given."""
    engine = Engine()
    resource = SharedResource(engine, capacity, limit)
    ends = [0] * len(jobs)

    def note(index: int) -> None:
        ends[index] = engine.now

    for index, (arrival, work) in enumerate(jobs):
        engine.at(arrival, lambda job: resource.add(job[1], note, job[0]), (index, work))
    engine.run()
    assert resource.served() == pytest.approx(sum(work for _, work in jobs), rel=1e-9)
    return ends


def test_two_jobs_share_one_core():
    """Jobs of 100 and 300 ns on one core: half speed until the first ends at 200, the second ends at 400."""
    assert ends_of(1, 1, [(0, 100), (0, 300)]) == [200, 400]


def test_jobs_do_not_wait_while_cores_are_free():
    """Three jobs on three cores run at full speed, whatever else arrives."""
    assert ends_of(3, 1, [(0, 100), (10, 100), (20, 100)]) == [100, 110, 120]


def test_three_jobs_on_two_cores():
    """Each of three jobs runs at 2/3 of a core: 300 ns of work end after 450."""
    assert ends_of(2, 1, [(0, 300)] * 3) == [450] * 3


def test_a_job_that_arrives_slows_the_others():
    """One core: job A of 100 runs alone until 50, then shares with B; A ends at 150, B at 200."""
    assert ends_of(1, 1, [(0, 100), (50, 100)]) == [150, 200]


def test_one_job_can_use_the_whole_bandwidth():
    """Memory: limit = capacity, so 1000 bytes at 4 bytes/ns take 250 ns alone and 500 when two share."""
    assert ends_of(4, 4, [(0, 1000)]) == [250]
    assert ends_of(4, 4, [(0, 1000), (0, 1000)]) == [500, 500]


def test_without_a_limit_of_capacity_nobody_shares():
    """An infinite capacity gives every job its own core."""
    assert ends_of(math.inf, 1, [(0, 100)] * 50) == [100] * 50


def test_bug_tiny_work_at_a_late_time_does_not_stall():
    """At 1e9 seconds a job of a fraction of a nanosecond ends; a tolerance in units of work would loop for ever."""
    assert ends_of(1, 1, [(10**18, 0.9), (10**18, 1e-12)]) == [10**18 + 1, 10**18]


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 1000)), min_size=1, max_size=12),
)
def test_bounds_that_hold_for_every_schedule(cores, jobs):
    """No job ends before arrival + work, the last not before all work is done by all cores, nor after one core did it."""
    ends = ends_of(cores, 1, jobs)
    assert all(end >= arrival + work for end, (arrival, work) in zip(ends, jobs, strict=True))
    total, first, last = sum(w for _, w in jobs), min(a for a, _ in jobs), max(a for a, _ in jobs)
    assert first + total / cores - 1 <= max(ends) + len(jobs)
    assert max(ends) <= last + total + len(jobs)


@settings(max_examples=30)
@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=8))
def test_scaling_time_scales_the_schedule(cores, jobs):
    """Times that need no rounding: 720720 times the work and arrivals give 720720 times the ends, whatever is shared."""
    scale = 720720
    large = ends_of(cores, 1, [(a * scale, w * scale) for a, w in jobs])
    larger = ends_of(cores, 1, [(2 * a * scale, 2 * w * scale) for a, w in jobs])
    assert all(abs(2 * a - b) <= len(jobs) for a, b in zip(large, larger, strict=True))


@pytest.mark.parametrize("work", ["exponential", "deterministic", "bimodal"])
def test_mean_sojourn_of_m_g_1_ps(work):
    """A shared core under Poisson arrivals at load 0.6: mean sojourn S / (1 - rho), whatever the distribution of work.

    Kleinrock, Queueing Systems II (1976), section 4.4: M/G/1 processor sharing is insensitive.
    """
    draw = {
        "exponential": lambda rng: rng.expovariate(1 / 1000),
        "deterministic": lambda rng: 1000.0,
        "bimodal": lambda rng: 200.0 if rng.random() < 0.5 else 1800.0,
    }[work]
    means = []
    for seed in range(8):
        rng, time, jobs = Random(f"{work}/{seed}"), 0.0, []
        for _ in range(3000):
            time += rng.expovariate(0.6 / 1000)
            jobs.append((round(time), draw(rng)))
        ends = ends_of(1, 1, jobs)
        means.append(mean(end - arrival for end, (arrival, _) in zip(ends, jobs, strict=True)))
    assert abs(mean(means) - 2500) < 3.5 * stdev(means) / math.sqrt(len(means))  # t(0.995, 7) = 3.5


@pytest.mark.parametrize("customers", [1, 3, 10])
def test_customers_that_begin_together_stay_together(customers):
    """A delay Z and a shared server, nothing varies: all arrive and leave at once, N / (Z + N D), the pessimistic bound.

    Shares are right, and fairness spreads nobody: n customers that came at one instant leave at one instant.
    """
    engine, think, demand, rounds = Engine(), 300_000, 30_000, 20
    server, ends = SharedResource(engine, 1, 1), []

    def served(customer: int) -> None:
        ends.append(engine.now)
        if len(ends) < rounds * customers:
            engine.at(engine.now + think, ask, customer)

    def ask(customer: int) -> None:
        server.add(demand, served, customer)

    for customer in range(customers):
        engine.at(think, ask, customer)
    engine.run()
    assert ends == sorted(ends)
    assert ends[rounds * customers - 1] == rounds * (think + customers * demand)
