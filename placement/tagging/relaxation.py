"""A linear relaxation of (1) and (5)-(12) that sees what work in one place costs in messages.

Nodes that are alike are one *place*, in which fractions of items may be: z_ip of item i on the nodes of place p, d_i of it
data-parallel, with d_i + sum of z_ip = 1. Every placement whose step is at most ``limit_seconds`` obeys, for each net t with
producer u (``net_variables`` counts the messages),

    need_tp >= z_ip, and need_tp >= (sum over consumers i of the work of i, times z_ip) / (what a node can do)    (R1)
    far_tp  >= need_tp - z_up           nodes that take t from elsewhere, for all sessions of other ranks         (R2)
    own_tp  >= n_p (D_t - d_u) - z_up   where t has data-parallel consumers (D_t): each rank takes it once         (R3)
    own_tp  >= far_tp - n_p d_u                                                                                   (R4)
    sum of sent_tp = sum of (R - 1) far_tp + own_tp (R far_tp where p has no ranks)                               (R5)
    sent_tp <= R (K - 1) z_up + n_p (K - 1) d_u                                                                   (R6)

and the loads of a place, as those of all nodes together, are at most what their nodes can do in a step. The second part of
(R1), which needs ``limit_seconds``, says that a tensor that much work reads goes to many nodes. Alone all this is weak;
``branching`` says which items are data-parallel, or on a node of their own, and how many nodes take a tensor. Additions of
partial gradients count in sum only, as do exchanges with sync servers; critical paths do not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from placement.evaluation.loads import fixed_tally
from placement.plan import DP
from placement.tagging.linear_program import Array, LinearProgram, Term
from placement.tagging.net_loads import CORES, MEMORY, NetLoads
from placement.tagging.nets import RANK, Contracted, Net
from placement.tagging.quick_loads import ItemLoads, capacities, item_loads

#: Steps, over the limit, that the program looks at: beyond that nothing is wanted.
MOST_STEP = 1e3
#: Share of a node by which an item may seem too large for it.
SLACK = 1e-9
#: Cost of memory that is lacking, in steps for all memory there is: a program without a solution gives no bound.
LACKING = 10.0


@dataclass(frozen=True, slots=True)
class Place:
    """Nodes that are alike.

    Parameters
    ----------
    nodes : tuple of int
        Which they are, or might be.
    hosts : frozenset of int
        Items that are on its node: it has only one.
    takes, lacks : frozenset of int
        Nets that each of its nodes needs, and that none does.
    kind : int
        Number of the machines that are alike, before anything was decided.
    """

    nodes: tuple[int, ...]
    hosts: frozenset[int] = frozenset()
    takes: frozenset[int] = frozenset()
    lacks: frozenset[int] = frozenset()
    kind: int = 0

    def split(self, count: int) -> tuple[Place, Place]:
        """Return its first so many nodes, and the rest."""
        return replace(self, nodes=self.nodes[:count]), replace(self, nodes=self.nodes[count:])


@dataclass(frozen=True, slots=True)
class Case:
    """Places of a group, and items that are data-parallel."""

    places: tuple[Place, ...]
    everywhere: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Relaxation:
    """Bounds of the placements of a group whose step is no longer than a limit.

    Parameters
    ----------
    contracted : Contracted
        The group problem.
    limit_seconds : float
        Longer steps are not looked at.
    """

    contracted: Contracted
    limit_seconds: float

    @cached_property
    def root(self) -> Case:
        """All placements: nodes that are alike but for exchanges with sync servers are one place."""
        data, alike = self.contracted, dict[object, list[int]]()
        pinned: dict[int, set[int]] = {}
        for index, item in enumerate(data.items):
            if item.fixed not in (None, DP):
                pinned.setdefault(int(item.fixed or 0), set()).add(index)
        for node in range(data.problem.size):
            barred = tuple(i for i in data.free if node in data.items[i].forbidden)
            rank = node < data.problem.ranks
            kind = (rank, *self.capacity[:, node], *self.fixed[:, node], barred, node if node in pinned else None)
            alike.setdefault(kind, []).append(node)
        kinds = enumerate(alike.values())
        return Case(tuple(Place(tuple(n), frozenset(pinned.get(n[0], ())), kind=kind) for kind, n in kinds))

    @cached_property
    def capacity(self) -> Array:
        """What each node has of each resource: what it does in a step as long as the limit, and its memory."""
        problem = self.contracted.problem
        memory = [float(node.memory_bytes) for node in problem.nodes]
        return np.vstack([self.limit_seconds * capacities(problem), memory])

    @cached_property
    def fixed(self) -> Array:
        """What each node does whatever the tags."""
        fixed, size = fixed_tally(self.contracted.problem), self.contracted.problem.size
        core = np.sum([part[:size] for part in fixed.core.values()], axis=0)
        return np.array([core, fixed.traffic[:size], fixed.tx[:size], fixed.rx[:size], fixed.memory[:size]], float)

    @cached_property
    def items(self) -> ItemLoads:
        """Loads of items, without exchanges with sync servers."""
        alone = replace(self.contracted.problem, groups=1, sync=None, sync_servers=())
        return item_loads(replace(self.contracted, problem=alone))

    @cached_property
    def exchanged(self) -> tuple[Array, Array]:
        """What each item, data-parallel or on a node, adds to the loads of all nodes together for sync servers."""
        full, ranks = item_loads(self.contracted), self.contracted.problem.ranks
        return ranks * (full.dp - self.items.dp) + full.lead, full.mp - self.items.mp

    @cached_property
    def nets(self) -> NetLoads:
        """Loads of a node for a message of each net that it takes, for one that it sends, and for an addition."""
        return NetLoads(self.contracted.problem, self.contracted.nets)

    @cached_property
    def additions(self) -> Array:
        """Loads of all nodes together for adding partial gradients: k of them take k - 1, wherever that is."""
        counts = [net.own + sum(count for _, count in net.consumers) - 1 for net in self.contracted.nets]
        found: Array = self.contracted.problem.ranks * np.maximum(counts, 0) @ self.nets.added
        return found

    def seconds(self, case: Case, patience_seconds: float = 60.0) -> float:
        """Return a step that no placement of a case, of those that the limit allows, falls below; at least 0."""
        program = _Program(self, case)
        if program.impossible:
            return float("inf")
        return self.limit_seconds * max(0.0, program.finished().bound(patience_seconds))


class _Program:
    """The linear program of one case."""

    def __init__(self, relaxation: Relaxation, case: Case) -> None:
        self.of, self.case, self.data = relaxation, case, relaxation.contracted
        self.ranks, self.size = self.data.problem.ranks, self.data.problem.size
        self.program = LinearProgram()
        self.step = self.program.variable(MOST_STEP, cost=1.0)
        self.lack = self.program.variable(MOST_STEP, cost=LACKING)
        self.first = [place.nodes[0] for place in case.places]
        self.counts = [len(place.nodes) for place in case.places]
        self.is_rank = [node < self.ranks for node in self.first]
        self.room = [relaxation.capacity[:, node] - relaxation.fixed[:, node] for node in self.first]
        self.loads: list[list[list[Term]]] = [[[] for _ in range(5)] for _ in case.places]
        self.exchanged: list[list[Term]] = [[] for _ in range(5)]
        self.impossible = False
        self.dp, self.on = list[int](), list[list[int]]()
        for index in range(len(self.data.items)):
            self._item(index)

    # ---- items

    def _item(self, index: int) -> None:
        """Add where an item is, and its loads."""
        at = {p for p, place in enumerate(self.case.places) if index in place.hosts}
        everywhere = self.data.items[index].fixed == DP or index in self.case.everywhere
        open_ = DP not in self.data.items[index].forbidden or self.data.items[index].fixed == DP
        self.dp.append(self.program.variable(float(open_ and not at)))
        hosts = [0.0 if everywhere else float(self._may_be(index, p, at)) for p in range(len(self.first))]
        self.on.append([self.program.variable(upper) for upper in hosts])
        self.impossible |= not (open_ and not at) and not any(hosts)
        self.program.equal([(variable, 1.0) for variable in (self.dp[index], *self.on[index])], 1.0)
        self._item_loads(index)

    def _may_be(self, index: int, p: int, at: set[int]) -> bool:
        """Whether an item may be on a node of a place: it is nowhere else, and does not alone take longer than the limit."""
        if at and p not in at:
            return False
        room = self.room[p] + SLACK * self.of.capacity[:, self.first[p]]
        return bool((self.of.items.mp[index] <= room).all()) and self.first[p] not in self.data.items[index].forbidden

    def _item_loads(self, index: int) -> None:
        items, (dp, mp) = self.of.items, self.of.exchanged
        for resource in range(5):
            for p, loads in enumerate(self.loads):
                if self.is_rank[p]:
                    loads[resource].append((self.dp[index], self.counts[p] * items.dp[index, resource]))
                loads[resource].append((self.on[index][p], items.mp[index, resource]))
                self.exchanged[resource].append((self.on[index][p], mp[index, resource]))
            self.exchanged[resource].append((self.dp[index], dp[index, resource]))

    # ---- nets

    def _net(self, number: int, net: Net) -> None:
        """Add the messages of a net."""
        places = range(len(self.first))
        far, own = self._far(number, net), [self.program.variable(float(self.counts[p])) for p in places]
        reader = self._reader(net)
        sent = [self.program.variable(float(self.ranks * (self.size - 1))) for _ in places]
        taken: list[list[Term]] = []
        for p in places:
            taken.append([(far[p], float(self.ranks - self.is_rank[p])), (own[p], float(self.is_rank[p]))])
            self._own(net, p, (far[p], own[p]), reader)
            self._sender(net, p, sent[p])
        into = [(variable, -count) for terms in taken for variable, count in terms]
        self.program.equal([*((variable, 1.0) for variable in sent), *into], 0.0)
        if net.producer == RANK or net.producer in self.case.everywhere:
            self._from_ranks(far, sent)
        self._net_loads(number, taken, sent)

    def _far(self, number: int, net: Net) -> list[int]:
        """(R1), (R2)."""
        found = []
        for p, place in enumerate(self.case.places):
            count = float(self.counts[p])
            need = self.program.variable(0.0 if number in place.lacks else count)
            users = [i for i, _ in net.consumers if i != RANK]
            if number in place.takes:
                self.program.at_most([(need, -1.0)], -count)
            for user in users:
                self.program.at_most([(self.on[user][p], 1.0), (need, -1.0)], 0.0)
            for resource in (CORES, MEMORY) if len(users) > 1 else ():
                self._full(users, p, resource, need)
            far = self.program.variable(count)
            self.program.at_most([(need, 1.0), (far, -1.0), *self._home(net, p)], 0.0)
            found.append(far)
        return found

    def _full(self, users: list[int], p: int, resource: int, need: int) -> None:
        """A node that needs a net has room for so much of its consumers only."""
        if (room := float(self.room[p][resource])) > 0:
            shares = [(self.on[user][p], self.of.items.mp[user, resource] / room) for user in users]
            self.program.at_most([*shares, (need, -1.0)], 0.0)

    def _home(self, net: Net, p: int, times: float = -1.0) -> list[Term]:
        """How much of a net's producer is on the nodes of a place."""
        return [] if net.producer == RANK else [(self.on[net.producer][p], times)]

    def _everywhere(self, net: Net, times: float) -> tuple[list[Term], float]:
        """How much of a net's producer is data-parallel: terms, and a constant."""
        return ([], times) if net.producer == RANK else ([(self.dp[net.producer], times)], 0.0)

    def _reader(self, net: Net) -> int:
        """Whether a net has data-parallel consumers, as a variable."""
        found = self.program.variable()
        for item, _ in net.consumers:
            terms, constant = ([], -1.0) if item == RANK else ([(self.dp[item], 1.0)], 0.0)
            self.program.at_most([*terms, (found, -1.0)], constant)
        return found

    def _own(self, net: Net, p: int, takes: tuple[int, int], reader: int) -> None:
        """(R3), (R4)."""
        if self.is_rank[p]:
            (far, own), count = takes, float(self.counts[p])
            terms, constant = self._everywhere(net, -count)
            self.program.at_most([(reader, count), *terms, (own, -1.0), *self._home(net, p)], -constant)
            self.program.at_most([(far, 1.0), *terms, (own, -1.0)], -constant)

    def _sender(self, net: Net, p: int, sent: int) -> None:
        """(R6)."""
        terms, constant = self._everywhere(net, -float(self.counts[p] * self.is_rank[p] * (self.size - 1)))
        self.program.at_most([(sent, 1.0), *terms, *self._home(net, p, -self.ranks * (self.size - 1.0))], -constant)

    def _from_ranks(self, far: list[int], sent: list[int]) -> None:
        """Every rank sends what it produces to all other nodes that need it."""
        for p, count in enumerate(self.counts):
            if self.is_rank[p]:
                terms = [(other, float(count - (q == p))) for q, other in enumerate(far)]
                self.program.at_most([*terms, (sent[p], -1.0)], 0.0)

    def _net_loads(self, number: int, taken: list[list[Term]], sent: list[int]) -> None:
        take, send = self.of.nets.taken[number], self.of.nets.sent[number]
        for p, loads in enumerate(self.loads):
            for resource, terms in enumerate(loads):
                terms += [(variable, count * take[resource]) for variable, count in taken[p]]
                terms.append((sent[p], send[resource]))

    # ---- loads

    def finished(self) -> LinearProgram:
        """Return the program with nets, and with what places and all nodes together can do."""
        for number, net in enumerate(self.data.nets):
            ends = (net.producer, *(item for item, _ in net.consumers))
            if net.consumers and any(self._is_open(item) for item in ends):
                self._net(number, net)
        sums = [np.zeros(5), np.zeros(5)]
        for p, place in enumerate(self.case.places):
            has, does = (rows[:, list(place.nodes)].sum(axis=1) for rows in (self.of.capacity, self.of.fixed))
            self._bounded(self.loads[p], has, does)
            sums = [sums[0] + has, sums[1] + does]
        whole = [[*extra, *(t for loads in self.loads for t in loads[r])] for r, extra in enumerate(self.exchanged)]
        self._bounded(whole, sums[0], sums[1] + self.of.additions)
        return self.program

    def _is_open(self, item: int) -> bool:
        return item != RANK and self.data.items[item].fixed != DP and item not in self.case.everywhere

    def _bounded(self, loads: list[list[Term]], has: Array, does: Array) -> None:
        """Loads are at most the step's part of what there is, and memory is enough."""
        for resource, terms in enumerate(loads):
            if has[resource] > 0 and np.isfinite(has[resource]):
                most, limit = (self.lack, 1.0) if resource == MEMORY else (self.step, 0.0)
                shares = ((variable, value / has[resource]) for variable, value in terms)
                self.program.at_most([*shares, (most, -1.0)], limit - does[resource] / has[resource])
