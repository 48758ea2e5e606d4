"""The model that the simulator's speed is held against."""

from __future__ import annotations

from experiments.hand_written import Model


def test_events_are_those_of_the_study():
    """Five for each of N servers and two more, in every iteration of every thread; all iterations are made."""
    model = Model(2, 3, 2, 4)
    model.run()
    assert {thread.made for thread in model.threads} == {4}
    assert model.events == (5 * 3 + 2) * 2 * 3 * 2 * 4
