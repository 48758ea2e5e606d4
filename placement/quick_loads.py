"""Loads of a placement, kept up to date move by move: what local search asks thousands of times.

The same sums as ``loads``, for items and nets instead of operators and sessions, by the counts of ``net_variables``: a
move changes the loads of one item and of the nets at it, so judging one takes microseconds where ``evaluate`` takes a
good part of a second for a thousand operators. Left out are the critical path, the fixed
cost of messages to sync servers, and NIC traffic where nodes share a host; ``evaluate`` has the last word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.costs import MessageCost
from cost_models.network import Wire
from placement.group import GroupProblem
from placement.loads import fixed_tally
from placement.nets import RANK, Contracted, Net
from placement.plan import DP, Tag

Array = npt.NDArray[np.float64]
#: Rows of a load: core-seconds of the cost table, bytes of memory traffic, bytes out, bytes in, bytes held.
CORES, TRAFFIC, TX, RX, MEMORY = range(5)
#: Place of a data-parallel item.
EVERYWHERE = -1


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
        self.is_rank = (np.arange(self.size) < self.ranks).astype(float)
        self.capacity = capacities(self.problem)
        self.room = np.array([float(node.memory_bytes) for node in self.problem.nodes])
        self.items = item_loads(contracted)
        self.allowed = {i: {EVERYWHERE if tag == DP else int(tag) for tag in t} for i, t in contracted.allowed.items()}
        self.reduced = sum(self._reduces(i) for i in range(len(self.at)))
        empty = self.problem.wires.empty_reduction().thread_seconds(self.problem.costs, self.ranks)
        self.empty_reduce = self.is_rank * empty / self.capacity[CORES]
        self.nets_of: list[list[Net]] = [[] for _ in contracted.items]
        for net in contracted.nets:
            for item in {net.producer, *(item for item, _ in net.consumers)} - {RANK}:
                self.nets_of[item].append(net)
        self.total = self._fixed() + sum(self._item(i) for i in range(len(self.at)))
        self.total += sum((self._net(net) for net in contracted.nets), np.zeros_like(self.total))

    # ---- what is asked

    @property
    def seconds(self) -> Array:
        """Seconds per step of each resource (rows) of each node (columns)."""
        found: Array = self.total[:MEMORY] / self.capacity
        if self.reduced:
            found[CORES] += self.empty_reduce
        return found

    def score(self, unit: float, doublings: int) -> tuple[float, float]:
        """Bytes that memory lacks, and how busy the nodes are: a norm of the seconds in units of ``unit``.

        The exponent is 2 to the power of ``doublings``: a low one counts all work, a high one follows the busiest resource.
        """
        lacking = float(np.maximum(self.total[MEMORY] - self.room, 0.0).sum())
        power = self.seconds / unit
        for _ in range(doublings):
            power = power * power
        return lacking, float(power.sum()) ** (0.5**doublings) * unit

    def move(self, items: Sequence[int], place: int) -> None:
        """Put items in another place."""
        nets = {id(net): net for item in items for net in self.nets_of[item]}
        change = -sum((self._item(i) for i in items), np.zeros_like(self.total))
        for net in nets.values():
            change -= self._net(net)
        for item in items:
            self.reduced -= self._reduces(item)
            self.at[item] = place
            self.reduced += self._reduces(item)
        for net in nets.values():
            change += self._net(net)
        self.total += change + sum(self._item(i) for i in items)

    def tags(self) -> dict[str, Tag]:
        """Return the tag of every operator."""
        return {
            op: DP if place == EVERYWHERE else place
            for item, place in zip(self.data.items, self.at, strict=True)
            for op in item.ops
        }

    # ---- what there is

    def _fixed(self) -> Array:
        """What ranks do whatever the tags."""
        fixed, size = fixed_tally(self.problem), self.size
        core = np.sum([part[:size] for part in fixed.core.values()], axis=0)
        return np.array([core, fixed.traffic[:size], fixed.tx[:size], fixed.rx[:size], fixed.memory[:size]], float)

    def _reduces(self, index: int) -> bool:
        """Whether an item's gradients are all-reduced."""
        return self.at[index] == EVERYWHERE and self.data.work[index].parameter_bytes > 0

    def _item(self, index: int) -> Array:
        """Loads of an item where it is: once on each rank if DP, for all ranks on its node if MP."""
        place, found = self.at[index], np.zeros((5, self.size))
        if place == EVERYWHERE:
            found[:, : self.ranks] = self.items.dp[index][:, None]
            found[:, 0] += self.items.lead[index]
        else:
            found[:, place] = self.items.mp[index]
        return found

    def _net(self, net: Net) -> Array:
        """Loads of a net: its messages, either way, and the additions of partial gradients."""
        users, dp_users = np.zeros(self.size), 0
        for item, count in net.consumers:
            place = EVERYWHERE if item == RANK else self.at[item]
            if place == EVERYWHERE:
                dp_users += count
            else:
                users[place] += count
        home = EVERYWHERE if net.producer == RANK else self.at[net.producer]
        if home == EVERYWHERE:
            received, sent, added = self._from_ranks(net, users, dp_users)
        else:
            received, sent, added = self._from_node(net, home, users, dp_users)
        return self._booked(net, received, sent, added)

    def _from_ranks(self, net: Net, users: Array, dp_users: int) -> tuple[Array, Array, Array]:
        """Messages in, messages out and additions on each node, of a tensor that every rank produces."""
        need, ranks = (users > 0).astype(float), self.is_rank
        elsewhere = need.sum() - need
        added = (self.ranks - ranks) * (users - need) + ranks * (net.own + dp_users + users + elsewhere - 1)
        return (self.ranks - ranks) * need, ranks * elsewhere, added

    def _from_node(self, net: Net, home: int, users: Array, dp_users: int) -> tuple[Array, Array, Array]:
        """Messages in, messages out and additions on each node, of a tensor that one node produces for all ranks."""
        need, ranks = (users > 0).astype(float), self.is_rank
        any_ = ranks * (need if not dp_users else 1.0)
        added = (self.ranks - ranks) * (users - need) + ranks * (dp_users + users) - any_
        need[home] = any_[home] = 0.0
        received = (self.ranks - ranks) * need + any_
        sent = np.zeros(self.size)
        sent[home] = received.sum()
        added[home] = self.ranks * (net.own + users[home] - 1) + ranks[home] * dp_users + sent[home]
        return received, sent, added

    def _booked(self, net: Net, received: Array, sent: Array, added: Array) -> Array:
        """Book counts of messages and additions."""
        cost, back = self.problem.costs.message, float(net.gradient)
        send, take = message_seconds(cost, net.messages, net.there)
        send_back, take_back = message_seconds(cost, net.messages, net.back)
        if not net.additions:
            added = np.zeros(self.size)
        found = np.empty((5, self.size))
        found[CORES] = received * (take + back * send_back) + sent * (send + back * take_back)
        found[CORES] += self.problem.costs.sum_seconds_per_byte * net.bytes * added
        found[TRAFFIC] = 0.0
        wired = 0.0 if self.problem.one_host or self.problem.hosts_mixed else 1.0
        forward, backward = wired * net.there.bytes, wired * back * net.back.bytes
        found[TX], found[RX] = forward * sent + backward * received, forward * received + backward * sent
        found[MEMORY] = self.problem.hogwild * net.bytes * (received + back * sent + added)
        return found


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


def message_seconds(cost: MessageCost, messages: int, wire: Wire) -> tuple[float, float]:
    """Return the core-seconds to send some messages that take ``wire`` together, and to receive them."""
    sends = cost.send_variable(wire.bytes, wire.tensors) + wire.encode_seconds
    receives = cost.receive_variable(wire.bytes, wire.tensors) + wire.decode_seconds
    return messages * cost.send_seconds + sends, messages * cost.receive_seconds + receives


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


def places_of(contracted: Contracted, tags: Mapping[str, Tag]) -> list[int]:
    """Return the place of every item under some tags."""
    found = (tags[item.ops[0]] for item in contracted.items)
    return [EVERYWHERE if tag == DP else int(tag) for tag in found]
