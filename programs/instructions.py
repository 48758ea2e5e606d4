"""The instruction set: WHAT EACH NODE DOES in one step, as data.

A *session* is one Hogwild thread of one rank of one group, together with the copies that serve it: the rank's own
thread, one serving copy on each other node that hosts MP operators, one serving copy on each embedding server. All
messages of a step stay inside a session, except all-reduces (the same thread of all ranks of a group) and
synchronisation between groups. So a session's programs need to name only the *place* of a peer.

The set is closed. The simulator gives each instruction duration, the executor gives it meaning; a test enumerates
the set to prove that neither lacks one. An instruction names tensors; what they hold:

==============  =========================================================================
``x``           output of operator x, (B, width) float32; for a LOOKUP the pooled embedding
``x@ps2``       partial sum of pooled rows of feature x, from server 2 (row-wise shards)
``x@0:8@ps2``   the same of columns 0 to 8 (column-wise shards)
``ids.x``       ids of feature x, (B, ids_per_sample) int32, short bags filled up with -1; on a server, maybe those of its
                rows alone, in bags of any length (codec ``route:`` of the message that brings them)
``weights.x``   their weights, (B, ids_per_sample) float32; only of features that pool by weight
``d.x``         gradient of the loss with respect to x, complete at this place
``d.x <- c``    the part of it that comes from consumer c
``d.x@n1``      the part of it that comes from the consumers on node 1
``d.x@0:8``     columns 0 to 8 of it; where ``d.x`` is, a view that needs no instruction of its own
==============  =========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Role(StrEnum):
    """What kind of worker a place is."""

    RANK = "rank"  # the Hogwild thread that reads the batch
    NODE = "node"  # a serving copy of the MP operators of another node of the group
    SERVER = "server"  # a serving copy on an embedding server


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where, inside a session, a program runs: a role and the index of the node (or of the server)."""

    role: Role
    index: int

    def __str__(self) -> str:
        return f"{'ps' if self.role is Role.SERVER else 'n'}{self.index}"


@dataclass(frozen=True, slots=True)
class NextBatch:
    """Take the next batch: dense features, ids of every table (and weights), labels."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Pool the rows of the shards on this server: ``ids.x`` (and ``weights.x``) -> ``x``, ``x@psN`` or ``x@0:8@psN``.

    ``shards`` are indices into ``Plan.shards``; ``outputs`` are the tensors produced, one per shard; the shard of a table
    that several features read is there once for each. Those with the same output (row ranges of one strip that are on the
    same server) are added in order.
    """

    shards: tuple[int, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compute:
    """Run one phase of an operator.

    Forward: inputs -> ``op``. Backward: ``d.op`` -> gradients of the parameters (kept by the operator) and of the
    inputs; ``outputs`` names the latter, one per distinct input, empty where no gradient is needed.
    """

    op: str
    phase: Literal["forward", "backward"]
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Send:
    """Send tensors as one message to a peer of the session. ``channel`` is unique in the session.

    ``codec`` (``placement.codecs``) says how they are compressed, empty if they are not. ``bytes`` are those on the wire;
    of a codec that leaves elements out, those of as many as are planned to be kept.
    """

    channel: str
    peer: Place
    tensors: tuple[str, ...]
    bytes: int
    codec: str = ""


@dataclass(frozen=True, slots=True)
class Recv:
    """Receive the message of the ``Send`` with the same channel; waits for it."""

    channel: str
    peer: Place
    tensors: tuple[str, ...]
    bytes: int
    codec: str = ""


@dataclass(frozen=True, slots=True)
class Reduce:
    """Add parts, in the given order, into ``target`` (float32, ``bytes``); parts of a strip into its columns."""

    target: str
    parts: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Sum the parameter gradients of DP operators over the same thread of all ranks of the group.

    Direct reduce-scatter, then all-gather: each rank sends slice j to rank j, which adds the slices in rank order and
    sends the sum back to all. ``bytes`` is the size of the whole buffer; each rank sends and receives
    2 (R - 1) / R of it. With a ``codec`` (``placement.codecs``) slices are encoded, or, under DCT-DP, each rank sends what
    it keeps of its gradients to all others.
    """

    ops: tuple[str, ...]
    bytes: int
    codec: str = ""


@dataclass(frozen=True, slots=True)
class Update:
    """Apply gradients to the parameters of operators (or, on a server, of shards: ``shards`` indices).

    ``ordered``: wait until all sessions of the group are at this point of this place, then apply in rank order, then
    go on together (synchronous mode); of nothing, they only meet. Otherwise lock-free.
    """

    ops: tuple[str, ...] = ()
    shards: tuple[int, ...] = ()
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Metric:
    """Record the loss of the step."""


@dataclass(frozen=True, slots=True)
class SyncStep:
    """Exchange parameters with the sync servers by the plan's rule (``placement.plan.Sync``), at steps divisible by the gap.

    The node sends ``exchange`` (split by sync server: ``exchange_bytes[s]``, ``pushed_bytes[s]`` under a ``codec``) and
    gets as many values back (``exchange_bytes[s]``, ``answered_bytes[s]`` under a codec). The difference that they make
    it adds to its copy and passes on to ``followers`` (the other ranks, for DP operators: ``forward_bytes``). A follower
    instead receives ``follow`` from node 0 (``leader``), ``follow_bytes``.
    """

    exchange: tuple[tuple[str, ...], ...] = ()  # by sync server: the operators whose centre it holds
    exchange_bytes: tuple[int, ...] = ()
    forward: tuple[str, ...] = ()
    forward_bytes: int = 0
    followers: tuple[int, ...] = ()
    follow: tuple[str, ...] = ()
    follow_bytes: int = 0
    codec: str = ""
    pushed_bytes: tuple[int, ...] = ()
    answered_bytes: tuple[int, ...] = ()

    def request_bytes(self, server: int) -> int:
        """Bytes on the wire to a sync server."""
        return self.pushed_bytes[server] if self.codec else self.exchange_bytes[server]

    def answer_bytes(self, server: int) -> int:
        """Bytes on the wire from a sync server."""
        return self.answered_bytes[server] if self.codec else self.exchange_bytes[server]


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements ``begin`` to ``end`` (exclusive) of an operator's parameters."""

    op: str
    begin: int
    end: int

    @property
    def elements(self) -> int:
        """How many."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Average:
    """Average parameters with the same node of all other groups by a ring, at steps divisible by the gap (``ma``, ``bmuf``).

    The buffer of a node is its ``pieces`` one after the other: on a rank, first its part of the DP operators, ``shared``,
    then MP operators. It is cut into one chunk a group (``programs.collectives``), ``chunk_bytes`` each, of which the node
    sends 2 (G - 1). The difference that the average makes to ``shared`` it sends to the ``peers``, the other ranks of its
    group (``shared_bytes`` each), and gets theirs, to the pieces in ``taken``.
    """

    pieces: tuple[Piece, ...]
    bytes: int
    chunk_bytes: int
    shared: tuple[Piece, ...] = ()
    shared_bytes: int = 0
    peers: tuple[int, ...] = ()
    taken: tuple[tuple[Piece, ...], ...] = ()  # by peer
    taken_bytes: tuple[int, ...] = ()


Instruction = NextBatch | Lookup | Compute | Send | Recv | Reduce | AllReduce | Update | Metric | SyncStep | Average


@dataclass(frozen=True)
class Program:
    """What one place of a session does in one step, in order."""

    place: Place
    instructions: tuple[Instruction, ...]
