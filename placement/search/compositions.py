"""How unlike machines may be put together: which serve, which train, and which of those form a group.

A shape of the search counts machines; on a cluster of unlike machines the same counts can be had in many ways. A few are
made: servers and trainers taken by speed, NIC or memory, or kinds in turn; groups of like with like, or each the same mix;
the kinds that are worst left out; and, with fewer ranks than nodes, weak nodes as ranks or as hosts of MP operators. Where
demands tell places or kinds apart, kinds are left out and places changed (``arrangements``). All the
ways that are not made are bounded together, by machines that are the best of the cluster in each resource at once, then by
machines of each kind in one role only (``mixing``). Knows nothing of tags.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, chain, combinations_with_replacement, islice, product, zip_longest
from math import comb

from cost_models.costs import PhaseCost
from placement.evaluation.group import GroupProblem
from placement.search.arrangements import arranged, heaviest, least_alone, pools, tells_apart
from placement.search.bounds import Bounds, shares_machine
from placement.search.mixing import MOST_CHOICES, Mixing, ideal
from placement.search.shapes import Shape
from placement.tagging.candidates import Forbid
from placement.tagging.nets import Contracted
from problem.cluster import Node

#: Ways to put the machines of a shape together that are looked at, those with the best bounds; and that are bounded.
MOST, MOST_BOUNDED = 16, 500
#: Choices of kinds of servers of which all are made, where nothing else is open: of more, few would be solved in time.
MOST_SPLITS = 4

Groups = tuple[tuple[Node, ...], ...]
Order = Callable[[Node], float]


class Compositions:
    """The ways to put the machines of shapes together.

    Parameters
    ----------
    bounds : Bounds
        Bounds of shapes whose machines are known.
    trainers, hosts : sequence of Node
        Machines that may train, and that may serve, in the order in which they would be taken.
    """

    def __init__(self, bounds: Bounds, trainers: Sequence[Node], hosts: Sequence[Node]) -> None:
        self.bounds, self.costs = bounds, bounds.costs
        self.trainers, self.hosts = list(trainers), list(hosts)
        nodes = list({node.name: node for node in (*trainers, *hosts)}.values())
        self.unlike = len({_kind(n) for n in trainers}) > 1 or len({(n.role, _kind(n)) for n in hosts}) > 1
        self.near = len({node.host for node in nodes}) < len(nodes)
        self._ideal = {"trainers": ideal(trainers, self.costs), "hosts": ideal(hosts, self.costs)}
        self._server_seconds: dict[int, float] = {}
        self._told_apart = tells_apart(bounds.pins, bounds.forbids)
        self.mixing = Mixing(bounds, self.trainers, self.hosts, _kind)

    # ---- all at once

    def bounded(self, shape: Shape) -> Shape:
        """Return the shape with a bound for every way to put its machines together; it is open if there may be several."""
        if not self.unlike or not shape.groups:
            return self.bounds.quick(shape)
        rate = self._rate(shape)
        return replace(shape, bound_seconds=self.bounds.seconds_at(shape, rate), composed=False)

    def refined(self, shape: Shape) -> Shape:
        """Return an open shape with its bound lowered by what machines of each kind there are (``mixing``)."""
        refined = replace(shape, refined=True)
        if self.near or self.bounds.rules or shares_machine(shape):
            return refined
        seconds = self.bounds.seconds_at(shape, self.mixing.rate(shape))
        return replace(refined, bound_seconds=max(shape.bound_seconds, seconds))

    def raised(self, shape: Shape) -> Shape:
        """Return an open shape with its bound raised to what was proven for its groups, if trainers are all alike.

        Who serves is open, so it counts only if it holds for the fewest shards that any servers need.
        """
        seconds = [self.bounds.raised(one).bound_seconds for one in self.relaxed(shape)]
        return replace(shape, bound_seconds=max([shape.bound_seconds, *seconds]))

    def relaxed(self, shape: Shape) -> tuple[Shape, ...]:
        """Return shapes that are no harder than an open one, if trainers are all alike: one server, and all, of the best."""
        if not self._one_kind_trains or not shape.groups or shares_machine(shape):
            return ()
        every = replace(self._ideally(shape), groups=shape.groups, composed=True, bound_seconds=0.0)
        return replace(every, servers=every.servers[:1]), every

    def unproven(self, shape: Shape) -> Shape | None:
        """Return the first of :meth:`relaxed` about which nothing was proven."""
        return next((one for one in self.relaxed(shape) if self.bounds.raised(one) is one), None)

    def served(self, shape: Shape) -> Shape:
        """Return an open shape with its bound raised to that of the best choice of servers, if trainers are all alike.

        Each leaves trainers for so many groups, and has its own load of tables.
        """
        choices = list(islice(self._splits(shape), MOST_CHOICES + 1)) if self._one_kind_trains else []
        if not 0 < len(choices) <= MOST_CHOICES or shares_machine(shape):
            return shape
        rate = max(self._served_rate(shape, *chosen) for chosen in choices)
        return replace(shape, bound_seconds=max(shape.bound_seconds, self.bounds.seconds_at(shape, rate)))

    def _served_rate(self, shape: Shape, servers: tuple[Node, ...], sync: tuple[Node, ...]) -> float:
        """Samples per second that groups of the trainers that some servers leave cannot exceed."""
        free = len(self.trainers) - sum(node.may_train for node in (*servers, *sync))
        way = self._shape(shape, shape.groups[: free // shape.group_size], servers, sync)
        return self.bounds.rate(self.bounds.raised(self.bounds.refine(self.bounds.quick(way))))

    @cached_property
    def _is_plain(self) -> bool:
        """Whether like machines train, and machines that cannot train, all alike and in nothing worse, are there to serve.

        Then these serve before any trainer does: of another way, a trainer that serves may be exchanged for one of them
        that is idle.
        """
        alike = self._one_kind_trains and len({_kind(node) for node in self._meant}) == 1
        return alike and self._is_no_worse(self._meant[0], self.trainers[0])

    @cached_property
    def _meant(self) -> list[Node]:
        """Machines that only serve."""
        return [node for node in self.hosts if not node.may_train]

    def covers(self, shape: Shape) -> bool:
        """Whether the ways that are made of a shape are all that need be: no other does more."""
        if not self._one_kind_trains or shares_machine(shape):
            return False
        most, kinds = (MOST, 1) if self._is_plain else (MOST_SPLITS, len(self._kinds_serving))
        count = len(shape.servers)
        choices = comb(count + kinds - 1, count) * kinds ** len(shape.sync_servers)
        return choices <= 4 * MOST and sum(1 for _ in self._splits(shape)) <= most

    @cached_property
    def _one_kind_trains(self) -> bool:
        """Whether trainers are alike, so that nothing is open but who serves, and no rules of tables name servers."""
        return len({_kind(node) for node in self.trainers}) == 1 and not self.near and not self.bounds.rules

    def _splits(self, shape: Shape) -> Iterator[tuple[tuple[Node, ...], tuple[Node, ...]]]:
        """Embedding and sync servers of like trainers: every choice of kinds, sync servers in every order that differs."""
        count, syncs = len(shape.servers), len(shape.sync_servers)
        if self._is_plain:
            yield from self._plain_splits(count, syncs)
            return
        kinds, free, size = self._kinds_serving, len(self.trainers), shape.group_size * (2 if syncs else 1)
        for serving in combinations_with_replacement(kinds, count):
            for synchronising in product(kinds, repeat=syncs):
                taken = Counter(serving) + Counter(synchronising)
                if all(taken[kind] <= len(kinds[kind]) for kind in taken):
                    left = {kind: iter(machines) for kind, machines in kinds.items()}
                    chosen = [next(left[kind]) for kind in (*serving, *synchronising)]
                    if free - sum(node.may_train for node in chosen) >= size:
                        yield tuple(chosen[:count]), tuple(chosen[count:])

    @cached_property
    def _kinds_serving(self) -> dict[object, list[Node]]:
        """Machines that may serve by kind, those that cannot train first."""
        kinds: dict[object, list[Node]] = {}
        for node in sorted(self.hosts, key=lambda node: node.may_train):
            kinds.setdefault(_kind(node), []).append(node)
        return kinds

    def _plain_splits(self, count: int, syncs: int) -> Iterator[tuple[tuple[Node, ...], tuple[Node, ...]]]:
        """Those where machines that only serve are taken first: how many of them are of which."""
        meant = self._meant[: count + syncs]
        others = [node for node in self.hosts if node.may_train][: count + syncs - len(meant)]
        for first in range(min(count, len(meant)), max(0, len(meant) - syncs) - 1, -1):
            yield (*meant[:first], *others[: count - first]), (*meant[first:], *others[count - first :])

    def _is_no_worse(self, node: Node, other: Node) -> bool:
        """Whether a machine is at least as good as another in every resource."""
        return (
            node.cores >= other.cores
            and self.costs.slowdown(node) <= self.costs.slowdown(other)
            and node.memory_bandwidth_bytes_per_second >= other.memory_bandwidth_bytes_per_second
            and node.memory_bytes >= other.memory_bytes
            and node.nic_bytes_per_second >= other.nic_bytes_per_second
            and node.latency_seconds <= other.latency_seconds
        )

    def unbounded(self, shape: Shape) -> Shape:
        """Return the shape as if the cores of the best trainers had nothing to do but all operators."""
        cores = self._capacity[len(shape.groups) * shape.group_size]
        work = self.bounds.work[0].core_seconds * len(shape.groups) * shape.ranks
        return replace(shape, bound_seconds=work / cores if cores else 0.0, bounded=False)

    @cached_property
    def _capacity(self) -> list[float]:
        """Cores, at the speed of the cost table, of the first of the best trainers."""
        speed = (node.cores / self.costs.slowdown(node) for node in self._ideal["trainers"])
        return list(accumulate(speed, initial=0.0))

    def _rate(self, shape: Shape) -> float:
        """Samples per second that no composition exceeds.

        A group makes at most (capacity of its nodes) / (work of a step) steps a second, so the sum over groups is at most
        that of the best machines together; likewise for what every rank must do by itself.
        """
        batch, count, ranks = self.bounds.batch, len(shape.groups), len(shape.groups) * shape.ranks
        total, stay, path, session = self.bounds.work
        nodes = self._ideal["trainers"][: count * shape.group_size]
        own, moved = (0.0, 0.0) if self.near or shares_machine(shape) else self.bounds.pulls(self._ideally(shape), 0)
        speed = [node.cores / self.costs.slowdown(node) for node in nodes]
        slow = min(self.costs.slowdown(node) for node in nodes)
        limits = (
            (sum(speed), own + total.core_seconds),
            (sum(node.memory_bandwidth_bytes_per_second for node in nodes), total.traffic_bytes),
            (sum(speed[:ranks]), own + stay.core_seconds),
            (sum(node.nic_bytes_per_second for node in nodes[:ranks]), moved),
            (ranks * self.bounds.hogwild, path * slow),
            (ranks * self.bounds.hogwild * shape.group_size, session * slow),
            (1.0, self._served(shape)),
        )
        return batch * min((capacity / need for capacity, need in limits if need), default=float("inf"))

    def _served(self, shape: Shape) -> float:
        """Seconds of the busiest embedding server for one batch, whichever machines serve."""
        if shares_machine(shape):
            return 0.0
        count = len(shape.servers)
        if count not in self._server_seconds:
            free = replace(self._ideally(shape), groups=((),), ranks=1)
            self._server_seconds[count] = self.bounds.server_seconds(free, self.bounds.rules.anywhere)
        return self._server_seconds[count]

    def _ideally(self, shape: Shape) -> Shape:
        """The shape on machines that may not exist; rules of tables name servers, so each of them is the best one then."""
        nodes, servers = self._ideal["trainers"][: shape.group_size], self._ideal["hosts"][: len(shape.servers)]
        if self.bounds.rules:
            servers = tuple(servers[0].renamed(node.name) for node in servers)
        return replace(shape, groups=(nodes,) * len(shape.groups), servers=servers)

    # ---- one at a time

    def floor_seconds(self, shape: Shape, group: tuple[Node, ...]) -> float:
        """Return a lower bound of the step of one of the groups of a shape; of unlike groups, without servers.

        Parameters
        ----------
        shape : Shape
            The shape, with its bound.
        group : tuple of Node
            Machines of the group.
        """
        if not shape.mixed:
            return shape.bound_seconds
        return self.bounds.group_seconds(replace(shape, groups=(group,), mixed=False))

    def of(self, shape: Shape) -> list[Shape]:
        """Return ways to put the machines of a shape together, most promising first; the given way is among them.

        Parameters
        ----------
        shape : Shape
            Gives the numbers of machines, and one way.
        """
        first = self._shape(shape, shape.groups, shape.servers, shape.sync_servers)
        found: dict[object, Shape] = {}
        for made in (first, *islice(self._made(shape), MOST_BOUNDED)):
            found.setdefault(_signature(made), made)
        bounded = [self._bounded_together(self._bounded_alone(self.bounds.quick(made))) for made in found.values()]
        return sorted(bounded, key=self.bounds.order)[:MOST]

    def _made(self, shape: Shape) -> Iterator[Shape]:
        """Ways to choose servers, and to form groups of the rest."""
        for servers, sync in [] if shares_machine(shape) else self._picks(shape):
            taken = {node.name for node in (*servers, *sync)}
            free = [node for node in self.trainers if node.name not in taken]
            for groups in chain.from_iterable(self._groups(shape, pool) for pool in pools(free, self.bounds.forbids)):
                for ordered in arranged(groups, _kind) if self._told_apart else (groups,):
                    yield self._shape(shape, ordered, servers, sync)

    def _bounded_together(self, shape: Shape) -> Shape:
        """The shape with the bound that one set of tags for unlike groups is."""
        rate = float("inf") if not shape.mixed or self.near or shares_machine(shape) else self.mixing.shared(shape)
        return replace(shape, bound_seconds=max(shape.bound_seconds, self.bounds.seconds_at(shape, rate)))

    def _bounded_alone(self, shape: Shape) -> Shape:
        """The shape with the bound of what is forbidden: an operator takes its time wherever it may be."""
        if not self.bounds.forbids:
            return shape
        work, forbids = self._heaviest
        return replace(shape, bound_seconds=max(shape.bound_seconds, least_alone(shape, work, forbids, self.costs)))

    @cached_property
    def _heaviest(self) -> tuple[Mapping[str, PhaseCost], list[Forbid]]:
        """One batch's work of the item of each operator; what is forbidden, of operators alike in it for the heaviest."""
        data = Contracted(GroupProblem(self.bounds.model, self.costs, (), self.bounds.batch, pins=self.bounds.pins))
        work = {op: one.work for item, one in zip(data.items, data.work, strict=True) for op in item.ops}
        return work, heaviest(self.bounds.forbids, work)

    def given(self, shape: Shape) -> Shape:
        """Return the shape with its machines as they are, bounded."""
        return self.bounds.quick(self._shape(shape, shape.groups, shape.servers, shape.sync_servers))

    def _shape(self, shape: Shape, groups: Groups, servers: tuple[Node, ...], sync: tuple[Node, ...]) -> Shape:
        mixed = len({tuple(map(_kind, group)) for group in groups}) > 1
        return replace(
            shape,
            groups=groups,
            servers=servers,
            sync_servers=sync,
            composed=True,
            refined=False,
            mixed=mixed,
            bound_seconds=0.0,
        )

    def _orders(self) -> tuple[Order, ...]:
        return (
            lambda n: -n.cores / self.costs.slowdown(n),
            lambda n: -n.nic_bytes_per_second,
            lambda n: -n.memory_bytes,
        )

    def _picks(self, shape: Shape) -> list[tuple[tuple[Node, ...], tuple[Node, ...]]]:
        """Embedding and sync servers: as given, or with most or least cores, NIC or memory; those meant to serve first."""
        if self.covers(shape):
            return list(self._splits(shape))
        found = {_kinds(shape.servers, shape.sync_servers): (shape.servers, shape.sync_servers)}
        for serve in self._servers(self.hosts, len(shape.servers)):
            taken = {node.name for node in serve}
            left = [node for node in self.hosts if node.name not in taken]
            for sync in self._servers(left, len(shape.sync_servers)):
                found.setdefault(_kinds(serve, sync), (serve, sync))
        return list(found.values())

    def _servers(self, hosts: Sequence[Node], count: int) -> list[tuple[Node, ...]]:
        found: dict[object, tuple[Node, ...]] = {}
        for order, sign in product(self._orders(), (1, -1)):
            ranked = sorted(hosts, key=lambda n: (n.role != "server", sign * order(n)))
            found.setdefault(_kinds(ranked[:count]), tuple(ranked[:count]))
        return list(found.values())

    def _groups(self, shape: Shape, free: Sequence[Node]) -> Iterator[Groups]:
        """Groups of a size: by each order, of all machines or without the kinds that come last in it; kinds in turn."""
        size, most = shape.group_size, len(shape.groups)
        fewest = 2 if shape.sync_servers else 1
        for order in self._orders():
            ranked = sorted(free, key=order)
            kinds: dict[object, int] = {}
            for node in ranked:
                kinds[_kind(node)] = kinds.get(_kind(node), 0) + 1
            for count in sorted({min(most, upto // size) for upto in accumulate(kinds.values())}, reverse=True):
                if count >= fewest:
                    yield from self._forms(ranked[: count * size], size, count, shape.ranks)
        if most >= fewest and most * size <= len(free):
            yield from self._forms(self._in_turn(free)[: most * size], size, most, shape.ranks)

    def _forms(self, nodes: Sequence[Node], size: int, count: int, ranks: int) -> Iterator[Groups]:
        """Like with like, and all groups the same mixture; strong nodes as ranks, or weak ones."""
        like = tuple(self._strongest_first(nodes[g * size : (g + 1) * size]) for g in range(count))
        mixture = tuple(self._strongest_first(nodes[g::count]) for g in range(count))
        for groups in (like, mixture):
            yield groups
            if ranks < size:
                yield tuple(tuple(reversed(group)) for group in groups)

    def _in_turn(self, nodes: Sequence[Node]) -> list[Node]:
        """Machines of every kind in turn, strong kinds first: cores of one may make up for the memory of another."""
        kinds: dict[object, list[Node]] = {}
        for node in self._strongest_first(nodes):
            kinds.setdefault(_kind(node), []).append(node)
        return [node for row in zip_longest(*kinds.values()) for node in row if node is not None]

    def _strongest_first(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(sorted(nodes, key=self._orders()[0]))


def _kind(node: Node) -> tuple[object, ...]:
    """What of a machine matters; its role does not, once it is taken."""
    return (
        node.kind,
        node.cores,
        node.flops_per_core_second,
        node.memory_bandwidth_bytes_per_second,
        node.memory_bytes,
        node.nic_bytes_per_second,
        node.latency_seconds,
    )


def _kinds(*sets: Sequence[Node]) -> object:
    return tuple(tuple(map(_kind, nodes)) for nodes in sets)


def _signature(shape: Shape) -> object:
    """What two shapes of like machines in like places have in common."""
    groups = sorted(tuple(map(_kind, group)) for group in shape.groups)
    return tuple(groups), _kinds(shape.servers, shape.sync_servers)
