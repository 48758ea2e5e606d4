"""Loads of many nets at once: what each takes of every node, by where its producer and its consumers are.

The counts of ``net_variables`` (messages in, messages out, additions of partial gradients) times what one of them costs.
Knows nets and their costs; knows no placement.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cost_models.costs import MessageCost
from cost_models.network import Wire
from placement.evaluation.group import GroupProblem
from placement.tagging.nets import Net

Array = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
#: Rows of a load: core-seconds of the cost table, bytes of memory traffic, bytes out, bytes in, bytes held.
CORES, TRAFFIC, TX, RX, MEMORY = range(5)
#: Place of a data-parallel item.
EVERYWHERE = -1


class NetLoads:
    """What messages and additions of the nets of a group cost.

    Parameters
    ----------
    problem : GroupProblem
        The group.
    nets : sequence of Net
        Its nets.

    Attributes
    ----------
    taken, sent, added : numpy.ndarray
        Loads (columns as :data:`CORES` ...) of a node for a message of each net (rows) that it takes, for one that it sends,
        both ways, and for an addition.
    """

    def __init__(self, problem: GroupProblem, nets: Sequence[Net]) -> None:
        self.ranks, self.size = problem.ranks, problem.size
        self.is_rank = (np.arange(self.size) < self.ranks).astype(float)
        self.own = np.array([net.own for net in nets], float)
        costs = np.array([_costs(problem, net) for net in nets], float).reshape(-1, 3, 5)
        self.taken, self.sent, self.added = costs[:, 0], costs[:, 1], costs[:, 2]

    def loads(self, numbers: Places, homes: Places, users: Array, dp_users: Array) -> Array:
        """Return the loads of some nets, each in a case of its own.

        Parameters
        ----------
        numbers : numpy.ndarray
            Which nets, shape (cases,).
        homes : numpy.ndarray
            Where each is produced: a node, or :data:`EVERYWHERE`; shape (cases,).
        users, dp_users : numpy.ndarray
            How many operators consume it on each node, shape (cases, nodes), and data-parallel, shape (cases, 1).

        Returns
        -------
        numpy.ndarray
            Shape (cases, 5, nodes).
        """
        own = self.own[numbers][:, None]
        received, sent, added = self._from_ranks(own, users, dp_users)
        rows = np.flatnonzero(homes != EVERYWHERE)
        if len(rows):
            produced = self._from_nodes(own[rows, 0], homes[rows], users[rows], dp_users[rows])
            for counts, changed in zip((received, sent, added), produced, strict=True):
                counts[rows] = changed
        found: Array = self.taken[numbers][:, :, None] * received[:, None]
        found += self.sent[numbers][:, :, None] * sent[:, None]
        found += self.added[numbers][:, :, None] * added[:, None]
        return found

    def _from_ranks(self, own: Array, users: Array, dp_users: Array) -> tuple[Array, Array, Array]:
        """Messages in, messages out and additions on each node, of tensors that every rank produces."""
        need, ranks = (users > 0).astype(float), self.is_rank
        elsewhere = need.sum(axis=1, keepdims=True) - need
        added = (self.ranks - ranks) * (users - need) + ranks * (own + dp_users + users + elsewhere - 1)
        return (self.ranks - ranks) * need, ranks * elsewhere, added

    def _from_nodes(self, own: Array, homes: Places, users: Array, dp_users: Array) -> tuple[Array, Array, Array]:
        """Messages in, messages out and additions on each node, of tensors that one node produces for all ranks."""
        need, ranks, rows = (users > 0).astype(float), self.is_rank, np.arange(len(homes))
        any_ = ranks * np.where(dp_users > 0, 1.0, need)
        added = (self.ranks - ranks) * (users - need) + ranks * (dp_users + users) - any_
        need[rows, homes] = any_[rows, homes] = 0.0
        received = (self.ranks - ranks) * need + any_
        sent = np.zeros_like(users)
        sent[rows, homes] = received.sum(axis=1)
        summed = self.ranks * (own + users[rows, homes] - 1) + ranks[homes] * dp_users[:, 0]
        added[rows, homes] = summed + sent[rows, homes]
        return received, sent, added


def _costs(problem: GroupProblem, net: Net) -> tuple[list[float], list[float], list[float]]:
    """Loads of a node for a message that it takes, for one that it sends, and for an addition."""
    send, take = message_seconds(problem.costs.message, net.messages, net.there)
    send_back, take_back = message_seconds(problem.costs.message, net.messages, net.back)
    wired = 0.0 if problem.one_host or problem.hosts_mixed else 1.0
    back, held, adds = float(net.gradient), float(problem.hogwild * net.bytes), float(net.additions)
    there_bytes, back_bytes = wired * net.there.bytes, wired * back * net.back.bytes
    return (
        [take + back * send_back, 0.0, back_bytes, there_bytes, held],
        [send + back * take_back, 0.0, there_bytes, back_bytes, back * held],
        [adds * problem.costs.summing(net.bytes), 0.0, 0.0, 0.0, adds * held],
    )


def message_seconds(cost: MessageCost, messages: int, wire: Wire) -> tuple[float, float]:
    """Return the core-seconds to send some messages that take ``wire`` together, and to receive them."""
    sends = cost.send_variable(wire.bytes, wire.tensors) + wire.encode_seconds
    receives = cost.receive_variable(wire.bytes, wire.tensors) + wire.decode_seconds
    return messages * cost.send_seconds + sends, messages * cost.receive_seconds + receives
