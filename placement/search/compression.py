"""Codecs as decisions: tags and codecs of a group in turn, each judged by the evaluator.

Given tags, codecs are chosen by coordinate descent: one edge, or all cuts, at a time take the codec that shortens the step
most; of equal steps, the one with which all resources together are less busy. In the end each codec without which the step
is no longer is taken away again. Given codecs, the group is solved again (``solve``). The bound is that of the problem in
which every edge takes the fewest bytes of any codec allowed and none takes time to encode (``wires``), made better case by
case (``codec_cases``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from placement.codecs import ALL_REDUCE, EXCHANGE, POOLED, PUSH
from placement.deadline import Deadline
from placement.evaluation.evaluate import Evaluation, evaluate_timed, evaluation_of
from placement.evaluation.group import GroupProblem
from placement.plan import DP, Tag
from placement.search.codec_cases import Edge, Offers, bounded
from placement.search.guard import MOST_SPARSE, is_sparse
from placement.tagging.limits import Limits
from placement.tagging.nets import Contracted
from placement.tagging.solve import GroupSolution, proves, solve_group

#: Relative difference below which two steps count as equal.
SAME = 1e-9
#: Turns of tags and codecs, at most.
TURNS = 4
#: Shares of the time left that placements without codecs, then with open ones, may take: a large group would leave none; and
#: that cases may take in the end, which only make the bound better.
FIRST, SECOND, THIRD = 0.4, 0.5, 0.5
#: Operators that may be evaluated while codecs are chosen for some tags, all evaluations together, and as many again while
#: those in vain are taken away; and the fewest evaluations.
WORK, LEAST_WORK = 40_000, 60


def solve_coded(
    contracted: Contracted, offers: Offers, limits: Limits, floor_seconds: float, start: dict[str, Tag] | None = None
) -> GroupSolution:
    """Find the best tags and codecs for a group.

    Parameters
    ----------
    contracted : Contracted
        The group problem, with the codecs that are decided.
    offers : Mapping of str to tuple of str
        What other edges may have besides float32.
    limits : Limits
        When to stop, for each problem that is solved on the way.
    floor_seconds : float
        A bound that is known already, whatever the codecs.
    start : dict of str to Tag, optional
        A placement to start from besides the baselines.

    Returns
    -------
    GroupSolution
        Never worse than without codecs.
    """
    first = replace(limits, deadline=limits.deadline.share(FIRST)) if offers else limits
    found = solve_group(contracted, first, floor_seconds, start)
    if not offers or found.tags is None or found.interrupted:
        return replace(found, bound_seconds=floor_seconds) if offers and not found.infeasible else found
    if not limits.deadline.allows(evaluation_of(contracted.problem, found.tags)):
        return replace(found, bound_seconds=floor_seconds)
    relaxed = Contracted(replace(contracted.problem, open_codecs=offers))
    second = replace(limits, deadline=limits.deadline.share(SECOND))
    least = solve_group(relaxed, second, floor_seconds, found.tags)
    found.bound_seconds, found.interrupted = min(found.seconds, least.bound_seconds), least.interrupted
    found.relaxed, found.served_seconds = least.evaluation, least.served_seconds
    for tags in (found.tags, least.tags):
        if tags is not None:
            _take_turns(found, contracted, offers, tags, limits)
    if found.tags is not None and found.codecs != contracted.problem.codecs:
        chooser = _Chooser(contracted.problem, found.tags, offers, limits.deadline)
        if chooser.in_time:
            found.codecs = chooser.pruned(found.codecs)
            found.evaluation = chooser.evaluation(found.codecs)
    if proves(relaxed) and not (found.ends(limits) or found.interrupted or found.server_binds):
        third = replace(limits, deadline=limits.deadline.share(THIRD))
        proven = bounded(contracted, offers, least, found.seconds, third, _edges)
        found.interrupted, found.served_seconds = proven.interrupted, proven.served_seconds
        found.bound_seconds = max(found.bound_seconds, proven.bound_seconds)
    return found


def _edges(problem: GroupProblem, tags: Mapping[str, Tag], offers: Offers) -> list[Edge]:
    """Edges on offer that a placement uses."""
    return _Chooser(problem, tags, offers, Deadline()).edges


def _take_turns(
    found: GroupSolution, contracted: Contracted, offers: Offers, tags: dict[str, Tag], limits: Limits
) -> None:
    """Choose codecs for tags, then tags for codecs, as long as that helps."""
    codecs = found.codecs
    for _ in range(TURNS):
        if (
            found.within(limits.gap)
            or found.interrupted
            or not _Chooser(contracted.problem, tags, offers, limits.deadline).in_time
        ):
            return
        codecs = choose(contracted.problem, tags, offers, limits.deadline, codecs)
        coded = Contracted(replace(contracted.problem, codecs=codecs))
        solution = _placed(coded, limits, found.bound_seconds, tags)
        found.interrupted = solution.interrupted
        if solution.tags is None or solution.seconds >= found.seconds * (1 - SAME):
            return
        found.tags, found.evaluation, found.codecs = solution.tags, solution.evaluation, codecs
        tags = solution.tags


def _placed(coded: Contracted, limits: Limits, bound_seconds: float, tags: dict[str, Tag]) -> GroupSolution:
    """Solve a group again under other codecs, from the tags that they were chosen for; without time, keep those."""
    if limits.deadline.passed:
        return GroupSolution(tags, evaluate_timed(coded.problem, tags, limits.deadline))
    return solve_group(coded, limits, bound_seconds, tags)


def choose(
    problem: GroupProblem,
    tags: Mapping[str, Tag],
    offers: Offers,
    deadline: Deadline | None = None,
    start: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the codecs that shorten the step of a placement most.

    Parameters
    ----------
    problem : GroupProblem
        The group, with the codecs that are decided.
    tags : Mapping of str to Tag
        The placement.
    offers : Mapping of str to tuple of str
        What other edges may have besides float32.
    deadline : Deadline, optional
        When to take what there is.
    start : Mapping of str to str, optional
        Codecs to start from besides none and the smallest.
    """
    chooser = _Chooser(problem, tags, offers, deadline or Deadline())
    starts = [dict(problem.codecs), chooser.smallest(), *([dict(start)] if start else [])]
    ended = list[dict[str, str]]()
    for codecs in starts:
        if not ended or chooser.in_time:
            ended.append(chooser.pruned(chooser.descend(codecs)))
    return min(ended, key=lambda codecs: chooser.value(codecs).seconds)


