"""Codecs on the cost side: bytes on the wire and core-seconds to encode and decode.

Knows sizes and rates. The arithmetic is the executor's business (``executor.codecs``); a test holds its messages and these
sizes together to the byte.

==================  ============================================================================================
``fp32``            4 bytes an element
``fp16``, ``bf16``  2 bytes an element
``rowwise8`` ...    stochastic quantisation by rows to 8, 4, 2 or 1 bit: 10 + ceil(columns * bits / 8) bytes a row
``coo32``           kept elements with their values, a 32-bit index each
``idx16``           the same with 16-bit indices, in blocks of 65,536 elements
``bitmask``         a bit for each element and the values of those that are kept
``sketch``          ceil(keep * columns) random projections of each row, 4 bytes each
``values``          the values alone, where the receiver knows the mask (gradients of a DCT-MP cut)
==================  ============================================================================================

DCT (Gupta et al., KDD 2021) keeps a share of the elements: of a gradient in DCT-DP (any sparse format), of each row of an
activation in DCT-MP (``bitmask`` forward, ``values`` backward).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

import numpy as np

from cost_models.constants import Constant
from problem.graph import FLOAT_BYTES


class Codec(StrEnum):
    """How the elements of a message travel."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    ROWWISE8 = "rowwise8"
    ROWWISE4 = "rowwise4"
    ROWWISE2 = "rowwise2"
    ROWWISE1 = "rowwise1"
    COO32 = "coo32"
    IDX16 = "idx16"
    BITMASK = "bitmask"
    VALUES = "values"
    SKETCH = "sketch"


HALF = frozenset({Codec.FP16, Codec.BF16})
ROWWISE_BITS = {Codec.ROWWISE8: 8, Codec.ROWWISE4: 4, Codec.ROWWISE2: 2, Codec.ROWWISE1: 1}
SPARSE = frozenset({Codec.COO32, Codec.IDX16, Codec.BITMASK, Codec.VALUES})

ROW_HEADER = Constant(
    10,
    "bytes/row",
    "Caffe2 FloatToFusedRandRowwiseQuantized: 1 byte bit width, 1 byte tail, 4 bytes minimum, 4 bytes maximum",
)
DENSE_BELOW = Constant(
    256, "elements", "open-source DCT emitter of a parameter server (KRAKEN): tensors with fewer elements go dense"
)
INDEX_BLOCK = 2**16  # elements that a 16-bit index can tell apart

_HOW = "measured, python -m experiments.bench_codecs on an AMD EPYC, 2026-11-30: 300,032 float32, thread CPU time"
_ELEMENTS = 300_032
#: Core-seconds per element to encode and to decode.
DENSE_SECONDS = {
    Codec.FP16: (752e-6, 247e-6),  # of numbers of any size; the machine busy (bf16 took 8 % longer in the same run)
    Codec.BF16: (166e-6, 57e-6),
    Codec.ROWWISE8: (1314e-6, 623e-6),
    Codec.ROWWISE4: (1347e-6, 670e-6),
    Codec.ROWWISE2: (1392e-6, 688e-6),
    Codec.ROWWISE1: (1514e-6, 736e-6),
}
ENCODE_SECONDS = {
    c: Constant(e / _ELEMENTS, "seconds/element", f"{_HOW}: {c} encode") for c, (e, _) in DENSE_SECONDS.items()
}
DECODE_SECONDS = {
    c: Constant(d / _ELEMENTS, "seconds/element", f"{_HOW}: {c} decode") for c, (_, d) in DENSE_SECONDS.items()
}
#: Threshold and error feedback, by share of elements kept.
SPARSIFY_SECONDS = {
    keep: Constant(seconds / _ELEMENTS, "seconds/element", f"{_HOW}: dct-dp encode keeping {keep:g}, a known threshold")
    for keep, seconds in {0.01: 1395e-6, 0.10: 1518e-6, 0.25: 1841e-6}.items()
}
SCATTER_SECONDS = Constant(
    113e-6 / _ELEMENTS / 0.1, "seconds/kept element", f"{_HOW}: dct-dp decode of 10 % kept, 113 us"
)
_BUSY = "measured likewise, the machine busy: sketch keeping 0.5 of 256 columns, 664 us for 128 rows, 1870 us for 1,172"
DRAW_SECONDS = Constant(15.8e-9, "seconds/element of the matrix", f"{_BUSY}: what does not grow with rows")
PROJECT_SECONDS = Constant(35.3e-12, "seconds/multiply-add", f"{_BUSY}: what does")
THRESHOLD_SECONDS = Constant(
    971e-6 / 300e3,
    "seconds/element",
    "measured, docs/costs.md: exact threshold of 300,000 float32 by partition, 971 us",
)


