"""Measures this machine: what operators and lookups of the executor cost here, and puts the profile together.

Costs are taken in context: a whole model runs step after step in one process, through the very interpreter that runs
plans, on batches whose ids are fresh, and each instruction's CPU time is noted. An operator in a tight loop is 37 to 55 %
faster than in a step, because its data stays in cache; such a number predicts nothing. Messages are timed between two
processes, the caches swept between them. What comes out is a ``cost_models.profile.Profile``; this module never sees a
predicted cost.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from cost_models.memory import step_bytes
from cost_models.profile import BatchPoint, Measurement, Profile, signature
from executor.data.synthetic import SyntheticStream
from executor.loopback import Loopback
from executor.profile_messages import MESSAGES, MOST_TOUCHED_BYTES, measure_exchange, measure_messages, trimmed_mean
from executor.profile_shards import shard_measurements
from placement.plan import DP, Plan, Shard
from problem.cluster import Node
from problem.graph import Graph, Kind, Operator
from problem.local import fingerprint, this_node
from problem.model import EmbeddingTable, Model
from programs.instructions import Compute, Instruction, Lookup, Metric, NextBatch, Update
from programs.workers import Worker

#: Batches at which a model is measured, between which costs are interpolated.
BATCHES = (64, 256, 512, 1024, 2048)
QUICK = (64, 512)
EXTRA_BATCHES = (128, 512)
#: Sessions of one machine whose steps may share its caches while messages are measured.
SESSIONS = 4
WARMUP_STEPS, TIMED_STEPS = 16, 32

Watch = Callable[[str], None]


def in_context_plan(model: Model, batch: int, machine: Node) -> Plan:
    """Return the plan that is measured: everything on one rank, each feature's table on a server of its own."""
    model = unshared(model)
    tags = {op.name: DP for op in model.graph if op.kind is not Kind.LOOKUP}
    shards = tuple(Shard(table.name, i, 0, table.rows) for i, table in enumerate(model.tables))
    servers = tuple(replace(machine, name=f"server-{i}") for i in range(len(model.tables)))
    return Plan(model, ((replace(machine, name="node-0"),),), servers, batch, tags, shards)


def unshared(model: Model) -> Model:
    """Return the model with a table for every feature, so that each is measured by itself."""
    tables = tuple(replace(feature, shares="") for feature in model.feature.values())
    operators = tuple(replace(op, table=op.name) if op.kind is Kind.LOOKUP else op for op in model.graph)
    return replace(model, graph=Graph(operators), tables=tables, shared=()) if model.shared else model


