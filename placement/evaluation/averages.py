"""What it costs groups to average among themselves: the ring of each node, and what ranks pass on (``programs.exchanges``).

Linear in the bytes that are averaged, so that evaluator and formulation share it. Knows closed forms, no tags and no time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cost_models.costs import CostTable
from cost_models.network import all_reduce_bytes
from placement.plan import Sync


@dataclass(frozen=True, slots=True)
class Part:
    """What a part of an average costs a node: core-seconds at the cost table's speed, bytes out (and as many in), messages.

    ``fixed_seconds`` and ``messages`` (sent and received) are for any bytes, ``seconds_per_byte``, ``sent_per_byte`` and
    ``held_per_byte`` (memory) for each.
    """

    fixed_seconds: float
    seconds_per_byte: float
    sent_per_byte: float
    messages: int
    held_per_byte: float = 0.0

    def seconds(self, size: float) -> float:
        """Core-seconds for so many bytes; none for nothing."""
        return self.fixed_seconds + self.seconds_per_byte * size if size else 0.0


@dataclass(frozen=True)
class AverageCost:
    """The costs of an average of G groups of R ranks.

    Parameters
    ----------
    costs : CostTable
        Of messages, of additions and of the rule.
    groups, ranks : int
        G and R.
    sync : Sync
        The rule.
    """

    costs: CostTable
    groups: int
    ranks: int
    sync: Sync

    @cached_property
    def ring(self) -> Part:
        """What a node does for what it averages: 2 (G - 1) chunks, half of them added, half copied to their place,
        which takes as long (``cost_models.network.Reduction``), and the rule on centre and parameters.

        Besides its parameters it holds what it has sent, the difference and the centre; under ``bmuf`` the mean and block
        momentum too.
        """
        rounds, sent = 2 * (self.groups - 1), all_reduce_bytes(1.0, self.groups)
        adding = sent * self.costs.sum_seconds_per_byte
        rule = 2 * self.costs.exchange_seconds_per_byte
        held = 5.0 if self.sync.algorithm == "bmuf" else 3.0
        return Part(rounds * self._ends, sent * self._per_byte + adding + rule, sent, 2 * rounds, held)

    @cached_property
    def passed_on(self) -> Part:
        """What a rank does for the DP operators, beside its part of the ring: it sends 1 / R of them to R - 1 others."""
        others = self.ranks - 1
        sent = others / self.ranks
        each = sent * (self._per_byte + self.costs.sum_seconds_per_byte)
        return Part(others * self._ends, each, sent, 2 * others)

    @property
    def _ends(self) -> float:
        return self.costs.message.send(0, 1) + self.costs.message.receive(0, 1)

    @property
    def _per_byte(self) -> float:
        return self.costs.message.send_seconds_per_byte + self.costs.message.receive_seconds_per_byte
