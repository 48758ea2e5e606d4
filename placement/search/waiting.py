"""The shapes that wait to be solved, best first.

Each has a bound. There may be thousands, and bounding them all takes seconds: where time is short only some of them are,
spread over all counts of machines, and the rest keep what the cores of all their trainers together would do until they
come to the head of the queue. In a hurry, with no plan yet, those that have more room than the last one that had too
little come first.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import replace

from placement.deadline import Deadline
from placement.search.bounds import Bounds
from placement.search.compositions import Compositions
from placement.search.shapes import Shape

#: Share of the time that bounding all shapes may take before anything is solved.
BOUNDING = 0.25
#: Any part of a sequence of multiples of the golden ratio, less whole numbers, is spread evenly over 0 to 1.
GOLDEN = 0.6180339887498949


class Waiting:
    """The queue.

    Parameters
    ----------
    shapes : sequence of Shape
        All shapes.
    bounds : Bounds
        Bounds of shapes whose machines are known.
    compositions : Compositions
        Bounds of shapes for all ways to put their machines together.
    deadline : Deadline
        Of the search.
    """

    def __init__(self, shapes: Sequence[Shape], bounds: Bounds, compositions: Compositions, deadline: Deadline) -> None:
        self.bounds, self.compositions = bounds, compositions
        self._unlike: dict[tuple[int, ...], tuple[Shape, float]] = {}
        self._tight: tuple[Shape, bool] | None = None
        self.favourite: Shape | None = None
        self.shapes = sorted(self._bounded(shapes, deadline.share(BOUNDING)), key=bounds.order)

    def _bounded(self, shapes: Sequence[Shape], deadline: Deadline) -> list[Shape]:
        """Bound shapes as long as there is time, at least one."""
        found: dict[int, Shape] = {}
        first, *rest = sorted(range(len(shapes)), key=lambda i: i * GOLDEN % 1)
        found[first] = self.bound(
            shapes[first]
        )  # what all bounds need is worked out here, once: no measure of the next
        for number in rest:
            if deadline.allows(("bounding", 1.0)):
                with deadline.phase("bounding"):
                    found[number] = self.bound(shapes[number])
            else:
                found[number] = self.compositions.unbounded(shapes[number])
        return [found[number] for number in range(len(shapes))]

    def bound(self, shape: Shape) -> Shape:
        """Return a shape with its first bound; of unlike machines, with one for all ways to put them together."""
        found = self.compositions.bounded(replace(shape, bounded=True))
        if not found.composed and not self.compositions.covers(found):
            self._remember(found)
        return found

    def refined(self, shape: Shape) -> Shape:
        """Return a shape for any kind of machines with its second bound: what there is of each kind."""
        found = self.compositions.refined(shape)
        if _counts(found) in self._unlike:
            self._remember(found)
        return found

    def _remember(self, shape: Shape) -> None:
        self._unlike[_counts(shape)] = shape, self.bounds.rate(shape)

    def opened(self, shape: Shape) -> list[Shape]:
        """Return ways to put the machines of an open shape together; those that are not made are bounded once more."""
        if _counts(shape) in self._unlike:
            self._remember(self.compositions.served(shape))
        return self.compositions.of(shape)

    @property
    def unlike(self) -> list[tuple[Shape, float]]:
        """Shapes of unlike machines, each with what no way to put its machines together exceeds."""
        return [(shape, min(rate, self.bounds.rate(self.raised(shape)))) for shape, rate in self._unlike.values()]

    def raised(self, shape: Shape) -> Shape:
        """Return a shape with its bound raised to what was proven for groups like those that it has, or must have."""
        return self.bounds.raised(shape) if shape.composed else self.compositions.raised(shape)

    def __bool__(self) -> bool:
        return bool(self.shapes)

    @property
    def head(self) -> Shape:
        """The shape that promises most."""
        return self.shapes[0]

    @property
    def next(self) -> Shape:
        """The shape to look at: of those with as many machines as a favourite, or of all, the one that promises most."""
        counts = _counts(self.favourite) if self.favourite else None
        return next((shape for shape in self.shapes if _counts(shape) == counts), self.head)

    def remove(self, shape: Shape) -> None:
        """Take a shape out."""
        self.shapes.remove(shape)

    def add(self, shapes: Sequence[Shape]) -> None:
        """Let shapes wait."""
        for shape in shapes:
            insort(self.shapes, shape, key=self.bounds.order)

    def rates(self, most: int | None = None) -> list[tuple[Shape, float]]:
        """Return shapes with the samples per second that they cannot exceed, the first so many or all."""
        return [(shape, self.bounds.rate(self.raised(shape))) for shape in self.shapes[:most]]

    def sizes(self) -> Iterator[Shape]:
        """Yield the best bounded shape of each group size and number of ranks, best first."""
        best = {shape.form: shape for shape in reversed(self.shapes) if shape.bounded}
        yield from sorted(best.values(), key=self.bounds.order)

    def lacks_room(self, shape: Shape, *, tables: bool) -> None:
        """Remember a shape that has no plan: tables found no room on its servers, or operators none in its groups."""
        self._tight = shape, tables

    def roomier(self) -> Shape | None:
        """Return the best bounded shape with about twice the room of the last one that lacked it; None if there is none."""
        bounded = [shape for shape in self.shapes if shape.bounded]
        if self._tight is None:
            return bounded[0] if bounded else None
        tight, tables = self._tight
        servers, size = len(tight.servers), tight.group_size
        if tables:
            servers = min(2 * servers, max((len(shape.servers) for shape in bounded), default=0))
            return next((s for s in bounded if len(s.servers) >= max(servers, len(tight.servers) + 1)), None)
        size = min(2 * size, max((s.group_size for s in bounded if len(s.servers) >= servers), default=0))
        size = max(size, tight.group_size + 1)
        return next((s for s in bounded if len(s.servers) >= servers and s.group_size >= size), None)


def _counts(shape: Shape) -> tuple[int, ...]:
    """Numbers of machines of a shape."""
    return shape.group_size, shape.ranks, len(shape.groups), len(shape.servers), len(shape.sync_servers)
