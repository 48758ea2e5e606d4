"""One worker's program, with meaning: each instruction becomes an action on the tensors of the step.

Instructions are bound once, before the first step, to kernels, buffers and channels; a step only runs the bound actions
in order and writes down when each began, ended and how much CPU it used. The tensors of a step live in ``tensors`` by
the names of ``programs.instructions``. Knows nothing of processes: a transport is whatever its endpoint does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.arrays import Bags, Floats, Ids, add_into
from executor.averaging import Averager
from executor.coded import Coders
from executor.coded_reduce import make_reducer
from executor.data.batch import Batch
from executor.errors import NotFinite
from executor.exchange import Endpoint, all_reduce, cut, exchange, in_rank_order
from executor.kernels import by_distinct_input, make_kernel
from executor.kernels_rows import Read, update_rows
from executor.kernels_sparse import pool
from executor.kernels_update import update_dense
from executor.parameters import Parameters
from executor.pushing import Pusher
from executor.routing import decoder, encoder, routes
from executor.state import JobState
from executor.wiring import node_of
from placement.plan import Plan, Span
from problem.graph import FLOAT_BYTES, Kind
from problem.model import EmbeddingTable
from programs.instructions import (
    AllReduce,
    Average,
    Compute,
    Instruction,
    Lookup,
    Metric,
    NextBatch,
    Recv,
    Reduce,
    Send,
    SyncStep,
    Update,
)
from programs.wire import gradients_of, operator_of, strip_of, viewed

Action = Callable[[], None]


@dataclass(frozen=True)
class Context:
    """What a worker needs besides its endpoint.

    Parameters
    ----------
    plan : Plan
        The plan.
    state : JobState
        Parameters of the job.
    next_batch : callable
        Takes a step number, returns the session's batch.
    durations : sequence of float
        Seconds of each instruction (paced clock only; empty otherwise).
    """

    plan: Plan
    state: JobState
    next_batch: Callable[[int], Batch]
    durations: Sequence[float] = ()


class Interpreter:
    """Runs the steps of one worker.

    Parameters
    ----------
    end : Endpoint
        The worker and its channels.
    context : Context
        Plan, parameters and batches.
    """

    def __init__(self, end: Endpoint, context: Context) -> None:
        self.end, self.context, self.step = end, context, 0
        self.plan, self.graph, self.state = context.plan, context.plan.model.graph, context.state
        self.tensors: dict[str, Any] = {}
        self.labels: Floats = np.zeros(0, np.float32)
        self.loss, self.scale = 0.0, np.zeros(1, np.float32)  # what the loss's gradient is multiplied by
        self.node = self._node_parameters()
        self._allocate_gradients()
        self.kernels: dict[str, Any] = {}
        self.coders = Coders(self.plan, end.worker, self.state.left_out)
        self.actions = [self._bind(instruction) for instruction in end.worker.program]

    def _node_parameters(self) -> Parameters | None:
        worker = self.end.worker
        if worker.role == "server":
            return None
        node = worker.rank if worker.place is None else worker.place.index
        return self.state.dense[worker.group, node]

    def _allocate_gradients(self) -> None:
        """One gradient buffer for each operator held here; those of an all-reduce side by side."""
        held = self.node.operators if self.node is not None else ()
        together = next((i.ops for i in self.end.worker.program if isinstance(i, AllReduce)), ())
        order = [*together, *(name for name in held if name not in together)]
        ends = np.cumsum([0, *(self.graph[name].parameters for name in order)])
        self.all_gradients = np.zeros(int(ends[-1]), np.float32)
        self.gradients = {name: self.all_gradients[ends[i] : ends[i + 1]] for i, name in enumerate(order)}

    def run_step(self, step: int) -> None:
        """Run the program once and record its times."""
        self.step, poke = step, self.end.wiring.transport.poke
        for index in range(len(self.actions)):
            self.run_instruction(index)
            poke()
        self.end.record.step_done(step, self.end.clock.wall)

    def run_instruction(self, index: int) -> None:
        """Run one instruction of the current step and record its start, end and CPU time."""
        clock, durations = self.end.clock, self.context.durations
        clock.begin(durations[index] if durations else 0.0)
        start = clock.now
        self.actions[index]()
        clock.lap()
        self.end.record.note(self.step, index, (start, clock.now, clock.used))

    # ---- binding: one method per instruction

    def _bind(self, instruction: Instruction) -> Action:
        match instruction:
            case NextBatch():
                return self._next_batch
            case Lookup():
                return self._bind_lookup(instruction)
            case Compute(phase="forward"):
                return self._bind_forward(instruction)
            case Compute():
                return self._bind_backward(instruction)
            case Send():
                return self._bind_send(instruction)
            case Recv():
                return self._bind_receive(instruction)
            case Reduce():
                return self._bind_reduce(instruction)
            case _:
                return self._bind_update(instruction)

    def _bind_update(self, instruction: AllReduce | Update | Metric | SyncStep | Average) -> Action:
        match instruction:
            case AllReduce():
                return self._bind_all_reduce(instruction)
            case Update():
                return self._bind_apply(instruction)
            case Metric():
                return self._metric
            case SyncStep():
                return self._every_gap(self._bind_exchange(instruction))
            case Average():
                return self._every_gap(self._bind_average())

    def _bind_all_reduce(self, instruction: AllReduce) -> Action:
        buffer, worker = self.all_gradients[: instruction.bytes // FLOAT_BYTES], self.end.worker
        if not instruction.codec:
            parts = cut(buffer, instruction, self.plan.ranks)
            return lambda: all_reduce(self.end, parts)
        feedback = self.state.feedback.get((worker.group, worker.rank), {})
        reduce = make_reducer(self.end, instruction, buffer, feedback)
        return lambda: reduce(self.step)

    def _next_batch(self) -> None:
        batch = self.context.next_batch(self.step)
        self.labels = batch.labels
        self.scale[0] = 1.0 / max(1, batch.mean_over or self.plan.batch * self.plan.ranks)
        self.tensors["dense"] = batch.dense
        for name, ids in batch.ids.items():
            self.tensors[f"ids.{name}"] = ids
        for name, weights in batch.weights.items():
            self.tensors[f"weights.{name}"] = weights

    def _bind_lookup(self, instruction: Lookup) -> Action:
        work = []
        for shard, output in zip(instruction.shards, instruction.outputs, strict=True):
            table = self.state.rows[shard]
            assert table is not None
            out = np.zeros((self.plan.batch, table.rows.shape[1]), np.float32)
            total = self.tensors.setdefault(output, out)
            feature = self.plan.model.feature[operator_of(self.plan, output)]
            work.append((table, feature, out, total))

        def lookup() -> None:
            for held, feature, out, total in work:
                ids, weights = self._request(feature.name)
                pool(held.rows, held.row_begin, ids, out, weights, mean=feature.pooling == "mean")
                if total is not out:
                    np.add(total, out, out=total)

        return lookup

    def _request(self, feature: str) -> tuple[Ids | Bags, Floats | None]:
        """Ids of a feature, and their weights if it pools by weight."""
        return self.tensors[f"ids.{feature}"], self.tensors.get(f"weights.{feature}")

    def _kernel(self, name: str) -> tuple[Any, Floats]:
        op = self.graph[name]
        if name not in self.kernels:
            widths = [self.graph[source].width for source in op.inputs]
            self.kernels[name] = make_kernel(op, widths, self.plan.batch)
        flat = self.node.flat(name) if op.parameters and self.node is not None else np.zeros(0, np.float32)
        return self.kernels[name], flat

    def _bind_forward(self, instruction: Compute) -> Action:
        op, tensors = self.graph[instruction.op], self.tensors
        kernel, flat = self._kernel(op.name)
        if op.kind is Kind.LOSS:
            return lambda: self._loss(kernel, op.inputs[0], op.name)
        sources = ("dense",) if op.kind is Kind.DENSE_INPUT else op.inputs

        def forward() -> None:
            tensors[op.name] = kernel.forward([tensors[source] for source in sources], flat)

        return forward

    def _loss(self, kernel: Any, source: str, name: str) -> None:
        self.tensors[name] = kernel.forward([self.tensors[source], self.labels], np.zeros(0, np.float32))
        self.loss = float(np.mean(self.tensors[name], dtype=np.float64))

    def _bind_backward(self, instruction: Compute) -> Action:
        op, tensors = self.graph[instruction.op], self.tensors
        kernel, flat = self._kernel(op.name)
        grads = self.gradients.get(op.name, np.zeros(0, np.float32))
        wanted = dict(zip(dict.fromkeys(op.inputs), instruction.outputs, strict=True))
        needs = [bool(wanted[source]) for source in op.inputs]
        scale, is_loss, sources = self.scale, op.kind is Kind.LOSS, op.inputs

        def backward() -> None:
            inputs = [tensors[source] for source in sources]
            incoming = scale if is_loss else tensors[f"d.{op.name}"]
            if is_loss:
                inputs.append(self.labels)
            found = kernel.backward(incoming, inputs, flat, grads, needs)
            for source, gradient in by_distinct_input(op, found).items():
                tensors[wanted[source]] = gradient

        return backward

    def _bind_send(self, instruction: Send) -> Action:
        worker = self.end.worker
        label = ("session", worker.group, worker.rank, worker.thread, instruction.channel)
        end, found = self.end, [self._finder(name) for name in instruction.tensors]
        if not instruction.codec:
            return lambda: end.send(label, [find() for find in found])
        encode = encoder(self.plan, instruction) if routes(instruction) else self.coders.encoder(instruction)
        return lambda: end.send(label, encode([np.ascontiguousarray(find()) for find in found], self.step))

    def _finder(self, name: str) -> Callable[[], Any]:
        """Return what gets a tensor of the step, or the columns of one."""
        tensors, whole, strip = self.tensors, viewed(name), strip_of(name)
        if name in self.graph or whole == name or strip is None:
            return lambda: tensors[name]
        columns = slice(*strip)
        return lambda: tensors[whole][:, columns]

    def _bind_receive(self, instruction: Recv) -> Action:
        worker = self.end.worker
        label = ("session", worker.group, worker.rank, worker.thread, instruction.channel)
        names, tensors, end = instruction.tensors, self.tensors, self.end
        if not instruction.codec:
            return lambda: tensors.update(zip(names, end.receive(label), strict=True))
        decode = decoder(self.plan, instruction) if routes(instruction) else self.coders.decoder(instruction)
        return lambda: tensors.update(zip(names, decode(end.receive(label), self.step), strict=True))

    def _bind_reduce(self, instruction: Reduce) -> Action:
        tensors, strips = self.tensors, dict[Span, list[str]]()
        width = instruction.bytes // (self.plan.batch * FLOAT_BYTES)
        out = np.zeros((self.plan.batch, width), np.float32)
        for part in instruction.parts:
            strips.setdefault(strip_of(part) or (0, width), []).append(part)
        sums = [(out[:, begin:end], parts) for (begin, end), parts in strips.items()]

        def reduce() -> None:
            for into, parts in sums:
                add_into(into, [tensors[part] for part in parts])
            tensors[instruction.target] = out

        return reduce

    def _bind_apply(self, instruction: Update) -> Action:
        dense = [self._bind_dense(name) for name in instruction.ops]
        sparse = [self._bind_sparse(shard) for shard in instruction.shards]

        def apply() -> None:
            for action in (*dense, *sparse):
                action()

        return (lambda: in_rank_order(self.end, apply)) if instruction.ordered else apply

    def _bind_dense(self, name: str) -> Action:
        assert self.node is not None
        flat, state, grads = self.node.flat(name), self.node.state(name), self.gradients[name]
        model = self.plan.model
        return lambda: update_dense(model.optimizer, flat, state, grads, model.learning_rate)

    def _bind_sparse(self, shard: int) -> Action:
        held, rate = self.state.rows[shard], self.plan.model.learning_rate
        assert held is not None
        tensors, names = self.tensors, gradients_of(self.plan, self.plan.shards[shard])
        reads = [(self.plan.model.feature[operator_of(self.plan, name)], name) for name in names]

        def read(feature: EmbeddingTable, name: str) -> Read:
            ids, weights = self._request(feature.name)
            return Read(ids, tensors[name], weights, feature.pooling == "mean")

        return lambda: update_rows(held, [read(feature, name) for feature, name in reads], rate)

    def _metric(self) -> None:
        self.end.record.note_loss(self.step, self.loss)
        if len(self.labels) and not np.isfinite(self.loss):
            raise NotFinite(f"loss is {self.loss} at step {self.step}")

    def _every_gap(self, exchange_number: Callable[[int], None]) -> Action:
        """Exchange when the step's number says so; a shadow worker is only woken when it does."""
        assert self.plan.sync is not None
        gap, shadow = self.plan.sync.gap, self.end.worker.role == "shadow"

        def sync() -> None:
            if shadow:
                exchange_number(self.step)
            elif (self.step + 1) % gap == 0:
                exchange_number(self.step // gap)

        return sync

    def _bind_exchange(self, instruction: SyncStep) -> Callable[[int], None]:
        worker, node = self.end.worker, self.node
        assert node is not None
        memory = self.state.pushed.get((worker.group, node_of(worker)))
        pusher = Pusher(self.plan, instruction, node, memory, worker.group)
        return lambda number: exchange(self.end, instruction, node, pusher, number)

    def _bind_average(self) -> Callable[[int], None]:
        worker, node = self.end.worker, self.node
        assert node is not None
        averager = Averager(self.end, self.plan, node, self.state.averages[worker.group, node_of(worker)])
        return lambda number: averager.average()
