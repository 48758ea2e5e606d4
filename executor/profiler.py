"""Measures this machine: what operators, lookups and messages of the executor cost here.

Costs are taken in context: a whole model runs step after step in one process, through the very interpreter that runs
plans, on batches whose ids are fresh, and each instruction's CPU time is noted. An operator in a tight loop is 37 to 55 %
faster than in a step, because its data stays in cache; such a number predicts nothing. Messages are timed between two
processes, the caches swept between them. What comes out is a ``cost_models.profile.Profile``; this module never sees a
predicted cost.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_models.profile import BatchPoint, Measurement, MessagePoint, Profile, signature
from executor.arrays import Floats
from executor.clock import Clock, ClockKind
from executor.data.synthetic import SyntheticStream
from executor.frame import Array, Layout
from executor.loopback import Loopback
from executor.profile_shards import SWEEP_BYTES, shard_measurements
from executor.state import Record
from executor.supervisor import supervise
from executor.transport import Channel, keep_only, shared_array
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
#: Bytes and tensors of the messages that are timed: parameters and activations are one or few, pooled rows many.
MESSAGES = (
    (1 << 10, 1),
    (1 << 14, 1),
    (1 << 14, 16),
    (1 << 16, 8),
    (1 << 18, 1),
    (1 << 18, 32),
    (1 << 20, 1),
    (1 << 20, 8),
    (1 << 20, 32),
    (1 << 22, 1),
)
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
        more = measure_model(other, (128, 512), steps=TIMED_STEPS // 2, watch=watch)
        profile = replace(profile, measurements=profile.measurements + more.measurements)
    if watch is not None:
        watch("messages")
    subjects: list[Operator | EmbeddingTable] = [s for m in (model, *extra) for s in (*m.graph, *m.feature.values())]
    return with_messages(profile).fitted(subjects)


def with_messages(profile: Profile) -> Profile:
    """Return the profile with the costs of messages, sums and elastic updates, measured now."""
    summing, elastic = _array_costs()
    return replace(
        profile,
        messages=tuple(measure_messages(MESSAGES)),
        sum_seconds_per_byte=summing,
        exchange_seconds_per_byte=elastic,
    )


# ---- operators and tables


def trimmed_mean(seconds: npt.NDArray[np.float64]) -> float:
    """Mean of the middle 80 % of the values: steady against interrupts, yet not blind to what is usually slow."""
    ordered = np.sort(seconds)
    cut = len(ordered) // 10
    return float(ordered[cut : len(ordered) - cut].mean())


def variation(seconds: npt.NDArray[np.float64]) -> float:
    """Coefficient of variation by the quartiles, which of a normal distribution are 1.349 standard deviations apart."""
    return _spread(seconds) / 1.349 / float(np.median(seconds))


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


# ---- messages


def measure_messages(messages: Sequence[tuple[int, int]], repetitions: int = 24) -> list[MessagePoint]:
    """Time messages of some bytes and tensors between two processes, in turn, caches swept in between.

    Returns
    -------
    list of MessagePoint
        Receiving includes bringing the bytes into the receiver's cache, which the kernel that reads them would pay.
    """
    layouts: list[Layout] = [[((size // 4 // n,), np.float32) for _ in range(n)] for size, n in messages]
    there = [Channel("sender", "receiver", layout) for layout in layouts]
    back = Channel("receiver", "sender", ())
    shape = repetitions, len(messages)
    times: dict[str, Floats] = {name: shared_array(shape, np.float64) for name in ("sender", "receiver")}
    records = {name: Record(_nobody(name), range(1)) for name in times}
    ends = {name: set[int]().union(*(one.ends(name)[0] for one in (*there, back))) for name in times}
    everything = set[int]().union(*(one.ends("")[1] for one in (*there, back)))

    def work(name: str, turns: Sequence[_Sender] | Sequence[_Receiver]) -> None:
        keep_only(ends[name], everything)
        clock = Clock(ClockKind.CPU, 0.0)
        for repetition, index in np.ndindex(shape):
            times[name][repetition, index] = turns[index](clock, records[name])

    sweep = np.zeros(SWEEP_BYTES // 4, np.float32)
    senders = [_Sender(one, back, layout, sweep) for one, layout in zip(there, layouts, strict=True)]
    receivers = [_Receiver(one, back, sweep) for one in there]
    tasks = {
        "sender": functools.partial(work, "sender", senders),
        "receiver": functools.partial(work, "receiver", receivers),
    }
    supervise(tasks, records, started=functools.partial(keep_only, set(), everything))
    sent, taken = (
        [trimmed_mean(seconds[2:, index].astype(np.float64)) for index in range(len(messages))]
        for seconds in (times["sender"], times["receiver"])
    )
    sizes = zip(messages, sent, taken, strict=True)
    return [MessagePoint(float(size), send, take, tensors) for (size, tensors), send, take in sizes]


def _nobody(name: str) -> Worker:
    return Worker(name, this_node(), "rank", 0, 0, 0, None, ())


class _Sender:
    """Writes the payload, sweeps its cache as the kernels in between would, sends; its time is that of the send."""

    def __init__(self, there: Channel, back: Channel, layout: Layout, sweep: Floats) -> None:
        self.there, self.back, self.sweep = there, back, sweep
        self.payload: list[Any] = [np.zeros(shape, dtype) for shape, dtype in layout]

    def __call__(self, clock: Clock, record: Record) -> float:
        for array in self.payload:
            np.add(array, 1, out=array)
        self.sweep += 1.0
        clock.begin()
        self.there.send(self.payload, clock, record)
        clock.lap()
        used = clock.used
        self.back.receive(clock, record)
        return used


class _Receiver:
    """Sweeps its cache, receives, reads the payload twice: the second reading is warm, the difference is the message's."""

    def __init__(self, there: Channel, back: Channel, sweep: Floats) -> None:
        self.there, self.back, self.sweep = there, back, sweep
        self.total = 0.0

    def __call__(self, clock: Clock, record: Record) -> float:
        self.sweep += 1.0
        clock.begin()
        payload = self.there.receive(clock, record)
        clock.lap()
        taking = clock.used
        cold = self._read(payload, clock)
        warm = self._read(payload, clock)
        self.back.send([], clock, record)
        return taking + max(0.0, cold - warm)

    def _read(self, payload: Sequence[Array], clock: Clock) -> float:
        clock.begin()
        self.total += sum(float(array.sum()) for array in payload)
        clock.lap()
        return clock.used


# ---- sums and elastic updates


def _array_costs(elements: int = 1 << 18, repetitions: int = 24) -> tuple[float, float]:
    """Seconds per byte of ``a += b``, and of the elastic update (mean of the trainer's and the server's part)."""
    a, b = np.ones(elements, np.float32), np.ones(elements, np.float32)
    sweep = np.zeros(SWEEP_BYTES // 4, np.float32)
    clock = Clock(ClockKind.CPU, 0.0)

    def timed(action: Callable[[], object]) -> float:
        seconds = []
        for _ in range(repetitions):
            sweep.__iadd__(1.0)
            clock.begin()
            action()
            clock.lap()
            seconds.append(clock.used)
        return trimmed_mean(np.array(seconds)) / a.nbytes

    adding = timed(lambda: np.add(a, b, out=a))
    serving = timed(lambda: np.subtract(a, (a - b) * np.float32(0.1), out=a))
    return adding, (adding + serving) / 2
