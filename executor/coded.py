"""Coded messages of a worker: from tensors to bytes and back, by the codecs of the plan.

A coded message is an array of the lengths of its tensors and one array of bytes for each, in room for the longest that
there can be. The two messages of a cut under DCT-MP, activations there and gradient back, share a mask: one
:class:`~executor.codecs.dct.CutCodec` for each tensor and peer. Random rounding is keyed by seed, session, channel and
step, so a run repeats and goes on after a checkpoint. Knows nothing of transports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from executor.arrays import Floats, generator
from executor.codecs.dct import CutCodec, CutSettings, Rule
from executor.codecs.dense import decode_dense, encode_dense
from executor.codecs.wire import Bytes
from executor.transport import Layout
from placement.codecs import EdgeCodec, parse_codec
from placement.plan import Plan
from problem.graph import FLOAT_BYTES
from programs.collectives import slices
from programs.instructions import AllReduce, Place, Recv, Send
from programs.wire import columns, is_gradient, operator_of
from programs.workers import Worker

#: Takes tensors and the number of the step, returns lengths and bytes.
Encoder = Callable[[Sequence[Floats], int], list[Any]]
#: Takes lengths and bytes, returns tensors, valid until the next call.
Decoder = Callable[[Sequence[Any]], list[Floats]]


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


class Coders:
    """Encoders and decoders of the messages of one worker.

    Parameters
    ----------
    plan : Plan
        Gives batch, shapes and seed.
    worker : Worker
        Whose messages.
    """

    def __init__(self, plan: Plan, worker: Worker) -> None:
        self._plan, self._session = plan, f"{worker.group}/{worker.rank}/{worker.thread}"
        self._cuts: dict[tuple[str, Place], CutCodec] = {}

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

        def decode(arrays: Sequence[Any]) -> list[Floats]:
            lengths, *wires = arrays
            for part, length, wire, target in zip(parts, lengths, wires, out, strict=True):
                part(wire[:length], target)
            return out

        return decode

    def _encode_one(self, send: Send, name: str) -> Callable[[Floats, int], Bytes]:
        chosen = parse_codec(send.codec)
        if chosen.is_sparse:
            cut = self._cut(chosen, name, send.peer)
            encode = cut.encode_backward if is_gradient(self._plan, name) else cut.encode_forward
            return lambda tensor, _: encode(tensor)
        seed, key = self._plan.seed, ("codec", self._session, send.channel, name)
        return lambda tensor, step: encode_dense(chosen.forward, tensor, generator(seed, *key, step))

    def _decode_one(self, receive: Recv, name: str) -> Callable[[Bytes, Floats], None]:
        chosen = parse_codec(receive.codec)
        if chosen.is_sparse:
            cut = self._cut(chosen, name, receive.peer)
            return cut.decode_backward if is_gradient(self._plan, name) else cut.decode_forward
        return lambda wire, out: decode_dense(chosen.forward, wire, out)

    def _cut(self, chosen: EdgeCodec, name: str, peer: Place) -> CutCodec:
        """Return this end of the cut of a tensor: the same for activations and for their gradient."""
        key = (operator_of(self._plan, name), peer)
        if key not in self._cuts:
            settings = CutSettings(chosen.keep, chosen.forward, Rule(chosen.rule))
            self._cuts[key] = CutCodec(settings, self._plan.batch, columns(self._plan, name))
        return self._cuts[key]
