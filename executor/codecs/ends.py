"""The ends of a message: one interface for every codec that a tensor, and the gradient that comes back, can travel by.

Producer and consumer each hold an end for a tensor. What they must agree on follows from messages (the mask of DCT-MP) or
from the key (the matrix of a sketch). :class:`Loop` is both ends in one process: what arrives of what was sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from cost_models.codecs import Codec
from executor.arrays import Floats
from executor.codecs.ablations import Sketch, TopK
from executor.codecs.dct import CutCodec, CutSettings, Rule
from executor.codecs.dense import decode_dense, encode_dense
from executor.codecs.wire import Bytes
from placement.codecs import EdgeCodec, Scheme

#: Gives the random numbers of a step.
Draw = Callable[[int], np.random.Generator]
#: The step that stands for using the trained model.
SERVING = -1


class End(Protocol):
    """One end of a tensor's way, there and back."""

    def encode(self, values: Floats, step: int, *, gradient: bool) -> Bytes:
        """Return the message of a tensor (rows, cols), or of its gradient, in a step."""
        ...

    def decode(self, wire: Bytes, out: Floats, step: int, *, gradient: bool) -> None:
        """Write a message of that step into ``out`` (rows, cols)."""
        ...


class DenseEnd:
    """Formats that send every element.

    Parameters
    ----------
    forward, backward : Codec
        Formats of the tensor and of its gradient.
    draw : callable
        Random numbers of ``rowwise...``, by step; only the sender draws.
    """

    def __init__(self, forward: Codec, backward: Codec, draw: Draw) -> None:
        self._codecs, self._draw = (forward, backward), draw

    def encode(self, values: Floats, step: int, *, gradient: bool) -> Bytes:
        """Encode by rows."""
        return encode_dense(self._codecs[gradient], values, self._draw(step))

    def decode(self, wire: Bytes, out: Floats, step: int, *, gradient: bool) -> None:
        """Decode by rows."""
        del step
        decode_dense(self._codecs[gradient], wire, out)


class ThresholdEnd:
    """DCT-MP: the gradient comes back where the activation went.

    Parameters
    ----------
    settings : CutSettings
        How.
    rows, cols : int
        Shape of the tensor.
    """

    def __init__(self, settings: CutSettings, rows: int, cols: int) -> None:
        self.cut = CutCodec(settings, rows, cols)

    def encode(self, values: Floats, step: int, *, gradient: bool) -> Bytes:
        """Encode, and choose the mask of an activation."""
        if step == SERVING:
            return CutCodec(self.cut.settings, *values.shape).encode_forward(values)
        return self.cut.encode_backward(values) if gradient else self.cut.encode_forward(values)

    def decode(self, wire: Bytes, out: Floats, step: int, *, gradient: bool) -> None:
        """Decode, and learn the mask of an activation."""
        cut = CutCodec(self.cut.settings, *out.shape) if step == SERVING else self.cut
        if gradient:
            cut.decode_backward(wire, out)
        else:
            cut.decode_forward(wire, out)


class TopKEnd:
    """Activations as they are; of their gradient the largest of each sample, whatever the activations were.

    Parameters
    ----------
    coder : TopK
        Of the gradient.
    """

    def __init__(self, coder: TopK) -> None:
        self.coder = coder

    def encode(self, values: Floats, step: int, *, gradient: bool) -> Bytes:
        """Encode a gradient, copy anything else."""
        del step
        return self.coder.encode(values) if gradient else values.reshape(-1).view(np.uint8).copy()

    def decode(self, wire: Bytes, out: Floats, step: int, *, gradient: bool) -> None:
        """Decode a gradient, copy anything else."""
        del step
        if gradient:
            self.coder.decode(wire, out)
        else:
            out[...] = wire.view(np.float32).reshape(out.shape)


class SketchEnd:
    """Random projections of a tensor, and by the same matrix of its gradient: the projection's own derivative.

    Parameters
    ----------
    coder : Sketch
        With a key that both ends share.
    """

    def __init__(self, coder: Sketch) -> None:
        self.coder = coder

    def encode(self, values: Floats, step: int, *, gradient: bool) -> Bytes:
        """Project."""
        del gradient
        return self.coder.encode(values, step)

    def decode(self, wire: Bytes, out: Floats, step: int, *, gradient: bool) -> None:
        """Project back."""
        del gradient
        self.coder.decode(wire, out, step)


def make_end(
    chosen: EdgeCodec,
    shape: tuple[int, int],
    draw: Draw,
    sketch_key: tuple[int, str],
    memory: Floats | None = None,
) -> End:
    """Return an end of the way of a tensor.

    Parameters
    ----------
    chosen : EdgeCodec
        How it travels.
    shape : tuple of int
        Samples and columns.
    draw : callable
        Random numbers of this sender, by step.
    sketch_key : tuple of int and str
        Seed and name that both ends know.
    memory : ndarray of float32, shape (samples * columns,), optional
        Holds the error of a top-k with feedback; by default one of its own.
    """
    match chosen.scheme:
        case Scheme.DCT_MP:
            return ThresholdEnd(CutSettings(chosen.keep, chosen.forward, Rule(chosen.rule)), *shape)
        case Scheme.TOP_K:
            return TopKEnd(TopK(chosen.keep, *shape, chosen.backward, feedback=chosen.feedback, memory=memory))
        case Scheme.SKETCH:
            return SketchEnd(Sketch(chosen.keep, *sketch_key))
        case _:
            return DenseEnd(chosen.forward, chosen.backward, draw)


class Loop:
    """Both ends in one process (an ``executor.oracle.Link``), one batch a step; counts the bytes that would travel.

    Parameters
    ----------
    sender, receiver : End
        The producer's end and a consumer's.
    """

    def __init__(self, sender: End, receiver: End) -> None:
        self._sender, self._receiver = sender, receiver
        self._step = SERVING
        #: Bytes of all messages so far, and those of the same tensors as float32.
        self.bytes, self.plain_bytes = 0, 0
        #: The latest activations, as they were sent.
        self.latest: Floats = np.zeros((0, 0), np.float32)

    def forward(self, values: Floats) -> Floats:
        """Return what arrives of an activation; begins a step."""
        self._step, self.latest = self._step + 1, values
        return self._pass(self._sender, self._receiver, values, gradient=False)

    def backward(self, gradient: Floats) -> Floats:
        """Return what arrives of its gradient."""
        return self._pass(self._receiver, self._sender, gradient, gradient=True)

    def serve(self, values: Floats) -> Floats:
        """Return what arrives of an activation when the trained model is used."""
        out = np.empty_like(values)
        wire = self._sender.encode(np.ascontiguousarray(values), SERVING, gradient=False)
        self._receiver.decode(wire, out, SERVING, gradient=False)
        return out

    def _pass(self, source: End, target: End, values: Floats, *, gradient: bool) -> Floats:
        out = np.empty(values.shape, np.float32)
        wire = source.encode(np.ascontiguousarray(values), self._step, gradient=gradient)
        self.bytes += len(wire)
        self.plain_bytes += values.nbytes
        target.decode(wire, out, self._step, gradient=gradient)
        return out
