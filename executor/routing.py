"""Requests that have the ids of a server's rows only: picked out by the rank, read where they lie by the server.

A message is laid out like a coded one (``executor.coded``): the lengths of its tensors, then each as bytes. Of a feature
whose ids are picked out, the ids are led by where the bags end and, if it pools by the mean, by how many ids each bag has in
the whole table. Knows nothing of transports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_models.routing import most_bytes
from executor.arrays import Bags, Floats, Ids
from executor.kernels_sparse import chosen
from placement.plan import Plan
from placement.tables.requests import Rows
from problem.graph import FLOAT_BYTES
from problem.model import EmbeddingTable
from programs.instructions import Recv, Send
from programs.wire import ROUTE, columns, is_ids, rows_asked

Bytes = npt.NDArray[np.uint8]


def routes(message: Send | Recv) -> bool:
    """Whether a message is a request with the ids of the server's rows only, of one feature or more."""
    return message.codec.startswith(ROUTE)


def request_rooms(plan: Plan, message: Send) -> list[int]:
    """Return the bytes that each tensor may take in such a request."""
    asked, rooms = rows_asked(plan, message.codec), []
    for tensor in message.tensors:
        feature = plan.model.feature[tensor.partition(".")[2]]
        if feature.name in asked:
            sizes = most_bytes(feature, plan.batch)
            rooms.append(sizes.ids if is_ids(plan, tensor) else sizes.weights)
        else:
            rooms.append(plan.batch * columns(plan, tensor) * FLOAT_BYTES)
    return rooms


def encoder(plan: Plan, send: Send) -> Callable[[Sequence[Any], int], list[Any]]:
    """Return what makes the arrays of a request of the ids (B, L), and weights, of its features."""
    asked, features = rows_asked(plan, send.codec), _features(plan, send)
    pickers = {name: _Picker(plan, feature, asked[name]) for name, feature in features.items() if name in asked}

    def encode(tensors: Sequence[Any], step: int) -> list[Any]:
        del step
        given, wires = dict(zip(send.tensors, tensors, strict=True)), list[Bytes]()
        for name in features:
            ids, weights = given[f"ids.{name}"], given.get(f"weights.{name}")
            if name in pickers:
                wires += pickers[name](ids, weights)
            else:
                wires += [_bytes(array) for array in (ids, weights) if array is not None]
        return [np.array([len(wire) for wire in wires], np.int32), *wires]

    return encode


def decoder(plan: Plan, receive: Recv) -> Callable[[Sequence[Any], int], list[Any]]:
    """Return what makes ids and weights, as kernels take them, of the arrays of a request."""
    asked = rows_asked(plan, receive.codec)
    names = [(name, name.partition(".")[2], is_ids(plan, name)) for name in receive.tensors]

    def decode(arrays: Sequence[Any], step: int) -> list[Any]:
        del step
        lengths, *wires = arrays
        found = []
        for (name, feature, ids), length, wire in zip(names, lengths, wires, strict=True):
            flat = wire[:length].view(np.int32 if ids else np.float32)
            if feature not in asked:
                found.append(flat.reshape(plan.batch, columns(plan, name)))
            else:
                found.append(_bags(flat, plan, feature) if ids else flat)
        return found

    return decode


def _features(plan: Plan, message: Send) -> dict[str, EmbeddingTable]:
    names = [name.partition(".")[2] for name in message.tensors if is_ids(plan, name)]
    return {name: plan.model.feature[name] for name in names}


def _bags(flat: Ids, plan: Plan, feature: str) -> Bags:
    """Take ids and what goes before them apart."""
    ends = plan.batch + 1
    begin = ends + (plan.batch if plan.model.feature[feature].pooling == "mean" else 0)
    return Bags(flat[begin:], flat[:ends], flat[ends:begin] if begin > ends else None)


class _Picker:
    """Picks the ids of some rows out of a feature's, into memory of its own."""

    def __init__(self, plan: Plan, feature: EmbeddingTable, rows: Rows) -> None:
        self._first, self._count, self._batch = rows[0], rows[1] - rows[0], plan.batch
        self._mean = feature.pooling == "mean"
        self._out = np.empty(most_bytes(feature, plan.batch).ids // FLOAT_BYTES, np.int32)

    def __call__(self, ids: Ids, weights: Floats | None) -> list[Bytes]:
        """Return the bytes of ids and of weights, if there are any; valid until the next call."""
        if not self._mean:
            bags, taken = chosen(ids, self._first, self._count, weights, out=self._out)
            wires = [_bytes(self._out[: self._batch + 1 + len(bags.ids)])]
            return wires if taken is None else [*wires, _bytes(taken)]
        bags, _ = chosen(ids, self._first, self._count)
        counts = (ids >= 0).sum(axis=1, dtype=np.int32)
        return [_bytes(np.concatenate([bags.offsets, counts, bags.ids]))]


def _bytes(array: npt.NDArray[Any]) -> Bytes:
    found: Bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return found
