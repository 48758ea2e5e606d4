"""A bound of a large group's step: the linear relaxation, made strong by decisions about what everything hangs on.

Alone, the relaxation spreads every item thinly over all nodes, where nothing crosses. So a few *hubs*, items whose tensors
or work fill a good part of a node's step, are decided about: data-parallel, or on a node that is a place of its own. Then
the tensor that goes to most nodes at the highest price is decided about: how many nodes of a place take it, at
most half or more, then each number. Cases are opened best first; the worst bound of those left is that of the group. A case
in which nothing is left to decide is asked again about shorter steps L: a node has less room in them, so the relaxation says
more, b(L), and no step is below the smaller of L and b(L).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count

import numpy as np

from placement.deadline import Deadline, Phase
from placement.tagging.linear_program import Array
from placement.tagging.net_loads import CORES, TRAFFIC, TX
from placement.tagging.nets import RANK, Contracted
from placement.tagging.relaxation import Case, Place, Relaxation

#: Linear programs at most.
MOST_PROGRAMS = 60
#: Share of a node that a hub takes in the longest step that is looked at, all that it exchanges with being elsewhere.
HUB = 0.5
#: Where between its bound and the limit a shorter limit of a case is; how close these may be; how often that is tried.
SHORTER, CLOSE, TIMES = 0.4, 2e-3, 4
#: Nodes of a place above which their number is decided by halves: a program with three kinds of nodes takes long.
MANY = 7
#: Share that a tensor takes of the NIC of a node that needs it, for the number of such nodes to be decided.
HEAVY = 0.02


def least_step(
    contracted: Contracted, limit_seconds: float, deadline: Deadline, gap: float = 0.0, most: int = MOST_PROGRAMS
) -> float:
    """Return a lower bound of the step of any placement of a group.

    Parameters
    ----------
    contracted : Contracted
        The group problem.
    limit_seconds : float
        The best step that is known: no more is ever proven.
    deadline : Deadline
        When to stop.
    gap : float
        Relative gap to the best step that is good enough.
    most : int
        Linear programs at most.
    """
    if not 0 < limit_seconds < float("inf") or not deadline.allows(programs_of(contracted)):
        return 0.0
    return _Cases(Relaxation(contracted, limit_seconds), limit_seconds / (1 + gap), deadline, most).bound()


def programs_of(contracted: Contracted) -> Phase:
    """Return a linear program as a phase of a search."""
    return "relaxation", max(1, len(contracted.items))


@dataclass(order=True)
class _Open:
    """A case, with its bound, how many decisions it has, the shortest limit it was asked about, and how often it was."""

    seconds: float
    number: int
    decided: int = field(compare=False)
    case: Case = field(compare=False)
    limit_seconds: float = field(compare=False)
    times: int = field(compare=False, default=1)


@dataclass
class _Cases:
    """Cases that cover all placements."""

    relaxation: Relaxation
    goal_seconds: float
    deadline: Deadline
    left: int

    def bound(self) -> float:
        """Open cases, best first, as long as that helps."""
        numbers, limit = count(), self.relaxation.limit_seconds
        waiting = [
            _Open(self._seconds(self.relaxation, self.relaxation.root), next(numbers), 0, self.relaxation.root, limit)
        ]
        while waiting[0].seconds < self.goal_seconds and self._allows:
            head = waiting[0]
            cases = list(self._opened(head)) or [head.case]
            if len(cases) > self.left or (cases == [head.case] and not _tightens(head)):
                break
            if cases == [head.case]:
                heapq.heapreplace(waiting, self._tightened(head))
                continue
            found = []
            for case in cases:
                seconds = max(head.seconds, self._seconds(self.relaxation, case) if self._allows else 0.0)
                found.append(_Open(seconds, next(numbers), head.decided + 1, case, limit))
            heapq.heapreplace(waiting, found[0])
            for one in found[1:]:
                heapq.heappush(waiting, one)
        return min(limit, waiting[0].seconds)

    def _tightened(self, head: _Open) -> _Open:
        """Return a case after it was asked about shorter steps."""
        shorter = head.seconds + SHORTER * (head.limit_seconds - head.seconds)
        seconds = self._seconds(Relaxation(self.relaxation.contracted, shorter), head.case)
        if seconds >= shorter:  # all its steps are longer; between this and the last limit there may be some
            return replace(head, seconds=shorter, times=head.times + 1)
        return replace(head, seconds=max(head.seconds, seconds), limit_seconds=shorter, times=head.times + 1)

    @property
    def _allows(self) -> bool:
        """Whether there is time for a linear program."""
        return self.deadline.allows(programs_of(self.relaxation.contracted))

    def _seconds(self, relaxation: Relaxation, case: Case) -> float:
        self.left -= 1
        with self.deadline.phase(*programs_of(relaxation.contracted)):
            return relaxation.seconds(case, max(1.0, min(60.0, self.deadline.left)))

    def _opened(self, head: _Open) -> Iterator[Case]:
        """The cases of the next decision; none where all are made."""
        hubs = self.hubs
        if head.decided < len(hubs):
            yield from _tagged(head.case, hubs[head.decided])
        elif self.heavy is not None:
            yield from _counted(head.case, self.heavy)

    @cached_property
    def hubs(self) -> list[int]:
        """Open items that are decided about, largest first; then who produces the net whose places are counted."""
        data, share = self.relaxation.contracted, self._shares()
        found = [i for i in np.argsort(-share, kind="stable").tolist() if share[i] >= HUB and i in set(data.free)]
        producer = RANK if self.heavy is None else data.nets[self.heavy].producer
        return found + [producer] * (producer in set(data.free) and producer not in found)

    @cached_property
    def heavy(self) -> int | None:
        """The net that takes most of NICs if all nodes need it; None if that is little."""
        data, nic = self.relaxation.contracted, self._nic()
        cost = [
            ((min(len(net.consumers), data.problem.size) - 1) * seconds, -number)
            for number, (net, seconds) in enumerate(zip(data.nets, nic, strict=True))
            if seconds >= HEAVY and len(net.consumers) > 1 and any(item in set(data.free) for item, _ in net.consumers)
        ]
        return -max(cost)[1] if cost else None

    def _nic(self) -> Array:
        """Share of a node's NIC that a node takes for each net that comes from elsewhere."""
        relaxation, others = self.relaxation, max(1, self.relaxation.contracted.problem.ranks - 1)
        both = (relaxation.nets.taken + relaxation.nets.sent)[:, TX] / 2
        rate = float(relaxation.capacity[TX].max())
        return others * both / rate if rate > 0 else np.zeros(len(both))

    def _shares(self) -> Array:
        """Share of a node that each item takes at least, all at the other ends of its nets being elsewhere."""
        relaxation, nic = self.relaxation, self._nic()
        capacity = relaxation.capacity.max(axis=1)
        work = relaxation.items.mp[:, [CORES, TRAFFIC]] / np.maximum(capacity[[CORES, TRAFFIC]], 1e-300)
        crossing = np.zeros(len(work))
        for net, seconds in zip(relaxation.contracted.nets, nic, strict=True):
            ends = {net.producer, *(item for item, _ in net.consumers)} - {RANK}
            crossing[list(ends)] += seconds
        found: Array = np.maximum(work.max(axis=1, initial=0.0), crossing)
        return found


