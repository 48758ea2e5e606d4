"""Constraint (14) of the formulation: a lower bound of the critical path, in solver variables.

For a few representative ranks r: finish times of the forward and the backward pass of every item, with the durations
that its place implies; a tensor that changes place adds the message's cost at both ends and its time on the wire; items
on one place follow each other in graph order, or in any; the rank thread is busy with everything that it does. It is a
relaxation: the order of sends on one thread and NICs that take turns are left out, so it never overstates the critical
path (``latency``), and is exact up to these for most placements. The solver loop evaluates each proposal exactly.

Variables, each for a rank r and in units of the model: ``f_i``, ``b_i`` the end of the forward and backward work of
item i; ``L_r`` the end of the step, with L_r <= H Z. Operators of one item that are separated by an operator of another
are bounded by the item's first input and last output only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from cost_models.costs import MessageCost
from cost_models.network import Reduction, Wire, latency_seconds, occupancy_seconds, round_forms
from placement.evaluation.latency import pull_times
from placement.evaluation.loads import fixed_tally, runs_backward
from placement.tagging.net_loads import message_seconds
from problem.graph import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placement.evaluation.group import GroupProblem
    from placement.tagging.formulation import Formulation, Row
    from problem.graph import Operator
Expr = Any  # a variable, an expression or an int: OR-tools' own union does not add up for type checkers

#: With more ranks than this, only the first and the last rank of each class of equal nodes are modelled: the first hosts
#: most, so its thread is busiest; the last hosts least, so it waits for most messages.
ALL_RANKS = 3
#: With more operators than this, (14) is left out: it has a row for each pair of them.
MOST_OPERATORS = 250


class LatencyModel:
    """Constraint (14) for the representative ranks of a formulation.

    Parameters
    ----------
    form : Formulation
        The formulation.
    any_order : bool
        Whether the operators of a place may follow each other in any order; if not, in that of the graph.
    """

    def __init__(self, form: Formulation, *, any_order: bool = False) -> None:
        self.form, self.problem, self.model, self.any_order = form, form.problem, form.model, any_order
        self.operators = [op for op in self.problem.model.graph if op.kind is not Kind.LOOKUP]
        self.message = _least_message(self.problem)

    def add(self) -> None:
        """Add (14) for each representative rank; nothing where operators are too many, which is a relaxation as well."""
        for row in self._representatives() if len(self.operators) <= MOST_OPERATORS else ():
            _SessionModel(self, row).add()

    def _representatives(self) -> list[Row]:
        rows = [row for row in self.form.rows if row.rank]
        if len(rows) <= ALL_RANKS:
            return rows
        of = {node: number for number, members in enumerate(self.form.data.node_classes) for node in members}
        first = {of[row.node]: row for row in reversed(rows)}
        last = {of[row.node]: row for row in rows}
        return list({row.node: row for row in (*first.values(), *last.values())}.values())


@dataclass(frozen=True, slots=True)
class LeastMessage:
    """What any message between two nodes of the group takes at least: core-seconds at both ends, time on the wire."""

    cost: MessageCost
    slowdown: float
    latency_seconds: float
    wire_seconds_per_byte: float

    def seconds(self, wires: list[Wire]) -> float:
        """Seconds from the first send to the last receive of messages that one thread sends to another, one by one."""
        sends = [self.slowdown * one.sending(self.cost) for one in wires]
        receives = [self.slowdown * one.receiving(self.cost) for one in wires]
        wire = self.latency_seconds + self.wire_seconds_per_byte * min(one.bytes for one in wires)
        return wire + max(sum(sends) + min(receives), min(sends) + sum(receives))


def _least_message(problem: GroupProblem) -> LeastMessage:
    pairs = list(combinations(problem.nodes, 2))
    latency = min((latency_seconds(a, b) for a, b in pairs), default=0.0)
    per_byte = min((occupancy_seconds(a, b, 1.0) for a, b in pairs), default=0.0)
    return LeastMessage(problem.costs.message, min(problem.slowdown), latency, per_byte)


class _SessionModel:
    """Constraint (14) for one rank."""

    def __init__(self, parent: LatencyModel, row: Row) -> None:
        self.parent, self.form, self.problem, self.row = parent, parent.form, parent.problem, row
        self.model, self.graph = parent.model, parent.problem.model.graph
        self.start, self.ready = pull_times(self.problem, row.node)
        horizon = self.form.problem.hogwild * self.form.z_limit
        self.end = self.model.new_int_var(0, horizon, f"L[{row.node}]")
        self.horizon, self.forward, self.backward = horizon, dict[str, Expr](), dict[str, Expr]()
        self.cut, self.here = dict[tuple[str, str], Expr](), dict[str, Expr]()

    def add(self) -> None:
        """Add all constraints of (14) for this rank."""
        for op in self.parent.operators:
            self.forward[op.name] = self.model.new_int_var(0, self.horizon, f"f[{self.row.node},{op.name}]")
        for op in self.parent.operators:
            self._forward(op)
        for op in reversed(self.parent.operators):
            self._backward(op)
        if self.parent.any_order:
            self._one_by_one()
        else:
            for first, second in combinations(self.parent.operators, 2):
                self._in_turn(first, second)
        self._finish()
        self.model.add(self.end <= self.problem.hogwild * self.form.z).with_name(f"(14) latency {self.row.node}")

    # ---- places

    def _item(self, name: str) -> int:
        return self.form.data.item_of[name]

    def _at(self, name: str) -> Iterator[tuple[int | str, Expr]]:
        """Yield the places of this session with a literal of the operator being there; the rank's place comes first."""
        item = self._item(name)
        yield "rank", self.form.dp[item] + self.form.is_on(item, self.row.node)
        for row in self.form.rows:
            if row.node != self.row.node:
                yield row.node, self.form.is_on(item, row.node)

    def _is_cut(self, source: str, target: str) -> Expr:
        """Return at least 1 if the two operators are at different places of this session."""
        key = (source, target)
        if self._item(source) == self._item(target):
            return 0
        if key not in self.cut:
            cut = self.model.new_bool_var(f"cut[{self.row.node},{source},{target}]")
            there = dict(self._at(source))
            for place, here in self._at(target):
                self.model.add(cut >= here - there[place])
            self.cut[key] = self.cut[target, source] = cut
        return self.cut[key]

    def _message(self, names: list[str], source: str, target: str, *, gradient: bool = False) -> Expr:
        """Time of the messages of some tensors (or gradients) between two operators, 0 if they are at one place."""
        wires, found = self.problem.wires, dict[tuple[str, ...], Wire]()  # what travels together is one message
        for name in names:
            key = wires.bundle(name)
            found[key] = found.get(key, Wire()) + wires.tensor(name, gradient=gradient)
        units = self.form.units(self.parent.message.seconds(list(found.values())))
        return units * self._is_cut(source, target) if units else 0

    def _duration(self, name: str, seconds: float) -> Expr:
        """Time of some core-seconds of an operator where it is."""
        item, slow = self._item(name), self.problem.slowdown
        speeds = {slow[row.node] for row in self.form.rows}
        if len(speeds) == 1:
            return self.form.units(seconds * speeds.pop())
        placed = [self.form.units(seconds * slow[r.node]) * self.form.is_on(item, r.node) for r in self.form.rows]
        return sum(placed) + self.form.units(seconds * slow[self.row.node]) * self.form.dp[item]

    # ---- passes

    def _forward(self, op: Operator) -> None:
        cost = self._duration(op.name, self.problem.costs.ops[op.name].forward.core_seconds)
        rank_start = self.form.units(self.start)
        self.model.add(self.forward[op.name] >= cost + (rank_start if op.inputs or op.kind is Kind.DENSE_INPUT else 0))
        for source in dict.fromkeys(op.inputs):
            ready = (
                self.form.units(self.ready[source]) if source in self.ready else self.forward.get(source, rank_start)
            )
            self.model.add(self.forward[op.name] >= ready + cost + self._message([source], source, op.name))
        tables = [source for source in dict.fromkeys(op.inputs) if source in self.ready]
        if len(tables) > 1:
            first = self.form.units(min(self.ready[table] for table in tables))
            self.model.add(self.forward[op.name] >= first + cost + self._message(tables, tables[0], op.name))

    def _backward(self, op: Operator) -> None:
        if not runs_backward(self.problem, op):
            return
        cost = self._duration(op.name, self.problem.costs.ops[op.name].backward.core_seconds)
        # What no gradient of the rank waits for may end after the rank's step, but before the next one needs it (_again).
        done = self.model.new_int_var(0, 2 * self.horizon, f"b[{self.row.node},{op.name}]")
        self.backward[op.name] = done
        self.model.add(done >= self.forward[op.name] + cost)
        for consumer in self.graph.consumers[op.name]:
            if consumer in self.backward:
                back = self._message([op.name], op.name, consumer, gradient=True)
                self.model.add(done >= self.backward[consumer] + cost + back)

    def _in_turn(self, first: Operator, second: Operator) -> None:
        """Two operators on one place run one after the other, backward the other way round."""
        if second.name in self._descendants(first.name):
            return
        same = self._same_place(first.name, second.name)
        if isinstance(same, int) and not same:
            return
        costs = self.problem.costs.ops
        later = self._duration(second.name, costs[second.name].forward.core_seconds)
        self._if(same, self.forward[second.name], self.forward[first.name] + later)
        if first.name in self.backward and second.name in self.backward:
            earlier = self._duration(first.name, costs[first.name].backward.core_seconds)
            self._if(same, self.backward[first.name], self.backward[second.name] + earlier)

    def _one_by_one(self) -> None:
        """Operators of one place follow each other in some order; all go forward before the first goes back."""
        for node in (row.node for row in self.form.rows):
            middle, intervals = self.model.new_int_var(0, self.horizon, f"middle[{self.row.node},{node}]"), list[Expr]()
            for op in self.parent.operators:
                present = self._present(op.name, node)
                if not isinstance(present, int) or present:
                    intervals += self._passes(op, node, present, middle)
            self.model.add_no_overlap(intervals)

    def _passes(self, op: Operator, node: int, present: Expr, middle: Expr) -> Iterator[Expr]:
        """Yield the intervals in which an operator goes forward, before the middle, and back, if it is on a node."""
        costs, slow = self.problem.costs.ops[op.name], self.problem.slowdown[node]
        label = f"{self.row.node},{op.name},{node}"
        first = self.form.units(costs.forward.core_seconds * slow)
        self._if(present, middle, self.forward[op.name])
        yield self._interval(self.forward[op.name], first, present, f"forward[{label}]")
        if op.name in self.backward:
            then = self.form.units(costs.backward.core_seconds * slow)
            self._if(present, self.backward[op.name] - then, middle)
            yield self._interval(self.backward[op.name], then, present, f"backward[{label}]")

    def _interval(self, end: Expr, size: int, present: Expr, name: str) -> Expr:
        if isinstance(present, int):
            return self.model.new_fixed_size_interval_var(end - size, size, name)
        return self.model.new_optional_fixed_size_interval_var(end - size, size, present, name)

    def _present(self, name: str, node: int) -> Expr:
        """Return a Boolean that is 1 if an operator is on a node of this session; on the rank, it may be so in two ways."""
        places = dict(self._at(name))
        literal = places["rank" if node == self.row.node else node]
        if node != self.row.node or isinstance(literal, int):
            return literal
        if name not in self.here:
            self.here[name] = self.model.new_bool_var(f"here[{self.row.node},{name}]")
            self.model.add(self.here[name] >= literal)
        return self.here[name]

    def _same_place(self, first: str, second: str) -> Expr:
        if self._item(first) == self._item(second):
            return 1
        same = self.model.new_bool_var(f"same[{self.row.node},{first},{second}]")
        there = dict(self._at(first))
        for place, here in self._at(second):
            self.model.add(same >= here + there[place] - 1)
        return same

    def _if(self, condition: Expr, left: Expr, right: Expr) -> None:
        constraint = self.model.add(left >= right)
        if not isinstance(condition, int):
            constraint.only_enforce_if(condition)

    def _descendants(self, name: str) -> frozenset[str]:
        return self.form.data.descendants[name]

    # ---- the end of the step

    def _finish(self) -> None:
        """The rank thread ends after the last gradient, all-reduce, updates and metric, and after all it is busy with."""
        problem, units, slow = self.problem, self.form.units, self.problem.slowdown[self.row.node]
        tail = self._reduce_time() + self._own("update") + units(slow * problem.costs.metric_seconds)
        for op in self.parent.operators:
            if op.name in self.backward:
                self._ends(op, tail)
                self._again(op)
        for op in self.parent.operators:
            tables = [source for source in dict.fromkeys(op.inputs) if source in self.ready]
            if tables and op.name in self.backward:
                back = self._message(tables, tables[0], op.name, gradient=True)
                self.model.add(self.end >= self.backward[op.name] + back + tail)
        self.model.add(self.end >= self._busy())

    def _ends(self, op: Operator, tail: Expr) -> None:
        """If an operator is at the rank's place, its backward work is followed by the tail."""
        here = self._present(op.name, self.row.node)
        if not isinstance(here, int) or here:
            self._if(here, self.end, self.backward[op.name] + tail)

    def _again(self, op: Operator) -> None:
        """An operator starts again only after its backward work and its update: the step is at least that long."""
        costs = self.problem.costs.ops[op.name]
        first = self._duration(op.name, costs.forward.core_seconds)
        update = self._duration(op.name, costs.update.core_seconds if op.parameters else 0.0)
        self.model.add(self.end >= self.backward[op.name] - self.forward[op.name] + first + update)

    def _own(self, phase: str) -> Expr:
        """Core time of the rank thread for the operators that it runs, one phase or all."""
        slow, total = self.problem.slowdown[self.row.node], 0
        for op in self.parent.operators:
            cost = self.problem.costs.ops[op.name]
            seconds = cost.update.core_seconds if op.parameters else 0.0
            if phase == "all":
                back = cost.backward.core_seconds if runs_backward(self.problem, op) else 0.0
                seconds += cost.forward.core_seconds + back
            total += self.form.units(seconds * slow) * dict(self._at(op.name))["rank"]
        return total

    def _reduce_time(self) -> Expr:
        """Duration of the all-reduce: at least each of its linear forms."""
        form, problem, ranks, message = self.form, self.problem, self.problem.ranks, self.problem.costs.message
        if ranks == 1:
            return 0
        nodes = self.problem.nodes[:ranks]
        me, slow = nodes[self.row.node], self.problem.slowdown[self.row.node]
        others = [node for i, node in enumerate(nodes) if i != self.row.node]
        latency = max(latency_seconds(me, node) for node in others) / slow
        per_byte = max(occupancy_seconds(me, node, 1.0) for node in others) / slow
        time = self.model.new_int_var(0, self.horizon, f"all_reduce[{self.row.node}]")

        def forms(cost: MessageCost, reduction: Reduction, latency: float) -> list[float]:
            rounds = [round_forms(cost, wire, ranks - 1, per_byte, latency) for wire in reduction.rounds]
            adds = self.problem.costs.sum_seconds_per_byte * reduction.adds
            return [sum(form) + adds for form in zip(*rounds, strict=True)]

        fixed = forms(message, problem.wires.empty_reduction(), latency)
        each = [forms(message.unfixed, work.reduced, 0.0) for work in form.data.work]
        for number, empty in enumerate(fixed):
            terms = [(slow * own[number], form.dp[i]) for i, own in enumerate(each)]
            self.model.add(time >= form.scaled([(slow * empty, form.has_dp), *terms]))
        return time

    def _busy(self) -> Expr:
        """Core time of the rank thread: fixed work, its operators, the messages of its session, the all-reduce."""
        problem, form, node, slow = self.problem, self.form, self.row.node, self.problem.slowdown[self.row.node]
        fixed = sum(part[node] for part in fixed_tally(problem).core.values())
        if node in {problem.machines.index(link.node) for link in problem.servers}:
            fixed = self.start / slow  # the server on this machine has threads of its own
        total = form.units(slow * fixed) + self._own("all")
        for net in form.nets:
            if net.cuttable:
                sent, received = net.session_messages(self.row)
                back, count = net.net.gradient, net.net.messages
                send, take = message_seconds(problem.costs.message, count, net.net.there)
                send_back, take_back = message_seconds(problem.costs.message, count, net.net.back)
                total += form.units(slow * (send + back * take_back)) * sent
                total += form.units(slow * (take + back * send_back)) * received
        if problem.ranks > 1:
            total += form.scaled(form.reduce_terms(slow))
        return total
