"""Loads of a placement, kept up to date move by move: what local search asks thousands of times.

The same sums as ``loads``, for items and nets instead of operators and sessions, by the counts of ``net_variables``: a
move changes the loads of one item and of the nets at it, so judging one takes microseconds where ``evaluate`` takes a
good part of a second for a thousand operators. Left out are the critical path, the fixed
cost of messages to sync servers, and NIC traffic where nodes share a host; ``evaluate`` has the last word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placement.evaluation.averages import AverageCost
from placement.evaluation.group import GroupProblem
from placement.evaluation.loads import fixed_tally
from placement.plan import DP, Tag
from placement.tagging.net_loads import CORES, EVERYWHERE, MEMORY, RX, TRAFFIC, TX, Array, NetLoads, Places
from placement.tagging.nets import RANK, Contracted

#: Seconds that stand for none where something is divided by them.
TINY = 1e-300


class QuickLoads:
    """Loads of one placement of a group.

    Parameters
    ----------
    contracted : Contracted
        The group problem.
    at : sequence of int
        Place of every item: a node, or :data:`EVERYWHERE`.
    """

    def __init__(self, contracted: Contracted, at: Sequence[int]) -> None:
        self.data, self.problem, self.at = contracted, contracted.problem, list(at)
        self.ranks, self.size = self.problem.ranks, self.problem.size
        self.nets = NetLoads(self.problem, contracted.nets)
        self.capacity = capacities(self.problem)
        self.room = np.array([float(node.memory_bytes) for node in self.problem.nodes])
        self.items = item_loads(contracted)
        self.allowed = {i: {EVERYWHERE if tag == DP else int(tag) for tag in t} for i, t in contracted.allowed.items()}
        self.reduced = sum(self._reduces(i) for i in range(len(self.at)))
        empty = self.problem.wires.empty_reduction().thread_seconds(self.problem.costs, self.ranks)
        self.empty_reduce = self.nets.is_rank * empty / self.capacity[CORES]
        self.nets_of: list[list[int]] = [[] for _ in contracted.items]
        self.ends = [{net.producer, *(item for item, _ in net.consumers)} - {RANK} for net in contracted.nets]
        for number, ends in enumerate(self.ends):
            for item in ends:
                self.nets_of[item].append(number)
        unmoved: tuple[Collection[int], Places] = ((), np.array([EVERYWHERE]))
        self.booked = [self._net(number, *unmoved)[0] for number in range(len(contracted.nets))]
        self.total = self._fixed() + sum(self._item(i, place) for i, place in enumerate(self.at))
        self.total += sum(self.booked, np.zeros_like(self.total))

    # ---- what is asked

    @property
    def seconds(self) -> Array:
        """Seconds per step of each resource (rows) of each node (columns)."""
        return self._seconds(self.total, bool(self.reduced))

    def _seconds(self, total: Array, reduces: bool) -> Array:
        found: Array = total[..., :MEMORY, :] / self.capacity
        if reduces:
            found[..., CORES, :] += self.empty_reduce
        return found

    def alone(self, items: Sequence[int]) -> Array:
        """Seconds per step of each node for some items, if it hosts them and nothing else; shape (nodes,)."""
        found: Array = (self.items.mp[list(items), :MEMORY].sum(axis=0)[:, None] / self.capacity).max(axis=0)
        return found

    def score(self, doublings: int) -> tuple[float, float]:
        """Bytes that memory lacks, and how busy the nodes are: a norm of the seconds.

        The exponent is 2 to the power of ``doublings``: a low one counts all work, a high one follows the busiest resource.
        """
        return self._scores(self.total[None], bool(self.reduced), doublings)[0]

    def scores(self, items: Sequence[int], places: Sequence[int], doublings: int) -> list[tuple[float, float]]:
        """Return the score that the placement would have with some items in each of some places.

        Parameters
        ----------
        items : sequence of int
            Items that move together.
        places : sequence of int
            Where to.
        doublings : int
            As in :meth:`score`.
        """
        total, where = self._without(items)[None], np.array(places)
        for item in items:
            total = total + np.array([self._item(item, place) for place in places])
        for net in self._nets_at(items):
            total += self._net(net, frozenset(items), where)
        parameters = sum(self._has_parameters(item) for item in items)
        others = self.reduced - sum(self._reduces(item) for item in items)
        reduces = (others + parameters * (where == EVERYWHERE)) > 0
        found: list[tuple[float, float]] = [(0.0, 0.0)] * len(places)
        for reducing in (False, True):
            rows = np.flatnonzero(reduces == reducing)
            for row, score in zip(rows, self._scores(total[rows], reducing, doublings), strict=True):
                found[row] = score
        return found

    def _scores(self, total: Array, reduces: bool, doublings: int) -> list[tuple[float, float]]:
        lacking = np.maximum(total[:, MEMORY] - self.room, 0.0).sum(axis=1)
        seconds = self._seconds(total, reduces)
        most = np.maximum(seconds.max(axis=(1, 2)), TINY)
        power = seconds / most[:, None, None]
        for _ in range(doublings):
            power = power * power
        norms = power.sum(axis=(1, 2)) ** (0.5**doublings) * most
        return list(zip(lacking.tolist(), norms.tolist(), strict=True))

    def move(self, items: Sequence[int], place: int) -> None:
        """Put items in another place."""
        total, there = self._without(items), np.array([place])
        for item in items:
            self.reduced -= self._reduces(item)
            self.at[item] = place
            self.reduced += self._reduces(item)
            total += self._item(item, place)
        for net in self._nets_at(items):
            self.booked[net] = self._net(net, frozenset(items), there)[0]
            total += self.booked[net]
        self.total = total

    def tags(self) -> dict[str, Tag]:
        """Return the tag of every operator."""
        return {
            op: DP if place == EVERYWHERE else place
            for item, place in zip(self.data.items, self.at, strict=True)
            for op in item.ops
        }

    # ---- what there is

    def _without(self, items: Sequence[int]) -> Array:
        """Loads of all but some items and the nets at them."""
        found = self.total.copy()
        for item in items:
            found -= self._item(item, self.at[item])
        for net in self._nets_at(items):
            found -= self.booked[net]
        return found

    def _nets_at(self, items: Sequence[int]) -> list[int]:
        """Numbers of the nets at some items, each once."""
        return list(dict.fromkeys(net for item in items for net in self.nets_of[item]))

    def _fixed(self) -> Array:
        """What ranks do whatever the tags."""
        fixed, size = fixed_tally(self.problem), self.size
        core = np.sum([part[:size] for part in fixed.core.values()], axis=0)
        return np.array([core, fixed.traffic[:size], fixed.tx[:size], fixed.rx[:size], fixed.memory[:size]], float)

    def _has_parameters(self, index: int) -> bool:
        return self.data.work[index].parameter_bytes > 0

    def _reduces(self, index: int) -> bool:
        """Whether an item's gradients are all-reduced."""
        return self.at[index] == EVERYWHERE and self._has_parameters(index)

    def _item(self, index: int, place: int) -> Array:
        """Loads of an item in a place: once on each rank if DP, for all ranks on its node if MP."""
        found = np.zeros((5, self.size))
        if place == EVERYWHERE:
            found[:, : self.ranks] = self.items.dp[index][:, None]
            found[:, 0] += self.items.lead[index]
        else:
            found[:, place] = self.items.mp[index]
        return found

    def _net(self, number: int, moved: Collection[int], places: Places) -> Array:
        """Loads of a net, shape (places, 5, nodes), with some items in each of some places: messages and additions."""
        net, rows = self.data.nets[number], np.flatnonzero(places != EVERYWHERE)
        users, dp_users = np.zeros((len(places), self.size)), np.zeros((len(places), 1))
        for item, count in net.consumers:
            place = EVERYWHERE if item == RANK else self.at[item]
            if item in moved:
                users[rows, places[rows]] += count
                dp_users[places == EVERYWHERE] += count
            elif place == EVERYWHERE:
                dp_users += count
            else:
                users[:, place] += count
        if net.producer in moved:
            homes = places
        else:
            homes = np.full(len(places), EVERYWHERE if net.producer == RANK else self.at[net.producer])
        return self.nets.loads(np.full(len(places), number), homes, users, dp_users)


