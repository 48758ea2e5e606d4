"""What a node does in an average of all groups, one move after the other: the ring, then what ranks of a group pass on.

The ring is that of ``programs.collectives``; where fewer groups are simulated than there are, they form it among themselves
and make as many rounds as all would. Knows mailboxes by their keys, and nothing of costs or of the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from placement.plan import Plan
from programs.collectives import ring_rounds
from programs.instructions import Average
from simulator.folding import Folding


@dataclass(frozen=True, slots=True)
class Move:
    """A message to or from another node, or the rule of the average.

    Parameters
    ----------
    bytes : int
        Of the message, or that the rule takes.
    box : tuple
        Key of the mailbox where the message arrives; empty for the rule.
    target : str
        Node that the message is sent to; empty for one that is received.
    added : int
        Bytes of a received message that are added to something, or copied to their place, which takes as long.
    """

    bytes: int
    box: tuple[Any, ...] = ()
    target: str = ""
    added: int = 0


def moves(plan: Plan, folding: Folding, step: Average, group: int, node: int) -> Iterator[Move]:
    """Yield what node ``node`` of a group does in an average."""
    if step.bytes:
        yield from _ring(plan, folding, step, group, node)
        yield Move(step.bytes)
    nodes, alike = plan.groups[group], folding.ranks
    for peer in step.peers if step.shared else ():
        there = peer // alike * alike
        yield Move(step.shared_bytes, ("average passed on", group, there), nodes[there].name)
    for size in step.taken_bytes:
        if size:
            yield Move(size, ("average passed on", group, node), added=size)


def _ring(plan: Plan, folding: Folding, step: Average, group: int, node: int) -> Iterator[Move]:
    then, size = (group + 1) % folding.simulated_groups(plan), step.chunk_bytes
    adds, keeps = ring_rounds(group, len(plan.groups))
    for _ in (*adds, *keeps):
        yield Move(size, ("ring", then, node), plan.groups[then][node].name)
        yield Move(size, ("ring", group, node), added=size)
