"""Variables and constraints (5)-(8) of the formulation for one net: cuts, sends and additions.

Sessions differ in which places coincide: for the session of rank n, DP operators and the MP operators on node n are one
place. Counting over the R sessions gives, for a node n that does not produce the net,

    messages in  = (R - 1) far + own   if n is a rank      (own includes what a DP consumer on n needs)
                 = R far               otherwise

and a DP producer sends from each rank to every other node that needs the net; an MP producer on m sends (R - 1) need +
any to each other rank and R need to each other node. Gradients travel the same way back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortools.sat.python import cp_model

from placement.tagging.net_loads import message_seconds
from placement.tagging.nets import RANK, Net

if TYPE_CHECKING:
    from placement.tagging.formulation import Formulation, Row

Expr = Any  # a variable, an expression or an int: OR-tools' own union does not add up for type checkers
Term = tuple[float, Expr]


class NetVariables:
    """One net in the model.

    Parameters
    ----------
    form : Formulation
        The model; items and rows are there already.
    net : Net
        The net.
    index : int
        Its number, for names.
    """

    def __init__(self, form: Formulation, net: Net, index: int) -> None:
        self.form, self.net, self.index = form, net, index
        self.model, self.ranks, self.rows = form.model, form.ranks, form.rows
        self.need: dict[int, Expr] = {}
        self.any: dict[int, Expr] = {}
        self.from_dp: dict[int, Expr] = {}
        self.far: dict[int, Expr] = {}
        self.own: dict[int, Expr] = {}
        self.out: dict[int, Expr] = {}
        self.add: dict[int, Expr] = {}
        self.dp_need = self._or([form.dp[item] for item, _ in net.consumers], "dp_need")
        self.cuttable = any(item != RANK for item in (net.producer, *(item for item, _ in net.consumers)))
        if self.cuttable:
            self._needs()
            self._cuts()
            self._sends()
        if net.additions:
            self._additions()

    # ---- small helpers

    def _name(self, kind: str, node: int | str) -> str:
        return f"{kind}[{self.net.ops[0]},{node}]"

    def _bool(self, kind: str, node: int) -> cp_model.IntVar:
        return self.model.new_bool_var(self._name(kind, node))

    def _or(self, literals: list[Expr], kind: str, node: int | str = "rank") -> Expr:
        """Return a 0/1 expression that is 1 exactly if one of the literals is."""
        open_ = [literal for literal in literals if not isinstance(literal, int)]
        if any(isinstance(literal, int) and literal for literal in literals):
            return 1
        if len(open_) < 2:
            return open_[0] if open_ else 0
        found = self.model.new_bool_var(self._name(kind, node))
        self.model.add_max_equality(found, open_)
        return found

    def _at_least(self, kind: str, node: int, bound: Expr) -> Expr:
        """Return a 0/1 variable that is at least ``bound`` (a difference of literals)."""
        if isinstance(bound, int):
            return max(0, bound)
        found = self._bool(kind, node)
        self.model.add(found >= bound)
        return found

    def _if(self, condition: Expr, bound: cp_model.BoundedLinearExpression | bool) -> None:
        """Add a constraint that holds where a literal does."""
        if isinstance(condition, int):
            if condition:
                self.model.add(bound)
        else:
            self.model.add(bound).only_enforce_if(condition)

    def _produced_on(self, node: int) -> Expr:
        return self.form.is_on(self.net.producer, node)

    @property
    def _dp(self) -> Expr:
        return self.form.dp[self.net.producer]

    # ---- constraints

    def _needs(self) -> None:
        """(5) need and any follow the consumers."""
        items = [item for item, _ in self.net.consumers if item != RANK]
        for row in self.rows:
            self.need[row.node] = self._or([self.form.is_on(i, row.node) for i in items], "need", row.node)
            if row.rank:
                self.any[row.node] = self._or([self.need[row.node], self.dp_need], "any", row.node)

    def _cuts(self) -> None:
        """(6) A cut net is paid once per place that needs it."""
        for row in self.rows:
            node, need, produced = row.node, self.need[row.node], self._produced_on(row.node)
            fixed = self.net.producer == RANK
            self.from_dp[node] = need if fixed else self._at_least("from_dp", node, need + self._dp - 1)
            self.far[node] = need if fixed else self._at_least("far", node, need - produced)
            self.own[node] = 0
            if row.rank and not fixed:
                self.own[node] = self._at_least("own", node, self.any[node] - self._dp - produced)

    def _from_others(self, node: int, *, mp: bool) -> Expr:
        """Messages that one producing session set sends to all rows but ``node``: from a rank (DP) or a node (MP)."""
        total: Expr = 0
        for row in self.rows:
            copies = row.copies if row.node != node else row.copies - 1
            if copies and not mp:
                total += copies * self.from_dp[row.node]
            elif copies:
                far = (self.ranks - 1 if row.rank else self.ranks) * self.need[row.node]
                total += copies * (far + (self.any[row.node] if row.rank else 0))
        return total

    def _sends(self) -> None:
        """(7) A DP producer sends from each rank, an MP producer from its node for all R sessions."""
        produced: Expr = 0
        for row in self.rows:
            self.out[row.node] = self._from_others(row.node, mp=False) if row.rank else 0
            if row.hosts and self.net.producer != RANK:
                limit = 2 * self.ranks * self.form.problem.size
                sent = self.model.new_int_var(0, limit, self._name("sent", row.node))
                self._if(self._produced_on(row.node), sent >= self._from_others(row.node, mp=True))
                self.out[row.node] += sent
                produced += sent
        if self.net.producer != RANK:
            received: Expr = 0
            for row in self.rows:
                received += row.copies * (self.messages_in(row) - (self.ranks - row.rank) * self.from_dp[row.node])
            self.model.add(produced >= received)

    def _additions(self) -> None:
        """(8) Partial gradients are added where the consumers are, then at the producer."""
        dp_users = sum(count * self.form.dp[item] for item, count in self.net.consumers)
        for row in self.rows:
            users = sum(count * self.form.is_on(item, row.node) for item, count in self.net.consumers)
            need, ranks = self.need.get(row.node, 0), self.ranks
            most = ranks * (self.net.own + sum(count for _, count in self.net.consumers) + self.form.problem.size)
            add = self.model.new_int_var(0, most, self._name("add", row.node))
            self.add[row.node] = add
            if row.rank:
                any_ = self.any.get(row.node, self.dp_need)
                self.model.add(add >= (ranks - 1) * (users - need) + dp_users + users - any_)
                others = self._needed_elsewhere(row.node)
                self._if(self._dp, add >= self.net.own + dp_users + users + others - 1)
            else:
                self.model.add(add >= ranks * (users - need))
            if row.hosts and self.net.producer != RANK:
                at_home = self._additions_at_home(row, users, dp_users)
                self._if(self._produced_on(row.node), add >= at_home)

    def _needed_elsewhere(self, node: int) -> Expr:
        """Number of other nodes that need the net."""
        return sum((r.copies - (r.node == node)) * self.need.get(r.node, 0) for r in self.rows)

    def _additions_at_home(self, row: Row, users: Expr, dp_users: Expr) -> Expr:
        """Additions on the node of an MP producer, over all sessions."""
        total: Expr = self.ranks * (self.net.own + users - 1) + (dp_users if row.rank else 0)
        for other in self.rows:
            copies = other.copies - (other.node == row.node)
            if copies:
                total += copies * (self.ranks - other.rank) * self.need[other.node]
                total += copies * self.any[other.node] if other.rank else 0
        return total

    # ---- what the loads need

    def messages_in(self, row: Row) -> Expr:
        """Messages of one tensor that arrive at a node, over all sessions."""
        if not self.cuttable:
            return 0
        if row.rank:
            return (self.ranks - 1) * self.far[row.node] + self.own[row.node]
        return self.ranks * self.far[row.node]

    def session_messages(self, row: Row) -> tuple[Expr, Expr]:
        """Messages of one tensor that the rank thread of ``row`` sends and receives in the forward pass."""
        sent: Expr = self._from_others(row.node, mp=False)
        received: Expr = self.own[row.node]
        if row.hosts and self.net.producer != RANK:
            mine = self.model.new_int_var(0, self.form.problem.size, self._name("mine", row.node))
            self._if(self._produced_on(row.node), mine >= self._needed_elsewhere(row.node))
            sent += mine
        return sent, received

    def core_terms(self, row: Row) -> list[Term]:
        """Core-seconds of messages and additions on a node."""
        net, costs = self.net, self.form.problem.costs
        send, take = message_seconds(costs.message, net.messages, net.there)
        send_back, take_back = message_seconds(costs.message, net.messages, net.back)
        terms: list[Term] = [(costs.summing(net.bytes), self.add.get(row.node, 0))]
        if self.cuttable:
            terms.append((take + net.gradient * send_back, self.messages_in(row)))
            terms.append((send + net.gradient * take_back, self.out[row.node]))
        return terms

    def nic_terms(self, row: Row, way: str) -> list[Term]:
        """Bytes on the NIC of a node, ``tx`` or ``rx``."""
        return self._terms(row, way, self.net.there.bytes, self.net.back.bytes)

    def _terms(self, row: Row, way: str, there: float, back: float) -> list[Term]:
        """Bytes of messages that a node sends or receives: so many there, and so many back."""
        if not self.cuttable:
            return []
        forward, backward = self.out[row.node], self.messages_in(row)
        if way == "rx":
            forward, backward = backward, forward
        return [(there, forward), (back * self.net.gradient, backward)]

    def memory_terms(self, row: Row) -> list[Term]:
        """Bytes of receive buffers and of added gradients on a node, for one thread of each rank."""
        size = float(self.net.bytes)
        terms = [*self._terms(row, "rx", size, size), (float(self.net.bytes), self.add.get(row.node, 0))]
        return [(size, count) for size, count in terms if size]
