"""Links and the flows that cross them: max-min fair rates, and a clock for each link.

Progressive filling (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2) fixes every flow at one link of its path,
its *bottleneck*: that link is full, and no flow on it is faster. All flows with the same bottleneck have the same rate, so
the link has one clock for all of them (bytes that each got), like the jobs of :class:`simulator.shared.SharedResource`.
Flows between the same two machines form a class, with the bytes of each in the order of their ends.

Knows no machines, no messages and no events.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

#: A link is taken to be overloaded above this many times its capacity: rates are sums and differences of doubles.
OVERLOADED = 1.0 + 1e-9
#: Two rates that are nearer than this part of them are the same: they were worked out from other sums.
SAME = 1e-12


class Link:
    """A link and the flows for which it is the bottleneck.

    Parameters
    ----------
    index : int
        Its number; of equal shares the link with the smaller number goes first (the rates do not depend on it).
    capacity : float
        Bytes per nanosecond.

    Attributes
    ----------
    crossing : dict of Flows to None
        Active classes that cross it.
    count : int
        Flows that cross it.
    load : float
        Bytes per nanosecond of all that cross it.
    members : dict of Flows to None
        Classes whose bottleneck it is.
    rate, clock : float
        Bytes per nanosecond of each flow of these classes; bytes that each got since there were none.
    heads : list
        Heap of (clock at the end, sequence, epoch, class): the first flow to end of each of these classes, and stale ones.
    end, armed : int
        When the first of them ends, at the present rate; time of the valid event, not after that, -1 for none.
    stirred : bool
        Whether ``end`` may be another because the heads have changed.
    """

    __slots__ = (
        "armed",
        "capacity",
        "clock",
        "count",
        "crossing",
        "end",
        "heads",
        "index",
        "left",
        "load",
        "members",
        "rate",
        "share",
        "since",
        "stirred",
    )

    def __init__(self, index: int, capacity: float) -> None:
        self.index, self.capacity = index, capacity
        self.crossing: dict[Flows, None] = {}
        self.members: dict[Flows, None] = {}
        self.count = self.since = self.end = self.left = 0
        self.load = self.rate = self.clock = self.share = 0.0
        self.heads: list[tuple[float, int, int, Flows]] = []
        self.armed = -1
        self.stirred = False

    def advance(self, now: int) -> None:
        """Bring the clock up to date."""
        if now > self.since:
            self.clock += self.rate * (now - self.since)
            self.since = now

    def first(self) -> float | None:
        """Clock at the end of the first flow to end; None if there is none."""
        heads = self.heads
        while heads:
            end, sequence, epoch, flows = heads[0]
            if epoch == flows.epoch and flows.queue and flows.queue[0][1] == sequence:
                return end
            heappop(heads)
        return None

    def lose(self, flows: Flows) -> None:
        """Have one class less."""
        del self.members[flows]
        self.stirred = True
        if not self.members:
            self.clock, self.rate, self.armed = 0.0, 0.0, -1
            self.heads.clear()


class Flows:
    """A class of flows: all that go from one machine to another.

    Parameters
    ----------
    source, target : int
        The machines.
    path : tuple of Link
        What they cross.

    Attributes
    ----------
    queue : list
        Heap of (bytes that each flow of the class will have got at its end, sequence, what to do then).
    bottleneck : Link or None
        None until rates are worked out.
    taken : float
        Bytes per nanosecond that all together have of each link.
    served : float
        Bytes that all flows got, ever, up to ``counted`` of the bottleneck's clock.
    """

    __slots__ = (
        "bottleneck",
        "counted",
        "epoch",
        "fixed",
        "offset",
        "path",
        "queue",
        "served",
        "source",
        "taken",
        "target",
    )

    def __init__(self, source: int, target: int, path: tuple[Link, ...]) -> None:
        self.source, self.target, self.path = source, target, path
        self.queue: list[tuple[float, int, Any]] = []
        self.bottleneck: Link | None = None
        self.fixed = NOWHERE  # the bottleneck to be
        self.offset = 0.0  # by how much the bottleneck's clock is ahead of the class's own
        self.epoch = 0  # how often the bottleneck has changed
        self.taken = self.served = self.counted = 0.0

    def add(self, size: float, sequence: int, what: Any, now: int) -> None:
        """Start a flow; its bottleneck is told of it, its links count it."""
        link, queue = self.bottleneck, self.queue
        if not queue:
            for crossed in self.path:
                crossed.crossing[self] = None
        if link is None:
            heappush(queue, (size, sequence, what))
        else:
            link.advance(now)
            self.count(link)
            end = link.clock - self.offset + size
            heappush(queue, (end, sequence, what))
            if queue[0][1] == sequence:
                self.show(link)
        for crossed in self.path:
            crossed.count += 1

    def count(self, link: Link) -> None:
        """Count what was served up to now on the bottleneck's clock."""
        self.served += (link.clock - self.counted) * len(self.queue)
        self.counted = link.clock

    def end_first(self, link: Link) -> Any:
        """End the flow that is the first to end, at its bottleneck; return what to do then."""
        self.count(link)
        end, _, what = heappop(self.queue)
        self.served += end - (link.clock - self.offset)  # what rounding to whole nanoseconds left over or took too much
        for crossed in self.path:
            crossed.count -= 1
        if self.queue:
            self.show(link)
        else:
            self._leave(link)
        return what

    def meets_full(self) -> bool:
        """Whether any link of the path is a bottleneck of others, which may go faster when this class has left."""
        return any(link.members for link in self.path)

    def show(self, link: Link) -> None:
        """Tell the bottleneck which flow ends first."""
        link.stirred = True
        end, sequence, _ = self.queue[0]
        heappush(link.heads, (end + self.offset, sequence, self.epoch, self))

    def move(self, link: Link) -> None:
        """Have another bottleneck; both clocks must be up to date."""
        own = 0.0
        if self.bottleneck is not None:
            self.count(self.bottleneck)
            own = self.bottleneck.clock - self.offset
            self.bottleneck.lose(self)
        link.members[self] = None
        self.bottleneck, self.epoch = link, self.epoch + 1
        self.offset, self.counted = link.clock - own, link.clock
        self.show(link)

    def _leave(self, link: Link) -> None:
        """No flow is left."""
        link.lose(self)
        self.bottleneck = None
        self.epoch += 1
        for crossed in self.path:
            del crossed.crossing[self]
            crossed.load = crossed.load - self.taken if crossed.crossing else 0.0
        self.taken = 0.0