@dataclass(frozen=True)
class ItemLoads:
    """Loads of all items (rows; columns as :data:`CORES` ...): on each rank if DP, on node 0 besides, on its node if MP."""

    dp: Array
    lead: Array
    mp: Array


def capacities(problem: GroupProblem) -> Array:
    """Return what each node does per second: core-seconds of the cost table, bytes of memory traffic, out and in."""
    nodes = problem.nodes
    nic = [node.nic_bytes_per_second or 1.0 for node in nodes]
    cores = [node.cores / slow for node, slow in zip(nodes, problem.slowdown, strict=True)]
    return np.array([cores, [node.memory_bandwidth_bytes_per_second for node in nodes], nic, nic], float)


def item_loads(contracted: Contracted) -> ItemLoads:
    """Return the loads of all items of a group problem."""
    problem, ranks = contracted.problem, contracted.problem.ranks
    work = contracted.work
    own = np.array([[w.work.core_seconds, w.work.traffic_bytes] for w in work], float).reshape(-1, 2)
    held = np.array([[w.parameter_bytes, w.resident_bytes, w.session_bytes] for w in work], float).reshape(-1, 3)
    size, dp, mp, lead = held[:, 0], *(np.zeros((len(work), 5)) for _ in range(3))
    wired = 0.0 if problem.one_host or problem.hosts_mixed else 1.0
    reduced = np.array([w.reduced.core_seconds(problem.costs, ranks) for w in work], float)
    dp[:, CORES], dp[:, TRAFFIC] = own[:, 0] + (ranks > 1) * reduced, own[:, 1]
    dp[:, TX] = dp[:, RX] = wired * np.array([w.reduced.sent for w in work], float)
    dp[:, MEMORY] = held[:, 1] + problem.hogwild * (held[:, 2] + (ranks > 1) * size)
    mp[:, CORES], mp[:, TRAFFIC] = ranks * own[:, 0], ranks * own[:, 1]
    mp[:, MEMORY] = held[:, 1] + problem.sessions * held[:, 2]
    _add_exchanges(contracted, size, (dp, lead, mp), wire=bool(wired and ranks > 1))
    return ItemLoads(dp, lead, mp)


