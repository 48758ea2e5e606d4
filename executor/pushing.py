"""What a node sends in an exchange, and what it makes of the answer.

Elastic exchanges and averages send the parameters and get the difference back. Gradient push sends what the parameters
have moved since the last exchange (with SGD: the gradients of those steps, summed, times minus the learning rate) and
gets the server's values. Under DCT-DP (Algorithm 1 of the DCT paper) only its largest elements travel, the rest is kept
as error; both are in ``JobState``, because they must survive a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.arrays import Floats, generator
from executor.codecs.dct import GradientCodec, GradientSettings
from executor.parameters import Parameters
from executor.transport import Layout
from placement.codecs import parse_codec
from placement.plan import Plan
from problem.graph import FLOAT_BYTES
from programs.instructions import SyncStep

#: Makes one array an operator of the arrays of a message.
PushedParts = Callable[[list[Any]], list[Floats]]
_NO_DRAW = generator(0, "DCT-DP draws nothing")


@dataclass(frozen=True)
class PushMemory:
    """What a node remembers for gradient push.

    Parameters
    ----------
    known : Parameters
        What it had after its last exchange.
    unsent : Mapping of str to ndarray
        By operator the memory of DCT-DP, (elements + 1,); empty without it.
    """

    known: Parameters
    unsent: Mapping[str, Floats]


def push_layout(plan: Plan, step: SyncStep, names: Sequence[str]) -> Layout:
    """Return the arrays of a message to a sync server: parameters, or lengths and bytes of a compressed push."""
    sizes = [plan.model.graph[name].parameters for name in names]
    if not step.codec:
        return [((size,), np.float32) for size in sizes]
    return [((len(sizes),), np.int32), *(((size * FLOAT_BYTES,), np.uint8) for size in sizes)]


def pushed_parts(plan: Plan, step: SyncStep, names: Sequence[str]) -> PushedParts:
    """Return what a sync server makes of a message: an array for each operator, valid until the next."""
    if not step.codec:
        return lambda arrays: arrays
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
        Of gradient push; None for the other algorithms.
    """

    def __init__(self, plan: Plan, step: SyncStep, parameters: Parameters, memory: PushMemory | None) -> None:
        self._parameters, self._memory = parameters, memory
        names = [name for of_server in step.exchange for name in of_server]
        coded = names if step.codec and memory is not None else []
        self._codecs = {name: _codec(plan, step, name, memory.unsent[name]) for name in coded if memory is not None}
        self._sent = {name: np.empty(plan.model.graph[name].parameters, np.float32) for name in names if memory}

    def message(self, names: Sequence[str], number: int) -> list[Any]:
        """Return the arrays of a message with some operators; thresholds go by the number of the exchange."""
        if self._memory is None:
            return [self._parameters.flat(name) for name in names]
        moved = [self._moved(name, self._memory) for name in names]
        if not self._codecs:
            return moved
        wires = [self._codecs[name].encode(part, number, _NO_DRAW) for name, part in zip(names, moved, strict=True)]
        return [np.array([len(wire) for wire in wires], np.int32), *wires]

    def _moved(self, name: str, memory: PushMemory) -> Floats:
        """Return what an operator has moved since the last exchange, and note what it is now."""
        self._sent[name][...] = self._parameters.flat(name)
        return self._sent[name] - memory.known.flat(name)

    def difference(self, name: str, answer: Floats) -> Floats:
        """Return by how much the answer moves an operator; of gradient push, note what it then is known to be."""
        if self._memory is None:
            return answer
        self._memory.known.flat(name)[...] = answer
        return answer - self._sent[name]