def _tagged(case: Case, item: int) -> Iterator[Case]:
    """An item is data-parallel, or on a node of one of the places."""
    yield replace(case, everywhere=case.everywhere | {item})
    for number, place in enumerate(case.places):
        first, rest = place.split(1)
        others = (*case.places[:number], *case.places[number + 1 :])
        home = replace(first, hosts=first.hosts | {item})
        yield replace(case, places=(*others, *((rest,) if rest.nodes else ()), home))


def _tightens(head: _Open) -> bool:
    """Whether a case may be asked about shorter steps."""
    return head.times <= TIMES and head.seconds < head.limit_seconds * (1 - CLOSE)


def _counted(case: Case, net: int) -> Iterator[Case]:
    """How many nodes need a net, of the largest place of which that is open: at most half or more; of few, each number."""
    unknown = [place for place in case.places if net not in place.takes | place.lacks]
    if not unknown:
        return
    largest = max(unknown, key=lambda place: len(place.nodes))
    others, size = tuple(place for place in case.places if place is not largest), len(largest.nodes)
    half = size // 2
    for fewest, most in [(0, half), (half + 1, size)] if size > MANY else [(n, n) for n in range(size + 1)]:
        takes, rest = largest.split(fewest)
        rest, lacks = rest.split(most - fewest)
        decided = replace(takes, takes=takes.takes | {net}), rest, replace(lacks, lacks=lacks.lacks | {net})
        yield replace(case, places=_merged((*others, *decided)))


def _merged(places: tuple[Place, ...]) -> tuple[Place, ...]:
    """Return places that differ in something; those that host an item have only one node."""
    found: dict[Place, tuple[int, ...]] = {}
    for place in places:
        key = place if place.hosts else replace(place, nodes=())
        found[key] = (*found.get(key, ()), *place.nodes)
    return tuple(replace(place, nodes=tuple(sorted(nodes))) for place, nodes in found.items() if nodes)
