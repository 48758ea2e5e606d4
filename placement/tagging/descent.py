"""Local search for groups of a thousand operators: clusters are moved first, then smaller ones, then single items.

Multilevel refinement (Karypis, Kumar, SIAM J. Sci. Comput. 20 (1998) 359-392): items are tied to clusters (``coarsen``),
whose moves carry what exchanges most bytes; each level starts from the placement of the one before. A move is judged by
a norm of the loads whose exponent rises from level to level: a low one lets clusters leave the data-parallel ranks
although the node that takes the first of them is busier for a while; a high one follows the busiest resource. No exponent
leads away from all-data-parallel where a group is large, for the first node to take a cluster does its work for all ranks;
so clusters that alone exchange less on a node than on all ranks can be spread over the nodes first, largest first.

Knows quick loads; exact evaluation, which has the last word, is ``solve``'s business.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from placement.deadline import Deadline
from placement.plan import Tag
from placement.tagging.coarsen import coarse
from placement.tagging.net_loads import EVERYWHERE, MEMORY
from placement.tagging.nets import Contracted
from placement.tagging.quick_loads import QuickLoads, places_of

#: Least relative gain that counts as one.
GAIN = 1e-9
#: Units that are moved at random when a descent has ended.
KICK = 4
#: Least busy nodes that are tried besides those with which a unit exchanges messages.
IDLE = 8

Unit = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """Clusters to aim for (None: single items), doublings of the exponent, looks at a unit on average."""

    clusters: int | None
    doublings: int
    passes: int


LEVELS = (Level(60, 2, 8), Level(200, 4, 6), Level(None, 4, 2), Level(None, 6, 4), Level(None, 8, 4))
#: Clusters to spread, and the levels after that: balance must not be lost.
SPREAD = 400
SPREAD_LEVELS = (Level(SPREAD, 5, 8), Level(None, 6, 4), Level(None, 8, 4))


def descend(
    contracted: Contracted,
    tags: dict[str, Tag],
    deadline: Deadline,
    seed: int = 0,
    *,
    limit_seconds: float = float("inf"),
    spread: bool = False,
) -> dict[str, Tag]:
    """Return a placement that local search finds from another one.

    Parameters
    ----------
    contracted : Contracted
        The group problem.
    tags : dict of str to Tag
        Where to start.
    deadline : Deadline
        When to stop; what is being built then is finished first.
    seed : int
        Of the order of moves.
    limit_seconds : float
        A longer step is of no use: no node is to host what alone takes longer.
    spread : bool
        Whether to spread clusters over the nodes first.
    """
    size = contracted.problem.size * len(contracted.items)
    with deadline.phase("quick loads", size):
        loads = QuickLoads(contracted, places_of(contracted, tags))
    if spread and deadline.allows(("spread", size)):
        with deadline.phase("spread", size):
            _spread(loads, list(units_of(contracted, SPREAD)), limit_seconds)
    for level in SPREAD_LEVELS if spread else LEVELS:
        if not deadline.allows(("level", size)):
            break
        with deadline.phase("level", size):
            descent = Descent(loads, list(units_of(contracted, level.clusters)), level.doublings, seed, limit_seconds)
        descent.run(level.passes * len(descent.units), deadline)
    return loads.tags()


def _spread(loads: QuickLoads, units: Sequence[Unit], limit_seconds: float) -> None:
    """Put data-parallel units that on a single node take less of the busiest resource in sum on the least busy nodes."""
    resource = int(loads.seconds.max(axis=1).argmax())
    busy = loads.seconds[resource].sum()
    gaining: list[tuple[float, Unit, list[int]]] = []
    for unit in units:
        nodes = sorted(loads.allowed[unit[0]] - {EVERYWHERE})
        if nodes and {loads.at[item] for item in unit} == {EVERYWHERE}:
            loads.move(unit, nodes[0])
            if loads.seconds[resource].sum() < busy:
                gaining.append((float(loads.alone(unit)[nodes].min()), unit, nodes))
            loads.move(unit, EVERYWHERE)
    taken = np.zeros(loads.size)
    for seconds, unit, nodes in sorted(gaining, reverse=True):
        if seconds <= limit_seconds:
            after = taken + loads.alone(unit)
            place = min(nodes, key=lambda node: (after[node], node))
            taken[place] = after[place]
            loads.move(unit, place)


def units_of(contracted: Contracted, clusters: int | None) -> Iterable[Unit]:
    """Return sets of open items that move together: clusters (None: single items)."""
    if clusters is None or clusters >= len(contracted.free):
        return [(index,) for index in contracted.free]
    item_of = {op: index for index, item in enumerate(contracted.items) for op in item.ops}
    small = coarse(contracted, clusters)
    return [tuple(dict.fromkeys(item_of[op] for op in small.items[index].ops)) for index in small.free]


class Descent:
    """Local search over the places of units: sets of items that are and move together.

    Parameters
    ----------
    loads : QuickLoads
        The placement, which is changed.
    units : sequence of tuples of int
        Open items. Those of a unit that are apart stay where they are until the unit is moved.
    doublings : int
        Exponent of the norm, as a power of 2.
    seed : int
        Of the order in which units are looked at, and of kicks.
    limit_seconds : float
        No unit goes to a node that alone takes longer for it.
    """

    def __init__(
        self,
        loads: QuickLoads,
        units: Sequence[Unit],
        doublings: int,
        seed: int = 0,
        limit_seconds: float = float("inf"),
    ) -> None:
        self.loads, self.doublings, self.draw, self.limit_seconds = loads, doublings, random.Random(seed), limit_seconds
        self.units = [unit for unit in units if len({loads.at[item] for item in unit}) == 1]
        self.value = loads.score(doublings)
        self.left, self.deadline = 0, Deadline()

    def run(self, looks: int, deadline: Deadline | None = None) -> None:
        """Descend, disturb and descend again until units were looked at so often; keep the best placement."""
        self.left, self.deadline = looks, deadline or Deadline()
        self._descend()
        while self._goes_on() and self.units:
            before, value = [self.loads.at[unit[0]] for unit in self.units], self.value
            self._kick()
            self._descend()
            if self.value >= value:
                self._restore(before)
                self.value = value

    def _goes_on(self) -> bool:
        return self.left > 0 and not self.deadline.passed

    def _kick(self) -> None:
        """Move some units that are on the busiest or most overfull node, or data-parallel, to places drawn at random."""
        lacks, seconds = self.loads.total[MEMORY] - self.loads.room, self.loads.seconds.max(axis=0)
        busy = int((lacks if self.value[0] else seconds).argmax())
        there = [unit for unit in self.units if self.loads.at[unit[0]] in (busy, EVERYWHERE)] or self.units
        for unit in self.draw.sample(there, min(KICK, len(there))):
            self.loads.move(unit, self.draw.choice(self._places_of(unit)))
        self.value = self.loads.score(self.doublings)

    def _restore(self, places: Sequence[int]) -> None:
        for unit, place in zip(self.units, places, strict=True):
            if self.loads.at[unit[0]] != place:
                self.loads.move(unit, place)

    def _descend(self) -> None:
        """Look at all units in turn until none can be moved to advantage."""
        improved = True
        while improved:
            improved = False
            for unit in self.draw.sample(self.units, len(self.units)):
                if not self._goes_on():
                    return
                self.left -= 1
                improved |= self._place(unit)

    def _places_of(self, unit: Unit) -> list[int]:
        """Where a unit might be: on all ranks, where its neighbours are, on the least busy or emptiest nodes."""
        first = 1 if self.loads.ranks == 1 else 0  # with one rank, node 0 and DP are the same place
        nets = (net for item in unit for net in self.loads.nets_of[item])
        near = {self.loads.at[end] for net in nets for end in self.loads.ends[net]}
        busy = self.loads.seconds.max(axis=0) if not self.value[0] else self.loads.total[MEMORY] - self.loads.room
        idle = busy[first:].argsort(kind="stable")[:IDLE] + first
        slow = np.flatnonzero(self.loads.alone(unit) > self.limit_seconds).tolist()
        allowed = self.loads.allowed[unit[0]].difference(slow) or self.loads.allowed[unit[0]]
        return sorted(({EVERYWHERE, *near, *idle.tolist()} & allowed) or allowed)

    def _place(self, unit: Unit) -> bool:
        """Move a unit to its best place; return whether that is another one."""
        home = best = self.loads.at[unit[0]]
        places = [place for place in self._places_of(unit) if place != home]
        values = self.loads.scores(unit, places, self.doublings) if places else []
        for place, value in zip(places, values, strict=True):
            if value[0] < self.value[0] or (value[0] == self.value[0] and value[1] < self.value[1] * (1 - GAIN)):
                best, self.value = place, value
        if best != home:
            self.loads.move(unit, best)
        return best != home
