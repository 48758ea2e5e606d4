"""What no way to put unlike machines together exceeds: machines counted by kind, each in one role only.

The search's first bound gives every machine the best of the cluster in each resource. Here a machine that serves does not
train, and cores, memory bandwidth and NIC come with the same machines. Sets and data: kinds k with n_k machines; servers
y_k, sync servers s_k, g_t groups of type t, which have a_tk machines of kind k. For each choice of y:

(U1) sum of g_t <= G: no more groups than the shape has;
(U2) sum of a_tk g_t + s_k <= n_k - y_k, and likewise for those that may train: a machine has one role;
(U3) sum of s_k = number of sync servers;
(U4) samples per second <= sum of R B g_t / (a bound of the step of a group of type t);
(U5) samples per second <= B / (a bound of the servers' seconds for a batch);
(U6) all groups have one set of tags, so the same shares of a step's work at the same places (``together``).

(U1) to (U4) are a linear program; the best choice of y bounds the shape. Knows nothing of tags, and proves nothing about a
group of one type by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from math import comb

from cost_models.costs import CostTable
from placement.search.bounds import Bounds
from placement.search.shapes import Shape
from placement.tagging.linear_program import LinearProgram
from problem.cluster import Node

#: Choices of servers, and types of groups, that are looked at: of shapes that have more the first bound stays.
MOST_CHOICES, MOST_TYPES = 100, 100
#: Seconds for a linear program, which takes milliseconds.
PROGRAM = 1.0

#: Machines by kind.
Kinds = dict[Hashable, list[Node]]


class Mixing:
    """Bounds of shapes over all choices of machines by kind.

    Parameters
    ----------
    bounds : Bounds
        Bounds of shapes whose machines are known.
    trainers, hosts : sequence of Node
        Machines that may train, and that may serve.
    kind : callable
        What of a machine matters.
    """

    def __init__(
        self, bounds: Bounds, trainers: Sequence[Node], hosts: Sequence[Node], kind: Callable[[Node], Hashable]
    ) -> None:
        self.bounds, self.costs = bounds, bounds.costs
        self.trainers, self.hosts = _by_kind(trainers, kind), _by_kind(hosts, kind)
        self.all = _by_kind(list({node.name: node for node in (*trainers, *hosts)}.values()), kind)

    def rate(self, shape: Shape) -> float:
        """Return the samples per second that no way to put the machines of a shape together exceeds; perhaps infinite.

        Parameters
        ----------
        shape : Shape
            Gives the numbers of machines; none of them trains and serves.
        """
        servers, size = len(shape.servers), shape.group_size
        choices = comb(servers + len(self.hosts) - 1, servers) if self.hosts else 0
        if choices > MOST_CHOICES or comb(size + len(self.trainers) - 1, size) > MOST_TYPES:
            return float("inf")
        best = 0.0
        for serving in self._servings(servers, len(shape.sync_servers)):
            chosen = replace(shape, servers=tuple(self._taken(serving)))
            served = self.bounds.server_seconds(replace(chosen, groups=((),), ranks=1))
            limit = self.bounds.batch / served if served else float("inf")
            if limit > best:
                best = max(best, min(limit, self._trained(chosen, serving)))
        return best

    def _servings(self, count: int, syncs: int) -> Iterator[Counter[Hashable]]:
        """Numbers of servers by kind that leave enough sync servers."""
        room = sum(map(len, self.hosts.values())) - syncs
        for kinds in combinations_with_replacement(self.hosts, count):
            serving = Counter(kinds)
            if count <= room and all(serving[kind] <= len(self.hosts[kind]) for kind in serving):
                yield serving

    def _taken(self, serving: Counter[Hashable]) -> Iterator[Node]:
        for kind, count in serving.items():
            yield from self.hosts[kind][:count]

    def _trained(self, shape: Shape, serving: Counter[Hashable]) -> float:
        """Samples per second that groups of what servers leave cannot exceed: (U1) to (U4), and (U6)."""
        free = {k: min(len(nodes), len(self.all[k]) - serving[k]) for k, nodes in self.trainers.items()}
        nodes = [node for kind, count in free.items() for node in self.trainers[kind][:count]]
        return min(self._by_types(shape, serving, free), self._alike(shape, nodes))

    def _by_types(self, shape: Shape, serving: Counter[Hashable], free: dict[Hashable, int]) -> float:
        """(U1) to (U4)."""
        program, samples = LinearProgram(), shape.ranks * self.bounds.batch
        syncs = {kind: program.variable(len(nodes) - serving[kind]) for kind, nodes in self.hosts.items()}
        types = list(combinations_with_replacement(self.trainers, shape.group_size))
        groups = list[int]()
        for one in types:
            seconds = self._type_seconds(shape, Counter(one))
            if seconds <= 0:
                return float("inf")
            groups.append(program.variable(len(shape.groups), -samples / seconds))
        program.at_most([(group, 1.0) for group in groups], len(shape.groups))
        program.equal([(sync, 1.0) for sync in syncs.values()], len(shape.sync_servers))
        for kind, count in free.items():
            held = [(group, float(one.count(kind))) for group, one in zip(groups, types, strict=True)]
            program.at_most(held, count)
            if kind in syncs:
                program.at_most([*held, (syncs[kind], 1.0)], len(self.all[kind]) - serving[kind])
        return -program.bound(PROGRAM)

    def _type_seconds(self, shape: Shape, members: Counter[Hashable]) -> float:
        """Least step of a group of so many machines of each kind, its ranks being the best ones in each resource."""
        group = [self.trainers[kind][0] for kind, count in members.items() for _ in range(count)]
        return self.bounds.group_seconds(replace(shape, groups=(ideal(group, self.costs),), mixed=False))

    # ---- one set of tags

    def shared(self, shape: Shape) -> float:
        """Return the samples per second that the groups of a shape cannot exceed with one set of tags: (U6)."""
        steps = [
            together([[rate(node) for node in group] for group in shape.groups]) / need
            for rate, need in self._resources(shape)
            if need
        ]
        return shape.ranks * self.bounds.batch * min(steps, default=float("inf"))

    def _alike(self, shape: Shape, nodes: Sequence[Node]) -> float:
        """The same for any groups of some machines."""
        steps = [
            best_together([rate(node) for node in nodes], shape.group_size, len(shape.groups)) / need
            for rate, need in self._resources(shape)
            if need
        ]
        return shape.ranks * self.bounds.batch * min(steps, default=float("inf"))

    def _resources(self, shape: Shape) -> list[tuple[Callable[[Node], float], float]]:
        """Rate of a machine, and what a step of a group asks for: of cores, and of memory bandwidth."""
        (own, _), total = self.bounds.pulls(replace(shape, groups=((),)), 0), self.bounds.work[0]
        ranks = shape.ranks
        core_seconds = ranks * (own + total.core_seconds) + (ranks - 1) * self.bounds.exchange.core_seconds
        return [
            (lambda node: node.cores / self.costs.slowdown(node), core_seconds),
            (lambda node: node.memory_bandwidth_bytes_per_second, ranks * total.traffic_bytes),
        ]


def _by_kind(nodes: Sequence[Node], kind: Callable[[Node], Hashable]) -> Kinds:
    found: Kinds = {}
    for node in nodes:
        found.setdefault(kind(node), []).append(node)
    return found


def together(groups: Sequence[Sequence[float]]) -> float:
    """Return the most work per second that groups do whose places have the same shares of a step.

    Let machines be strong, of at most a, or weak, of at most b < a. With shares p_1 >= p_2 >= ... of the work of a step a
    group whose strong machines are the first j makes at most min(a / p_1, b / p_(j+1)) steps a second. The sum over groups
    is convex in each share, or set of equal ones, between its neighbours, b / a p_1 and p_1, so it is largest where the
    first i places have the same share and the others b / a of that: groups with i strong machines or more then do
    i a + (K - i) b, and the others b / a of it. That holds wherever the line between strong and weak is drawn.

    Parameters
    ----------
    groups : sequence of sequences of float
        What each machine of each group does per second, K of each.
    """
    size = len(groups[0])

    def having(count: int, least: float) -> int:
        return sum(sum(rate > least for rate in group) >= count for group in groups)

    return _least([rate for group in groups for rate in group], size, len(groups), having)


def best_together(rates: Sequence[float], size: int, count: int) -> float:
    """Return the most work per second that any groups of some machines do, in the sense of :func:`together`.

    Parameters
    ----------
    rates : sequence of float
        What each machine does per second.
    size, count : int
        Machines per group, and groups.
    """

    def having(strong: int, least: float) -> int:
        return min(count, sum(rate > least for rate in rates) // strong)

    return _least(rates, size, count, having)


def _least(rates: Sequence[float], size: int, count: int, having: Callable[[int, float], int]) -> float:
    """Least bound over all lines between strong and weak; ``having`` says how many groups have so many strong machines."""
    ranked = sorted(rates, reverse=True)
    best, top = sum(ranked[: size * count]), ranked[0] if ranked else 0.0
    for weak in sorted({rate for rate in ranked if rate < top}):
        values = [size * weak * count]
        for strong in range(1, size + 1):
            enough = having(strong, weak)
            values.append((strong * top + (size - strong) * weak) * (enough + (count - enough) * weak / top))
        best = min(best, max(values))
    return best


def ideal(nodes: Sequence[Node], costs: CostTable) -> tuple[Node, ...]:
    """Return machines of which the first n have, in each resource, no less in sum or singly than any n of the given.

    The i-th has the i-th best of each resource; it may not exist.

    Parameters
    ----------
    nodes : sequence of Node
        Machines.
    costs : CostTable
        Says how fast a core of each is.
    """
    by_speed = sorted(nodes, key=lambda node: -node.cores / costs.slowdown(node))
    best = [
        sorted((getattr(node, what) for node in nodes), reverse=True)
        for what in ("memory_bandwidth_bytes_per_second", "memory_bytes", "nic_bytes_per_second")
    ]
    return tuple(
        replace(
            node,
            name=f"ideal {i} {node.name}",
            host=f"ideal {i} {node.name}",
            memory_bandwidth_bytes_per_second=best[0][i],
            memory_bytes=best[1][i],
            nic_bytes_per_second=best[2][i],
        )
        for i, node in enumerate(by_speed)
    )
