"""What real clusters do to a plan: stragglers, slow machines, slow readers, racks, failures. Default: none of it.

Everything drawn is drawn per actor from (seed, name of the actor), so that it does not depend on the order of events nor
on how nodes are numbered. Pure data and pure functions; nothing of the clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from problem.cluster import Node
from problem.errors import BadInput


@dataclass(frozen=True)
class Failures:
    """Nodes fail independently; the job then restarts from its last checkpoint.

    Parameters
    ----------
    node_mtbf_seconds : float
        Mean time between failures of one node (exponential).
    checkpoint_interval_seconds : float
        Useful work between two checkpoints.
    checkpoint_seconds : float
        What writing one takes, with training stopped.
    restart_seconds : float
        From a failure until training goes on, a replacement node and reading the checkpoint included.
    """

    node_mtbf_seconds: float
    checkpoint_interval_seconds: float
    checkpoint_seconds: float = 0.0
    restart_seconds: float = 0.0

    def __post_init__(self) -> None:
        _at_least("node_mtbf_seconds", self.node_mtbf_seconds, 0.0, strictly=True)
        _at_least("checkpoint_interval_seconds", self.checkpoint_interval_seconds, 0.0, strictly=True)
        _at_least("checkpoint_seconds", self.checkpoint_seconds, 0.0)
        _at_least("restart_seconds", self.restart_seconds, 0.0)

    def useful_fraction(self, nodes: int) -> float:
        """Useful work per second of a job on ``nodes`` nodes.

        A segment of t useful seconds and a checkpoint of c takes M e^(r / M) (e^((t + c) / M) - 1) seconds on average,
        M the job's mean time between failures, r the restart (J. T. Daly, A higher order estimate of the optimum
        checkpoint interval for restart dumps, FGCS 2006, equation 13). Failures may strike during restarts too.
        """
        mean = self.node_mtbf_seconds / nodes
        segment = self.checkpoint_interval_seconds + self.checkpoint_seconds
        if (segment + self.restart_seconds) / mean > 700.0:  # beyond what a float can hold: nothing gets done
            return 0.0
        return self.checkpoint_interval_seconds / (
            mean * math.exp(self.restart_seconds / mean) * math.expm1(segment / mean)
        )


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints as events: every ``interval_seconds`` of training all groups stop for ``write_seconds``."""

    interval_seconds: float
    write_seconds: float = 0.0

    def __post_init__(self) -> None:
        _at_least("checkpoints.interval_seconds", self.interval_seconds, 0.0, strictly=True)
        _at_least("checkpoints.write_seconds", self.write_seconds, 0.0)


@dataclass(frozen=True)
class NodeLoss:
    """A node that is lost once, as an event (:mod:`simulator.outages`).

    Parameters
    ----------
    node : str
        Its name. Of a server, or with ``whole_job``, all groups stand still; else the node's group.
    at_seconds : float
        When.
    detect_seconds, restart_seconds : float
        Until it is noticed; then until a replacement has read the checkpoint.
    whole_job : bool
        Whether all groups start again from the checkpoint.
    """

    node: str
    at_seconds: float
    detect_seconds: float = 0.0
    restart_seconds: float = 0.0
    whole_job: bool = False

    def __post_init__(self) -> None:
        for name in ("at_seconds", "detect_seconds", "restart_seconds"):
            _at_least(f"losses.{name}", getattr(self, name), 0.0)


@dataclass(frozen=True)
class Resize:
    """From ``at_seconds`` on so many groups train, after a pause (:mod:`simulator.phases`)."""

    at_seconds: float
    groups: int
    pause_seconds: float = 0.0

    def __post_init__(self) -> None:
        _at_least("resizes.at_seconds", self.at_seconds, 0.0)
        _at_least("resizes.groups", self.groups, 1.0)
        _at_least("resizes.pause_seconds", self.pause_seconds, 0.0)


