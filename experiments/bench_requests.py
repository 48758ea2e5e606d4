"""What sending row shards the ids of their rows alone gains: ``python -m experiments.bench_requests``.

One rank trains a model of eight tables with many ids, rows cut evenly over two and four servers, with all ids sent to all
servers and with those of their rows picked out (``cost_models.routing``), on the cpu clock. Printed are bytes of a request,
microseconds of the rank's requests and of a server's look-ups and updates, and samples per second. Takes half a minute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple
from unittest import mock

import numpy as np

from cost_models import routing
from cost_models.constants import Constant
from executor.run import RunOptions, run
from placement.plan import DP, Plan, Shard
from problem.cluster import Node
from problem.graph import Kind
from problem.local import this_node
from problem.model import Model
from problem.readers import model_from_spec
from programs.instructions import Instruction, Lookup, Role, Send, Update
from programs.timeline import WorkerTimeline

#: Samples of a batch, and servers.
SHAPES = ((128, 2), (128, 4), (512, 2), (512, 4))
ROWS, POOLING, STEPS = 200_000, 80, 30
#: Bytes that must be saved: never, and as plans have it.
_WAYS = {"all ids": Constant(float("inf"), "bytes", "never"), "its own": routing.LEAST_SAVED}


class Row(NamedTuple):
    """One way at one shape; seconds a step of the rank and of one server."""

    what: str
    request_bytes: int
    sending: float
    lookups: float
    updates: float
    samples_per_second: float

    def text(self) -> str:
        """Return the row of the table."""
        times = "".join(f"{1e6 * seconds:>10.0f}" for seconds in (self.sending, self.lookups, self.updates))
        return f"{self.what:<34}{self.request_bytes:>10,}{times}{self.samples_per_second:>12,.0f}"


def rows_of(batch: int, servers: int) -> Iterator[Row]:
    """Measure one shape both ways."""
    tables = [{"name": f"t{i}", "rows": ROWS, "pooling_factor": POOLING} for i in range(8)]
    spec = {
        "kind": "dlrm",
        "name": "many ids",
        "dense_features": 13,
        "embedding_dim": 32,
        "batch": batch,
        "learning_rate": 1e-4,
    }
    model = model_from_spec({**spec, "bottom_mlp": [256, 128, 32], "top_mlp": [256, 64, 1], "tables": tables})
    for name, least in _WAYS.items():
        with mock.patch.object(routing, "LEAST_SAVED", least):
            yield _measured(f"batch {batch}, {servers} servers, {name}", _plan(model, servers))


def _plan(model: Model, servers: int) -> Plan:
    ends = [ROWS * server // servers for server in range(servers + 1)]
    shards = tuple(Shard(t.name, s, ends[s], ends[s + 1]) for t in model.tables for s in range(servers))
    tags = {op.name: DP for op in model.graph if op.kind is not Kind.LOOKUP}
    rank, *others = (_named(name) for name in ("rank", *(f"server-{s}" for s in range(servers))))
    return Plan(model, ((rank,),), tuple(others), model.batch, tags, shards)


def _named(name: str) -> Node:
    return replace(this_node(), name=name)


def _measured(what: str, plan: Plan) -> Row:
    result = run(plan, RunOptions(steps=STEPS))
    rank, server = (next(w for w in result.timeline.workers if w.role == role) for role in ("rank", "server"))
    requests = [i for i in rank.instructions if isinstance(i, Send) and i.peer.role is Role.SERVER and _asks(i)]
    lookups, updates = (_busy(server, _of(server, kind)) for kind in (Lookup, Update))
    return Row(what, requests[0].bytes, _busy(rank, requests), lookups, updates, result.samples_per_second)


def _asks(send: Send) -> bool:
    return all(name.startswith("ids.") for name in send.tensors)


def _of(worker: WorkerTimeline, kind: type[Instruction]) -> list[Instruction]:
    return [i for i in worker.instructions if isinstance(i, kind)]


def _busy(worker: WorkerTimeline, instructions: Sequence[Instruction]) -> float:
    """Core-seconds a step of some instructions, a fifth of the steps left out."""
    chosen = [worker.instructions.index(i) for i in instructions]
    return float(np.median(worker.busy[STEPS // 5 :, chosen].sum(axis=1)))


def main() -> None:
    """Print the table."""
    print(f"{'microseconds a step':<34}{'bytes':>10}{'sending':>10}{'look-ups':>10}{'updates':>10}{'samples/s':>12}")
    for shape in SHAPES:
        for row in rows_of(*shape):
            print(row.text(), flush=True)


if __name__ == "__main__":
    main()
