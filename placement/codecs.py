"""Names of codecs in a plan, and what they say: which format each way, and how much is kept.

===================================  ==================================================================================
``fp32``                             as it is
``fp16``, ``bf16``                   half the bytes
``rowwise8``, ``4``, ``2``, ``1``    rows at so many bits, rounded at random, right on average
``dct-mp:KEEP[:RULE]``               of a cut: the largest share KEEP of each sample (``bitmask``), and the gradient of
                                     those (``values``); RULE ``exact``, ``laplace`` or ``laplace_one_sided``
===================================  ==================================================================================

Knows text and sizes; the arithmetic is the executor's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from cost_models.codecs import HALF, ROWWISE_BITS, Codec, Message
from problem.model import Model

#: Codecs that send every element: for any message.
EVERY_ELEMENT = (Codec.FP32, *sorted(HALF), *ROWWISE_BITS)
RULES = ("exact", "laplace", "laplace_one_sided")
#: Edges of a plan that are not tensors of a cut: pooled rows from the embedding servers, and their gradients back.
POOLED, PUSH = "pooled", "push"


@dataclass(frozen=True, slots=True)
class EdgeCodec:
    """What a codec's name says.

    Parameters
    ----------
    forward, backward : Codec
        Formats of the tensor and of its gradient.
    keep : float
        Share that is kept; 1 where every element is sent.
    rule : str
        One of :data:`RULES`.
    """

    forward: Codec
    backward: Codec
    keep: float = 1.0
    rule: str = "exact"

    @property
    def is_sparse(self) -> bool:
        """Whether elements are left out."""
        return self.backward is Codec.VALUES

    def message(self, rows: int, cols: int, *, gradient: bool) -> Message:
        """Return the message of a tensor (rows, cols), or of its gradient."""
        return Message(rows, cols, self.backward if gradient else self.forward, self.keep)


@lru_cache(maxsize=256)
def parse_codec(text: str) -> EdgeCodec:
    """Read the name of a codec.

    Raises
    ------
    ValueError
        Saying what is allowed.
    """
    name, *settings = text.split(":")
    if name in EVERY_ELEMENT and not settings:
        return EdgeCodec(Codec(name), Codec(name))
    if name == "dct-mp" and 1 <= len(settings) <= 2:
        keep, rule = _share(settings[0]), settings[1] if len(settings) == 2 else "exact"
        if keep is not None and rule in RULES:
            return EdgeCodec(Codec.BITMASK, Codec.VALUES, keep, rule)
    raise ValueError(
        f"codec {text!r}: allowed are {', '.join(EVERY_ELEMENT)} and dct-mp:KEEP[:RULE], KEEP above 0 and up to 1, "
        f"RULE {', '.join(RULES)}"
    )


def check_codec(edge: str, name: str, model: Model) -> None:
    """Refuse a codec that an edge of a plan cannot have.

    Raises
    ------
    ValueError
        There is no such edge or no such codec, or it leaves out elements where no cut gives a mask.
    """
    if edge not in {POOLED, PUSH} and edge not in model.graph:
        raise ValueError(f"no such edge: allowed are {POOLED}, {PUSH} and the names of operators")
    if parse_codec(name).is_sparse and edge in {POOLED, PUSH}:
        raise ValueError(f"codec {name!r}: allowed are {', '.join(EVERY_ELEMENT)}")


def _share(text: str) -> float | None:
    try:
        share = float(text)
    except ValueError:
        return None
    return share if 0 < share <= 1 else None
