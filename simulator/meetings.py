"""Where the ranks of a group meet in a merged collective: everybody goes on when the last message has arrived.

At level ``fifo`` the network knows when a message will arrive as soon as it has left; then there is one event for a meeting
instead of one for each message. Knows mailboxes and instants; nothing of what the ranks do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.engine import Engine
from simulator.fifo import FifoNetwork
from simulator.network import Network
from simulator.primitives import Mailbox, Meeting, Message

#: Puts a message into a mailbox.
Arrived = Callable[[tuple[Mailbox, Message]], None]


class Meetings:
    """Tells the members of meetings when all have come.

    Parameters
    ----------
    engine : Engine
        The clock.
    network : Network
        Carries the messages; one that knows when they will arrive is asked to foretell it.
    arrived : callable
        Puts a message into a mailbox.
    """

    def __init__(self, engine: Engine, network: Network, arrived: Arrived) -> None:
        self._engine, self._arrived = engine, arrived
        self._inboxes: dict[Mailbox, Meeting] = {}
        self._then: Callable[[Any], None] = arrived
        if isinstance(network, FifoNetwork):
            network.foretell = self._then = self._foretold

    def add(self, meeting: Meeting) -> None:
        """Open a meeting."""
        self._inboxes[meeting.inbox] = meeting
        meeting.inbox.serve = lambda message: self._come(meeting, message)

    def then(self, mailbox: Mailbox) -> Callable[[Any], None]:
        """Return what is to happen to a message to a mailbox."""
        return self._then if mailbox in self._inboxes else self._arrived

    def _come(self, meeting: Meeting, message: Message) -> None:
        """Count an arrival."""
        meeting.missing -= 1
        if not meeting.missing:
            self._met((meeting, message))

    def _foretold(self, foretold: tuple[int, tuple[Mailbox, Message]]) -> None:
        """Count a message that will arrive; the latest of all, and of equals the one that left last, ends the meeting."""
        arrival, (mailbox, message) = foretold
        meeting = self._inboxes[mailbox]
        if arrival >= meeting.last[0]:
            meeting.last = arrival, message
        meeting.missing -= 1
        if not meeting.missing:
            last, meeting.last = meeting.last, (-1, None)
            self._engine.at(last[0], self._met, (meeting, last[1]))

    def _met(self, met: tuple[Meeting, Message]) -> None:
        meeting, message = met
        meeting.missing = len(meeting.boxes)
        for box in meeting.boxes:
            self._arrived((box, message))
