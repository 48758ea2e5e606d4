"""Simulated annealing of a large group: long, slow, and many moves at a time.

Where the network binds, the messages of a thousand items depend on each other, and descents end far from the best: 14 %
on narrow networks. Annealing (Kirkpatrick, Gelatt, Vecchi, Science 220 (1983) 671-680) looks at a thousand moves of
``stretches`` for each item. Moves are drawn and judged by the hundred from one placement; each is then accepted or not in
turn, against the placement as it is by then, and left out where an earlier one touched its nets. The norm's exponent
rises while the temperature falls.

Knows quick loads and stretches; exact evaluation, which has the last word, is ``solve``'s business.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placement.deadline import Deadline
from placement.plan import DP, Tag
from placement.tagging.net_loads import EVERYWHERE, MEMORY, Array, Places
from placement.tagging.nets import Contracted
from placement.tagging.quick_loads import TINY, QuickLoads, places_of
from placement.tagging.stretches import Chains, Flags, Stretches, columns, renew, runs_of

#: Temperatures at the beginning and at the end, as parts of the norm that a move may add to it.
HOT, COLD = 2e-3, 2e-5
#: Exponents of the norm at the beginning and at the end, as powers of 2.
DOUBLINGS = (4, 7)
#: Moves that are judged at a time: at least, at most, and for each that was accepted of late.
FEWEST, MOST, EACH = 16, 128, 4.0
#: Price of memory that is lacking: parts of the norm for all that a node has.
LACKING = 2.0


def anneal(
    contracted: Contracted, tags: dict[str, Tag], deadline: Deadline, looks: int, seed: int = 0
) -> dict[str, Tag]:
    """Return a placement that annealing finds from another one; items with many nets stay where they are.

    Parameters
    ----------
    contracted : Contracted
        The group problem.
    tags : dict of str to Tag
        Where to start.
    deadline : Deadline
        When to have cooled down: if ``looks`` take longer, there are fewer.
    looks : int
        Moves looked at for each item, on average.
    seed : int
        Of the moves.
    """
    with deadline.phase("quick loads", contracted.problem.size * len(contracted.items)):
        found = Annealing(QuickLoads(contracted, places_of(contracted, tags)), seed)
    found.run(looks * len(found.chains.items), deadline)
    size, new = contracted.problem.size, dict(tags)
    for index in contracted.free:
        place = int(found.best[index])
        new |= dict.fromkeys(contracted.items[index].ops, DP if place == size else place)
    return new


@dataclass(frozen=True)
class _Judged:
    """What moves would change: loads of all nodes, shape (moves, 5, nodes), and those of nets, with their rows."""

    loads: Array
    rows: Places
    nets: Places
    booked: Array


class Annealing:
    """A placement that is annealed.

    Parameters
    ----------
    loads : QuickLoads
        Where to start; it is not changed.
    seed : int
        Of the moves.
    """

    def __init__(self, loads: QuickLoads, seed: int) -> None:
        data, self.size = loads.data, loads.size
        self.of, self.nets, self.chains = loads, loads.nets, Chains(data)
        self.random = np.random.default_rng(seed)
        self.at = columns(loads.at, self.size)
        self.runs = runs_of(self.chains, self.at)
        self.total, self.booked = loads.total.copy(), np.array(loads.booked)
        self.idle = loads.seconds - loads.total[:MEMORY] / loads.capacity
        self.users = np.zeros((len(data.nets), self.size + 1))
        for number, net in enumerate(data.nets):
            for item, count in net.consumers:
                self.users[number, self.at[item]] += count
        self.homes = np.array([self.at[net.producer] for net in data.nets], np.int64)
        self.sums = [self._sums(part) for part in (loads.items.mp, loads.items.dp, loads.items.lead)]
        self.touched = np.zeros(len(data.nets) + 1, bool)
        self.doublings, self.best, self.least = DOUBLINGS[0], self.at.copy(), self._most(self.total)
        self.score = float(self._scores(self.total[None])[0])

    def _sums(self, part: Array) -> Array:
        """Loads of all positions before each one."""
        return np.concatenate([np.zeros((1, 5)), part[self.chains.items].cumsum(axis=0)])

    def run(self, looks: int, deadline: Deadline) -> None:
        """Cool down over so many looks, or until the deadline."""
        if not len(self.chains.items):
            return
        looked, accepted, began, left = 0, 1.0, deadline.clock(), max(1e-9, deadline.left)
        while looked < looks and not deadline.passed:
            cooled = max(looked / looks, (deadline.clock() - began) / left)
            self.doublings = round(DOUBLINGS[0] + (DOUBLINGS[1] - DOUBLINGS[0]) * cooled)
            count = int(min(MOST, max(FEWEST, EACH / accepted)))
            taken = self._round(count, HOT * (COLD / HOT) ** cooled)
            looked, accepted = looked + count, 0.95 * accepted + 0.05 * max(taken, 0.01) / count

    def _round(self, count: int, temperature: float) -> int:
        """Draw some moves and accept some of them; return how many."""
        moves = self.chains.draw(self.random, count, self.at, self.runs)
        if not len(moves.to):
            return 0
        judged, taken = self._judged(moves), 0
        uphill = temperature * self.random.exponential(size=len(moves.to))
        rows, self.score = np.arange(len(moves.to)), float(self._scores(self.total[None])[0])
        while len(rows):
            scores = self._scores(self.total + judged.loads[rows])
            good = np.flatnonzero(scores <= self.score * (1 + uphill[rows]))
            if not len(good):
                break
            row, self.score = int(rows[good[0]]), float(scores[good[0]])
            rows = rows[good[0] + 1 :]
            self._accept(moves, judged, row)
            rows, taken = rows[~self._clash(moves, row, rows)], taken + 1
        return taken

    def _clash(self, moves: Stretches, row: int, rows: Places) -> Flags:
        """Whether moves have a net, or a chain, in common with another one."""
        self.touched[moves.nets[row]] = True
        self.touched[-1] = False
        nets, begin = self.touched[moves.nets[rows]], self.chains.begin
        self.touched[moves.nets[row]] = False
        found: Flags = nets.any(axis=1) | (begin[moves.first[rows]] == begin[moves.first[row]])
        return found

    def _accept(self, moves: Stretches, judged: _Judged, row: int) -> None:
        """Make a move."""
        first, last, home, to = (int(part[row]) for part in (moves.first, moves.last, moves.home, moves.to))
        self.total += judged.loads[row]
        chosen = slice(*np.searchsorted(judged.rows, [row, row + 1]))
        self.booked[judged.nets[chosen]] += judged.booked[chosen]
        for slot, net in enumerate(moves.nets[row].tolist()):
            if net >= 0 and moves.counts[row, slot]:
                self.users[net, home] -= moves.counts[row, slot]
                self.users[net, to] += moves.counts[row, slot]
            elif net >= 0:
                self.homes[net] = to
        between = self.chains.produced[first:last, 0]
        self.users[between, home], self.users[between, to], self.homes[between] = 0.0, 1.0, to
        self.at[self.chains.items[first : last + 1]] = to
        renew(self.chains, self.at, self.runs, first)
        most = self._most(self.total)
        if most < self.least:
            self.best, self.least = self.at.copy(), most

    def _judged(self, moves: Stretches) -> _Judged:
        """What each of some moves would change."""
        rows, slots = np.nonzero(moves.nets >= 0)
        nets, counts, home, to = moves.nets[rows, slots], moves.counts[rows, slots], moves.home[rows], moves.to[rows]
        users, each = self.users[nets], np.arange(len(nets))
        users[each, home] -= counts
        users[each, to] += counts
        homes = np.where(counts > 0, self.homes[nets], to)
        homes[homes == self.size] = EVERYWHERE
        booked = self.nets.loads(nets, homes, users[:, : self.size], users[:, self.size :]) - self.booked[nets]
        loads = np.zeros((len(moves.to), 5, self.size))
        begins = np.flatnonzero(np.diff(rows, prepend=-1))
        loads[rows[begins]] = np.add.reduceat(booked, begins, axis=0)
        self._add_work(loads, moves, moves.home, -1.0)
        self._add_work(loads, moves, moves.to, 1.0)
        return _Judged(loads, rows, nets, booked)

    def _add_work(self, loads: Array, moves: Stretches, places: Places, sign: float) -> None:
        """Add the work of stretches in some places."""
        mp, dp, lead = (sign * (sums[moves.last + 1] - sums[moves.first]) for sums in self.sums)
        nodes, ranks = np.flatnonzero(places < self.size), np.flatnonzero(places == self.size)
        loads[nodes, :, places[nodes]] += mp[nodes]
        loads[ranks, :, : self.of.ranks] += dp[ranks][:, :, None]
        loads[ranks, :, 0] += lead[ranks]

    def _scores(self, total: Array) -> Array:
        """Norms of the seconds of nodes, with memory that is lacking."""
        seconds = total[:, :MEMORY] / self.of.capacity + self.idle
        most = np.maximum(seconds.max(axis=(1, 2)), TINY)
        power = seconds / most[:, None, None]
        for _ in range(self.doublings):
            power *= power
        lacking = np.maximum(total[:, MEMORY] / self.of.room - 1.0, 0.0).sum(axis=1)
        found: Array = most * power.sum(axis=(1, 2)) ** (0.5**self.doublings) * (1 + LACKING * lacking)
        return found

    def _most(self, total: Array) -> tuple[float, float]:
        """How much memory is lacking, and the seconds of the busiest node."""
        lacking = np.maximum(total[MEMORY] - self.of.room, 0.0).sum()
        return float(lacking), float((total[:MEMORY] / self.of.capacity + self.idle).max())
