"""Solving one group: baselines, local search, the integer program, and an exact check of everything it proposes.

The solver never owns the incumbent: the best of {baselines, local moves, solver proposals}, each judged by
``evaluate``, is kept outside. The integer program understates (see ``formulation``), so a proposal may turn out worse
than promised; it is then forbidden and the solver asked again, until its bound meets the best placement or the limits
end. Same problem, same seed, same placement: one solver thread, limits in deterministic time; the wall clock is a
second limit that a fast enough machine never meets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ortools.sat.python import cp_model

from placement.deadline import Deadline, Phase
from placement.evaluation.evaluate import Evaluation, evaluate_timed, evaluation_of
from placement.evaluation.loads import fixed_tally, server_seconds
from placement.plan import DP, Tag
from placement.tagging.baselines import Baseline, baselines, by_cost, data_parallel
from placement.tagging.branching import least_step
from placement.tagging.coarsen import coarse
from placement.tagging.fitting import fitting
from placement.tagging.formulation import Formulation
from placement.tagging.limits import DEFAULT_LIMITS, PRECISION, Limits
from placement.tagging.local_search import proposals
from placement.tagging.nets import Contracted
from placement.tagging.packing import overfull
from placement.tagging.solver import run, solver_for

#: Open items above which a group is solved by local search, and how many clusters its baselines place.
MOST_ITEMS, CLUSTERS = 200, 60
#: Clusters that are placed by cost besides, where the critical path binds the best baseline: local search does not see it.
OTHER_CLUSTERS = (15, 20, 30, 40, 50, 80, 120)
#: Relative error of a sum of floats, at most.
ROUNDING = 1e-12
#: Seconds for single moves that are evaluated exactly, at most.
POLISH_SECONDS = 5.0
#: Share of the time that is left for the linear relaxation of a large group.
PROOF = 0.6


@dataclass
class GroupSolution:
    """The best placement of a group, and a proven bound.

    Parameters
    ----------
    tags : dict of str to Tag or None
        Best placement; None if nothing that fits is known.
    evaluation : Evaluation or None
        What it is worth.
    bound_seconds : float
        No placement's step is shorter; infinite if nothing fits.
    baselines : tuple of Baseline
        All baselines.
    interrupted : bool
        Whether the user stopped the solver.
    codecs : Mapping of str to str
        Codecs that the placement was evaluated with.
    relaxed : Evaluation or None
        Best placement of the problem that the bound is of, if that is another.
    served_seconds : float
        What the busiest embedding server takes whatever the tags: a bound that is no longer holds for these shards alone.
    """

    tags: dict[str, Tag] | None = None
    evaluation: Evaluation | None = None
    bound_seconds: float = 0.0
    baselines: tuple[Baseline, ...] = ()
    interrupted: bool = False
    codecs: Mapping[str, str] = field(default_factory=dict)
    relaxed: Evaluation | None = None
    served_seconds: float = 0.0
    seen: dict[tuple[Tag, ...], float] = field(default_factory=dict, repr=False)

    @property
    def seconds(self) -> float:
        """Seconds per step of the best placement; infinite if there is none."""
        return self.evaluation.seconds if self.evaluation else float("inf")

    @property
    def infeasible(self) -> bool:
        """Whether it is proven that nothing fits."""
        return self.evaluation is None and self.bound_seconds == float("inf")

    @property
    def server_binds(self) -> bool:
        """Whether an embedding server is the busiest machine, of the best placement or of the bound's, or is the bound."""
        if 0 < self.bound_seconds <= self.served_seconds * (1 + PRECISION):
            return True
        return any(one is not None and one.busiest.role == "server" for one in (self.evaluation, self.relaxed))

    @property
    def waits(self) -> bool:
        """Whether the critical path is longer than what the best placement loads its nodes with."""
        return self.evaluation is not None and self.evaluation.waits

    def ends(self, limits: Limits) -> bool:
        """Whether the best placement is proven to be good enough, or that none is wanted."""
        return self.within(limits.gap) or self.bound_seconds >= limits.enough_seconds

    def within(self, gap: float) -> bool:
        """Whether the best placement is proven to be within a relative gap of the optimum."""
        return self.seconds <= self.bound_seconds * (1 + max(gap, PRECISION))


