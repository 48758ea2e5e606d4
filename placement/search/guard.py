"""The quality guard: which codecs the solver may choose for which edge, by what was measured.

An edge may have a codec if ``cost_models.quality`` has a measurement of it at such a place and even the worse end of its
95 % interval is within the loss allowed. What was not measured is not allowed, however small the codec's error.

==========================  ==================================================================================
edge                        goes by the measurements at
==========================  ==================================================================================
output of an operator       cuts: the worst of them
output of a table           ``pooled`` and ``push``, both
``pooled``, ``push``        the same
``allreduce``, ``exchange``  the same
==========================  ==================================================================================

Codecs that leave elements out of a cut were measured behind rectified layers, and at two cuts at most: they may be chosen
there alone, for at most :data:`MOST_SPARSE` operators. Knows no costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.quality import QualityChange, measured_lengths, quality_change, quality_changes, worst_at_cuts
from placement.codecs import ALL_REDUCE, CUTS_ONLY, EXCHANGE, POOLED, PUSH, check_codec, exchange_takes, parse_codec
from problem.graph import Kind, Operator
from problem.model import Model

#: Relative loss of quality that is allowed unless told otherwise: less cannot be told from noise with five seeds
#: (docs/codecs.md).
QUALITY_LOSS = 0.001
#: Operators whose output may be sent in part: more were never measured together.
MOST_SPARSE = 2


@dataclass(frozen=True)
class Guard:
    """What the solver may choose.

    Parameters
    ----------
    names : tuple of str
        Codecs to choose from; empty: all that were measured.
    loss : float
        Relative loss of quality that an edge may cost at worst.

    Raises
    ------
    ValueError
        If there is no such codec.
    """

    names: tuple[str, ...] = ()
    loss: float = QUALITY_LOSS

    def __post_init__(self) -> None:
        for name in self.names:
            parse_codec(name)

    def allowed(self, edge: str, model: Model) -> tuple[str, ...]:
        """Return the codecs that an edge may have besides float32."""
        measured = dict.fromkeys(change.codec for change in quality_changes())
        return tuple(name for name in self.names or measured if self._allows(edge, name, model))

    def offers(self, model: Model, *, algorithm: str, decided: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
        """Return what each edge may have, without edges that may have nothing else than float32.

        Parameters
        ----------
        model : Model
            Gives the edges.
        algorithm : str
            How groups are kept together (``placement.plan.Sync``).
        decided : Mapping of str to str
            Codecs of edges that the user has decided.
        """
        outputs = [op.name for op in model.graph if model.graph.consumers[op.name]]
        edges = [*outputs, POOLED, PUSH, ALL_REDUCE, EXCHANGE]
        found = {edge: self.allowed(edge, model) for edge in edges if edge not in decided}
        if EXCHANGE in found:
            found[EXCHANGE] = tuple(name for name in found[EXCHANGE] if exchange_takes(algorithm, name))
        return {edge: names for edge, names in found.items() if names}

    def said(self) -> str:
        """Return what was assumed about quality, in words."""
        shortest, longest = measured_lengths()
        return (
            f"a codec may cost up to {100 * self.loss:g} % of quality at each edge, as measured on one small task in runs "
            f"of {shortest:,} to {longest:,} steps; edges together were not measured beyond two cuts"
        )

    def _allows(self, edge: str, name: str, model: Model) -> bool:
        try:
            check_codec(edge, name, model)
        except ValueError:
            return False
        if is_sparse(name) and edge in model.graph and not _is_rectified(model.graph[edge]):
            return False
        found = measurements(edge, name, model)
        return bool(found) and all(one is not None and one.is_within(100 * self.loss) for one in found)


def allowed_codecs(codecs: Mapping[str, str], offers: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return those codecs that edges are offered."""
    return {edge: name for edge, name in codecs.items() if name in offers.get(edge, ())}


def measurements(edge: str, name: str, model: Model) -> tuple[QualityChange | None, ...]:
    """Return the measurements that decide about a codec at an edge; None for one that was not made."""
    if edge not in model.graph:
        return (quality_change(edge, name),)
    if model.graph[edge].kind is Kind.LOOKUP:
        return quality_change(POOLED, name), quality_change(PUSH, name)
    return (worst_at_cuts(name),)


def is_sparse(name: str) -> bool:
    """Whether a codec sends part of what a cut has."""
    return parse_codec(name).scheme in CUTS_ONLY


def _is_rectified(op: Operator) -> bool:
    return op.kind is Kind.LINEAR and op.activation == "relu"
