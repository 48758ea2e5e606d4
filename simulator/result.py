"""What a simulation returns. Plain data with SI units; the command line and the experiments print it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from programs.timeline import Timeline
from simulator.fidelity import Fidelity
from simulator.machines import Sharing

#: Parts of a rank's step, in the order of :class:`simulator.primitives.Part`.
SPLIT = ("compute", "transfer", "contention", "peer", "ps_queue", "sync", "reader", "recovery")


@dataclass(frozen=True)
class SimulationResult:
    """A predicted run.

    Parameters
    ----------
    samples_per_second : float
        Throughput of the whole job after the warm-up.
    ci95 : float
        Half width of its 95 % confidence interval (batch means); NaN when there are too few steps to judge by.
    utilization : Mapping
        Mean busy fraction over the nodes of a role: role (``trainer``, ``server``, ``sync``) -> resource (``cpu``,
        ``memory_bandwidth``, ``nic_tx``, ``nic_rx``) -> fraction.
    node_utilization : Mapping
        The same for each simulated node.
    bottleneck : str
        A sentence: what binds.
    time_split : Mapping of str to float
        Mean seconds of a rank's step, by :data:`SPLIT`: compute; transfer (waiting for a message on an idle wire);
        contention (what sharing cores, memory and NICs adds); peer (waiting for a node of the group that has not sent);
        ps_queue (waiting for an embedding server that has not answered); sync (foreground exchange); reader (waiting for
        the next batch); recovery (standing still after a loss or while a checkpoint is written).
    average_sync_gap : float or None
        Mean steps between two exchanges of a node; None when there was no pair to measure.
    steps, warmup : int
        Steps that every session made; how many of them are left out of the figures.
    sharing : Sharing
        Who shared cores and memory bandwidth.
    events : int
        Events of the simulation.
    simulated_seconds, wall_seconds : float
        Length of the simulated run; what simulating it took.
    timeline : Timeline or None
        Start and end of every instruction, if recorded.
    left_out : tuple of str
        Sentences: what the prediction leaves out or takes for granted.
    fidelity : Fidelity
        Level that was used (never ``auto``).
    happened : tuple of str
        Sentences: losses of nodes, and phases with other numbers of groups.
    """

    samples_per_second: float
    ci95: float
    utilization: Mapping[str, Mapping[str, float]]
    node_utilization: Mapping[str, Mapping[str, float]]
    bottleneck: str
    time_split: Mapping[str, float]
    average_sync_gap: float | None
    steps: int
    warmup: int
    sharing: Sharing
    events: int
    simulated_seconds: float
    wall_seconds: float
    timeline: Timeline | None
    left_out: tuple[str, ...]
    fidelity: Fidelity = Fidelity.FLUID
    happened: tuple[str, ...] = ()

    def to_json_dict(self) -> dict[str, Any]:
        """Return everything but the timeline, ready for ``json.dumps`` (NaN becomes None)."""
        return {
            "samples_per_second": self.samples_per_second,
            "ci95": None if math.isnan(self.ci95) else self.ci95,
            "utilization": {role: dict(found) for role, found in self.utilization.items()},
            "node_utilization": {node: dict(found) for node, found in self.node_utilization.items()},
            "bottleneck": self.bottleneck,
            "time_split": dict(self.time_split),
            "average_sync_gap": self.average_sync_gap,
            "steps": self.steps,
            "warmup": self.warmup,
            "sharing": str(self.sharing),
            "events": self.events,
            "simulated_seconds": self.simulated_seconds,
            "wall_seconds": self.wall_seconds,
            "left_out": list(self.left_out),
            "fidelity": str(self.fidelity),
            "happened": list(self.happened),
        }
