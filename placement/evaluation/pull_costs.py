"""What pulling from embedding servers costs a rank, as a linear function: found by probing the tally.

Bounds of thousands of shapes ask for it; the tally itself would take longer than all else. Knows no shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from cost_models.costs import CostTable, PhaseCost
from cost_models.memory import request_tensors
from placement.evaluation.group import GroupProblem, ServerLink
from placement.evaluation.loads import fixed_tally
from problem.cluster import Node
from problem.model import Model

#: Bytes of a probe for what messages cost, and its machine.
MEGA = 10**6
PROBE = Node("server", "server", "", 1, 1.0, 1.0, 0, 1.0, 0.0)


def pull_terms(model: Model, costs: CostTable, batch: int) -> npt.NDArray[np.float64]:
    """Return (3, 4) core-seconds, bytes out and bytes in of a rank: in all, per server, per byte of ids and of pooled rows.

    Parameters
    ----------
    model : Model
        What is trained.
    costs : CostTable
        Costs for the batch.
    batch : int
        Samples.
    """
    probes = [(1, 0, 0), (2, 0, 0), (1, MEGA, 0), (1, 0, MEGA)]
    found = np.array([_fixed(model, costs, batch, *probe) for probe in probes])
    slopes = (found[1:] - found[0]) / np.array([[1], [MEGA], [MEGA]])
    return np.vstack([found[0] - slopes[0], slopes]).T


def _fixed(model: Model, costs: CostTable, batch: int, count: int, ids: int, pooled: int) -> tuple[float, float, float]:
    """Core-seconds, bytes out and bytes in of a rank that pulls so much from so many servers, as the tally has it."""
    rank = replace(PROBE, name="rank", host="rank")
    links = pull_links(model, (PROBE,) * count, ids, pooled)
    bare = replace(model, tables=(), shared=())
    fixed = fixed_tally(GroupProblem(bare, costs, (rank,), batch, servers=links))
    return sum(part[0] for part in fixed.core.values()), fixed.tx[0], fixed.rx[0]


def pull_links(model: Model, nodes: Sequence[Node], ids: int, pooled: int) -> tuple[ServerLink, ...]:
    """Return servers that answer for free and share bytes equally, in as few tensors as whole tables make."""
    requests, answers = sum(map(request_tensors, model.feature.values())), len(model.feature)
    count = len(nodes)

    def part(of: int, index: int) -> int:
        return of * (index + 1) // count - of * index // count

    return tuple(
        ServerLink(
            node,
            (),
            ids // count,
            pooled // count,
            PhaseCost(),
            PhaseCost(),
            widths=(0,) * part(answers, index),
            requests=part(requests, index),
        )
        for index, node in enumerate(nodes)
    )


def unhurried(node: Node) -> Node:
    """Return the node with resources that never bind; its host and latency are kept."""
    return replace(
        node,
        cores=10**9,
        memory_bandwidth_bytes_per_second=1e30,
        nic_bytes_per_second=1e30,
        memory_bytes=2**60,
    )
