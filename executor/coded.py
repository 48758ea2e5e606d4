"""Coded messages of a worker: from tensors to bytes and back, by the codecs of the plan.

A coded message is an array of the lengths of its tensors and one array of bytes for each, in room for the longest that
there can be. The two messages of a cut, activations there and gradient back, share one end (``executor.codecs.ends``) for
each operator and peer; what sends every element has one for each tensor. Random rounding is keyed by seed, session, channel
and step, so a run repeats and goes on after a checkpoint. Knows nothing of transports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from executor.arrays import Floats, generator
from executor.codecs.ends import End, make_end
from executor.codecs.wire import Bytes
from executor.frame import Layout
from placement.codecs import Scheme, parse_codec
from placement.plan import Plan, Span
from problem.graph import FLOAT_BYTES
from programs.collectives import slices
from programs.instructions import AllReduce, Place, Recv, Send
from programs.wire import columns, is_gradient, operator_of, strip_of
from programs.workers import Worker

#: Group, rank, thread, node that sends the gradient, operator.
LeftOutKey = tuple[int, int, int, int, str]
#: Takes tensors and the number of the step, returns lengths and bytes.
Encoder = Callable[[Sequence[Floats], int], list[Any]]
#: Takes lengths, bytes and the number of the step, returns tensors, valid until the next call.
Decoder = Callable[[Sequence[Any], int], list[Floats]]


def room(plan: Plan, codec: str, tensor: str) -> int:
    """Return the bytes that a tensor may take in a coded message: what leaves elements out may take as many as float32."""
    chosen, cols = parse_codec(codec), columns(plan, tensor)
    if chosen.is_sparse:
        return plan.batch * cols * FLOAT_BYTES
    return chosen.message(plan.batch, cols, gradient=is_gradient(plan, tensor)).bytes


def coded_layouts(plan: Plan, instruction: AllReduce, source: int, target: int) -> dict[str, Layout]:
    """Return the messages of a compressed all-reduce from one rank to another, by phase (``executor.coded_reduce``)."""
    if parse_codec(instruction.codec).every:
        sizes = [plan.model.graph[op].parameters * FLOAT_BYTES for op in instruction.ops]
        return {"scatter": [((len(sizes),), np.int32), *(((size,), np.uint8) for size in sizes)]}
    sizes = [size // 2 for size in slices(instruction.bytes, plan.ranks)]
    phases = {"scatter": sizes[target], "gather": sizes[source]}
    return {phase: [((1,), np.int32), ((size,), np.uint8)] for phase, size in phases.items()}


def left_out_key(worker: Worker, operator: str) -> LeftOutKey:
    """Return where a consumer's session keeps what it has not sent of an operator's gradient."""
    return worker.group, worker.rank, worker.thread, worker.place.index if worker.place else -1, operator


class Coders:
    """Encoders and decoders of the messages of one worker.

    Parameters
    ----------
    plan : Plan
        Gives batch, shapes and seed.
    worker : Worker
        Whose messages.
    left_out : Mapping of key to ndarray
        Memory of the gradients that top-k with feedback did not send, by :func:`left_out_key`.
    """

    def __init__(self, plan: Plan, worker: Worker, left_out: Mapping[LeftOutKey, Floats]) -> None:
        self._plan, self._worker, self._left_out = plan, worker, left_out
        self._session = f"{worker.group}/{worker.rank}/{worker.thread}"
        self._ends: dict[tuple[str, Span | None, Place], End] = {}

    def encoder(self, send: Send) -> Encoder:
        """Return what makes the arrays of a message."""
        parts = [self._encode_one(send, name) for name in send.tensors]

        def encode(tensors: Sequence[Floats], step: int) -> list[Any]:
            wires = [part(tensor, step) for part, tensor in zip(parts, tensors, strict=True)]
            return [np.array([len(wire) for wire in wires], np.int32), *wires]

        return encode

    def decoder(self, receive: Recv) -> Decoder:
        """Return what makes tensors of the arrays of a message."""
        parts = [self._decode_one(receive, name) for name in receive.tensors]
        out = [np.zeros((self._plan.batch, columns(self._plan, name)), np.float32) for name in receive.tensors]

        def decode(arrays: Sequence[Any], step: int) -> list[Floats]:
            lengths, *wires = arrays
            for part, length, wire, target in zip(parts, lengths, wires, out, strict=True):
                part(wire[:length], target, step)
            return out

        return decode

    def _encode_one(self, send: Send, name: str) -> Callable[[Floats, int], Bytes]:
        end, gradient = self._end(send, name), is_gradient(self._plan, name)
        return lambda tensor, step: end.encode(tensor, step, gradient=gradient)

    def _decode_one(self, receive: Recv, name: str) -> Callable[[Bytes, Floats, int], None]:
        end, gradient = self._end(receive, name), is_gradient(self._plan, name)
        return lambda wire, out, step: end.decode(wire, out, step, gradient=gradient)

    def _end(self, message: Send | Recv, name: str) -> End:
        """Return this end of the way of a tensor: the same for a cut's activations and for their gradient."""
        chosen, session, operator = parse_codec(message.codec), self._session, operator_of(self._plan, name)
        key = (name if chosen.scheme is Scheme.DENSE else operator, strip_of(name), message.peer)
        if key not in self._ends:
            draws = ("codec", session, message.channel, name)
            self._ends[key] = make_end(
                chosen,
                (self._plan.batch, columns(self._plan, name)),
                lambda step: generator(self._plan.seed, *draws, step),
                (self._plan.seed, f"{session}/{operator}"),
                self._left_out.get(left_out_key(self._worker, operator)),
            )
        return self._ends[key]
