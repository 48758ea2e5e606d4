"""Compressed all-reduces: the instructions of ``exchange.all_reduce`` with a codec.

``fp16`` and ``bf16`` are a direct reduce-scatter and all-gather of encoded slices; slices are added in float32, and who
adds a slice uses what the others decode, so that all copies stay equal. ``dct-dp`` (Algorithm 1 of the DCT paper, the
ranks in place of its parameter server) sends every rank's kept elements to every other, operator by operator; each adds
them in rank order. Its error and threshold, shared by a rank's Hogwild threads, are in ``JobState.feedback``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from executor.arrays import Floats, generator
from executor.codecs.dct import GradientCodec, GradientSettings
from executor.codecs.dense import decode_dense, encode_dense
from executor.codecs.wire import Bytes
from executor.exchange import Endpoint, cut, sum_in_order
from placement.codecs import EdgeCodec, parse_codec
from programs.instructions import AllReduce

#: Reduces the gradients of a step, given its number.
Reducer = Callable[[int], None]


def make_reducer(end: Endpoint, instruction: AllReduce, gradients: Floats, feedback: Mapping[str, Floats]) -> Reducer:
    """Return what runs a compressed all-reduce.

    Parameters
    ----------
    end : Endpoint
        The worker and its channels.
    instruction : AllReduce
        With a codec.
    gradients : ndarray of float32, shape (elements,)
        Gradients of the operators side by side; changed into their sums.
    feedback : Mapping of str to ndarray
        By operator the memory of DCT-DP, (elements + 1,).
    """
    chosen = parse_codec(instruction.codec)
    if chosen.every:
        return _threshold_reducer(end, instruction, gradients, feedback, chosen)
    parts = cut(gradients, instruction, end.wiring.job.plan.ranks)
    return lambda _: _half_all_reduce(end, parts, chosen)


def _ends(end: Endpoint) -> tuple[int, list[int], int, int]:
    me, ranks = end.worker.rank, end.wiring.job.plan.ranks
    return me, [rank for rank in range(ranks) if rank != me], end.worker.group, end.worker.thread


def _half_all_reduce(end: Endpoint, parts: Sequence[Floats], chosen: EdgeCodec) -> None:
    me, others, group, thread = _ends(end)
    for rank in others:
        end.send(("scatter", group, thread, me, rank), _half(chosen, parts[rank]))
    received = [np.empty_like(parts[me]) for _ in others]
    for rank, into in zip(others, received, strict=True):
        _from_half(chosen, end.receive(("scatter", group, thread, rank, me)), into)
    sum_in_order(received[:me], parts[me], received[me:])
    message = _half(chosen, parts[me])
    for rank in others:
        end.send(("gather", group, thread, me, rank), message)
    _from_half(chosen, message, parts[me])
    for rank in others:
        _from_half(chosen, end.receive(("gather", group, thread, rank, me)), parts[rank])


_NO_DRAW = generator(0, "half precision draws nothing")


def _half(chosen: EdgeCodec, values: Floats) -> list[Any]:
    wire = encode_dense(chosen.forward, values[None], _NO_DRAW)
    return [np.array([len(wire)], np.int32), wire]


def _from_half(chosen: EdgeCodec, arrays: list[Any], out: Floats) -> None:
    decode_dense(chosen.forward, arrays[1], out[None])


def _threshold_reducer(
    end: Endpoint, instruction: AllReduce, gradients: Floats, feedback: Mapping[str, Floats], chosen: EdgeCodec
) -> Reducer:
    (me, others, group, thread), plan = _ends(end), end.wiring.job.plan
    cuts = np.cumsum([0, *(plan.model.graph[op].parameters for op in instruction.ops)])
    views = [gradients[cuts[i] : cuts[i + 1]] for i in range(len(instruction.ops))]
    codecs = [_gradient_codec(chosen, len(view), feedback[op]) for op, view in zip(instruction.ops, views, strict=True)]
    scratch = [np.empty_like(view) for view in views]

    def add(wires: list[Bytes], *, first: bool) -> None:
        for codec, wire, part, view in zip(codecs, wires, scratch, views, strict=True):
            codec.decode(wire, view if first else part)
            if not first:
                np.add(view, part, out=view)

    def reduce(step: int) -> None:
        wires = [codec.encode(view, step, _NO_DRAW) for codec, view in zip(codecs, views, strict=True)]
        lengths = np.array([len(wire) for wire in wires], np.int32)
        for rank in others:
            end.send(("scatter", group, thread, me, rank), [lengths, *wires])
        for rank in range(plan.ranks):
            if rank == me:
                add(wires, first=rank == 0)
            else:
                sizes, *data = end.receive(("scatter", group, thread, rank, me))
                add([wire[:size] for wire, size in zip(data, sizes, strict=True)], first=rank == 0)

    return reduce


def _gradient_codec(chosen: EdgeCodec, elements: int, memory: Floats) -> GradientCodec:
    wire = chosen.gradient_message(elements).codec
    return GradientCodec(GradientSettings(chosen.keep, wire, chosen.every), elements, memory)
