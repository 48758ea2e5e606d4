"""Stretches: runs of neighbouring items in one place, which local search moves as one.

A chain is a path of items each of which feeds the next one only. A stretch of a chain that is in one place has messages
at its two ends only, so what a move changes is known without a look at what lies between. Knows chains and the nets at
items as arrays; knows no loads of messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from placement.tagging.net_loads import EVERYWHERE, Array, Places
from placement.tagging.nets import RANK, Contracted

Flags = npt.NDArray[np.bool_]
#: Nets at an item, on either side, above which it stays where it is.
MOST_NETS = 4
#: Share of stretches of one item; shares that reach as far as they can to the left, and to the right.
SHORT, LEFT, RIGHT = 0.35, 0.45, 0.45
#: Share of targets that are where a neighbour is; others are drawn from all places.
NEAR = 0.6


@dataclass(frozen=True)
class Stretches:
    """Some moves: positions from ``first`` to ``last`` leave ``home`` for ``to`` (nodes, or their number for data-parallel).

    ``nets`` are the nets at both ends, shape (moves, 2 MOST_NETS), -1 where there are no more: those that the first item
    consumes in so many operators (``counts``), then those that the last one produces.
    """

    first: Places
    last: Places
    home: Places
    to: Places
    nets: Places
    counts: Array


class Chains:
    """Open items in chains, one after another; a position is an item's number in that order.

    Parameters
    ----------
    contracted : Contracted
        The group problem.
    """

    def __init__(self, contracted: Contracted) -> None:
        self.data, self.size = contracted, contracted.problem.size
        self._consumed, self._produced = _sides(contracted)
        chains = list(self._all())
        self.items = np.array([item for chain in chains for item in chain], np.int64)
        ends = np.cumsum([len(chain) for chain in chains]).astype(np.int64)
        self.begin = np.repeat(ends - [len(chain) for chain in chains], [len(chain) for chain in chains])
        self.end = np.repeat(ends, [len(chain) for chain in chains])
        width = (len(self.items), MOST_NETS)
        self.consumed, self.counts, self.produced = np.full(width, -1), np.zeros(width), np.full(width, -1)
        for position, item in enumerate(self.items.tolist()):
            for slot, (net, count) in enumerate(self._consumed.get(item, [])):
                self.consumed[position, slot], self.counts[position, slot] = net, count
            self.produced[position, : len(self._produced.get(item, []))] = self._produced.get(item, [])
        self.allowed = np.zeros((len(self.items), self.size + 1), bool)
        for position, item in enumerate(self.items.tolist()):
            self.allowed[position, [self._column(tag) for tag in contracted.allowed[item]]] = True

    def _column(self, tag: int | str) -> int:
        return tag if isinstance(tag, int) else self.size

    def _all(self) -> Iterator[list[int]]:
        """Chains of items that may move, in the order of their first items."""
        after = {item: self._next(item) for item in self.data.free if self._moves(item)}
        inner = {item for item in after.values() if item is not None}
        for item, follower in after.items():
            if item not in inner:
                chain, here = [item], follower
                while here is not None:
                    chain.append(here)
                    here = after[here]
                if self._consumed.get(chain[0]) or self._produced.get(chain[-1]):
                    yield chain

    def _moves(self, item: int) -> bool:
        """Whether an item has few nets."""
        return max(len(self._consumed.get(item, [])), len(self._produced.get(item, []))) <= MOST_NETS

    def _next(self, item: int) -> int | None:
        """Return who alone consumes what an item produces, if it consumes nothing else and may be in the same places."""
        nets = [self.data.nets[net] for net in self._produced.get(item, [])]
        if len(nets) != 1 or nets[0].own or len(nets[0].consumers) != 1:
            return None
        other, count = nets[0].consumers[0]
        if other == RANK or count > 1 or len(self._consumed[other]) > 1 or not self._moves(other):
            return None
        return other if self.data.allowed.get(other) == self.data.allowed[item] else None

    def draw(self, random: np.random.Generator, count: int, places: Places, runs: tuple[Places, Places]) -> Stretches:
        """Draw moves; those to where the stretch is already, or may not be, are left out.

        Parameters
        ----------
        random : numpy.random.Generator
            The dice.
        count : int
            How many to draw.
        places : numpy.ndarray
            Where every item is, and at last where rank-bound operators are.
        runs : (numpy.ndarray, numpy.ndarray)
            First and last position of the longest stretch in one place around each position.
        """
        middle, shape = random.integers(len(self.items), size=count), random.random(count)
        first = np.where((shape >= SHORT) & (shape < SHORT + LEFT), runs[0][middle], middle)
        last = np.where(shape >= 1 - RIGHT, runs[1][middle], middle)
        nets = np.concatenate([self.consumed[first], self.produced[last]], axis=1)
        home, to = places[self.items[middle]], random.integers(self.size + 1, size=count)
        near = np.flatnonzero(random.random(count) < NEAR)
        to[near] = self._beside(random, nets[near], places)
        good = np.flatnonzero((to != home) & self.allowed[middle, to])
        moves = (first[good], last[good], home[good], to[good], nets[good])
        return Stretches(*moves, np.concatenate([self.counts[first[good]], np.zeros((len(good), MOST_NETS))], axis=1))

    def _beside(self, random: np.random.Generator, nets: Places, places: Places) -> Places:
        """Places of ends of nets, one drawn for each row of nets."""
        rows = np.arange(len(nets))
        drawn = nets[rows, (random.random(nets.shape) * (nets >= 0)).argmax(axis=1)]
        begin, length = self._ends[0][drawn], self._ends[1][drawn]
        found: Places = places[self._ends[2][begin + (random.random(len(nets)) * length).astype(np.int64)]]
        return found

    @cached_property
    def _ends(self) -> tuple[Places, Places, Places]:
        """Where the ends of each net begin in a list of all, how many there are, and the list of items (``RANK`` is -1)."""
        ends = [[net.producer, *(item for item, _ in net.consumers)] for net in self.data.nets]
        length = np.array([len(one) for one in ends], np.int64)
        return np.cumsum(length) - length, length, np.array([i for one in ends for i in one], np.int64)


def runs_of(chains: Chains, places: Places) -> tuple[Places, Places]:
    """Return the first and last position of the longest stretch in one place around each position."""
    first, last = np.arange(len(chains.items)), np.arange(len(chains.items))
    for begin in np.unique(chains.begin).tolist():
        renew(chains, places, (first, last), begin)
    return first, last


def renew(chains: Chains, places: Places, runs: tuple[Places, Places], position: int) -> None:
    """Find the stretches of the chain around a position anew."""
    begin, end = int(chains.begin[position]), int(chains.end[position])
    where = places[chains.items[begin:end]]
    breaks = np.flatnonzero(where[1:] != where[:-1]) + begin + 1
    edges = np.concatenate([[begin], breaks, [end]])
    lengths = np.diff(edges)
    runs[0][begin:end], runs[1][begin:end] = np.repeat(edges[:-1], lengths), np.repeat(edges[1:] - 1, lengths)


def _sides(contracted: Contracted) -> tuple[dict[int, list[tuple[int, int]]], dict[int, list[int]]]:
    """Nets that each item consumes, with counts, and those that it produces."""
    consumed: dict[int, list[tuple[int, int]]] = {}
    produced: dict[int, list[int]] = {}
    for number, net in enumerate(contracted.nets):
        produced.setdefault(net.producer, []).append(number)
        for item, count in net.consumers:
            consumed.setdefault(item, []).append((number, count))
    return consumed, produced


def columns(at: list[int], size: int) -> Places:
    """Return places of items with data-parallel as the last column, and at the end that of what is bound to the ranks."""
    return np.array([size if place == EVERYWHERE else place for place in [*at, EVERYWHERE]], np.int64)
