"""What a node sends in an exchange, what it makes of the answer, and how both travel.

Elastic exchanges and averages send the parameters and get the difference back. Gradient push sends what the parameters
have moved since the last exchange (with SGD: the gradients of those steps, summed, times minus the learning rate) and
gets the server's values. Under DCT-DP (Algorithm 1 of the DCT paper) only its largest elements travel, the rest is kept
as error.

Codecs that send every element round parameters and differences. The node adds to its parameters what rounding took from them
in the last exchange, and keeps what it takes now, so that over exchanges nothing is lost (error feedback, Karimireddy et
al., 2019). A server keeps nothing: what rounding takes from a difference is still there when the parameters come next. What
nodes remember is in ``JobState``, because it must survive a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.arrays import Floats, generator
from executor.codecs.dct import GradientCodec, GradientSettings
from executor.codecs.dense import decode_dense, encode_dense
from executor.codecs.wire import Bytes
from executor.frame import Layout
from executor.parameters import Parameters
from placement.codecs import Scheme, parse_codec
from placement.plan import Plan
from problem.graph import FLOAT_BYTES, Operator
from programs.instructions import SyncStep

#: Makes one array an operator of the arrays of a message.
PushedParts = Callable[[list[Any]], list[Floats]]
_NO_DRAW = generator(0, "DCT-DP draws nothing")


@dataclass(frozen=True)
class PushMemory:
    """What a node remembers between exchanges.

    Parameters
    ----------
    known : Parameters
        Of gradient push, what it had after its last exchange; else of no operator.
    unsent : Mapping of str to ndarray
        By operator what has not been sent, and the threshold of DCT-DP, (elements + 1,); empty without a codec.
    """

    known: Parameters
    unsent: Mapping[str, Floats]


class Rounding:
    """How an operator's parameters, and the differences that come back, travel under a codec that sends every element.

    Parameters
    ----------
    op : Operator
        The operator.
    codec : str
        Codec of exchanges.
    seed : int
        Seed of random rounding.
    """

    def __init__(self, op: Operator, codec: str, seed: int) -> None:
        message, _ = parse_codec(codec).exchanged(op.parameters, op.width)
        self._codec, self._shape, self._key = message.codec, (message.rows, message.cols), (seed, op.name)
        self._out = np.zeros(op.parameters, np.float32)
        self.bytes = message.bytes

    def encode(self, values: Floats, *who: str | int) -> Bytes:
        """Return the message of (elements,) values; ``who`` sends in which exchange decides the rounding at random."""
        seed, name = self._key
        return encode_dense(self._codec, values.reshape(self._shape), generator(seed, "exchange", name, *who))

    def feed_back(self, values: Floats, error: Floats, *who: str | int) -> Bytes:
        """Return the message of values and an error, both (elements,); the error becomes what rounding took from them."""
        error += values
        wire = self.encode(error, *who)
        error -= self.decode(wire)
        return wire

    def decode(self, wire: Bytes) -> Floats:
        """Return what arrives, (elements,), valid until the next."""
        decode_dense(self._codec, wire, self._out.reshape(self._shape))
        return self._out


def roundings(plan: Plan, step: SyncStep, names: Sequence[str]) -> dict[str, Rounding]:
    """Return how operators are rounded in an exchange; empty if they are not."""
    if not step.codec or parse_codec(step.codec).scheme is not Scheme.DENSE:
        return {}
    return {name: Rounding(plan.model.graph[name], step.codec, plan.seed) for name in names}


def push_layout(plan: Plan, step: SyncStep, names: Sequence[str]) -> Layout:
    """Return the arrays of a message to a sync server: parameters, rounded ones, or lengths and bytes of what is pushed."""
    if not step.codec or roundings(plan, step, names):
        return pull_layout(plan, step, names)
    sizes = [plan.model.graph[name].parameters for name in names]
    return [((len(sizes),), np.int32), *(((size * FLOAT_BYTES,), np.uint8) for size in sizes)]


def pull_layout(plan: Plan, step: SyncStep, names: Sequence[str]) -> Layout:
    """Return the arrays of an answer: an array an operator, or its bytes if it is rounded."""
    if rounded := roundings(plan, step, names):
        return [((rounded[name].bytes,), np.uint8) for name in names]
    return [((plan.model.graph[name].parameters,), np.float32) for name in names]


def pushed_parts(plan: Plan, step: SyncStep, names: Sequence[str]) -> PushedParts:
    """Return what a sync server makes of a message: an array for each operator, valid until the next."""
    if not step.codec:
        return lambda arrays: arrays
    if rounded := roundings(plan, step, names):
        return lambda arrays: [rounded[name].decode(wire) for name, wire in zip(names, arrays, strict=True)]
    codecs = [_codec(plan, step, name, None) for name in names]
    out = [np.zeros(plan.model.graph[name].parameters, np.float32) for name in names]

    def decode(arrays: list[Any]) -> list[Floats]:
        lengths, *wires = arrays
        for codec, length, wire, values in zip(codecs, lengths, wires, out, strict=True):
            codec.decode(wire[:length], values)
        return out

    return decode


def _codec(plan: Plan, step: SyncStep, name: str, memory: Floats | None) -> GradientCodec:
    chosen, elements = parse_codec(step.codec), plan.model.graph[name].parameters
    wire = chosen.gradient_message(elements).codec
    return GradientCodec(GradientSettings(chosen.keep, wire, chosen.every), elements, memory)


class Pusher:
    """One node's side of its exchanges.

    Parameters
    ----------
    plan : Plan
        The plan.
    step : SyncStep
        The exchange.
    parameters : Parameters
        The node's copy.
    memory : PushMemory or None
        Of gradient push, and of rounded exchanges; None for the others.
    group : int
        The node's group.
    """

    def __init__(
        self, plan: Plan, step: SyncStep, parameters: Parameters, memory: PushMemory | None, group: int
    ) -> None:
        self._parameters, self._memory, self._group = parameters, memory, group
        names = [name for of_server in step.exchange for name in of_server]
        self._rounded = roundings(plan, step, names)
        coded = names if step.codec and memory is not None and not self._rounded else []
        self._codecs = {name: _codec(plan, step, name, memory.unsent[name]) for name in coded if memory is not None}
        self._sent = {name: np.empty(plan.model.graph[name].parameters, np.float32) for name in names if memory}

    def message(self, names: Sequence[str], number: int) -> list[Any]:
        """Return the arrays of a message with some operators; thresholds and draws go by the number of the exchange."""
        if self._memory is None:
            return [self._parameters.flat(name) for name in names]
        if self._rounded:
            return [self._round(name, self._memory.unsent[name][:-1], number) for name in names]
        moved = [self._moved(name, self._memory) for name in names]
        if not self._codecs:
            return moved
        wires = [self._codecs[name].encode(part, number, _NO_DRAW) for name, part in zip(names, moved, strict=True)]
        return [np.array([len(wire) for wire in wires], np.int32), *wires]

    def _round(self, name: str, error: Floats, number: int) -> Bytes:
        """Return the message of an operator's parameters and the error of the last; note the new error."""
        return self._rounded[name].feed_back(self._parameters.flat(name), error, self._group, number)

    def _moved(self, name: str, memory: PushMemory) -> Floats:
        """Return what an operator has moved since the last exchange, and note what it is now."""
        self._sent[name][...] = self._parameters.flat(name)
        return self._sent[name] - memory.known.flat(name)

    def difference(self, name: str, answer: Any) -> Floats:
        """Return by how much the answer moves an operator; of gradient push, note what it then is known to be."""
        if self._memory is None:
            return np.asarray(answer)
        if self._rounded:
            return self._rounded[name].decode(answer)
        self._memory.known.flat(name)[...] = answer
        return np.asarray(answer - self._sent[name])
