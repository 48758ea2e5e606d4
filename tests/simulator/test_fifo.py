"""First come, first served: queues that know when they are next free, against closed forms and fair sharing."""

from __future__ import annotations

import math
from random import Random
from statistics import mean, stdev

import pytest

from simulator.engine import Engine
from simulator.fifo import FifoNetwork, FifoResource
from simulator.machines import Sharing
from simulator.network import Nic
from simulator.simulate import simulate
from tests.simulator.instances import BATCH, US, chain_model, closed_plan, exact_mva, make_costs, make_plan, table
from tests.simulator.operational import operational_bounds

GB = 1e9


def ends_of(capacity: float, limit: float, jobs: list[tuple[int, float]]) -> list[int]:
    """Ends of jobs given as (arrival, work), in the order given."""
    engine = Engine()
    resource = FifoResource(engine, capacity, limit)
    ends = [0] * len(jobs)

    def note(index: int) -> None:
        ends[index] = engine.now

    for index, (arrival, work) in enumerate(jobs):
        engine.at(arrival, lambda job: resource.add(job[1], note, job[0]), (index, work))
    engine.run()
    assert resource.served() == pytest.approx(sum(work for _, work in jobs), rel=1e-9)
    return ends


def test_jobs_pass_one_after_the_other():
    """Two jobs of 100 and 300 ns on one core end at 100 and 400; on two cores at 100 and 300."""
    assert ends_of(1, 1, [(0, 100), (0, 300)]) == [100, 400]
    assert ends_of(2, 1, [(0, 100), (0, 300), (0, 50)]) == [100, 300, 150]


def test_part_of_a_core_and_cores_without_end():
    """A job on a quarter of a core takes four times as long; without a limit of capacity nobody waits."""
    assert ends_of(0.25, 1, [(0, 100), (0, 100)]) == [400, 800]
    assert ends_of(math.inf, 1, [(0, 100), (0, 100), (5, 100)]) == [100, 100, 105]


def arrivals(count: int, messages: list[tuple[int, int, int, int]], latency: float = 0.0) -> list[int]:
    """Arrival times of messages given as (start, source, target, bytes) on NICs of 1 byte per nanosecond."""
    engine = Engine()
    net = FifoNetwork(engine, [Nic(f"host{i}", GB, latency) for i in range(count)])
    times = [0] * len(messages)

    def note(index: int) -> None:
        times[index] = engine.now

    for index, (start, source, target, size) in enumerate(messages):
        engine.at(start, lambda m: net.send(*m[1:], note, m[0]), (index, source, target, size))
    engine.run()
    assert net.sent_bytes == net.arrived_bytes == sum(m[3] for m in messages)
    sent, received = net.served_bytes()
    assert sum(sent) == pytest.approx(sum(received)) == pytest.approx(net.sent_bytes)
    return times


def test_messages_pass_one_after_the_other():
    """One message takes latency + bytes / rate; two from one NIC, or to one NIC, follow each other."""
    assert arrivals(2, [(0, 0, 1, 5000)], latency=20e-6) == [25_000]
    assert arrivals(3, [(0, 0, 1, 1000), (0, 0, 2, 3000)]) == [1000, 4000]
    assert arrivals(3, [(0, 0, 2, 1000), (0, 1, 2, 3000)]) == [1000, 4000]


def test_bug_a_message_that_waits_at_its_sender_does_not_hold_the_receiver():
    """It took its receiver's NIC from the time on at which its sender would be free; others had to wait behind that."""
    assert arrivals(4, [(0, 0, 1, 9000), (0, 0, 2, 1000), (0, 3, 2, 1000)]) == [9000, 10_000, 1000]


def test_a_lone_link_is_m_d_1():
    """Poisson messages of 1 us on one link at 70 %: mean time in system s (1 + rho / (2 (1 - rho))), 20 runs, 3.25 sigma."""
    means = []
    for seed in range(20):
        rng, now, messages = Random(seed), 0.0, []
        for _ in range(2000):
            now += rng.expovariate(0.7 / 1000)
            messages.append((round(now), 0, 1, 1000))
        means.append(mean(t - m[0] for t, m in zip(arrivals(2, messages), messages, strict=True)))
    exact = 1000 * (1 + 0.7 / (2 * 0.3))
    assert abs(mean(means) - exact) < 3.25 * stdev(means) / math.sqrt(20)


def test_a_session_alone_takes_the_same_at_both_levels():
    """Where nothing is shared the levels agree to the nanosecond."""
    model = chain_model(2, [table()])
    plan, costs = make_plan(model, servers=1), make_costs(model)
    fifo, fluid = (simulate(plan, costs, steps=20, fidelity=level) for level in ("fifo", "fluid"))
    assert fifo.samples_per_second == fluid.samples_per_second == pytest.approx(BATCH / (104 * US))
    assert fifo.time_split == fluid.time_split


@pytest.mark.parametrize("fidelity", ["fifo", "fluid"])
@pytest.mark.parametrize("sharing", [Sharing.NODE, Sharing.NONE])
def test_levels_lie_within_the_asymptotic_bounds(fidelity, sharing):
    """Three ranks of three threads with a cut: no less than if each met the work of all others, no more than three times
    one thread or the busiest resource. Nothing but the interval of the run is added to the bounds."""
    model = chain_model(3, [table("a"), table("b")])
    plan, costs = make_plan(model, nodes=3, ranks=3, hogwild=3, servers=2, tags={"layer1": 2}), make_costs(model)
    result = simulate(plan, costs, fidelity=fidelity, sharing=sharing)
    least, most = operational_bounds(plan, costs, sharing, fidelity)
    assert least - result.ci95 <= result.samples_per_second <= most + result.ci95
    assert any("fifo" in sentence for sentence in result.left_out) is (fidelity == "fifo")


@pytest.mark.parametrize("threads", [4, 9, 16])
def test_fair_shares_forget_how_sessions_started(threads):
    """A plan of product form: fluid gives exact mean value analysis within its own interval (three of its half widths).

    Baskett, Chandy, Muntz and Palacios (1975): at a fairly shared server only the means count.
    """
    plan, costs = closed_plan(threads)
    exact = exact_mva([8.0], 72.0, threads) * BATCH / US
    found = simulate(plan, costs, fidelity="fluid", steps=200, record=False)
    assert abs(found.samples_per_second - exact) < 3 * found.ci95 < 0.1 * exact


def test_without_variation_fair_shares_never_forget():
    """Why the threads' steps vary: 9 threads that begin spread never meet at the server, 20 % above the product form."""
    plan, costs = closed_plan(9)
    spread = simulate(plan, costs, fidelity="fluid", steps=200, record=False, variation=0.0)
    assert spread.samples_per_second == pytest.approx(9 / 80 * BATCH / US, rel=0.005)
    assert spread.samples_per_second > 1.15 * exact_mva([8.0], 72.0, 9) * BATCH / US


@pytest.mark.parametrize("threads", [9, 16])
def test_first_come_first_served_is_between_mean_value_analysis_and_the_bounds(threads):
    """The same plan at fifo: work that hardly varies waits less than the product form's, and never beats the bounds."""
    plan, costs = closed_plan(threads)
    found = simulate(plan, costs, fidelity="fifo", steps=200, record=False)
    exact, most = exact_mva([8.0], 72.0, threads), min(threads / 80, 1 / 8)
    assert exact * BATCH / US < found.samples_per_second <= most * BATCH / US + found.ci95