def _add_exchanges(contracted: Contracted, size: Array, loads: tuple[Array, Array, Array], *, wire: bool) -> None:
    """Add the bytes that are exchanged with sync servers: by the node of an MP item, by node 0 for DP items."""
    problem = contracted.problem
    if problem.groups == 1 or problem.sync is None:
        return
    dp, lead, mp = loads
    if problem.average is not None:
        _add_averages(contracted, problem.average, size, (dp, mp), wire=wire)
        return
    costs, often = problem.costs, 1 / problem.steps_per_exchange
    rest, work = costs.message.unfixed, contracted.work
    pushed = np.array([w.pushed.bytes for w in work], float)
    answered = np.array([w.answered.bytes for w in work], float)
    exchanged = np.array([w.exchange_seconds(costs) for w in work], float)
    sent = np.array([w.parameters.sending(rest) for w in work], float)
    taken = np.array([w.parameters.receiving(rest) for w in work], float)
    for rows in (mp, lead):
        rows[:, CORES] += often * exchanged
        rows[:, TX] += often * pushed
        rows[:, RX] += often * answered
    passed = often * (taken + costs.sum_seconds_per_byte * size)
    dp[:, CORES] += passed
    lead[:, CORES] += often * (problem.ranks - 1) * sent - passed
    if wire:
        dp[:, RX] += often * size
        lead[:, TX] += often * (problem.ranks - 1) * size
        lead[:, RX] -= often * size


def _add_averages(
    contracted: Contracted, cost: AverageCost, size: Array, loads: tuple[Array, Array], *, wire: bool
) -> None:
    """Add what groups average among themselves: by the node of an MP item, a part of a DP item by each rank."""
    problem, (dp, mp), often = contracted.problem, loads, 1 / contracted.problem.steps_per_exchange
    ring, passed = cost.ring, cost.passed_on
    abroad = float(all(all(problem.abroad(node)) for node in range(problem.size)))
    for rows, part, more in ((mp, 1.0, 0.0), (dp, 1.0 / problem.ranks, 1.0)):
        rows[:, CORES] += often * (part * ring.seconds_per_byte + more * passed.seconds_per_byte) * size
        rows[:, MEMORY] += part * ring.held_per_byte * size
        for way in (TX, RX):
            rows[:, way] += often * (part * ring.sent_per_byte * abroad + more * wire * passed.sent_per_byte) * size


def places_of(contracted: Contracted, tags: Mapping[str, Tag]) -> list[int]:
    """Return the place of every item under some tags."""
    found = (tags[item.ops[0]] for item in contracted.items)
    return [EVERYWHERE if tag == DP else int(tag) for tag in found]
