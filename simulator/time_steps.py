"""Fair shares in time steps: what every activity gets of its links is worked out once a time step, for all at once.

An *activity* is a message (bytes; the sender's and the receiver's side of two NICs), a job on the cores of a server
(nanoseconds; one link with the cores as capacity, at most one core for itself) or its memory traffic (bytes; one link).
At the start of each time step rates are max-min fair among all activities that have begun; none gets more than what it has
left to do, so that what one leaves over others get in the same step. Rates then hold for the step.

Against ``simulator.links``, which works rates out at each start and end: an activity begins up to one time step late and
ends up to one late, never early; capacity is never exceeded. The cost is that of a few array operations a step, whatever the
number of messages. Knows links and activities; no machines, no fans.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.engine import Engine, Order

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

#: An activity is done when less than this part of what it had at the start of the step is left: doubles round.
NOTHING = 1e-9


class TimeSteps:
    """Activities and the links that they share.

    Parameters
    ----------
    engine : Engine
        The clock.
    capacity : ndarray, shape (links,)
        Work per nanosecond of each link. The last is for activities that need one link only: it must be infinite.
    step_ns : int
        Length of a time step.
    ended : callable
        Told at the start of each step what ends in it: numbers of activities, shape (n,), and when each ends, shape (n,).
    """

    def __init__(
        self, engine: Engine, capacity: Floats, step_ns: int, ended: Callable[[Numbers, Numbers], None]
    ) -> None:
        self._engine, self._capacity, self._step_ns, self._ended = engine, capacity, step_ns, ended
        self.nowhere = len(capacity) - 1
        self._size, self._table = 0, _table(1024)
        self._served, self._load = np.zeros(len(capacity)), np.zeros(len(capacity))
        self._since = engine.now  # up to when ``served`` counts
        self._until = engine.now  # to the end of the present step: rates hold until then
        self._due = -1  # when the next step begins; -1 for none

    def add(self, link: Any, other: Any, work: Any, most: float, begin_ns: Any, number: Numbers) -> None:
        """Add activities; every argument is one value for all or an array over them.

        Parameters
        ----------
        link, other : int or ndarray of int
            What each crosses; ``nowhere`` if nothing else.
        work : float or ndarray
            What each has to do.
        most : float
            Work per nanosecond that each gets at most.
        begin_ns : int or ndarray of int
            When each begins.
        number : ndarray of int, shape (n,)
            What ``ended`` is told of each.
        """
        first, last = self._size, self._size + len(number)
        while last > len(self._table["number"]):
            self._table = {name: np.concatenate((column, column)) for name, column in self._table.items()}
        row = {"link": link, "other": other, "left": work, "most": most, "begin": begin_ns, "number": number}
        for name, value in row.items():
            self._table[name][first:last] = value
        self._size = last
        self._arm(max(self._engine.now, int(np.min(begin_ns))))

    def served(self) -> Floats:
        """Work done so far at each link."""
        done: Floats = self._served + self._load * (self._engine.now - self._since)
        return done

    def under_way(self) -> Numbers:
        """Numbers of the activities that have not ended."""
        return self._table["number"][: self._size].copy()

    def _arm(self, time_ns: int) -> None:
        """Let a step begin at a time, but not before the present one ends."""
        due = max(time_ns, self._until)
        if self._due < 0 or due < self._due:
            self._due = due
            self._engine.at(due, self._step, due, Order.SETTLE)

    def _step(self, due: int) -> None:
        """Work out the rates of one step and tell what ends in it."""
        if due != self._due:
            return
        now, table = due, self._table
        self._served, self._since, self._due = self.served(), now, -1
        begin = table["begin"][: self._size]
        active = np.flatnonzero(begin <= now)
        if not active.size:
            self._load = np.zeros(len(self._capacity))
            if self._size:
                self._arm(int(begin.min()))
            return
        link, other, left, most = (table[name][active] for name in ("link", "other", "left", "most"))
        rates = fair_rates(link, other, np.minimum(most, left / self._step_ns), self._capacity)
        self._load = _sums(link, other, rates, len(self._capacity))
        rest = left - rates * self._step_ns
        table["left"][active] = rest
        done = rest <= NOTHING * left
        part = self._part_of_step(link[done], other[done], rates[done] / most[done])
        ended = active[done]
        numbers = table["number"][ended]
        self._remove(ended)
        self._until = now + self._step_ns
        self._arm(self._until)
        self._ended(numbers, now + np.ceil(part * self._step_ns).astype(np.int64))

    def _part_of_step(self, link: Numbers, other: Numbers, alone: Floats) -> Floats:
        """After which part of the step activities are done: when the busier of their links has done what it does in it."""
        busy = self._load / self._capacity
        part: Floats = np.maximum(np.maximum(busy[link], busy[other]), alone)
        return np.minimum(part, 1.0)

    def _remove(self, rows: Numbers) -> None:
        keep = np.ones(self._size, dtype=bool)
        keep[rows] = False
        stays = np.flatnonzero(keep)
        for name in self._table:
            self._table[name][: len(stays)] = self._table[name][stays]
        self._size = len(stays)


def _table(rows: int) -> dict[str, npt.NDArray[Any]]:
    """Columns: links, work left, most work per nanosecond, begin, number."""
    whole: dict[str, npt.NDArray[Any]] = {
        name: np.zeros(rows, dtype=np.int64) for name in ("link", "other", "begin", "number")
    }
    return whole | {name: np.zeros(rows) for name in ("left", "most")}


def _sums(link: Numbers, other: Numbers, values: Floats, links: int) -> Floats:
    """Sum of the values of the activities that cross each link."""
    return (np.bincount(link, values, links) + np.bincount(other, values, links)).astype(np.float64, copy=False)


def fair_rates(link: Numbers, other: Numbers, wanted: Floats, capacity: Floats) -> Floats:
    """Max-min fair rates of activities that want no more than a given rate.

    Progressive filling (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2), all links at once: an activity that
    wants no more than the smaller of its links' fair shares gets that, for shares only grow; a link whose fair share is the
    smallest for all that cross it is their bottleneck, and they get it. What is left is shared by the rest.

    Parameters
    ----------
    link, other : ndarray of int, shape (activities,)
        The two links of each.
    wanted : ndarray, shape (activities,)
        The most that each can use.
    capacity : ndarray, shape (links,)
        Of each link.

    Returns
    -------
    ndarray, shape (activities,)
        Rate of each, in the unit of ``capacity``.
    """
    rates, room, links = np.zeros(len(link)), capacity, len(capacity)
    rest = np.arange(len(link))
    while rest.size:
        first, second, want = link[rest], other[rest], wanted[rest]
        count = np.bincount(first, minlength=links) + np.bincount(second, minlength=links)
        share = room / np.maximum(count, 1)
        here, there = share[first], share[second]
        least = np.minimum(here, there)
        modest = want <= least
        at_first, at_second = (here <= there) & ~modest, (there <= here) & ~modest
        held = np.bincount(first[at_first], minlength=links) + np.bincount(second[at_second], minlength=links) == count
        fixed = modest | (at_first & held[first]) | (at_second & held[second])
        got = np.minimum(want, least)[fixed]
        rates[rest[fixed]] = got
        room = np.maximum(room - _sums(first[fixed], second[fixed], got, links), 0.0)
        rest = rest[~fixed]
    return rates
