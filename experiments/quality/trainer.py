"""One training run in this process, with codecs where a plan has them: what the executor computes, without its processes.

A :class:`Cell` says what is compressed, by the names of ``placement.codecs``. Several ranks are several batches a step whose
gradients are compressed each, added in rank order and applied once, as in a synchronous group. A test holds all of this
against the executor to the bit. Knows nothing of figures.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from cost_models.codecs import HALF, Codec
from executor.arrays import Floats, generator
from executor.codecs.dct import GradientCodec, GradientSettings
from executor.codecs.dense import decode_dense, encode_dense
from executor.codecs.ends import DenseEnd, Draw, Loop, make_end
from executor.data import Batch
from executor.oracle import Oracle
from placement.codecs import ALL_REDUCE, POOLED, PUSH, EdgeCodec, Scheme, parse_codec
from problem.graph import FLOAT_BYTES, Kind
from problem.model import Model
from programs.collectives import slices

#: Adds the gradients of all ranks, by operator, in a step.
Reducer = Callable[[Sequence[Mapping[str, Floats]], int], dict[str, Floats]]


@dataclass(frozen=True)
class Cell:
    """One setting of a study.

    Parameters
    ----------
    name : str
        What it is called.
    codecs : Mapping of str to str
        By edge as in a plan: operators whose consumers are all on another node, ``pooled``, ``push``, ``allreduce``.
    ranks : int
        Data-parallel ranks, which share a step's samples.
    warm_up : int
        Steps at the beginning in which cuts and tables' messages are not compressed.
    """

    name: str
    codecs: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 1
    warm_up: int = 0


class Trainer:
    """Trains a model under the codecs of a cell.

    Parameters
    ----------
    model : Model
        The model.
    cell : Cell
        What is compressed.
    batch : int
        Samples of a rank and step.
    seed : int
        Seed of start values and of random rounding.
    """

    def __init__(self, model: Model, cell: Cell, batch: int, seed: int) -> None:
        self.model, self.cell, self.seed = model, cell, seed
        #: One for each rank, on the same parameters.
        self.ranks: list[Oracle] = []
        #: Of each rank, by operator.
        self.loops: list[dict[str, Loop]] = []
        for rank in range(cell.ranks):
            loops = dict(self._loops(rank, batch))
            trained = (self.ranks[0].parameters, self.ranks[0].tables) if rank else None
            links = {name: _Later(loop, cell.warm_up) for name, loop in loops.items()} if cell.warm_up else loops
            self.ranks.append(Oracle(model, seed, trained=trained, links=links))
            self.loops.append(loops)
        self._reduce = make_reducer(cell.codecs.get(ALL_REDUCE, "fp32"), cell.ranks, self.ranks[0])
        self._steps = 0

    @property
    def oracle(self) -> Oracle:
        """The first rank: parameters, tables, and the model for use."""
        return self.ranks[0]

    def step(self, batches: Sequence[Batch]) -> float:
        """Train on one batch for each rank; return the mean loss before the update."""
        samples = sum(map(len, batches))
        mine = [replace(batch, mean_over=samples) for batch in batches]
        losses = [oracle.backward(batch) for oracle, batch in zip(self.ranks, mine, strict=True)]
        self.oracle.update_operators(self._reduce([oracle.gradients for oracle in self.ranks], self._steps))
        for oracle, batch in zip(self.ranks, mine, strict=True):
            oracle.update_tables(batch)
        self._steps += 1
        return sum(losses) / len(losses)

    def _loops(self, rank: int, batch: int) -> Iterator[tuple[str, Loop]]:
        codecs = self.cell.codecs
        for op in self.model.graph:
            if op.kind is Kind.LOOKUP and (POOLED in codecs or PUSH in codecs):
                there, back = (parse_codec(codecs.get(edge, "fp32")).forward for edge in (POOLED, PUSH))
                yield op.name, Loop(*(DenseEnd(there, back, draw) for draw in self._draws(rank, op.name)))
            elif op.name in codecs:
                chosen, key = parse_codec(codecs[op.name]), (self.seed, f"0/{rank}/0/{op.name}")
                ends = [make_end(chosen, (batch, op.width), draw, key) for draw in self._draws(rank, op.name)]
                yield op.name, Loop(*ends)

    def _draws(self, rank: int, name: str) -> list[Draw]:
        return [functools.partial(generator, self.seed, "study", rank, name, way) for way in ("there", "back")]

    @property
    def wire_share(self) -> float:
        """Bytes of all that DCT and other codecs have sent so far over those of float32; 1 if nothing was counted."""
        meters: list[Loop | ThresholdReducer] = [loop for of_rank in self.loops for loop in of_rank.values()]
        if isinstance(self._reduce, ThresholdReducer):
            meters.append(self._reduce)
        plain = sum(meter.plain_bytes for meter in meters)
        return sum(meter.bytes for meter in meters) / plain if plain else 1.0


class _Later:
    """A link that lets everything through as it is for the first steps of training."""

    def __init__(self, loop: Loop, steps: int) -> None:
        self._loop, self._left = loop, steps + 1

    def forward(self, values: Floats) -> Floats:
        self._left = max(0, self._left - 1)
        return values if self._left else self._loop.forward(values)

    def backward(self, gradient: Floats) -> Floats:
        return gradient if self._left else self._loop.backward(gradient)

    def serve(self, values: Floats) -> Floats:
        return self._loop.serve(values)


# ---- gradients of the dense parameters


def make_reducer(codec: str, ranks: int, oracle: Oracle) -> Reducer:
    """Return what adds the gradients of all ranks, with what an all-reduce under that codec does to them.

    In half precision the rank that adds a slice takes its own part as it is and what the others decode of theirs, and all
    take what they decode of the sum (``executor.coded_reduce``).
    """
    chosen = parse_codec(codec)
    if chosen.scheme is Scheme.DCT_DP:
        return ThresholdReducer(chosen, ranks, oracle)
    if chosen.forward in HALF and ranks > 1:
        return functools.partial(_half_sum, chosen.forward)
    return lambda gradients, step: {name: _sum([of_rank[name] for of_rank in gradients]) for name in gradients[0]}


def _sum(parts: Sequence[Floats]) -> Floats:
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def _half_sum(codec: Codec, gradients: Sequence[Mapping[str, Floats]], step: int) -> dict[str, Floats]:
    del step
    flats = [np.concatenate(list(of_rank.values())) for of_rank in gradients]
    cuts = np.cumsum([0, *(size // FLOAT_BYTES for size in slices(flats[0].nbytes, len(flats)))])
    total = np.empty_like(flats[0])
    for owner, (begin, end) in enumerate(pairwise(cuts)):
        parts = [flat[begin:end] if r == owner else _rounded(codec, flat[begin:end]) for r, flat in enumerate(flats)]
        total[begin:end] = _rounded(codec, _sum(parts))
    ends = np.cumsum([len(gradient) for gradient in gradients[0].values()])
    return dict(zip(gradients[0], np.split(total, ends[:-1]), strict=True))


def _rounded(codec: Codec, values: Floats) -> Floats:
    out = np.empty((1, len(values)), np.float32)
    decode_dense(codec, encode_dense(codec, values[None], _NO_DRAW), out)
    return out.reshape(-1)


_NO_DRAW = generator(0, "half precision draws nothing")


class ThresholdReducer:
    """DCT-DP: each rank compresses the gradient of each operator, what all sent is added in rank order.

    Parameters
    ----------
    chosen : EdgeCodec
        Share and steps between two thresholds.
    ranks : int
        How many compress.
    oracle : Oracle
        Has the gradients' sizes.
    """

    def __init__(self, chosen: EdgeCodec, ranks: int, oracle: Oracle) -> None:
        #: By rank and operator.
        self.coders = [
            {name: _gradient_codec(chosen, len(gradient)) for name, gradient in oracle.gradients.items()}
            for _ in range(ranks)
        ]
        #: Bytes of all messages so far, and those of the same gradients as float32.
        self.bytes, self.plain_bytes = 0, 0

    def __call__(self, gradients: Sequence[Mapping[str, Floats]], step: int) -> dict[str, Floats]:
        """Return the sums by operator."""
        return {name: self._sum(name, [of_rank[name] for of_rank in gradients], step) for name in gradients[0]}

    def _sum(self, name: str, parts: Sequence[Floats], step: int) -> Floats:
        received = []
        for coders, part in zip(self.coders, parts, strict=True):
            wire, out = coders[name].encode(part, step, _NO_DRAW), np.empty_like(part)
            coders[name].decode(wire, out)
            self.bytes += len(wire)
            self.plain_bytes += part.nbytes
            received.append(out)
        return _sum(received)


def _gradient_codec(chosen: EdgeCodec, elements: int) -> GradientCodec:
    wire = chosen.gradient_message(elements).codec
    return GradientCodec(GradientSettings(chosen.keep, wire, chosen.every), elements)
