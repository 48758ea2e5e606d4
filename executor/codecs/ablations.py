"""What the DCT paper found to be worse (Gupta et al., appendix C): kept so that the comparison can be repeated.

``TopK`` chooses exactly k elements of each row anew, for gradients of a cut independently of the mask of the activations,
with or without error feedback. ``Sketch`` sends Gaussian random projections of the rows.
"""

from __future__ import annotations

import math

import numpy as np

from cost_models.codecs import Codec
from executor.arrays import Floats, generator
from executor.codecs.selection import kept_of, largest
from executor.codecs.wire import Bytes, is_small, pack, require_finite, unpack


class TopK:
    """Sender of the k largest elements of each row.

    Parameters
    ----------
    keep : float
        Share of each row, above 0 and up to 1.
    rows, cols : int
        Shape of the tensor.
    wire : Codec
        ``coo32``, ``idx16`` or ``bitmask``.
    feedback : bool
        Add what was not sent to the next tensor.
    memory : ndarray of float32, shape (rows * cols,), optional
        What was not sent; by default one of its own. Not read without feedback.
    """

    def __init__(
        self,
        keep: float,
        rows: int,
        cols: int,
        wire: Codec = Codec.COO32,
        *,
        feedback: bool = False,
        memory: Floats | None = None,
    ) -> None:
        self.count, self.wire, self.feedback = kept_of(cols, keep), wire, feedback
        flat = np.zeros(rows * cols if feedback else 0, np.float32) if memory is None else memory
        self.error = flat.reshape(rows, cols) if feedback else flat

    def encode(self, values: Floats) -> Bytes:
        """Return the message of a tensor (rows, cols), which is not changed.

        Raises
        ------
        NotFinite
            A value is not finite.
        """
        require_finite(values, "top-k")
        total = values + self.error if self.feedback else values
        mask = np.ones(total.shape, np.bool_) if is_small(total.size) else largest(total, self.count)
        if self.feedback:
            self.error[...] = np.where(mask, np.float32(0), total)
        return pack(self.wire, total.reshape(-1), mask.reshape(-1))

    def decode(self, wire: Bytes, out: Floats) -> None:
        """Write a message into ``out`` (rows, cols), zero where nothing was sent."""
        unpack(self.wire, wire, out.reshape(-1))


class Sketch:
    """Random projections: y = x S is sent and y S^T is used, with S (cols, m) drawn from N(0, 1/m), so E[S S^T] = 1.

    Parameters
    ----------
    keep : float
        m as a share of the columns, rounded up; above 0 and up to 1.
    seed, channel : int, str
        Key, with the step, of the draw of S: both ends draw the same.
    """

    def __init__(self, keep: float, seed: int, channel: str) -> None:
        self.keep, self._key = keep, (seed, "sketch", channel)

    def _matrix(self, cols: int, step: int) -> Floats:
        seed, *key = self._key
        size = kept_of(cols, self.keep)
        matrix = generator(int(seed), *key, step).standard_normal((cols, size), np.float32)
        matrix *= np.float32(1 / math.sqrt(size))
        return matrix

    def encode(self, values: Floats, step: int) -> Bytes:
        """Return the message of a tensor (rows, cols): rows * m float32, or the tensor itself below 256 elements.

        Raises
        ------
        NotFinite
            A value is not finite.
        """
        require_finite(values, "sketch")
        sent = values if is_small(values.size) else values @ self._matrix(values.shape[1], step)
        return np.ascontiguousarray(sent).reshape(-1).view(np.uint8)

    def decode(self, wire: Bytes, out: Floats, step: int) -> None:
        """Write a message of that step into ``out`` (rows, cols)."""
        sent = wire.view(np.float32).reshape(len(out), -1)
        if is_small(out.size):
            out[...] = sent
        else:
            np.matmul(sent, self._matrix(out.shape[1], step).T, out=out)
