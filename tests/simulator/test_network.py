"""Max-min fair sharing: optimality conditions, textbook cases, closed forms, limits."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine import Engine
from simulator.links import max_min_rates
from simulator.network import Network, Nic

GB = 1e9  # bytes per second: 1 byte per nanosecond


def network(count: int, rate: float = GB, latency: float = 0.0) -> tuple[Engine, Network]:
    """Machines with equal NICs on hosts of their own."""
    engine = Engine()
    return engine, Network(engine, [Nic(f"host{i}", rate, latency) for i in range(count)])


def arrivals(count: int, messages: list[tuple[int, int, int, int]], **settings: float) -> list[int]:
    """Arrival times of messages given as (start, source, target, bytes)."""
    engine, net = network(count, **settings)
    times = [0] * len(messages)

    def note(index: int) -> None:
        times[index] = engine.now

    for index, (start, source, target, size) in enumerate(messages):
        engine.at(start, lambda m: net.send(*m[1:], note, m[0]), (index, source, target, size))
    engine.run()
    assert net.sent_bytes == net.arrived_bytes == sum(m[3] for m in messages)
    sent, received = net.served_bytes()
    assert sum(sent) == pytest.approx(sum(received))
    return times


flow_lists = st.lists(st.tuples(st.integers(0, 3), st.integers(4, 7), st.integers(1, 5)), min_size=1, max_size=12)


@given(flow_lists, st.lists(st.floats(0.01, 100), min_size=8, max_size=8))
def test_max_min_conditions(flows, capacity):
    """No link is above its capacity, and every flow crosses a full link on which no flow is faster (KKT of max-min)."""
    rates = max_min_rates(flows, capacity)
    used, fastest = [0.0] * 8, [0.0] * 8
    for (first, second, count), rate in zip(flows, rates, strict=True):
        for link in (first, second):
            used[link] += rate * count
            fastest[link] = max(fastest[link], rate)
    assert all(load <= room * (1 + 1e-9) for load, room in zip(used, capacity, strict=True))
    for (first, second, _), rate in zip(flows, rates, strict=True):
        full = [link for link in (first, second) if used[link] >= capacity[link] * (1 - 1e-9)]
        assert any(rate >= fastest[link] * (1 - 1e-9) for link in full)


@given(flow_lists, st.permutations(range(12)))
def test_order_of_flows_does_not_matter(flows, order):
    """Rates belong to the flows, not to the order in which they are given."""
    capacity = [1.0, 2.0, 3.0, 4.0, 1.5, 2.5, 3.5, 0.5]
    places = [i for i in order if i < len(flows)]
    rates, permuted = max_min_rates(flows, capacity), max_min_rates([flows[i] for i in places], capacity)
    assert permuted == pytest.approx([rates[i] for i in places], rel=1e-12)


def test_textbook_case():
    """Links A = 10 and B = 4; two flows on A alone (to wide links), one on A and B: B gives 4 to its own two flows,
    2 each, and A's other flows share what is left, 4 each (Bertsekas and Gallager, section 6.5.2)."""
    flows = [(0, 2, 1), (0, 3, 1), (0, 1, 1), (4, 1, 1)]
    assert max_min_rates(flows, [10, 4, 100, 100, 100]) == [4, 4, 2, 2]


messages_lists = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(0, 5), st.integers(0, 5), st.integers(1, 5000)), min_size=1, max_size=40
)