def measure_model(
    model: Model, batches: Iterable[int], *, steps: int = TIMED_STEPS, watch: Watch | None = None
) -> Profile:
    """Measure one model in context, without the costs of messages.

    Parameters
    ----------
    model : Model
        What is measured.
    batches : iterable of int
        Samples per batch; one run each.
    steps : int
        Timed steps of each run.
    watch : callable, optional
        Told what is being measured.

    Returns
    -------
    Profile
        Measurements of every operator and table, not fitted yet.
    """
    machine, chosen = this_node(), tuple(batches)
    points: list[Measurement] = []
    takes: list[BatchPoint] = []
    metrics: list[float] = []
    varies: list[float] = []
    for batch in chosen:
        if watch is not None:
            watch(f"{model.name}, batch {batch}")
        loop = Loopback(
            in_context_plan(model, batch, machine), SyntheticStream(unshared(model), 0), WARMUP_STEPS + steps
        )
        for step in range(loop.steps):
            loop.run_step(step)
        found = list(_measurements(loop))
        points += (*found, *shard_measurements(loop, {(m.signature, m.phase): m.seconds for m in found}))
        rank = _typical(loop, "g0/n0/t0")
        takes.append(BatchPoint(_batch_bytes(loop), rank[NextBatch][0]))
        metrics.append(rank[Metric][0])
        varies.append(variation(loop.busy_seconds("g0/n0/t0")[WARMUP_STEPS:].sum(axis=1)))
    return Profile(
        machine=fingerprint(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        version="0.1.0",
        batches=chosen,
        measurements=tuple(points),
        next_batch=tuple(takes),
        metric_seconds=float(np.median(metrics)),
        variation=float(np.median(varies)),
        optimizer=model.optimizer,
    )


def measure_machine(
    model: Model, extra: Sequence[Model] = (), batches: Sequence[int] = BATCHES, *, watch: Watch | None = None
) -> Profile:
    """Measure a model at several batches, other shapes through ``extra`` models, and messages; fit everything.

    Parameters
    ----------
    model : Model
        What is planned next.
    extra : sequence of Model
        Models of other shapes, measured at two batches, for the fit of shapes that nobody measured.
    batches : sequence of int
        Samples per batch.
    watch : callable, optional
        Told what is being measured.
    """
    profile = measure_model(model, batches, watch=watch)
    for other in extra:
        more = measure_model(other, EXTRA_BATCHES, steps=TIMED_STEPS // 2, watch=watch)
        profile = replace(profile, measurements=profile.measurements + more.measurements)
    if watch is not None:
        watch("messages")
    subjects: list[Operator | EmbeddingTable] = [s for m in (model, *extra) for s in (*m.graph, *m.feature.values())]
    steps = [step_bytes(model, batch) for batch in batches] + [step_bytes(m, b) for m in extra for b in EXTRA_BATCHES]
    return with_messages(profile, steps).fitted(subjects)


def with_messages(profile: Profile, steps: Sequence[float]) -> Profile:
    """Return the profile with the costs of messages, sums and elastic updates, measured now.

    Parameters
    ----------
    profile : Profile
        Everything else.
    steps : sequence of float
        Bytes that steps touch (``cost_models.memory.step_bytes``). What is touched between two messages goes from that of
        the smallest step to that of :data:`SESSIONS` of the largest, as far as caches reach.
    """
    ends = [min(size, MOST_TOUCHED_BYTES) for size in (min(steps), SESSIONS * max(steps))]
    levels = dict.fromkeys((ends[0], (ends[0] * ends[1]) ** 0.5, ends[1]))
    messages = [point for touched in levels for point in measure_messages(MESSAGES, touched)]
    return replace(profile, messages=tuple(messages), exchange_seconds_per_byte=measure_exchange(ends[0]))


# ---- operators and tables


def variation(seconds: npt.NDArray[np.float64]) -> float:
    """Coefficient of variation from step to step: ranks of a group wait for each other by what differs between them.

    From the differences of successive steps (von Neumann, Ann. Math. Stat. 12 (1941) 367): a machine that is slower for a
    while is so for all ranks. Their quartiles are 1.349 standard deviations apart in a normal distribution, and those of a
    difference are larger by the root of 2.
    """
    return _spread(np.diff(seconds)) / 1.349 / 2**0.5 / float(np.median(seconds))


def _spread(seconds: npt.NDArray[np.float64]) -> float:
    low, high = np.percentile(seconds, [25, 75])
    return float(high - low)


def _timed(loop: Loopback, worker: Worker) -> Iterator[tuple[Instruction, npt.NDArray[np.float64]]]:
    busy = loop.busy_seconds(worker.name)[WARMUP_STEPS:]
    return ((instruction, busy[:, index]) for index, instruction in enumerate(worker.program))


def _typical(loop: Loopback, name: str) -> dict[type, list[float]]:
    """Typical seconds of a worker's instructions, by class."""
    worker = next(worker for worker in loop.workers if worker.name == name)
    found: dict[type, list[float]] = {}
    for instruction, seconds in _timed(loop, worker):
        found.setdefault(type(instruction), []).append(trimmed_mean(seconds))
    return found


def _measurements(loop: Loopback) -> Iterator[Measurement]:
    model, batch = loop.plan.model, loop.plan.batch
    for worker in loop.workers:
        for instruction, seconds in _timed(loop, worker):
            typical, spread = trimmed_mean(seconds), _spread(seconds)
            match instruction:
                case Compute(op, phase):
                    yield Measurement(model.graph[op].signature, phase, batch, typical, spread)
                case Lookup(shards):
                    key = signature(model.table[loop.plan.shards[shards[0]].table])
                    yield Measurement(key, "lookup", batch, typical, spread)
                case Update(ops=(), shards=shards):
                    key = signature(model.table[loop.plan.shards[shards[0]].table])
                    yield Measurement(key, "update", batch, typical, spread)
                case Update(ops=ops):
                    yield from _shared_out(model, ops, batch, typical, spread)
                case _:
                    pass


def _shared_out(model: Model, ops: Sequence[str], batch: int, typical: float, spread: float) -> Iterator[Measurement]:
    """One update instruction serves all operators; its time is divided by their parameters, which it streams through."""
    total = sum(model.graph[name].parameters for name in ops)
    for name in ops:
        share = model.graph[name].parameters / total
        yield Measurement(model.graph[name].signature, "update", batch, typical * share, spread * share)


def _batch_bytes(loop: Loopback) -> float:
    batch = loop.pool.take(0, 0)
    return float(batch.nbytes)
