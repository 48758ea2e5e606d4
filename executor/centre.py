"""What a sync server does: it holds the centre and answers exchanges by the rule of the plan.

Each rule takes what the clients of a round pushed, in the order of their groups, moves the centre and returns what each
gets back. The rules are pure arithmetic on float32 arrays; :class:`Clerk` knows who is answered when.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.arrays import Floats
from executor.codecs.wire import Bytes
from executor.exchange import Endpoint
from executor.pushing import PushedParts, Rounding, pushed_parts, roundings
from executor.state import JobState
from executor.transport import Line
from executor.wiring import node_of
from placement.plan import Plan, Sync
from programs.instructions import SyncStep
from programs.workers import Worker

#: What arrives of a difference that is sent to a client, by its position.
Arrives = Callable[[int, Floats], Floats]
#: Takes the pushed arrays of one operator, a client each, its centre, its block momentum (empty where there is none) and
#: what arrives of answers; returns what each client gets back.
Rule = Callable[[Sequence[Floats], Floats, Floats, Arrives], list[Floats]]


def whole(position: int, difference: Floats) -> Floats:
    """All of a difference arrives (an :data:`Arrives`)."""
    del position
    return difference


def elastic(pushed: Sequence[Floats], centre: Floats, alpha: float, arrives: Arrives = whole) -> list[Floats]:
    """EASGD, a client after the other: it gets alpha (centre - x); by what arrives the centre moves the other way."""
    differences = []
    for position, values in enumerate(pushed):
        difference = arrives(position, np.multiply(centre - values, np.float32(alpha)))
        centre -= difference
        differences.append(difference)
    return differences


def model_average(pushed: Sequence[Floats], centre: Floats, alpha: float) -> list[Floats]:
    """MA: the centre becomes the mean, summed in the order of the groups; each gets alpha (centre - x)."""
    centre[...] = _mean(pushed)
    return [np.multiply(centre - values, np.float32(alpha)) for values in pushed]


def block_momentum(pushed: Sequence[Floats], centre: Floats, velocity: Floats, sync: Sync) -> list[Floats]:
    """BMUF: velocity = momentum velocity + rate (mean - centre), centre += velocity; each gets alpha (centre - x)."""
    move_centre(_mean(pushed), centre, velocity, sync)
    return [np.multiply(centre - values, np.float32(sync.alpha)) for values in pushed]


def parameter_server(pushed: Sequence[Floats], centre: Floats) -> list[Floats]:
    """Gradient push: what a client has moved is added to the centre, whose new values it gets."""
    answers = []
    for moved in pushed:
        centre += moved
        answers.append(centre.copy())
    return answers


def move_centre(mean: Floats, centre: Floats, velocity: Floats, sync: Sync) -> None:
    """Move the centre of MA or BMUF by the mean of all replicas, (elements,)."""
    if sync.algorithm == "ma":
        centre[...] = mean
        return
    moved = np.multiply(mean - centre, np.float32(sync.rate))
    velocity *= np.float32(sync.momentum)
    velocity += moved
    centre += velocity


def _mean(pushed: Sequence[Floats]) -> Floats:
    """Mean of replicas, (elements,) each, summed in their order."""
    total = pushed[0].copy()
    for values in pushed[1:]:
        total += values
    return np.multiply(total, np.float32(1.0 / len(pushed)))


def rule_of(sync: Sync) -> Rule:
    """Return the rule of the settings."""
    match sync.algorithm:
        case "easgd":
            return lambda pushed, centre, _, arrives: elastic(pushed, centre, sync.alpha, arrives)
        case "ma":
            return lambda pushed, centre, _, arrives: _all(arrives, model_average(pushed, centre, sync.alpha))
        case "bmuf":
            return lambda pushed, centre, v, arrives: _all(arrives, block_momentum(pushed, centre, v, sync))
        case "push":
            return lambda pushed, centre, *_: parameter_server(pushed, centre)


def _all(arrives: Arrives, differences: list[Floats]) -> list[Floats]:
    return [arrives(position, difference) for position, difference in enumerate(differences)]


@dataclass(frozen=True)
class Client:
    """A worker that exchanges with a server: its group and operators there, how what it pushes is read, how answers travel.

    ``round`` is the positions of the clients that are answered together, in the order of their groups.
    """

    name: str
    group: int
    operators: tuple[str, ...]
    parts: PushedParts
    rounded: Mapping[str, Rounding]
    round: tuple[int, ...]


class Clerk:
    """Answers the exchanges of one sync server.

    Parameters
    ----------
    end : Endpoint
        The server and its channels.
    plan : Plan
        Says by which rule.
    state : JobState
        Holds the centre, and block momentum.
    first : int
        Number of the first exchange.

    Attributes
    ----------
    clients : tuple of Client
        Who exchanges with the server.
    """

    def __init__(self, end: Endpoint, plan: Plan, state: JobState, first: int) -> None:
        assert plan.sync is not None
        assert state.centre is not None
        self.clients = _clients(end, plan)
        self._end, self._rule = end, rule_of(plan.sync)
        self._centre, self._velocity = state.centre, state.velocity
        self._taken: dict[int, tuple[list[Floats], float]] = {}
        self._numbers = [first] * len(self.clients)

    def channels(self) -> list[Line]:
        """Return the channel of each client's requests."""
        return [self._end.channel(("push", client.name, self._end.worker.rank)) for client in self.clients]

    def take(self, position: int) -> None:
        """Receive a client's request; answer its round if it was the last of it.

        Raises
        ------
        PeerGone
            The client has ended.
        """
        client, clock = self.clients[position], self._end.clock
        clock.forget()
        clock.begin()
        request = self._end.receive(("push", client.name, self._end.worker.rank))
        self._taken[position] = client.parts(request), clock.now
        if all(member in self._taken for member in client.round):
            pushed = [self._taken.pop(member) for member in client.round]
            for _, arrival in pushed:
                clock.meet(arrival)
            self._answer(client.round, [parts for parts, _ in pushed])
            self._end.record.tick()

    def _answer(self, members: Sequence[int], pushed: Sequence[list[Floats]]) -> None:
        clients = [self.clients[member] for member in members]
        answers: list[list[Any]] = [[] for _ in clients]
        for position, name in enumerate(clients[0].operators):
            velocity = self._velocity.flat(name) if self._velocity is not None else _NOTHING
            parts = [of_client[position] for of_client in pushed]
            wires: list[Bytes] = []
            arrives = functools.partial(self._rounded, name, members, wires) if clients[0].rounded else whole
            found = self._rule(parts, self._centre.flat(name), velocity, arrives)
            for mine, one in zip(answers, wires or found, strict=True):
                mine.append(one)
        for member, client, mine in zip(members, clients, answers, strict=True):
            self._numbers[member] += 1
            self._end.send(("pull", client.name, self._end.worker.rank), mine)

    def _rounded(
        self, name: str, members: Sequence[int], wires: list[Bytes], position: int, difference: Floats
    ) -> Floats:
        """Encode a difference, keep the message, and return what its receiver will read."""
        client, number = self.clients[members[position]], self._numbers[members[position]]
        wires.append(client.rounded[name].encode(difference, client.group, number, "answer"))
        return client.rounded[name].decode(wires[-1])


_NOTHING: Floats = np.zeros(0, np.float32)


def _clients(end: Endpoint, plan: Plan) -> tuple[Client, ...]:
    """Return the clients of a sync server, in the order of groups and nodes, each with its round."""
    me, labels = end.worker.rank, end.wiring.channels
    workers = [worker for worker in end.wiring.workers if ("push", worker.name, me) in labels]
    rounds: dict[tuple[int, int], list[int]] = defaultdict(list)
    for position, worker in enumerate(workers):
        rounds[_round(plan, worker)].append(position)
    return tuple(_client(worker, me, plan, tuple(rounds[_round(plan, worker)])) for worker in workers)


def _round(plan: Plan, worker: Worker) -> tuple[int, int]:
    """The same for workers that are answered together: those of one node of all groups, or one alone."""
    return node_of(worker), -1 if plan.rounds else worker.group


def _client(worker: Worker, server: int, plan: Plan, together: tuple[int, ...]) -> Client:
    step = next(i for i in worker.program if isinstance(i, SyncStep))
    operators = step.exchange[server]
    parts, rounded = pushed_parts(plan, step, operators), roundings(plan, step, operators)
    return Client(worker.name, worker.group, operators, parts, rounded, together)
