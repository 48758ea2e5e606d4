"""What an all-reduce moves: the messages, additions and coding of one rank, with or without a codec.

Without a codec and in half precision: slices, in two phases (``programs.collectives``). Under DCT-DP: one phase in which
each rank sends all that it keeps to each of the others. Sizes are planned ones; the executor's own decoding of what it has
sent itself is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.codecs import Message
from placement.codecs import parse_codec
from placement.plan import Plan
from problem.graph import FLOAT_BYTES
from programs.collectives import slices
from programs.instructions import AllReduce


@dataclass(frozen=True)
class Reduction:
    """An all-reduce by slices, one for each rank.

    Parameters
    ----------
    wire : tuple of int
        Bytes of the message with the slice of each rank.
    adds : tuple of int
        Bytes of float32 that are added for each slice and message.
    places : tuple of float
        What it takes to put the sum of each slice in its place, as bytes of float32 that are added.
    encode, decode : tuple of float
        Core-seconds of the codec for each slice and message.
    gathers : bool
        Whether the sums are sent back in a second phase.
    tensors : int
        Tensors of each message.
    """

    wire: tuple[int, ...]
    adds: tuple[int, ...]
    places: tuple[float, ...]
    encode: tuple[float, ...]
    decode: tuple[float, ...]
    gathers: bool = True
    tensors: int = 1


def reduction(plan: Plan, reduce: AllReduce) -> Reduction:
    """Return what an all-reduce moves."""
    parts, nothing = slices(reduce.bytes, plan.ranks), (0.0,) * plan.ranks
    if not reduce.codec:
        return Reduction(parts, parts, tuple(float(part) for part in parts), nothing, nothing)
    chosen = parse_codec(reduce.codec)
    if chosen.every:
        messages = [chosen.gradient_message(plan.model.graph[op].parameters) for op in reduce.ops]
        encode = sum(message.encode_seconds for message in messages) / (plan.ranks - 1)  # once for all messages
        decode = sum(message.decode_seconds for message in messages)
        whole = sum(message.bytes for message in messages)
        each = plan.ranks
        return Reduction(
            (whole,) * each, (reduce.bytes,) * each, nothing, (encode,) * each, (decode,) * each, False, len(messages)
        )
    halves = [Message(1, part // FLOAT_BYTES, chosen.forward) for part in parts]
    return Reduction(
        tuple(message.bytes for message in halves),
        parts,
        nothing,
        tuple(message.encode_seconds for message in halves),
        tuple(message.decode_seconds for message in halves),
    )
