"""Names of codecs in a plan, and what they say: which format each way, and how much is kept.

===================================  ==================================================================================
``fp32``                             as it is
``fp16``, ``bf16``                   half the bytes
``rowwise8``, ``4``, ``2``, ``1``    rows at so many bits, rounded at random, right on average
``dct-mp:KEEP[:RULE]``               of a cut: the largest share KEEP of each sample (``bitmask``), and the gradient of
                                     those (``values``); RULE ``exact``, ``laplace`` or ``laplace_one_sided``
``dct-dp:KEEP[:EVERY]``              of an all-reduce, or of what is pushed to the sync servers: the largest share KEEP of
                                     each operator's gradient, with error feedback, a new threshold every EVERY times
                                     (1000)
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
#: The all-reduce of the gradients of DP operators, and what it can take.
ALL_REDUCE, ALL_REDUCE_CODECS = "allreduce", f"fp32, {', '.join(sorted(HALF))} and dct-dp:KEEP[:EVERY]"
#: What the sync algorithm ``push`` sends to the sync servers.
EXCHANGE = "exchange"
#: Steps between two thresholds of DCT-DP unless said otherwise: the paper's headline setting.
EVERY = 1000


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
    every : int
        DCT-DP: steps between two thresholds; 0 for any other codec.
    """

    forward: Codec
    backward: Codec
    keep: float = 1.0
    rule: str = "exact"
    every: int = 0

    @property
    def is_sparse(self) -> bool:
        """Whether activations of a cut are left out (DCT-MP)."""
        return self.backward is Codec.VALUES

    def message(self, rows: int, cols: int, *, gradient: bool) -> Message:
        """Return the message of a tensor (rows, cols), or of its gradient."""
        return Message(rows, cols, self.backward if gradient else self.forward, self.keep)

    def gradient_message(self, elements: int) -> Message:
        """Return the message of a flat gradient under DCT-DP: the format that takes the fewest bytes."""
        formats = (Codec.COO32, Codec.IDX16, Codec.BITMASK)
        messages = [Message(1, elements, codec, self.keep, self.every) for codec in formats]
        return min(messages, key=lambda message: message.bytes)


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
    if name == "dct-dp" and 1 <= len(settings) <= 2:
        keep, every = _share(settings[0]), settings[1] if len(settings) == 2 else str(EVERY)
        if keep is not None and every.isdecimal() and int(every):
            return EdgeCodec(Codec.COO32, Codec.COO32, keep, every=int(every))
    raise ValueError(
        f"codec {text!r}: allowed are {', '.join(EVERY_ELEMENT)}, dct-mp:KEEP[:RULE] and dct-dp:KEEP[:EVERY], KEEP above "
        f"0 and up to 1, RULE {', '.join(RULES)}, EVERY a number of steps"
    )


def check_codec(edge: str, name: str, model: Model) -> None:
    """Refuse a codec that an edge of a plan cannot have.

    Raises
    ------
    ValueError
        There is no such edge or no such codec, or it leaves out elements where no cut gives a mask.
    """
    if edge not in {POOLED, PUSH, ALL_REDUCE, EXCHANGE} and edge not in model.graph:
        known = ", ".join((POOLED, PUSH, ALL_REDUCE, EXCHANGE))
        raise ValueError(f"no such edge: allowed are {known} and the names of operators")
    chosen = parse_codec(name)
    if edge == ALL_REDUCE and not (chosen.every or chosen.forward in {Codec.FP32, *HALF}):
        raise ValueError(f"codec {name!r}: allowed are {ALL_REDUCE_CODECS}")
    if edge in {POOLED, PUSH} and (chosen.is_sparse or chosen.every):
        raise ValueError(f"codec {name!r}: allowed are {', '.join(EVERY_ELEMENT)}")
    if edge == EXCHANGE and not (chosen.every or chosen.forward is Codec.FP32):
        raise ValueError(f"codec {name!r}: allowed are fp32 and dct-dp:KEEP[:EVERY]")
    if chosen.every and edge not in {ALL_REDUCE, EXCHANGE}:
        raise ValueError(f"codec {name!r}: for {ALL_REDUCE} and {EXCHANGE} only")


def _share(text: str) -> float | None:
    try:
        share = float(text)
    except ValueError:
        return None
    return share if 0 < share <= 1 else None