@dataclass(frozen=True, slots=True)
class Message:
    """A tensor that travels.

    Parameters
    ----------
    rows, cols : int
        Shape: samples and width of a cut, or one row for a flat gradient.
    codec : Codec
        How it travels.
    keep : float
        Share of the elements that a sparse codec keeps, above 0 and up to 1; 1 - eta in the DCT paper.
    threshold_every : int
        Sparse codecs: messages between two exact thresholds (L in the DCT paper).

    Raises
    ------
    ValueError
        If ``keep`` or ``threshold_every`` is out of range.
    """

    rows: int
    cols: int
    codec: Codec = Codec.FP32
    keep: float = 1.0
    threshold_every: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.keep <= 1 and self.threshold_every >= 1):
            raise ValueError(f"keep {self.keep} must be in (0, 1], threshold_every {self.threshold_every} at least 1")

    @property
    def elements(self) -> int:
        """Elements before compression."""
        return self.rows * self.cols

    @property
    def kept(self) -> int:
        """Elements (of a sketch: projections) that travel: the share of every row, rounded up."""
        return self.rows * ceil(round(self.cols * self.keep, 9)) if self.is_sparse or self.is_sketch else self.elements

    @property
    def is_sparse(self) -> bool:
        """Whether elements are left out: a sparse codec and at least 256 elements; smaller tensors go dense."""
        return self.codec in SPARSE and self.elements >= DENSE_BELOW.value

    @property
    def is_sketch(self) -> bool:
        """Whether projections travel in place of elements: a sketch of at least 256 elements."""
        return self.codec is Codec.SKETCH and self.elements >= DENSE_BELOW.value

    @property
    def bytes(self) -> int:
        """Exact bytes on the wire, without the transport's own header."""
        if self.is_sparse or self.is_sketch:
            return self.kept * FLOAT_BYTES + self._index_bytes()
        if self.codec in ROWWISE_BITS:
            return self.rows * (int(ROW_HEADER.value) + ceil(self.cols * ROWWISE_BITS[self.codec] / 8))
        return self.elements * (2 if self.codec in HALF else FLOAT_BYTES)

    def _index_bytes(self) -> int:
        """Bytes that say which elements are kept; blocks after the first carry their count in 4 bytes."""
        match self.codec:
            case Codec.COO32:
                return 4 * self.kept
            case Codec.IDX16:
                return 2 * self.kept + 4 * (ceil(self.elements / INDEX_BLOCK) - 1)
            case Codec.BITMASK:
                return ceil(self.elements / 8)
            case _:
                return 0

    @property
    def encode_seconds(self) -> float:
        """Core-seconds to encode. ``values`` picks by a known mask: as much as scattering them back."""
        if self.is_sparse:
            if self.codec is Codec.VALUES:
                return self.kept * SCATTER_SECONDS.value
            return self.elements * (_sparsify_seconds(self.keep) + THRESHOLD_SECONDS.value / self.threshold_every)
        if self.is_sketch:
            return self._projection_seconds
        return self.elements * _dense_rates(self.codec)[0]

    @property
    def decode_seconds(self) -> float:
        """Core-seconds to decode."""
        if self.is_sparse:
            return self.kept * SCATTER_SECONDS.value
        if self.is_sketch:
            return self._projection_seconds
        return self.elements * _dense_rates(self.codec)[1]

    @property
    def _projection_seconds(self) -> float:
        """Core-seconds to draw the matrix, (columns, projections), and to multiply by it."""
        size = self.cols * self.kept // self.rows
        return size * (DRAW_SECONDS.value + self.rows * PROJECT_SECONDS.value)


def _sparsify_seconds(keep: float) -> float:
    """Seconds per element to select a share: linear between the measured shares, constant beyond."""
    shares = list(SPARSIFY_SECONDS)
    return float(np.interp(keep, shares, [SPARSIFY_SECONDS[share].value for share in shares]))


def _dense_rates(codec: Codec) -> tuple[float, float]:
    """Seconds per element to encode and to decode; fp32 (and what goes dense) is copied by the transport."""
    if codec not in DENSE_SECONDS:
        return 0.0, 0.0
    return ENCODE_SECONDS[codec].value, DECODE_SECONDS[codec].value