def solve_group(
    contracted: Contracted,
    limits: Limits = DEFAULT_LIMITS,
    floor_seconds: float = 0.0,
    start: dict[str, Tag] | None = None,
) -> GroupSolution:
    """Find the best tags for a group.

    Parameters
    ----------
    contracted : Contracted
        The group problem.
    limits : Limits
        When to stop.
    floor_seconds : float
        A bound that is known already (servers, relaxations).
    start : dict of str to Tag, optional
        A placement to start from besides the baselines.

    Returns
    -------
    GroupSolution
        Never worse than the best baseline that fits.
    """
    if overfull(contracted):
        return GroupSolution(bound_seconds=float("inf"))
    served = server_seconds(fixed_tally(contracted.problem)) * (1 - ROUNDING)
    floor_seconds = max(floor_seconds, served)
    if not proves(contracted):
        return replace(_solve_large(contracted, limits, floor_seconds, start), served_seconds=served)
    codecs, first = contracted.problem.codecs, baselines(contracted, limits.deadline)
    found = GroupSolution(bound_seconds=floor_seconds, baselines=first, codecs=codecs, served_seconds=served)
    for baseline in found.baselines:
        _offer(found, contracted, baseline.tags, baseline.evaluation)
    if start is not None:
        _offer(found, contracted, contracted.canonical(start), deadline=limits.deadline)
    try:
        _search(found, contracted, limits)
    except KeyboardInterrupt:
        found.interrupted = True
    return found


def proves(contracted: Contracted) -> bool:
    """Whether the integer program is asked about a group: it is small enough."""
    return len(contracted.free) <= MOST_ITEMS


def _solve_large(
    contracted: Contracted, limits: Limits, floor_seconds: float, start: dict[str, Tag] | None
) -> GroupSolution:
    """Solve a group with very many items by local search; a linear relaxation of it is what is proven.

    Baselines are those of clusters, of several numbers where the critical path binds; the first descent, which does not see
    that, is left out then. Descents start in turn from spread clusters, from all items data-parallel and from the best
    placement, which comes first where it is better than all items data-parallel; then the best one is annealed.
    """
    found = GroupSolution(bound_seconds=floor_seconds, codecs=contracted.problem.codecs)
    found.baselines = _large_baselines(contracted, limits.deadline)
    try:
        for baseline in found.baselines:
            _offer(found, contracted, baseline.tags, baseline.evaluation)
        if start is not None and (
            found.tags is None or limits.deadline.allows(evaluation_of(contracted.problem, start))
        ):
            _offer(found, contracted, contracted.canonical(start), deadline=limits.deadline)
        if found.tags is None and not _fit(found, contracted, limits) and found.infeasible:
            return found
        for tags in proposals(found, contracted, limits):
            _offer(found, contracted, contracted.canonical(tags), deadline=limits.deadline)
        if limits.relaxes and not found.ends(limits):
            most = min(found.seconds, limits.enough_seconds)
            proven = least_step(contracted, most, limits.deadline.share(PROOF), limits.gap)
            found.bound_seconds = max(found.bound_seconds, proven)
    except KeyboardInterrupt:
        found.interrupted = True
    return found


def _large_baselines(contracted: Contracted, deadline: Deadline) -> tuple[Baseline, ...]:
    """Baselines of clusters; where there is no time to make those, and it fits, all data-parallel alone."""
    phase = "coarsening", _size(contracted)
    if not deadline.allows(phase):
        first = data_parallel(contracted, deadline)
        if not first.reason:
            return (first,)
    with deadline.phase(*phase):
        clusters = coarse(contracted, CLUSTERS)
    found = baselines(clusters, deadline)
    best = min((one for one in found if not one.reason), key=lambda one: one.evaluation.seconds, default=None)
    if best is None or not best.evaluation.waits:
        return found
    needs = phase, evaluation_of(contracted.problem)
    return (*found, *(clustered(contracted, count, deadline) for count in OTHER_CLUSTERS if deadline.allows(*needs)))


def clustered(contracted: Contracted, clusters: int, deadline: Deadline) -> Baseline:
    """Return the greedy baseline of a large group's clusters.

    Parameters
    ----------
    contracted : Contracted
        The group problem.
    clusters : int
        How many to aim for.
    deadline : Deadline
        Is told how long it takes.
    """
    with deadline.phase("coarsening", _size(contracted)):
        small = coarse(contracted, clusters)
    return by_cost(small, deadline)


def _search(found: GroupSolution, contracted: Contracted, limits: Limits) -> None:
    """Improve on the baselines and prove a bound."""
    if found.evaluation is None and not _fit(found, contracted, limits):
        return
    if not found.within(0.0):
        _polish(found, contracted, limits)
    if found.seconds > 0 and not found.ends(limits) and limits.deadline.allows(_formulating(contracted)):
        _prove(found, contracted, limits)


