"""What the messages of a group take: bytes on the wire and core-seconds of coding, under a choice of codecs.

The same bytes and seconds as the programs' messages have and the simulator charges (``cost_models.codecs``). An edge may
be left open between several codecs: then each of its messages takes the fewest bytes of any of them, and no time to
encode or decode, so that nothing that the open problem promises is missed by a choice (docs/formulation.md). Knows sizes;
where tensors travel is the business of ``loads`` and ``latency``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from cost_models.codecs import ROWWISE_BITS, Message
from cost_models.memory import tensor_bytes
from cost_models.network import Reduction, Wire, at_once, in_slices, no_slices
from placement.codecs import ALL_REDUCE, EXCHANGE, POOLED, PUSH, EdgeCodec, Scheme, parse_codec
from problem.graph import FLOAT_BYTES, Graph, Operator

if TYPE_CHECKING:
    from placement.evaluation.group import ServerLink

Chosen = TypeVar("Chosen")


class Wires:
    """Sizes of a group's messages.

    Parameters
    ----------
    graph : Graph
        The operators.
    batch : int
        Samples of a message.
    codecs : Mapping of str to str
        Codec of each edge, as in a plan.
    open_codecs : Mapping of str to tuple of str
        Edges whose codec is open, with what they may take besides float32.
    """

    def __init__(
        self, graph: Graph, batch: int, codecs: Mapping[str, str], open_codecs: Mapping[str, tuple[str, ...]]
    ) -> None:
        self.graph, self.batch, self.codecs, self.open = graph, batch, codecs, open_codecs
        self._tensors: dict[tuple[str, bool], Wire] = {}
        self._messages: dict[tuple[str, bool], Wire] = {}
        self._bundles: dict[str, tuple[str, ...]] = {}
        self._reduced: dict[tuple[str, int], Reduction] = {}

    def choices(self, edge: str) -> list[EdgeCodec | None]:
        """Return what an edge may be compressed by, None standing for float32; more than one if it is open."""
        names = ("fp32", *self.open[edge]) if edge in self.open else (self.codecs.get(edge, "fp32"),)
        return [None if name == "fp32" else parse_codec(name) for name in names]

    @staticmethod
    def inside(of: Mapping[str, Chosen]) -> dict[str, Chosen]:
        """Return the entries of edges inside a group: all but pooled rows and their gradients."""
        return {edge: chosen for edge, chosen in of.items() if edge not in {POOLED, PUSH}}

    # ---- tensors of a cut

    def bundle(self, name: str) -> tuple[str, ...]:
        """Return the operators whose outputs travel in one message with that of ``name``: those of the same codec."""
        if name not in self._bundles:
            mine = self.codecs.get(name, "fp32")
            together = self.graph.message_of(name)
            self._bundles[name] = tuple(other for other in together if self.codecs.get(other, "fp32") == mine)
        return self._bundles[name]

    def tensor(self, name: str, *, gradient: bool) -> Wire:
        """Return what the output of an operator, or its gradient, takes."""
        if (name, gradient) not in self._tensors:
            size = tensor_bytes(self.graph[name], self.batch)
            width = self.graph[name].output_bytes_per_sample // FLOAT_BYTES
            found = [self._rows(choice, size, (width,), gradient) for choice in self.choices(name)]
            self._tensors[name, gradient] = _least(found)
        return self._tensors[name, gradient]

    def message(self, name: str, *, gradient: bool) -> Wire:
        """Return what a whole message takes: all that travels with the output of an operator, or with its gradient."""
        key = self.bundle(name)[0], gradient
        if key not in self._messages:
            parts = (self.tensor(other, gradient=gradient) for other in self.bundle(name))
            self._messages[key] = sum(parts, Wire())
        return self._messages[key]

    # ---- embedding servers

    def pooled(self, link: ServerLink) -> Wire:
        """Return what the pooled rows of one batch from a server take."""
        return _least([self._rows(choice, link.pooled_bytes, link.widths, False) for choice in self.choices(POOLED)])

    def push(self, link: ServerLink) -> Wire:
        """Return what their gradients take."""
        return _least([self._rows(choice, link.pooled_bytes, link.widths, True) for choice in self.choices(PUSH)])

    def _rows(self, chosen: EdgeCodec | None, size: int, widths: Sequence[int], gradient: bool) -> Wire:
        """Return what rows of a batch take: ``size`` bytes as float32, in parts of so many columns."""
        if chosen is None:
            return Wire(size, tensors=len(widths))
        messages = (chosen.message(self.batch, width, gradient=gradient) for width in widths)
        return sum((_wire(message) for message in messages), Wire())

    def least_part_bytes(self, size: int, width: int) -> float:
        """Return the fewest bytes that so many columns of pooled rows, ``size`` bytes as float32, take either way."""
        found = [
            self._rows(choice, size, (width,), gradient=False)
            for edge in (POOLED, PUSH)
            for choice in self.choices(edge)
        ]
        return min(wire.bytes for wire in found)

    @property
    def least_share(self) -> float:
        """A share of the float32 bytes of pooled rows that no codec of theirs, either way, falls below."""
        choices = [choice for edge in (POOLED, PUSH) for choice in self.choices(edge)]
        return min(1.0 if choice is None else _bits(choice) / (8 * FLOAT_BYTES) for choice in choices)

    # ---- gradients of operators, and what is pushed

    def reduced(self, op: Operator, ranks: int) -> Reduction:
        """Return what the gradient of an operator adds to the all-reduce of R ranks."""
        if (op.name, ranks) not in self._reduced:
            found = [_reduction(choice, op.parameters, ranks) for choice in self.choices(ALL_REDUCE)]
            self._reduced[op.name, ranks] = _least_reduction(found)
        return self._reduced[op.name, ranks]

    def empty_reduction(self) -> Reduction:
        """Return an all-reduce of nothing, of as many rounds."""
        return _least_reduction(
            [Reduction((Wire(),), 0.0, 0.0) if _at_once(choice) else no_slices() for choice in self.choices(ALL_REDUCE)]
        )

    def pushed(self, op: Operator) -> Wire:
        """Return what an operator's part of a message to a sync server takes."""
        return _least([_exchanged(choice, op, answer=False) for choice in self.choices(EXCHANGE)])

    def answered(self, op: Operator) -> Wire:
        """Return what its part of the answer takes."""
        return _least([_exchanged(choice, op, answer=True) for choice in self.choices(EXCHANGE)])