#: Stands for no link.
NOWHERE = Link(-1, math.nan)


def fill(asked: Mapping[Link, Sequence[Flows]]) -> None:
    """Fix classes at the links that are their bottlenecks, as if there were no other links.

    The link with the smallest fair share fixes the flows that cross it; the rest share what is left. What other classes
    take of a link is taken as it is. Sets ``fixed`` of the classes, which must be :data:`NOWHERE`, and ``share`` of the
    links: the rate of what is fixed there.

    Parameters
    ----------
    asked : Mapping of Link to sequence of Flows
        For each link, which of the classes cross it; one at least.
    """
    queue = []
    for link, classes in asked.items():
        count, taken = 0, 0.0
        for flows in classes:
            count += len(flows.queue)
            taken += flows.taken
        link.left = count
        link.share = (link.capacity if count == link.count else link.capacity - link.load + taken) / count
        queue.append((link.share, link.index, link))
    heapify(queue)
    while queue:
        share, _, link = heappop(queue)
        if not link.left:
            continue
        if share != link.share:  # it has grown since: shares never fall
            heappush(queue, (link.share, link.index, link))
            continue
        link.left = 0
        for flows in asked[link]:
            if flows.fixed is NOWHERE:
                flows.fixed = link
                for other in flows.path:
                    if other.left:
                        _take(other, share, len(flows.queue))


def _take(link: Link, share: float, count: int) -> None:
    """Take flows whose rate is fixed off a link; what is left never falls below ``share``: no rate rounds to zero."""
    rest = link.left - count
    if rest > 0:
        left = (link.share * link.left - share * count) / rest
        link.share = left if left > share else share
    link.left = rest


def max_min_rates(flows: Sequence[tuple[int, ...]], capacity: Sequence[float]) -> list[float]:
    """Max-min fair rates of classes of flows.

    Parameters
    ----------
    flows : sequence of tuple of int
        For each class: the links that it crosses, each once, then the number of flows (at least 1).
    capacity : sequence of float
        Rate of each link.

    Returns
    -------
    list of float
        Rate of one flow of each class, in the unit of ``capacity``.
    """
    links = [Link(index, rate) for index, rate in enumerate(capacity)]
    classes = []
    for index, (*path, count) in enumerate(flows):
        classes.append(Flows(index, index, tuple(links[link] for link in path)))
        for sequence in range(count):
            classes[-1].add(1.0, sequence, None, 0)
    fill({link: list(link.crossing) for link in links if link.count})
    return [found.fixed.share for found in classes]