@given(messages_lists, st.lists(st.floats(0.1, 3.0), min_size=8, max_size=8), st.booleans())
def test_rates_of_a_change_are_those_of_the_whole_network(messages, rates, racks):
    """Rates are worked out for what a change reaches only; at any time they are the max-min fair ones of all flows.

    Six machines, in racks of three or in none, with NICs and uplinks of all speeds.
    """
    engine = Engine()
    nics = [Nic(f"host{i}", rate * GB, 0.0, rack=i // 3 if racks else -1) for i, rate in enumerate(rates[:6])]
    net = Network(engine, nics, [rate * GB for rate in rates[6:]] if racks else ())

    def look(_: None) -> None:
        found = net.rates()
        flows = [(*net.path(*pair), count) for pair, (count, _) in found.items()]
        expected = max_min_rates(flows, [net.rate(link) for link in range(16 if racks else 12)])
        assert [rate / GB for _, rate in found.values()] == pytest.approx(expected, rel=1e-9)

    for start, source, target, size in messages:
        if source != target:
            engine.at(start, lambda m: net.send(*m, lambda _: None, None), (source, target, size))
    for time in range(0, 6000, 97):
        engine.at(time, look, order=2)
    engine.run()


def test_one_message():
    """Latency + bytes / rate: 5000 bytes at 1 GB/s and 20 us of latency arrive after 25 us."""
    assert arrivals(2, [(0, 0, 1, 5000)], latency=20e-6) == [25_000]


def test_two_messages_share_the_sender():
    """Both leave one NIC: each at half the rate; when the short one has ended the long one has the NIC alone."""
    assert arrivals(3, [(0, 0, 1, 1000), (0, 0, 2, 3000)]) == [2000, 4000]


def test_directions_do_not_share():
    """Full duplex: what a machine sends does not slow what it receives."""
    assert arrivals(2, [(0, 0, 1, 1000), (0, 1, 0, 1000)]) == [1000, 1000]


def test_incast():
    """n senders to one receiver: all end when n times the bytes fit through its NIC."""
    assert arrivals(6, [(0, i, 5, 1000) for i in range(5)]) == [5000] * 5


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_all_to_all(n):
    """n machines, each sends S to every other: every NIC is busy for (n - 1) S / rate, then all end together."""
    pairs = list(itertools.permutations(range(n), 2))
    assert arrivals(n, [(0, a, b, 10_000) for a, b in pairs]) == [(n - 1) * 10_000] * len(pairs)


def test_ring_step():
    """Each machine sends to its neighbour: nobody shares anything, all end after S / rate."""
    assert arrivals(5, [(0, i, (i + 1) % 5, 7000) for i in range(5)], latency=3e-6) == [10_000] * 5


def test_an_end_and_a_start_at_the_same_instant_never_share():
    """The rule of simultaneous events: rates are set after both, so the message that starts at 1000 has the NIC alone."""
    assert arrivals(2, [(0, 0, 1, 1000), (1000, 0, 1, 1000)]) == [1000, 2000]


def test_within_a_host_nothing_takes_time():
    """Machines on one host do not use the NIC: the message arrives at once, whatever its size."""
    engine = Engine()
    net, seen = Network(engine, [Nic("host", 1.0, 1.0)] * 2), []
    net.send(0, 1, 10**12, seen.append, "arrived")
    assert seen == ["arrived"]
    assert net.ideal_ns(0, 1, 10**12) == 0
    assert net.served_bytes() == ([0.0, 0.0], [0.0, 0.0])


def test_limits():
    """An empty message and an infinite NIC leave only the latency."""
    assert arrivals(2, [(0, 0, 1, 0)], latency=1e-6) == [1000]
    assert arrivals(2, [(0, 0, 1, 10**9)], rate=math.inf, latency=1e-6) == [1000]


def test_bug_small_flows_at_a_late_time_do_not_stall():
    """One-byte flows on a slow NIC at 1e9 s end; finishing by a tolerance in bytes livelocks there (t + dt == t)."""
    start = 10**18
    assert arrivals(3, [(start, 0, 1, 1), (start, 0, 2, 1), (start, 1, 2, 10**6)], rate=1e3) == [
        start + 2_000_000,
        start + 2_000_000,
        start + 1_000_001_000_000,
    ]


@given(
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 3), st.integers(0, 3), st.integers(1, 5000)), max_size=15)
)
def test_bounds_that_hold_for_every_schedule(messages):
    """No message beats an idle network, and no NIC passes its bytes faster than its rate."""
    messages = [m for m in messages if m[1] != m[2]]
    times = arrivals(4, messages)
    assert all(time >= start + size - 1 for time, (start, _, _, size) in zip(times, messages, strict=True))
    for side, machine in itertools.product((1, 2), range(4)):
        mine = [(time, m) for time, m in zip(times, messages, strict=True) if m[side] == machine]
        if mine:
            first, last = min(m[0] for _, m in mine), max(time for time, _ in mine)
            assert last - first >= sum(m[3] for _, m in mine) - len(messages)


def test_rates_can_be_probed():
    """A probe sees classes of flows, how many there are and the rate of each."""
    engine, net = network(3)
    for target in (1, 1, 2):
        net.send(0, target, 3000, lambda _: None, None)
    seen = {}
    engine.at(10, lambda _: seen.update(net.rates()))
    engine.run()
    assert seen == {(0, 1): (2, pytest.approx(GB / 3)), (0, 2): (1, pytest.approx(GB / 3))}