def _formulating(contracted: Contracted) -> Phase:
    """The making of the integer program as a phase."""
    return "formulation", _size(contracted)


def _size(contracted: Contracted) -> int:
    """How many places all items may take."""
    return max(1, len(contracted.items)) * contracted.problem.size


def _key(contracted: Contracted, tags: Mapping[str, Tag]) -> tuple[Tag, ...]:
    return tuple(tags[contracted.items[index].ops[0]] for index in contracted.free)


def _offer(
    found: GroupSolution,
    contracted: Contracted,
    tags: dict[str, Tag],
    evaluation: Evaluation | None = None,
    deadline: Deadline | None = None,
) -> bool:
    """Judge a placement, remember it if it fits and is the best so far; return whether it was."""
    key = _key(contracted, tags)
    if key in found.seen:
        return False
    value = evaluation or evaluate_timed(contracted.problem, tags, deadline or Deadline())
    found.seen[key] = value.seconds
    if not value.fits or value.seconds >= found.seconds:
        return False
    found.tags, found.evaluation = tags, value
    return True


def _polish(found: GroupSolution, contracted: Contracted, limits: Limits, budget: int = 2000) -> None:
    """Move single items as long as that helps; at most ``budget`` placements are judged."""
    improved, deadline = found.tags is not None, limits.deadline.share(1.0, POLISH_SECONDS)
    while improved:
        improved = False
        for tags in _neighbours(contracted, found.tags or {}):
            if budget <= 0 or not deadline.allows(evaluation_of(contracted.problem, tags)):
                return
            budget -= 1
            if _offer(found, contracted, contracted.canonical(tags), deadline=deadline):
                improved = True
                break


def _neighbours(contracted: Contracted, tags: Mapping[str, Tag]) -> Iterator[dict[str, Tag]]:
    """Placements that differ in one item: data-parallel, on a used node, or on the first unused node of a class."""
    used = set(tags.values()) - {DP}
    nodes = [n for members in contracted.node_classes for n in _worth_trying(members, used)]
    choices: list[Tag] = [DP, *sorted(nodes)]
    for index in contracted.free:
        for tag in choices:
            if tag in contracted.allowed[index] and tags[contracted.items[index].ops[0]] != tag:
                yield {**tags, **dict.fromkeys(contracted.items[index].ops, tag)}


def _worth_trying(members: tuple[int, ...], used: set[Tag]) -> list[int]:
    taken = [node for node in members if node in used]
    return taken + [node for node in members if node not in used][:1]


def _fit(found: GroupSolution, contracted: Contracted, limits: Limits) -> bool:
    """Where no baseline fits: find anything that does, or prove that nothing can; return whether there is."""
    packing = fitting(contracted, limits, hard=proves(contracted))
    found.interrupted = packing.interrupted
    if packing.impossible:
        found.bound_seconds = float("inf")
    return packing.tags is not None and _offer(found, contracted, packing.tags, deadline=limits.deadline)


def _prove(found: GroupSolution, contracted: Contracted, limits: Limits) -> None:
    """Ask the solver for better placements until its bound meets the best one or the limits end."""
    with limits.deadline.phase(*_formulating(contracted)):
        form, spent = Formulation(contracted, min(found.seconds, limits.enough_seconds)), 0.0
    for _ in range(limits.rounds):
        form.hint(found.tags or {})
        solver = solver_for(contracted, limits, spent)
        status, found.interrupted = run(solver, form.model, limits.deadline)
        spent += solver.response_proto.deterministic_time
        if not _learn(found, contracted, form, solver, status, limits) or found.ends(limits):
            return
        if found.interrupted:
            return


def _learn(
    found: GroupSolution,
    contracted: Contracted,
    form: Formulation,
    solver: cp_model.CpSolver,
    status: cp_model.CpSolverStatus,
    limits: Limits,
) -> bool:
    """Take bound and placement from a round; return whether another round may help."""
    if status == cp_model.INFEASIBLE:  # nothing as good as the best known is left
        found.bound_seconds = max(found.bound_seconds, min(found.seconds, form.limit_seconds))
        return False
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        found.bound_seconds = max(found.bound_seconds, min(found.seconds, form.seconds(solver.best_objective_bound)))
        return False
    found.bound_seconds = max(found.bound_seconds, min(found.seconds, form.seconds(solver.best_objective_bound)))
    tags = form.read(solver)
    if _offer(found, contracted, tags, deadline=limits.deadline):
        _polish(found, contracted, limits, budget=200)
    form.exclude(tags)
    form.tighten(found.seconds)
    return status == cp_model.OPTIMAL
