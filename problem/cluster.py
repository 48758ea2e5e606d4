"""The cluster: ON WHAT the model is trained. Pure data in SI units; ``problem.cluster_io`` reads it from files.

A :class:`Node` is a machine. Nodes with the same ``host`` share that host's cores and memory bandwidth, and messages
between them are memory copies, not NIC traffic (``local:4`` is four nodes on one host).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

ROLES = ("any", "trainer", "server")


@dataclass(frozen=True, slots=True)
class Node:
    """A machine.

    Parameters
    ----------
    name : str
        Unique name.
    host : str
        Physical machine; usually the name itself.
    kind : str
        Machine type: costs belong to a kind. For this machine it is the fingerprint that a profile carries.
    role : str
        ``trainer``, ``server`` (embedding or sync PS) or ``any``.
    cores : int
        Cores that training may use.
    flops_per_core_second : float
        Sustained float32 matrix-product rate of one core.
    memory_bandwidth_bytes_per_second : float
        Memory bandwidth of the whole node.
    memory_bytes : int
        Memory that training may use.
    nic_bytes_per_second : float
        Rate of the NIC, each direction (full duplex).
    latency_seconds : float
        One-way latency of a message.
    """

    name: str
    host: str
    kind: str
    cores: int
    flops_per_core_second: float
    memory_bandwidth_bytes_per_second: float
    memory_bytes: int
    nic_bytes_per_second: float
    latency_seconds: float
    role: str = "any"

    @property
    def may_train(self) -> bool:
        """Whether the node may be a trainer."""
        return self.role in {"any", "trainer"}

    @property
    def may_serve(self) -> bool:
        """Whether the node may be a parameter server."""
        return self.role in {"any", "server"}

    def renamed(self, name: str) -> Node:
        """Return the same machine under another name (and as a host of its own)."""
        return replace(self, name=name, host=name)


@dataclass(frozen=True)
class Cluster:
    """Machines that a job may use.

    Parameters
    ----------
    name : str
        Name shown to the user.
    nodes : tuple of Node
        Machines, in the order in which they are used.
    assumptions : tuple of str
        Values that the source left open and that were filled in, for printing.
    """

    name: str
    nodes: tuple[Node, ...]
    assumptions: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_local(self) -> bool:
        """Whether all nodes are on one host."""
        return len({node.host for node in self.nodes}) == 1