def _bits(chosen: EdgeCodec) -> int:
    """Return the bits of an element, headers of rows left out, of a codec that sends every element."""
    return ROWWISE_BITS.get(chosen.forward, 16)


def _wire(message: Message) -> Wire:
    return Wire(message.bytes, message.encode_seconds, message.decode_seconds, 1)


def _least(found: list[Wire]) -> Wire:
    """Return the only one, or the fewest bytes and tensors of several, without coding."""
    if len(found) == 1:
        return found[0]
    return Wire(min(wire.bytes for wire in found), tensors=min(wire.tensors for wire in found))


def _least_reduction(found: list[Reduction]) -> Reduction:
    """Return the only one, or the least of several, round by round."""
    if len(found) == 1:
        return found[0]
    rounds = tuple(_least(list(turn)) for turn in zip(*(one.rounds for one in found), strict=False))
    return Reduction(rounds, min(one.sent for one in found), min(one.adds for one in found))


def _gradient(chosen: EdgeCodec | None, elements: int) -> Wire:
    """Return what a flat gradient takes."""
    if chosen is None:
        return Wire(elements * FLOAT_BYTES, tensors=1)
    if chosen.scheme is Scheme.DCT_DP:
        return _wire(chosen.gradient_message(elements))
    return _wire(Message(1, elements, chosen.forward))


def _exchanged(chosen: EdgeCodec | None, op: Operator, *, answer: bool) -> Wire:
    if chosen is None or not op.parameters:
        return Wire(op.parameters * FLOAT_BYTES, tensors=1)
    return _wire(chosen.exchanged(op.parameters, op.width)[answer])


def _reduction(chosen: EdgeCodec | None, elements: int, ranks: int) -> Reduction:
    """Return the all-reduce of a flat gradient: at once under DCT-DP, else by slices."""
    size, wire = elements * FLOAT_BYTES, _gradient(chosen, elements)
    if _at_once(chosen):
        return at_once(size, ranks, wire)
    return in_slices(size, ranks, wire if chosen else None)


def _at_once(chosen: EdgeCodec | None) -> bool:
    """Whether all ranks send all they keep in one round."""
    return chosen is not None and chosen.scheme is Scheme.DCT_DP
