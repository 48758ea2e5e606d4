"""The same kernels and models in PyTorch, for ``bench_executor``: straightforward use of its public modules, one thread.

PyTorch is not a dependency: :func:`load_torch` returns None where it is not installed. Knows nothing of timing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from executor.arrays import Floats, Ids
from executor.data import Batch
from executor.oracle import Oracle
from executor.parameters import layout, unflatten
from problem.graph import Kind, Operator


def load_torch() -> Any | None:
    """Return the module, limited to one thread, or None."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return None
    torch.set_num_threads(1)
    return torch


class TorchModel:
    """A model of linear, concat, interaction and loss operators with the start values of an oracle, trained by SGD.

    Parameters
    ----------
    torch : module
        PyTorch.
    oracle : Oracle
        Gives the model and the values, which are copied.
    """

    def __init__(self, torch: Any, oracle: Oracle) -> None:
        self._torch, self._graph = torch, oracle.model.graph
        self._layers: dict[str, Any] = {}
        for op in self._graph:
            if op.kind is Kind.LINEAR:
                weight, bias = unflatten(layout(op), oracle.parameters.flat(op.name))
                self._layers[op.name] = linear(torch, weight, bias)
            elif op.kind is Kind.LOOKUP:
                self._layers[op.name] = embedding(torch, oracle.tables[op.table].rows)
        parameters = [p for layer in self._layers.values() for p in layer.parameters()]
        self._optimizer = torch.optim.SGD(parameters, lr=oracle.model.learning_rate)

    def step(self, batch: Batch) -> float:
        """Train on a batch; return its loss before the update."""
        torch = self._torch
        values: dict[str, Any] = {}
        labels, dense = torch.from_numpy(batch.labels), torch.from_numpy(batch.dense)
        ids = {name: torch.from_numpy(found) for name, found in batch.ids.items()}
        for op in self._graph:
            values[op.name] = self._forward(op, values, dense, ids, labels)
        loss = next(values[op.name] for op in self._graph if op.kind is Kind.LOSS)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return float(loss.item())

    def _forward(self, op: Operator, values: dict[str, Any], dense: Any, ids: dict[str, Any], labels: Any) -> Any:
        torch, inputs = self._torch, [values[name] for name in op.inputs]
        match op.kind:
            case Kind.DENSE_INPUT:
                return dense
            case Kind.LOOKUP:
                return self._layers[op.name](ids[op.table])
            case Kind.LINEAR:
                out = self._layers[op.name](inputs[0])
                return torch.relu(out) if op.activation == "relu" else out
            case Kind.CONCAT:
                return torch.cat(inputs, dim=1)
            case Kind.INTERACTION:
                return interaction(torch, inputs)
            case Kind.LOSS:
                return torch.nn.functional.binary_cross_entropy_with_logits(inputs[0][:, 0], labels)
            case _:
                raise ValueError(f"operator {op.name!r}: this comparison has no {op.kind}")


def linear(torch: Any, weight: Floats, bias: Floats) -> Any:
    """Return a layer with copies of a weight (in, out) and a bias (out,)."""
    layer = torch.nn.Linear(*weight.shape)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(weight.T)))
        layer.bias.copy_(torch.from_numpy(bias))
    return layer


def embedding(torch: Any, rows: Floats) -> Any:
    """Return sum-pooling bags with sparse gradients over a copy of a table's rows (rows, dim)."""
    return torch.nn.EmbeddingBag(*rows.shape, mode="sum", sparse=True, _weight=torch.from_numpy(rows.copy()))


def interaction(torch: Any, inputs: list[Any]) -> Any:
    """Return the first input beside the strict lower triangle of the dot products (``interact_features`` of DLRM)."""
    batch, width = inputs[0].shape
    features = torch.cat(inputs, dim=1).view(batch, -1, width)
    products = torch.bmm(features, features.transpose(1, 2))
    rows, columns = np.tril_indices(len(inputs), -1)
    return torch.cat([inputs[0], products[:, torch.from_numpy(rows), torch.from_numpy(columns)]], dim=1)


# ---- single kernels: each function returns what to time, given the number of the repetition


def linear_calls(torch: Any, weight: Floats, bias: Floats, values: Floats) -> tuple[Callable[[int], Any], ...]:
    """Return forward of a layer with ReLU, and forward with backward, on values (B, in)."""
    layer, gradient = linear(torch, weight, bias), torch.ones(len(values), weight.shape[1])
    given = torch.from_numpy(values).requires_grad_()

    def forward(_: int) -> Any:
        with torch.no_grad():
            return torch.relu(layer(given))

    return forward, lambda _: torch.relu(layer(given)).backward(gradient)


def embedding_calls(torch: Any, rows: Floats, ids: list[Ids], rate: float) -> tuple[Callable[[int], Any], ...]:
    """Return pooling of bags, and pooling, backward and SGD update together; ids (B, L) by repetition."""
    layer, given = embedding(torch, rows), [torch.from_numpy(found) for found in ids]
    optimizer, gradient = torch.optim.SGD(layer.parameters(), lr=rate), torch.ones(len(ids[0]), rows.shape[1])

    def forward(number: int) -> Any:
        with torch.no_grad():
            return layer(given[number % len(given)])

    def train(number: int) -> None:
        optimizer.zero_grad()
        layer(given[number % len(given)]).backward(gradient)
        optimizer.step()

    return forward, train


def interaction_calls(torch: Any, features: list[Floats]) -> tuple[Callable[[int], Any], ...]:
    """Return forward, and forward with backward, of the dot interaction of features (B, D)."""
    given = [torch.from_numpy(found).requires_grad_() for found in features]
    count, (batch, width) = len(given), features[0].shape
    gradient = torch.ones(batch, width + count * (count - 1) // 2)

    def forward(_: int) -> Any:
        with torch.no_grad():
            return interaction(torch, given)

    return forward, lambda _: interaction(torch, given).backward(gradient)