@dataclass(frozen=True, slots=True)
class _Value:
    """Seconds of a step, and how busy all resources are together."""

    seconds: float
    busy: float

    def better_than(self, other: _Value) -> bool:
        if abs(self.seconds - other.seconds) <= SAME * other.seconds:
            return self.busy < other.busy * (1 - SAME)
        return self.seconds < other.seconds


class _Chooser:
    """Choice of codecs for one placement."""

    def __init__(self, problem: GroupProblem, tags: Mapping[str, Tag], offers: Offers, deadline: Deadline) -> None:
        self.problem, self.tags, self.offers, self.deadline = problem, tags, offers, deadline
        self.left = self.most = max(LEAST_WORK, WORK // max(1, len(problem.model.graph)))
        self.known: dict[tuple[tuple[str, str], ...], _Value] = {}
        self.cuts = [edge for edge in self._cuts() if edge[0] in offers]
        others = [(edge,) for edge in (POOLED, PUSH, ALL_REDUCE, EXCHANGE) if edge in offers and self._is_used(edge)]
        self.edges: list[Edge] = [*self.cuts, *others]

    def _cuts(self) -> Iterator[Edge]:
        """Messages between nodes of the group, largest first."""
        wires, graph = self.problem.wires, self.problem.model.graph
        cut = [op.name for op in graph if any(self._apart(op.name, user) for user in graph.consumers[op.name])]
        bundles = dict.fromkeys(wires.bundle(name) for name in cut)
        yield from sorted(bundles, key=lambda edge: -wires.message(edge[0], gradient=False).bytes)

    def _apart(self, source: str, target: str) -> bool:
        """Whether two operators are on different nodes for some session."""
        one, other = (self.tags.get(name, DP) for name in (source, target))
        return one != other and not (self.problem.ranks == 1 and {one, other} == {DP, 0})

    def _is_used(self, edge: str) -> bool:
        if edge in {POOLED, PUSH}:
            return bool(self.problem.servers)
        return self.problem.groups > 1 if edge == EXCHANGE else self.problem.ranks > 1

    def value(self, codecs: Mapping[str, str]) -> _Value:
        """Judge codecs."""
        key = tuple(sorted(codecs.items()))
        if key not in self.known:
            self.left -= 1
            found = self.evaluation(codecs)
            parts = [found.latency_seconds / found.hogwild, *(s for load in found.loads for s in load.resources)]
            scale = found.seconds or 1.0
            self.known[key] = _Value(found.seconds, scale * sum((part / scale) ** 8 for part in parts) ** 0.125)
        return self.known[key]

    def evaluation(self, codecs: Mapping[str, str]) -> Evaluation:
        """Evaluate codecs."""
        return evaluate_timed(replace(self.problem, codecs=codecs), self.tags, self.deadline)

    @property
    def in_time(self) -> bool:
        """Whether another evaluation is expected to end in time."""
        return self.deadline.allows(evaluation_of(replace(self.problem, open_codecs=self.offers), self.tags))

    def _may(self, codecs: Mapping[str, str]) -> bool:
        """Whether codecs may be judged: they were, or there is time to."""
        return tuple(sorted(codecs.items())) in self.known or (self.left > 0 and self.in_time)

    def smallest(self) -> dict[str, str]:
        """Return the codec of the fewest bytes for every edge."""
        codecs = dict(self.problem.codecs)
        for edge in () if self.deadline.passed else self.edges:
            sized = [codecs, *(self._with(codecs, (edge,), name) for name in self.offers[edge[0]])]
            codecs = min(sized, key=lambda each: self._bytes(edge[0], each))
        return codecs

    def _bytes(self, edge: str, codecs: Mapping[str, str]) -> float:
        """Bytes that an edge moves, those of an all-reduce and of a push being those of all operators."""
        wires = replace(self.problem, codecs=codecs).wires
        if edge in {POOLED, PUSH}:
            of = wires.pooled if edge == POOLED else wires.push
            return sum(of(link).bytes for link in self.problem.servers)
        if edge == ALL_REDUCE:
            return sum(wires.reduced(op, self.problem.ranks).sent for op in self.problem.model.graph if op.parameters)
        if edge == EXCHANGE:
            return sum(wires.pushed(op).bytes for op in self.problem.model.graph if op.parameters)
        return sum(wires.message(edge, gradient=way).bytes for way in (False, True))

    def descend(self, codecs: dict[str, str]) -> dict[str, str]:
        """Change the codec of an edge, or of all cuts, as long as that helps."""
        groups = [self.edges, self.cuts, *([edge] for edge in self.edges)]
        improved = True
        while improved and self.left > 0 and self.in_time:
            improved = False
            for edges in groups:
                names = dict.fromkeys(name for edge in edges for name in ("fp32", *self.offers[edge[0]]))
                for name in names:
                    changed = self._with(codecs, edges, name)
                    if changed != codecs and self._may(changed) and self.value(changed).better_than(self.value(codecs)):
                        codecs, improved = changed, True
        return codecs

    def _with(self, codecs: Mapping[str, str], edges: list[Edge] | tuple[Edge, ...], name: str) -> dict[str, str]:
        """Give edges that may have it a codec; no more operators than the guard allows a sparse one."""
        changed = dict(codecs)
        for edge in edges:
            if name == "fp32":
                changed = {key: codec for key, codec in changed.items() if key not in edge}
            elif name in self.offers[edge[0]]:
                sparse = {key for key, codec in changed.items() if is_sparse(codec)} | set(edge)
                if not is_sparse(name) or len(sparse) <= MOST_SPARSE:
                    changed.update(dict.fromkeys(edge, name))
        return changed

    def pruned(self, codecs: Mapping[str, str]) -> dict[str, str]:
        """Take codecs away without which the step is no longer: of all edges, of halves of those, and so on."""
        kept, most = dict(codecs), self.value(codecs).seconds * (1 + SAME)
        used = {name for edge in self.edges for name in edge} | set(self.problem.codecs)
        kept = {name: codec for name, codec in kept.items() if name in used}
        blocks, end = [self.edges], self.left - self.most
        while blocks and self.left > end and self.in_time:
            block = blocks.pop()
            fewer = self._with(kept, block, "fp32")
            if fewer == kept:
                continue
            if self._may(fewer) and self.value(fewer).seconds <= most:
                kept = fewer
            elif len(block) > 1:
                blocks += [block[len(block) // 2 :], block[: len(block) // 2]]
        return kept
