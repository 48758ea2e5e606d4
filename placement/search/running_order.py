"""The order in which a plan runs its operators: first what is done elsewhere, so that its messages leave at once.

A session's program is the graph in order, forward and back again. Minimising its length is scheduling with precedences,
delivery times and release dates on machines that are given (NP-hard); three list schedules are tried beside the order of the
search (``input_order``), all for the slowest session, and the evaluator judges them:

* *delivery*: longest time elsewhere first, messages both ways included (largest tails first, as in Schrage's schedule:
  Carlier, EJOR 11 (1982) 42-47);
* *path*: longest remaining path first (Hu, Oper. Res. 9 (1961) 841-848; the upward rank of HEFT: Topcuoglu, Hariri and
  Wu, IEEE TPDS 13 (2002) 260-274);
* *release*: list scheduling (Graham, SIAM J. Appl. Math. 17 (1969) 416-429): next is what can begin first, as servers
  answer; of those that can begin at once, the one with the longest time elsewhere.

The best of these is then improved by descent: an operator, with all that it needs, is put in front of all others. Ties go to
the order of the search, so the same input has the same order. Knows placements that were found; moves none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

from cost_models.network import Wire, wire_seconds
from placement.deadline import Deadline, Phase
from placement.evaluation.evaluate import evaluate_timed, evaluation_of
from placement.evaluation.group import GroupProblem
from placement.evaluation.latency import pull_times, representative_ranks, session_seconds
from placement.evaluation.loads import home, runs_backward
from placement.plan import Tag
from placement.search.outcome import Kinds, Solved, coded, distinct, job_value
from placement.tagging.limits import PRECISION
from problem.graph import Graph, Kind, Operator

#: Operators that may be evaluated for the orders of a plan, all evaluations together; and the fewest evaluations.
WORK, LEAST_WORK = 4_000, 20
#: Evaluations that the orders of list schedules take as long as; share of the time left that orders may be given.
EACH, ORDERING = 6, 0.25
#: What a user is told of a plan with an order of its own.
SAID = "operators run in an order that was chosen after their places; the bound holds for every order"


def reordered(
    rivals: list[Solved], deadline: Deadline, others: Sequence[Solved] = ()
) -> tuple[Solved, tuple[str, ...]]:
    """Give plans the best order of those that are tried; return the best plan then, and what to say of its order.

    Value and score go up with the order. Where threads hide the critical path none can help, and none is tried; nor is one
    for which no time is left.

    Parameters
    ----------
    rivals : list of Solved
        Shapes; the first has a plan, and of equals it is the best.
    deadline : Deadline
        Of the search.
    others : sequence of Solved
        Other plans for the shape of the first, that are worth less in the order of the search: the one that is best in the
        order of a list schedule takes its place.
    """
    before = [one.problems for one in (*rivals, *others)]
    best = _scheduled([rivals[0], *others], deadline) if others else rivals[0]
    ranked = [best, *(one for one in rivals[1:] if one.tags is not None and one is not rivals[0])]
    for one in ranked:
        _reorder(one, deadline)
    for rival in ranked:
        best = rival if rival.better_than(best) else best
    return best, () if any(best.problems is problems for problems in before) else (SAID,)


def _scheduled(plans: list[Solved], deadline: Deadline) -> Solved:
    """Give plans the best order of those that list schedules make, and return the best plan then."""
    best = plans[0]
    try:
        for plan in plans:
            _Trials(plan, deadline).schedule()
            best = plan if plan.better_than(best) else best
    except KeyboardInterrupt:  # what was found stands
        deadline.stop()
    return best


def ordering_of(plans: Sequence[Solved], deadline: Deadline) -> tuple[Phase, ...]:
    """Return the orders of some plans as phases of a search, of no more than a part of the time that is left.

    Parameters
    ----------
    plans : sequence of Solved
        Plans for one shape.
    deadline : Deadline
        Of the search.
    """
    each = [evaluation_of(kind, one.tags or {}) for one in plans for kind, _ in distinct(one.problems)] * EACH
    part = ORDERING * deadline.left / expected if (expected := deadline.expected(*each)) else 1.0
    return tuple(each[: int(min(1.0, max(0.0, part)) * len(each))])


def _reorder(found: Solved, deadline: Deadline) -> None:
    """Let a plan have the best order."""
    try:
        _Trials(found, deadline).run()
    except KeyboardInterrupt:  # what was found stands
        deadline.stop()


class _Trials:
    """Orders of a plan's operators, each judged once.

    Parameters
    ----------
    found : Solved
        The shape with the plan; it keeps the best order.
    deadline : Deadline
        After which no order is judged.
    """

    def __init__(self, found: Solved, deadline: Deadline) -> None:
        self.found, self.deadline, self.tags = found, deadline, found.tags or {}
        self.left = max(LEAST_WORK, WORK // len(found.problems[0].model.graph))
        self.seen = {self.graph.order}

    def run(self) -> None:
        """Judge all orders, if any can help."""
        if self.schedule():
            self.descend()

    def schedule(self) -> bool:
        """Judge the orders that list schedules make; return whether any can help."""
        slowest = self.slowest()
        if slowest is None:
            return False
        session = _Session(slowest, self.tags)
        for schedule in SCHEDULES:
            self.offer(schedule(session))
        return True

    @property
    def graph(self) -> Graph:
        """The operators in the best order so far."""
        return self.found.problems[0].model.graph

    def slowest(self) -> GroupProblem | None:
        """Return the group with the longest critical path of those in which threads do not hide it; None if all do."""
        rows = list[tuple[float, GroupProblem]]()
        for problem, _ in _kinds(self.found, self.found.problems):
            if not self.deadline.allows(evaluation_of(problem, self.tags)):
                return None
            evaluation = evaluate_timed(problem, self.tags, self.deadline)
            if evaluation.waits:
                rows.append((evaluation.latency_seconds, problem))
        return max(rows, key=lambda row: row[0])[1] if rows else None

    def offer(self, names: list[str]) -> bool:
        """Judge an order; return whether it is the best so far."""
        graph, found = self.graph.in_order(names), self.found
        needs = evaluation_of(found.problems[0], self.tags)
        if graph.order in self.seen or self.left <= 0 or not self.deadline.allows(needs):
            return False
        self.seen.add(graph.order)
        self.left -= 1
        problems = tuple(replace(one, model=replace(one.model, graph=graph)) for one in found.problems)
        kinds = _kinds(found, problems)
        value, _ = job_value(kinds, self.tags, evaluate_timed(kinds[0][0], self.tags, self.deadline), self.deadline)
        if value is None or value <= found.value * (1 + PRECISION):
            return False
        charge = 1 / found.score - 1 / found.value if found.score else inf  # for bytes moved, in seconds a sample
        found.problems, found.value, found.score = problems, value, 1 / (1 / value + charge)
        return True

    def descend(self) -> None:
        """Put an operator, with all that it needs, in front of all others, as long as that helps."""
        names = self.graph.order
        improved = True
        while improved and self.left > 0:
            improved = sum(self.offer(_promoted(self.graph, name)) for name in names if self.left > 0) > 0


def _promoted(graph: Graph, name: str) -> list[str]:
    """Names with one operator and what it needs in front."""
    needed, open_ = {name}, [name]
    while open_:
        more = set(graph[open_.pop()].inputs) - needed
        needed |= more
        open_ += more
    return sorted(graph.order, key=lambda one: one not in needed)


def _kinds(found: Solved, problems: tuple[GroupProblem, ...]) -> Kinds:
    return coded(distinct(problems), found.codecs)


class _Session:
    """The slowest session of a group, and what its operators wait for.

    Parameters
    ----------
    problem : GroupProblem
        The group.
    tags : Mapping of str to Tag
        Tag of every operator but the LOOKUPs.
    """

    def __init__(self, problem: GroupProblem, tags: Mapping[str, Tag]) -> None:
        self.problem, self.graph = problem, problem.model.graph
        self.rank = max(representative_ranks(problem, tags), key=lambda rank: session_seconds(problem, tags, rank))
        self.home = {op.name: home(op, tags, self.rank) for op in self.graph}
        self.operators = [op for op in self.graph if op.kind is not Kind.LOOKUP]
        self.number = {op.name: number for number, op in enumerate(self.operators)}

    def message(self, name: str, target: int, *, gradient: bool = False) -> float:
        """Seconds from the send of a tensor, or of its gradient the other way, to the end of its receive."""
        source, wire = self.home[name], self.problem.wires.message(name, gradient=gradient)
        if source == target or (gradient and not self.graph.needs_gradient[name]):
            return 0.0
        ends = (target, source) if gradient else (source, target)
        return self._carried(wire, *ends)

    def _carried(self, wire: Wire, source: int, target: int) -> float:
        nodes, slow, cost = self.problem.nodes, self.problem.slowdown, self.problem.costs.message
        sent = slow[source] * wire.sending(cost) + slow[target] * wire.receiving(cost)
        return sent + wire_seconds(nodes[source], nodes[target], wire.bytes)

    def seconds(self, op: Operator, *, back: bool) -> float:
        """Work of an operator where it is, forward, or forward and backward."""
        cost, slow = self.problem.costs.ops[op.name], self.problem.slowdown[self.home[op.name]]
        backward = cost.backward.core_seconds if back and runs_backward(self.problem, op) else 0.0
        return slow * (cost.forward.core_seconds + backward)

    def tails(self, *, whole: bool) -> dict[str, float]:
        """Longest way through consumers to the end of the graph and back, by operator; never longer than that of an input.

        Parameters
        ----------
        whole : bool
            Whether the work of the rank counts, besides messages and the work of other nodes.
        """
        found: dict[str, float] = {}
        for op in reversed(self.operators):
            place = self.home[op.name]
            consumers = self.graph.consumers[op.name]
            after = max((found[one] + self._there_and_back(op.name, one) for one in consumers), default=0.0)
            own = self.seconds(op, back=True) if whole or place != self.rank else 0.0
            rows = max((self._there_and_back(table, op.name) for table in self.tables(op)), default=0.0)
            found[op.name] = rows + own + after
        return found

    def _there_and_back(self, name: str, consumer: str) -> float:
        target = self.home[consumer]
        return self.message(name, target) + self.message(name, target, gradient=True)

    def tables(self, op: Operator) -> list[str]:
        """Look-ups that an operator consumes."""
        return [name for name in op.inputs if self.graph[name].kind is Kind.LOOKUP]


def _delivery(session: _Session) -> list[str]:
    """Longest time elsewhere first."""
    return _falling(session, session.tails(whole=False))


def _path(session: _Session) -> list[str]:
    """Longest remaining path first."""
    return _falling(session, session.tails(whole=True))


def _falling(session: _Session, tails: Mapping[str, float]) -> list[str]:
    return sorted(session.number, key=lambda name: (-tails[name], session.number[name]))


def _release(session: _Session) -> list[str]:
    """First come, first served: a list schedule by when operators can begin, then by the time elsewhere."""
    tails, clocks = session.tails(whole=False), _Clocks(session)
    missing = {op.name: {s for s in op.inputs if s in session.number} for op in session.operators}
    able, order = [name for name, inputs in missing.items() if not inputs], list[str]()
    while able:
        name = min(able, key=lambda one: (clocks.start(one), -tails[one], session.number[one]))
        able.remove(name)
        order.append(name)
        clocks.run(name)
        for consumer in session.graph.consumers[name]:
            missing[consumer].discard(name)
            if not missing[consumer]:
                able.append(consumer)
    return order


class _Clocks:
    """Clocks of the places of a session in its forward pass; the rank waits for rows, and sends on those of other nodes."""

    def __init__(self, session: _Session) -> None:
        self.session, self.done = session, dict[str, float]()
        begun, self.ready = pull_times(session.problem, session.rank)
        self.clock = [begun] * session.problem.size

    def start(self, name: str) -> float:
        """Return when an operator can begin, or the rank can send it its rows, if it is next."""
        session, op = self.session, self.session.graph[name]
        place = session.rank if session.tables(op) else session.home[name]
        inputs = (self.done[s] + session.message(s, session.home[name]) for s in op.inputs if s in self.done)
        return max([self.clock[place], *(self.ready[table] for table in session.tables(op)), *inputs])

    def run(self, name: str) -> None:
        """Run an operator."""
        session, op = self.session, self.session.graph[name]
        start, place, tables = self.start(name), session.home[name], session.tables(op)
        if tables and place != session.rank:
            self.clock[session.rank] = max(self.clock[session.rank], *(self.ready[table] for table in tables))
            start += max(session.message(table, place) for table in tables)
        self.done[name] = self.clock[place] = max(start, self.clock[place]) + session.seconds(op, back=False)


#: What is tried, in this order.
SCHEDULES: tuple[Callable[[_Session], list[str]], ...] = (_delivery, _path, _release)
