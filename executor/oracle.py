"""The untransformed graph in one process: what every distributed run is checked against.

Operators run in graph order, backward in reverse graph order, with the very kernels of the distributed executor, so that a
run of the same shapes in the same order gives the same bits. Two things can be told to the oracle because they change the
order of floating-point additions: how the gradients of a tensor's consumers are grouped (``partial_sums``), and how a
table is cut into row ranges (``blocks``); cutting columns alone changes no sum. A third changes the numbers themselves: what
a tensor goes through between the operator that makes it and those that use it (``links``), such as a codec. Knows nothing of
plans, programs or processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from executor.arrays import Floats, add_into
from executor.data.batch import Batch, check_batch
from executor.kernels import Kernel, by_distinct_input, make_kernel
from executor.kernels_rows import Read, update_rows
from executor.kernels_sparse import pool
from executor.kernels_update import update_dense
from executor.metrics import Metrics, measure
from executor.parameters import Parameters, TableRows, allocate_rows
from problem.graph import Kind, Operator
from problem.model import EmbeddingTable, Model

Groups = Mapping[str, Sequence[Sequence[str]]]
#: Columns, begin and end.
Span = tuple[int, int]
#: Rows, begin and end, of some columns of a table.
Block = tuple[int, int, Span]


class Link(Protocol):
    """What lies between an operator and all consumers of its output: both ends of a compressed cut, say."""

    def forward(self, values: Floats) -> Floats:
        """Return an output (B, width) as its consumers get it when training."""
        ...

    def backward(self, gradient: Floats) -> Floats:
        """Return the gradient of that output (B, width) as the operator gets it."""
        ...

    def serve(self, values: Floats) -> Floats:
        """Return an output (any number of samples, width) as its consumers get it when the model is only used."""
        ...


class Oracle:
    """Trains a model, one batch a step, in this process.

    Parameters
    ----------
    model : Model
        The model; its learning rate and optimizers are used.
    seed : int
        Seed of the start values.
    partial_sums : Mapping of str to sequence of sequence of str, optional
        For a tensor (operator name) the consumers of its gradient in groups: the parts of a group are added in order,
        then the groups' sums in order. Without it, parts are added in the order in which backward reaches the
        consumers (reverse graph order).
    blocks : Mapping of str to sequence of Block, optional
        For a table the blocks whose partial sums make up a pooled embedding, each in its columns, added in order.
    trained : tuple of Parameters and Mapping of str to TableRows, optional
        Parameters to go on from, not copied; by default start values by ``seed``.
    links : Mapping of str to Link, optional
        What the output of an operator goes through, and its gradient on the way back.

    Raises
    ------
    UnsupportedModel
        If the executor lacks a kernel or an update for a part of the model.
    ValueError
        If the groups of a tensor are not its consumers, each once.
    """

    def __init__(
        self,
        model: Model,
        seed: int = 0,
        *,
        partial_sums: Groups | None = None,
        blocks: Mapping[str, Sequence[Block]] | None = None,
        trained: tuple[Parameters, Mapping[str, TableRows]] | None = None,
        links: Mapping[str, Link] | None = None,
    ) -> None:
        self.model = model
        parameters, tables = trained or initial_parameters(model, seed)
        #: Dense parameters and their optimizer state.
        self.parameters = parameters
        #: Tables, whole, with their optimizer state.
        self.tables = dict(tables)
        #: Gradients of the dense parameters of the latest step, by operator, flat.
        self.gradients = {name: np.zeros_like(self.parameters.flat(name)) for name in self.parameters.operators}
        #: Gradients of the latest step with respect to each operator's output, where one is needed.
        self.d_outputs: dict[str, Floats] = {}
        self._groups = _checked_groups(model, partial_sums or {})
        self._blocks = dict(blocks or {})
        self._links = dict(links or {})
        self._kernels: dict[int, dict[str, Kernel]] = {}

    def step(self, batch: Batch) -> float:
        """Train on one batch: forward, backward, update. Return its mean loss before the update.

        Raises
        ------
        BadInput
            If the batch does not fit the model.
        """
        loss = self.backward(batch)
        self.update(batch)
        return loss

    def backward(self, batch: Batch) -> float:
        """Run forward and backward; leave ``gradients`` and ``d_outputs``, change no parameter. Return the mean loss."""
        outputs = self._forward(batch, {name: link.forward for name, link in self._links.items()})
        parts: dict[str, dict[str, Floats]] = {op.name: {} for op in self.model.graph}
        loss = 0.0
        for op in reversed(self.model.graph.operators):
            if op.kind is Kind.LOSS:
                loss = float(outputs[op.name][0])
                d_output: Floats | None = np.full(1, 1.0 / max(1, batch.mean_over or len(batch)), np.float32)
            else:
                d_output = self._summed(op.name, parts[op.name])
            if d_output is not None and self.model.graph.needs_gradient[op.name]:
                if op.name in self._links:
                    d_output = self._links[op.name].backward(d_output)
                self.d_outputs[op.name] = d_output
                self._backward_op(op, batch, outputs, d_output, parts)
        return loss

    def update(self, batch: Batch) -> None:
        """Apply the gradients that ``backward`` of the same batch left."""
        self.update_operators(self.gradients)
        self.update_tables(batch)

    def update_operators(self, gradients: Mapping[str, Floats]) -> None:
        """Apply gradients of the dense parameters, by operator, flat."""
        for name, gradient in gradients.items():
            params, state = self.parameters.flat(name), self.parameters.state(name)
            update_dense(self.model.optimizer, params, state, gradient, self.model.learning_rate)

    def update_tables(self, batch: Batch) -> None:
        """Apply the gradients of pooled embeddings that ``backward`` of the same batch left."""
        for table, features in self.model.readers.items():
            reads = [self._read(feature, batch) for feature in features if feature.name in self.d_outputs]
            if reads:
                update_rows(self.tables[table], reads, self.model.learning_rate)

    def _read(self, feature: EmbeddingTable, batch: Batch) -> Read:
        name, mean = feature.name, feature.pooling == "mean"
        return Read(batch.ids[name], self.d_outputs[name], batch.weights.get(name), mean)

    def logits(self, batch: Batch, *, linked: bool = True) -> Floats:
        """Return the logits that go into the loss, (B,), a copy; without what links do if they are to be left out."""
        loss = next(op for op in self.model.graph if op.kind is Kind.LOSS)
        serve = {name: link.serve for name, link in self._links.items()} if linked else {}
        return self._forward(batch, serve)[loss.inputs[0]][: len(batch), 0].copy()

    def predict(self, batch: Batch) -> Floats:
        """Return click probabilities, (B,)."""
        return np.exp(-np.logaddexp(np.float32(0.0), -self.logits(batch)))

    def evaluate(self, batches: Iterable[Batch], *, linked: bool = True) -> Metrics:
        """Return the metrics over all samples of some batches, at least one; changes no parameter."""
        pairs = [(self.logits(batch, linked=linked), batch.labels) for batch in batches]
        logits, labels = zip(*pairs, strict=True)
        return measure(np.concatenate(logits), np.concatenate(labels))

    def _forward(self, batch: Batch, through: Mapping[str, Callable[[Floats], Floats]]) -> dict[str, Floats]:
        """Return the output of every operator as its consumers get it."""
        check_batch(batch, self.model)
        kernels = self._kernels_for(batch.places)
        outputs: dict[str, Floats] = {}
        for op in self.model.graph:
            if op.kind is Kind.LOOKUP:
                outputs[op.name] = self._pooled(op, batch)
            else:
                outputs[op.name] = kernels[op.name].forward(_inputs(op, batch, outputs), self._flat(op))
            if op.name in through:
                outputs[op.name] = through[op.name](outputs[op.name])
        return outputs

    def _backward_op(
        self,
        op: Operator,
        batch: Batch,
        outputs: Mapping[str, Floats],
        d_output: Floats,
        parts: Mapping[str, dict[str, Floats]],
    ) -> None:
        """Run backward of one operator and hand its inputs their parts of the gradient."""
        if op.kind is Kind.LOOKUP:
            return
        needs = [self.model.graph.needs_gradient[name] for name in op.inputs]
        inputs, kernel = _inputs(op, batch, outputs), self._kernels_for(batch.places)[op.name]
        grads = self.gradients.get(op.name, _NOTHING)
        for name, part in by_distinct_input(
            op, kernel.backward(d_output, inputs, self._flat(op), grads, needs)
        ).items():
            parts[name][op.name] = part

    def _summed(self, name: str, parts: Mapping[str, Floats]) -> Floats | None:
        """Add the parts of a gradient in the order that was asked for; None if there is no part."""
        groups = self._groups.get(name, [list(parts)])
        present = [[parts[consumer] for consumer in group if consumer in parts] for group in groups]
        sums = [_sum(group) for group in present if group]
        return _sum(sums) if sums else None

    def _pooled(self, op: Operator, batch: Batch) -> Floats:
        """Return the pooled embeddings of one feature, (B, dim)."""
        held, ids, weights = self.tables[op.table], batch.ids[op.name], batch.weights.get(op.name)
        mean, parts = self.model.feature[op.name].pooling == "mean", dict[Span, list[Floats]]()
        for begin, end, columns in self._blocks.get(op.table, [(0, len(held.rows), (0, held.table.dim))]):
            rows = np.ascontiguousarray(held.rows[begin:end, slice(*columns)])
            parts.setdefault(columns, []).append(np.empty((batch.places, rows.shape[1]), np.float32))
            pool(rows, begin, ids, parts[columns][-1], weights, mean=mean)
        if len(parts) == 1:
            return _sum(next(iter(parts.values())))
        total = np.empty((batch.places, held.table.dim), np.float32)
        for columns, found in parts.items():
            add_into(total[:, slice(*columns)], found)
        return total

    def _kernels_for(self, size: int) -> dict[str, Kernel]:
        """Return the kernels for a batch size, made when first needed."""
        if size not in self._kernels:
            graph = self.model.graph
            self._kernels[size] = {
                op.name: make_kernel(op, [graph[name].width for name in op.inputs], size)
                for op in graph
                if op.kind is not Kind.LOOKUP
            }
        return self._kernels[size]

    def _flat(self, op: Operator) -> Floats:
        return self.parameters.flat(op.name) if op.parameters else _NOTHING


def initial_parameters(model: Model, seed: int) -> tuple[Parameters, dict[str, TableRows]]:
    """Return freshly allocated dense parameters and whole tables at their start values."""
    parameters = Parameters(model)
    parameters.initialise(seed)
    tables = {table.name: allocate_rows(table, 0, table.rows) for table in model.tables}
    for held in tables.values():
        held.initialise(seed)
    return parameters, tables


def _checked_groups(model: Model, groups: Groups) -> dict[str, Sequence[Sequence[str]]]:
    """Return the groups; refuse one that leaves a consumer out, whose gradient would be lost."""
    for tensor, of_tensor in groups.items():
        consumers = model.graph.consumers[tensor]
        if sorted(name for group in of_tensor for name in group) != sorted(consumers):
            raise ValueError(f"partial sums of {tensor!r} must name each consumer once: {', '.join(consumers)}")
    return dict(groups)


_NOTHING: Floats = np.zeros(0, np.float32)


def _inputs(op: Operator, batch: Batch, outputs: Mapping[str, Floats]) -> list[Floats]:
    """Return what an operator consumes: outputs, and from the batch the dense features or the labels."""
    if op.kind is Kind.DENSE_INPUT:
        return [batch.dense]
    inputs = [outputs[name] for name in op.inputs]
    return [*inputs, batch.labels] if op.kind is Kind.LOSS else inputs


def _sum(parts: Sequence[Floats]) -> Floats:
    """Add arrays from left to right, into the first."""
    total = parts[0]
    for part in parts[1:]:
        np.add(total, part, out=total)
    return total
