"""Constraint (13) of the formulation: what groups exchange, with sync servers or with each other, as terms of the loads.

With sync servers each node exchanges its MP items and node 0 the DP items, which it passes on. Groups that average among
themselves (``GroupProblem.average``) do so by node: its MP items, and on a rank 1 / R of the DP items, which it passes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from placement.evaluation.averages import AverageCost

if TYPE_CHECKING:
    from placement.tagging.formulation import Expr, Formulation, Row, Term


class ExchangeTerms:
    """Terms of the exchanges of a group.

    Parameters
    ----------
    formulation : Formulation
        Has the variables.
    """

    def __init__(self, formulation: Formulation) -> None:
        self.of, self.problem, self.data = formulation, formulation.problem, formulation.data
        self.often = 1 / self.problem.steps_per_exchange

    def cores(self) -> dict[int, list[Term]]:
        """(13) Core-seconds of the exchanges by node; whom a node talks to follows from what it holds."""
        problem = self.problem
        if problem.groups == 1 or problem.sync is None:
            return {}
        found: dict[int, list[Term]] = {}
        for row in self.of.rows:
            terms = self._averaging(row, problem.average) if problem.average else self._exchanging(row)
            found[row.node] = [(self.often * seconds, expression) for seconds, expression in terms]
        return found

    def nic(self, row: Row, way: str, inside: bool, rate: float) -> list[Term]:
        """Seconds on a node's NIC, out (``tx``) or in; ``inside``: what is passed on in the group counts."""
        problem, often = self.problem, self.often / rate
        if problem.groups == 1 or problem.sync is None:
            return []
        several = inside and row.rank and problem.ranks > 1
        if (cost := problem.average) is not None:
            sent = cost.ring.sent_per_byte * problem.abroad(row.node)[way == "rx"]
            return self._averaged(row, often * sent, often * cost.passed_on.sent_per_byte * several)
        abroad = all(server.host != problem.nodes[row.node].host for server in problem.sync_servers)
        moved = [often * (w.pushed if way == "tx" else w.answered).bytes for w in self.data.work]
        terms = self._exchanged(row, moved) if abroad else []
        if several and (row.node == 0) == (way == "tx"):
            terms += self.of.dp_terms(often * (problem.ranks - 1 if row.node == 0 else 1))
        return terms

    def memory(self, row: Row) -> list[Term]:
        """Bytes that a node holds to average."""
        cost = self.problem.average
        return self._averaged(row, cost.ring.held_per_byte, 0.0) if cost is not None else []

    # ---- among the groups

    def _averaging(self, row: Row, cost: AverageCost) -> list[Term]:
        """Core-seconds of an average."""
        (talks,) = self._talks(row, [[op for item in self.data.items for op in item.ops]])
        several = row.rank and self.problem.ranks > 1
        terms = self._averaged(row, cost.ring.seconds_per_byte, cost.passed_on.seconds_per_byte * several)
        terms.append((cost.ring.fixed_seconds, talks))
        return [*terms, (cost.passed_on.fixed_seconds, self.of.has_dp)] if several else terms

    def _averaged(self, row: Row, ring: float, passed_on: float) -> list[Term]:
        """A quantity for each byte that a node averages, and for each byte of the DP items that ranks pass on."""
        each, work = ring / self.problem.ranks + passed_on, self.data.work
        terms: list[Term] = [(ring * w.parameter_bytes, self.of.is_on(i, row.node)) for i, w in enumerate(work)]
        return terms + (self.of.dp_terms(each) if row.rank else [])

    # ---- with sync servers

    def _exchanging(self, row: Row) -> list[Term]:
        """Core-seconds of an exchange with sync servers."""
        costs, problem = self.problem.costs, self.problem
        ends = costs.message.send_seconds + costs.message.receive_seconds
        servers = range(len(problem.sync_servers))
        held = [tuple(op for op, at in problem.sync_server_of.items() if at == server) for server in servers]
        terms = self._exchanged(row, [work.exchange_seconds(costs) for work in self.data.work])
        return terms + [(ends, talks) for talks in self._talks(row, held)] + self._passed_on(row)

    def _exchanged(self, row: Row, of: Sequence[float]) -> list[Term]:
        """A quantity of the items that a node exchanges: its MP items, and on node 0 the DP items."""
        terms: list[Term] = [(of[i], self.of.is_on(i, row.node)) for i in range(len(of))]
        return terms + ([(of[i], self.of.dp[i]) for i in range(len(of))] if row.node == 0 else [])

    def _talks(self, row: Row, held: Sequence[Sequence[str]]) -> list[Expr]:
        """Whether a node exchanges anything of each of several sets of operators."""
        found: list[Expr] = []
        for number, operators in enumerate(held):
            talks = self.of.model.new_bool_var(f"talks[{row.node},{number}]")
            for i, item in enumerate(self.data.items):
                if not set(item.ops).isdisjoint(operators) and self.data.work[i].parameter_bytes:
                    dp = self.of.dp[i] if row.rank and (row.node == 0 or self.problem.average) else 0
                    here = self.of.is_on(i, row.node) + dp
                    self.of.model.add(talks >= here).with_name(f"(13) exchange {item.name},{row.node},{number}")
            found.append(talks)
        return found

    def _passed_on(self, row: Row) -> list[Term]:
        """Core-seconds of passing the DP difference from node 0 to the other ranks."""
        message, ranks, work = self.problem.costs.message, self.problem.ranks, self.data.work
        if not row.rank or ranks == 1:
            return []
        if row.node == 0:
            times, fixed = ranks - 1, message.send_seconds
            each = [one.parameters.sending(message.unfixed) for one in work]
        else:
            times, fixed, adding = 1, message.receive_seconds, self.problem.costs.sum_seconds_per_byte
            each = [w.parameters.receiving(message.unfixed) + adding * w.parameter_bytes for w in work]
        return [(times * fixed, self.of.has_dp), *((times * own, self.of.dp[i]) for i, own in enumerate(each))]
