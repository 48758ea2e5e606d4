"""Dynamic Communication Thresholding (Gupta et al., KDD 2021): of gradients (DCT-DP) and of activations at a cut (DCT-MP).

DCT-DP, their Algorithm 1, one object for each tensor and worker: W = gradient + error; every L steps the threshold becomes
the k-th largest |W|; what reaches it is sent, the rest is the new error. Tensors below 256 elements are sent as they
are. A stale threshold that nothing reaches sends nothing, and the error grows until something does.

DCT-MP, their Algorithm 2, one object at each end of a cut: each sample keeps its k largest activations; the gradient comes
back for those only, without positions, since its receiver chose the mask and its sender got it. There is no error feedback.
Variants take one threshold for the whole batch, from a Laplace law fitted to it or exactly. The same selection must be
applied when the trained model is used: :func:`CutCodec.select`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np

from cost_models.codecs import SPARSE, Codec
from executor.arrays import Floats
from executor.codecs.selection import kept_of, laplace, largest, reaching, thresholds
from executor.codecs.wire import Bytes, Mask, is_small, pack, require_finite, unpack


@dataclass(frozen=True, slots=True)
class GradientSettings:
    """Settings of DCT-DP.

    Parameters
    ----------
    keep : float
        Share of the elements that is kept, above 0 and up to 1: 1 - eta.
    wire : Codec
        ``coo32``, ``idx16`` or ``bitmask``.
    every : int
        Steps between two thresholds: L.
    drain_every : int, optional
        Mean number of steps between two drains of the error (the paper's production runs: a million); None: never.
    drain : str
        What a drain does, which the paper leaves open: ``zero`` forgets the error, ``flush`` sends all of it.

    Raises
    ------
    ValueError
        A setting is out of range.
    """

    keep: float
    wire: Codec = Codec.COO32
    every: int = 1000
    drain_every: int | None = None
    drain: Literal["zero", "flush"] = "zero"

    def __post_init__(self) -> None:
        if not (0 < self.keep <= 1 and self.every >= 1 and (self.drain_every is None or self.drain_every >= 1)):
            raise ValueError(f"{self}: keep must be in (0, 1], every and drain_every at least 1")
        if self.wire not in SPARSE - {Codec.VALUES}:
            raise ValueError(f"wire = {self.wire}: allowed are coo32, idx16, bitmask")


class GradientCodec:
    """Sender of one compressed gradient.

    Parameters
    ----------
    settings : GradientSettings
        How.
    elements : int
        Elements of the gradient.
    memory : ndarray of float32, shape (elements + 1,), optional
        All that is remembered from step to step, which Hogwild threads share: the error, then the threshold, NaN before
        the first step (:func:`forget`). By default one of its own.
    """

    def __init__(self, settings: GradientSettings, elements: int, memory: Floats | None = None) -> None:
        self.settings, self.elements = settings, elements
        if memory is None:
            memory = np.empty(elements + 1, np.float32)
            forget(memory)
        #: What has not been sent yet, (elements,).
        self.error, self._threshold = memory[:-1], memory[-1:]

    @property
    def threshold(self) -> float:
        """The latest threshold; NaN before the first."""
        return float(self._threshold[0])

    @threshold.setter
    def threshold(self, value: float) -> None:
        """Set what the next steps are compared with."""
        self._threshold[0] = value

    def encode(self, gradient: Floats, step: int, draw: np.random.Generator) -> Bytes:
        """Return the message of a step's gradient (elements,), and keep what was not sent for later ones.

        Parameters
        ----------
        gradient : ndarray of float32, shape (elements,)
            Not changed.
        step : int
            Number of the step; the threshold is taken anew when L divides it.
        draw : Generator
            Decides whether the error is drained in this step.

        Raises
        ------
        NotFinite
            The gradient holds a value that is not finite.
        """
        require_finite(gradient, "gradient")
        if is_small(self.elements):
            return pack(self.settings.wire, gradient, np.ones(self.elements, np.bool_))
        total = gradient + self.error
        mask = self._select(total, step)
        self.error[...] = total
        self.error[mask] = 0.0
        return pack(self.settings.wire, total, self._drain(mask, total, draw))

    def _select(self, total: Floats, step: int) -> Mask:
        if step % self.settings.every == 0 or np.isnan(self.threshold):
            self.threshold = float(thresholds(total[None], kept_of(self.elements, self.settings.keep))[0, 0])
        return reaching(total, self.threshold)

    def _drain(self, mask: Mask, total: Floats, draw: np.random.Generator) -> Mask:
        """Empty the error now and then; returns what is to be sent."""
        every = self.settings.drain_every
        if every is None or draw.random() * every >= 1.0:
            return mask
        self.error.fill(0.0)
        return mask if self.settings.drain == "zero" else total != 0

    def decode(self, wire: Bytes, out: Floats) -> None:
        """Write a message into ``out`` (elements,), zero where nothing was sent."""
        unpack(self.settings.wire, wire, out)


def forget(memory: Floats) -> None:
    """Set the memory of a :class:`GradientCodec` to what it is before the first step."""
    memory[:-1] = 0.0
    memory[-1] = np.nan


class Rule(StrEnum):
    """How DCT-MP finds its threshold."""

    EXACT = "exact"  # the k-th largest of each row
    LAPLACE = "laplace"  # by |x - mean|, from a law fitted to the batch
    LAPLACE_ONE_SIDED = "laplace_one_sided"  # by x - mean: for activations after a rectifier
    BATCH = "batch"  # the k-th largest of all rows together: an ablation, not the paper's


@dataclass(frozen=True, slots=True)
class CutSettings:
    """Settings of DCT-MP.

    Parameters
    ----------
    keep : float
        Share of each sample's activations that is kept, above 0 and up to 1.
    wire : Codec
        How activations travel: ``bitmask``, ``coo32`` or ``idx16``. Gradients travel as ``values``.
    rule : Rule
        How the threshold is found.
    cap : bool
        Of equal activations at the threshold, drop those to the right beyond k a row: bytes are then at most the planned
        ones. For the exact rule only; a Laplace threshold has no k.

    Raises
    ------
    ValueError
        A setting is out of range.
    """

    keep: float
    wire: Codec = Codec.BITMASK
    rule: Rule = Rule.EXACT
    cap: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep = {self.keep}: must be in (0, 1]")
        if self.wire not in SPARSE - {Codec.VALUES}:
            raise ValueError(f"wire = {self.wire}: allowed are coo32, idx16, bitmask")
        if self.cap and self.rule is not Rule.EXACT:
            raise ValueError("cap needs the exact rule")


class CutCodec:
    """One end of a compressed cut.

    Parameters
    ----------
    settings : CutSettings
        How.
    rows, cols : int
        Samples and width of the tensor.

    Attributes
    ----------
    mask : ndarray of bool, shape (rows, cols)
        What the latest forward message kept; at both ends the same.
    """

    def __init__(self, settings: CutSettings, rows: int, cols: int) -> None:
        self.settings, self.rows, self.cols = settings, rows, cols
        self.mask: Mask = np.ones((rows, cols), np.bool_)

    def select(self, activations: Floats) -> Mask:
        """Return which activations (rows, cols) are kept; all of a small tensor."""
        settings = self.settings
        if is_small(activations.size):
            return np.ones(activations.shape, np.bool_)
        if settings.rule is Rule.EXACT:
            count = kept_of(activations.shape[1], settings.keep)
            return (
                largest(activations, count) if settings.cap else reaching(activations, thresholds(activations, count))
            )
        if settings.rule is Rule.BATCH:
            count = len(activations) * kept_of(activations.shape[1], settings.keep)
            return reaching(activations, thresholds(activations.reshape(1, -1), count))
        return self._beyond(activations)

    def _beyond(self, activations: Floats) -> Mask:
        one_sided = self.settings.rule is Rule.LAPLACE_ONE_SIDED
        centre, distance = laplace(activations, self.settings.keep, one_sided=one_sided)
        away = activations - np.float32(centre)
        mask: Mask = (away if one_sided else np.abs(away)) >= distance
        mask &= activations != 0
        return mask

    def encode_forward(self, activations: Floats) -> Bytes:
        """Return the message of activations (rows, cols), and remember what it keeps.

        Raises
        ------
        NotFinite
            An activation is not finite.
        """
        require_finite(activations, "activations")
        self.mask = self.select(activations)
        return pack(self.settings.wire, activations.reshape(-1), self.mask.reshape(-1))

    def decode_forward(self, wire: Bytes, out: Floats) -> None:
        """Write activations into ``out`` (rows, cols), zero where none was sent, and remember where that was."""
        unpack(self.settings.wire, wire, out.reshape(-1))
        self.mask = np.ones(out.shape, np.bool_) if is_small(out.size) else out != 0

    def encode_backward(self, gradient: Floats) -> Bytes:
        """Return the message of a gradient (rows, cols): of the activations that were sent, and of no others.

        Raises
        ------
        NotFinite
            A value is not finite.
        """
        require_finite(gradient, "gradient of activations")
        return pack(Codec.VALUES, gradient.reshape(-1), self.mask.reshape(-1))

    def decode_backward(self, wire: Bytes, out: Floats) -> None:
        """Write a gradient into ``out`` (rows, cols), zero where the activation was not sent."""
        unpack(Codec.VALUES, wire, out.reshape(-1), self.mask.reshape(-1))
