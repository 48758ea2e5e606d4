"""Names of codecs in a plan, and what they say: which format each way, and how much is kept.

===================================  ==================================================================================
``fp32``                             as it is
``fp16``, ``bf16``                   half the bytes
``rowwise8``, ``4``, ``2``, ``1``    rows at so many bits, rounded at random, right on average
``dct-mp:KEEP[:RULE]``               of a cut: the largest share KEEP of each sample (``bitmask``), and the gradient of
                                     those (``values``); RULE ``exact``, ``laplace``, ``laplace_one_sided`` or
                                     ``batch``
``top-k:KEEP[:feedback]``            of a cut: all activations, and of their gradient the largest share KEEP of each sample,
                                     chosen anew; ``feedback`` adds what was left out to the next batch's
``sketch:KEEP``                      of a cut: random projections of the rows onto a share KEEP of their width, both ways
``dct-dp:KEEP[:EVERY]``              of an all-reduce, or of what is pushed to the sync servers: the largest share KEEP of
                                     each operator's gradient, with error feedback, a new threshold every EVERY times
                                     (1000)
===================================  ==================================================================================

Knows text and sizes; the arithmetic is the executor's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from cost_models.codecs import HALF, ROWWISE_BITS, Codec, Message
from problem.model import Model

#: Codecs that send every element: for any message.
EVERY_ELEMENT = (Codec.FP32, *sorted(HALF), *ROWWISE_BITS)
RULES = ("exact", "laplace", "laplace_one_sided", "batch")
#: Edges of a plan that are not tensors of a cut: pooled rows from the embedding servers, and their gradients back.
POOLED, PUSH = "pooled", "push"
#: The all-reduce of the gradients of DP operators, and what it can take.
ALL_REDUCE, ALL_REDUCE_CODECS = "allreduce", f"fp32, {', '.join(sorted(HALF))} and dct-dp:KEEP[:EVERY]"
#: What groups and sync servers exchange: what is pushed (``push``), or parameters and the differences that come back.
EXCHANGE = "exchange"
#: What parameters can be rounded by in an exchange. With b bits the error of a row is at most its range over 2^b - 1, and
#: fed back it widens the next row's range by twice that: with one bit it would double each time.
ROUNDED = tuple(codec for codec in EVERY_ELEMENT if codec != Codec.ROWWISE1)
#: Elements of a row of parameters at least: the header of a shorter one would be more than a third of its 8-bit elements.
ROW = 32
#: Steps between two thresholds of DCT-DP unless said otherwise: the paper's headline setting.
EVERY = 1000


class Scheme(StrEnum):
    """What a codec does, apart from its formats."""

    DENSE = "dense"
    DCT_MP = "dct-mp"
    DCT_DP = "dct-dp"
    TOP_K = "top-k"
    SKETCH = "sketch"


#: Schemes for tensors of a cut and nothing else: producer and consumer share a mask, or one of them remembers.
CUTS_ONLY = frozenset({Scheme.DCT_MP, Scheme.TOP_K, Scheme.SKETCH})


@dataclass(frozen=True, slots=True)
class EdgeCodec:
    """What a codec's name says.

    Parameters
    ----------
    scheme : Scheme
        What it does.
    forward, backward : Codec
        Formats of the tensor and of its gradient.
    keep : float
        Share that is kept; 1 where every element is sent.
    rule : str
        One of :data:`RULES`.
    every : int
        DCT-DP: steps between two thresholds; 0 for any other codec.
    feedback : bool
        Top-k: whether what was left out is added to the next gradient.
    """

    scheme: Scheme
    forward: Codec
    backward: Codec
    keep: float = 1.0
    rule: str = "exact"
    every: int = 0
    feedback: bool = False

    @property
    def is_sparse(self) -> bool:
        """Whether the bytes of a message depend on its numbers: elements of a cut are left out."""
        return self.scheme in {Scheme.DCT_MP, Scheme.TOP_K}

    def message(self, rows: int, cols: int, *, gradient: bool) -> Message:
        """Return the message of a tensor (rows, cols), or of its gradient."""
        return Message(rows, cols, self.backward if gradient else self.forward, self.keep)

    def gradient_message(self, elements: int) -> Message:
        """Return the message of a flat gradient under DCT-DP: the format that takes the fewest bytes."""
        formats = (Codec.COO32, Codec.IDX16, Codec.BITMASK)
        messages = [Message(1, elements, codec, self.keep, self.every) for codec in formats]
        return min(messages, key=lambda message: message.bytes)

    def exchanged(self, elements: int, width: int) -> tuple[Message, Message]:
        """Return the messages of an operator's parameters in an exchange with a sync server, there and back.

        Parameters
        ----------
        elements, width : int
            Parameters of the operator, and elements of its output: rows are as long as that (rows of the weights, and
            the bias) if all parameters come in such rows of at least :data:`ROW`, else all are one row.
        """
        if self.scheme is Scheme.DCT_DP:
            return self.gradient_message(elements), Message(1, elements)
        rows = elements // width if width >= ROW and elements % width == 0 else 1
        message = Message(rows, elements // rows, self.forward)
        return message, message


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
        return EdgeCodec(Scheme.DENSE, Codec(name), Codec(name))
    keep = _share(settings[0]) if 1 <= len(settings) <= 2 else None
    found = _thinned(name, keep, settings[1:]) if keep is not None else None
    if found is None:
        raise ValueError(
            f"codec {text!r}: allowed are {', '.join(EVERY_ELEMENT)}, dct-mp:KEEP[:RULE], dct-dp:KEEP[:EVERY], "
            f"top-k:KEEP[:feedback] and sketch:KEEP, KEEP above 0 and up to 1, RULE {', '.join(RULES)}, EVERY a number of "
            "steps"
        )
    return found


def _thinned(name: str, keep: float, settings: list[str]) -> EdgeCodec | None:
    """Return a codec that sends a share of the elements; None if there is no such codec."""
    match name, settings:
        case "dct-mp", [] | [_] if set(settings) <= set(RULES):
            rule = settings[0] if settings else "exact"
            return EdgeCodec(Scheme.DCT_MP, Codec.BITMASK, Codec.VALUES, keep, rule)
        case "dct-dp", []:
            return EdgeCodec(Scheme.DCT_DP, Codec.COO32, Codec.COO32, keep, every=EVERY)
        case "dct-dp", [every] if every.isdecimal() and int(every):
            return EdgeCodec(Scheme.DCT_DP, Codec.COO32, Codec.COO32, keep, every=int(every))
        case "top-k", [] | ["feedback"]:
            backward = (
                Codec.BITMASK if keep > 1 / 32 else Codec.COO32
            )  # where a bit an element is fewer than 32 a kept one
            return EdgeCodec(Scheme.TOP_K, Codec.FP32, backward, keep, feedback=bool(settings))
        case "sketch", []:
            return EdgeCodec(Scheme.SKETCH, Codec.SKETCH, Codec.SKETCH, keep)
        case _:
            return None


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
    if edge == ALL_REDUCE and (chosen.scheme in CUTS_ONLY or chosen.forward in ROWWISE_BITS):
        raise ValueError(f"codec {name!r}: allowed are {ALL_REDUCE_CODECS}")
    if edge in {POOLED, PUSH} and chosen.scheme is not Scheme.DENSE:
        raise ValueError(f"codec {name!r}: allowed are {', '.join(EVERY_ELEMENT)}")
    if edge == EXCHANGE and (chosen.scheme in CUTS_ONLY or name == Codec.ROWWISE1):
        raise ValueError(f"codec {name!r}: allowed are {', '.join(ROUNDED)} and, of push, dct-dp:KEEP[:EVERY]")
    if chosen.scheme is Scheme.DCT_DP and edge not in {ALL_REDUCE, EXCHANGE}:
        raise ValueError(f"codec {name!r}: for {ALL_REDUCE} and {EXCHANGE} only")


def exchange_takes(algorithm: str, name: str) -> bool:
    """Whether the exchanges of a sync algorithm can have a codec: ``push`` DCT-DP, the others what sends every element."""
    return name == Codec.FP32 or (parse_codec(name).scheme is Scheme.DCT_DP) == (algorithm == "push")


def _share(text: str) -> float | None:
    try:
        share = float(text)
    except ValueError:
        return None
    return share if 0 < share <= 1 else None
