"""The clock and the rule for simultaneous events."""

from __future__ import annotations

from simulator.engine import Engine, Order, to_ns


def test_order_of_simultaneous_events():
    """At one instant everything that ends is taken in the order of scheduling, then what settles, once nothing ends."""
    engine, seen = Engine(), []

    def end(name: str) -> None:
        seen.append(name)
        if name == "first":
            engine.at(engine.now, end, "caused by first")

    engine.at(7, seen.append, "settle", Order.SETTLE)
    engine.at(7, end, "first")
    engine.at(7, end, "second")
    engine.at(3, end, "earlier")
    assert not engine.run()
    assert seen == ["earlier", "first", "second", "caused by first", "settle"]
    assert engine.now == 7


def test_costs_are_rounded_once_to_nanoseconds():
    """Seconds become whole nanoseconds, to the nearest."""
    assert [to_ns(s) for s in (0.0, 1.4e-9, 1.6e-9, 1.0, 1e-3)] == [0, 1, 2, 1_000_000_000, 1_000_000]


def test_stop_ends_the_run_and_leaves_the_rest():
    """After stop() no event is taken; the run says that it was stopped."""
    engine, seen = Engine(), []
    engine.at(1, lambda _: engine.stop())
    engine.at(2, seen.append, "late")
    assert engine.run()
    assert seen == []
    assert engine.events == 2


def test_a_user_may_add_simpy_processes():
    """A SimPy process on the same clock is interleaved with the simulator's own calls."""
    engine, seen = Engine(), []

    def probe():
        for _ in range(2):
            yield engine.env.timeout(10)
            seen.append(("probe", engine.now))

    engine.env.process(probe())
    engine.at(15, lambda _: seen.append(("call", engine.now)))
    engine.run()
    assert seen == [("probe", 10), ("call", 15), ("probe", 20)]