@dataclass(frozen=True)
class Conditions:
    """What disturbs a run.

    Parameters
    ----------
    worker_sigma : float
        Every worker's core times of a step are multiplied by a lognormal factor of mean 1 with this sigma.
    burst_probability, burst_steps, burst_factor : float, int, float
        With this probability a step of a worker begins a burst: so many steps that take so many times as long.
    node_sigma : float
        Every node's core times are multiplied by a lognormal factor of mean 1, drawn once.
    slow_nodes : Mapping of str to float
        By node name, what its core times are multiplied by.
    slow_nics : Mapping of str to float
        By node name, what the bandwidth of its NIC is divided by.
    reader_batches_per_second : float
        Batches that the readers of one rank's node deliver per second.
    nodes_per_rack : int
        Nodes share a rack in the order groups, embedding servers, sync servers; 0: no racks.
    oversubscription : float
        NIC bandwidth of a rack's nodes / bandwidth of its uplink, in each direction.
    failures : Failures or None
        Failures and checkpoints, by their mean effect.
    losses : tuple of NodeLoss
        Single nodes that are lost, as events.
    checkpoints : Checkpoints or None
        Checkpoints as events; without them a loss sets its group back to the start.
    resizes : tuple of Resize
        Changes of the number of groups.
    duration_seconds : float
        Over which the throughput is taken where there are changes.
    """

    worker_sigma: float = 0.0
    burst_probability: float = 0.0
    burst_steps: int = 1
    burst_factor: float = 1.0
    node_sigma: float = 0.0
    slow_nodes: Mapping[str, float] = field(default_factory=dict)
    slow_nics: Mapping[str, float] = field(default_factory=dict)
    reader_batches_per_second: float = math.inf
    nodes_per_rack: int = 0
    oversubscription: float = 1.0
    failures: Failures | None = None
    losses: tuple[NodeLoss, ...] = ()
    checkpoints: Checkpoints | None = None
    resizes: tuple[Resize, ...] = ()
    duration_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("worker_sigma", "node_sigma", "burst_probability", "nodes_per_rack"):
            _at_least(name, getattr(self, name), 0.0)
        for name in ("reader_batches_per_second", "oversubscription", "burst_factor", "burst_steps"):
            _at_least(name, getattr(self, name), 0.0, strictly=True)
        for name, factor in self.slow_nodes.items():
            _at_least(f"slow_nodes.{name}", factor, 0.0, strictly=True)
        for name, factor in self.slow_nics.items():
            _at_least(f"slow_nics.{name}", factor, 0.0, strictly=True)
        if self.resizes and self.losses:
            raise BadInput("conditions", "losses", len(self.losses), "none where there are resizes")
        if self.resizes:
            _at_least("duration_seconds", self.duration_seconds, 0.0, strictly=True)
        if self.burst_probability > 1.0:
            raise BadInput("conditions", "burst_probability", self.burst_probability, "0 to 1")

    @property
    def workers_differ(self) -> bool:
        """Whether workers have times of their own, so that the slowest of several matters."""
        return bool(self.worker_sigma or (self.burst_probability and self.burst_factor != 1.0))

    @property
    def nodes_differ(self) -> bool:
        """Whether alike nodes are no longer alike."""
        return bool(self.node_sigma or self.slow_nodes or self.slow_nics or self.nodes_per_rack or self.eventful)

    @property
    def eventful(self) -> bool:
        """Whether anything happens at an instant."""
        return bool(self.losses or self.checkpoints)

    @property
    def named_nodes(self) -> dict[str, tuple[str, object]]:
        """Nodes that are named, with the field that names them and its value."""
        found: dict[str, tuple[str, object]] = {}
        for part in ("slow_nodes", "slow_nics"):
            found |= {name: (f"{part}.{name}", factor) for name, factor in getattr(self, part).items()}
        return found | {loss.node: ("losses.node", loss.node) for loss in self.losses}

    def at_work(self, node: Node) -> Node:
        """Return a node with the NIC that it has under these conditions."""
        if node.name not in self.slow_nics:
            return node
        return replace(node, nic_bytes_per_second=node.nic_bytes_per_second / self.slow_nics[node.name])

    def node_factor(self, name: str, seed: int) -> float:
        """What the core times of a node are multiplied by."""
        return self.slow_nodes.get(name, 1.0) * lognormal(Random(f"{seed}/node/{name}"), self.node_sigma)


def lognormal(draws: Random, sigma: float) -> float:
    """Draw a lognormal factor of mean 1; 1 for sigma 0, without a draw."""
    return math.exp(draws.gauss(-0.5 * sigma * sigma, sigma)) if sigma else 1.0


def _at_least(name: str, value: float, least: float, strictly: bool = False) -> None:
    if not (value > least if strictly else value >= least):
        raise BadInput("conditions", name, value, f"{'above' if strictly else 'at least'} {least:g}")


#: Nothing disturbs the run.
UNDISTURBED = Conditions()
