"""The search for a plan: group size, number of groups and servers, table shards and tags, with one proven gap.

Best first over shapes (``shapes``): the shape with the highest bound is solved, and its bound replaced by what the
solver proved; the search ends when no shape promises more than the best plan, within the gap. So every shape that was
not solved is excluded by its bound, and the largest remaining bound is a bound for the job.

On unlike machines a shape is first bounded for every way to put its machines together, then opened into a few of them
(``compositions``). Unlike groups share one set of tags: each proposes its best, and those that do most in all groups win.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable
from dataclasses import replace

from cost_models.sources import CostsFor, cost_source
from placement.baselines import data_parallel
from placement.bounds import Bounds, shares_machine
from placement.compositions import Compositions
from placement.compression import solve_coded
from placement.conflict import answered
from placement.demands import checked, resolved
from placement.errors import ConstraintsConflict, DoesNotFit, PlacementError
from placement.evaluate import Evaluation, evaluate
from placement.group import GroupProblem
from placement.guard import allowed_codecs, offers_of
from placement.nets import Contracted
from placement.outcome import (
    Kinds,
    Outcome,
    Solved,
    assumptions,
    coded,
    distinct,
    job_value,
    no_plan,
    plan_of,
    problems_of,
)
from placement.plan import DP, Shard, Tag
from placement.replan import Previous
from placement.result import PlacementResult
from placement.shapes import Shape, Shapes, SolveOptions, default_threads, usable
from placement.sharding import ShardingOptions, shard_tables
from placement.solve import PRECISION, GroupSolution, limits_of, proves, solve_group
from placement.wires import Wires
from problem.cluster import Cluster
from problem.errors import BadInput
from problem.graph import Kind
from problem.model import Model

#: Shapes are solved with effort 1; while the gap is open, the most promising again with four times that, up to this much.
MOST_EFFORT = 16
#: Share of the time that is left which one sharding may take.
SHARDING = 0.7
#: Is told the samples per second of the best plan, and those that no plan exceeds.
News = Callable[[float, float], None]


def solve(
    model: Model,
    cluster: Cluster,
    costs_for: CostsFor | None = None,
    options: SolveOptions | None = None,
    news: News | None = None,
) -> PlacementResult:
    """Find the plan that trains most samples per second.

    Parameters
    ----------
    model : Model
        What is trained.
    cluster : Cluster
        On what.
    costs_for : callable, optional
        Gives the cost table for a batch size on a machine (:func:`cost_models.sources.cost_source`; None: the roofline);
        asked once, for the fastest trainer. Other machines scale it.
    options : SolveOptions, optional
        What the user decided.
    news : callable, optional
        Is told the samples per second of the best plan, and the bound, whenever a shape has been looked at.

    Returns
    -------
    PlacementResult
        Also after a time limit or an interruption, if any plan was found.

    Raises
    ------
    DoesNotFit
        When no placement fits: which resource, where, how much is short, and which pins and limits are to blame.
    ConstraintsConflict
        When pins or components contradict each other.
    BadInput
        When the options leave no shape.
    """
    options, costs_for = options or SolveOptions(), costs_for or cost_source(model)
    return answered(lambda wanted: _Search(model, cluster, costs_for, wanted, news).run(), options)


class _Search:
    """One search."""

    def __init__(
        self, model: Model, cluster: Cluster, costs_for: CostsFor, options: SolveOptions, news: News | None = None
    ) -> None:
        self.model, self.began, self.news = model, time.monotonic(), news
        self.deadline = self.began + options.time_limit_seconds
        self.options, self.rules = resolved(model, cluster, options)
        self.offers = offers_of(model, options)
        trainers = [node for node in usable(cluster) if node.may_train]
        if not trainers or not len(model.graph):
            raise BadInput(
                cluster.name, "nodes", len(trainers), "at least one usable machine that may train, and one operator"
            )
        self.previous = Previous(options.warm_start) if options.warm_start else None
        if self.previous:
            self.previous.check(model)
            options = self.previous.completed(options)
        self.batch = options.batch or model.batch
        reference = max(trainers, key=lambda node: node.cores * node.flops_per_core_second)
        self.hogwild = options.hogwild or (1 if options.synchronous else default_threads(trainers))
        self.costs = costs_for(self.batch, reference)
        self.local = cluster.is_local
        self.all_dp = dict.fromkeys((op.name for op in model.graph if op.kind is not Kind.LOOKUP), DP)
        self.bounds = Bounds(
            model,
            self.costs,
            self.batch,
            self.hogwild,
            self.options.pins,
            local=self.local,
            all_used=options.servers is None,
            rules=self.rules,
            wires=Wires(model.graph, self.batch, options.codecs, self.offers),
            forbids=self.options.forbids,
        )
        self.shapes = Shapes(
            model, cluster, self.costs, self.options, self.batch, self.hogwild, self.rules, self.previous
        )
        self.compositions = Compositions(self.bounds, self.shapes.trainers, self.shapes.hosts)
        self.unlike: list[tuple[Shape, float]] = []
        self.large = not proves(Contracted(GroupProblem(model, self.costs, (), self.batch, pins=self.options.pins)))
        self.nodes = cluster.nodes
        self.solved: list[Solved] = []
        self.refused: list[PlacementError] = []
        self.best: Solved | None = None
        self.interrupted = False

    def run(self) -> PlacementResult:
        """Solve shapes, best first, until the bound of the next one meets the best plan."""
        self._resume()
        self.waiting = waiting = sorted(map(self.compositions.bounded, self.shapes.all()), key=self.bounds.order)
        self.unlike = [(shape, self.bounds.rate(shape)) for shape in waiting if not shape.composed]
        self._sample(waiting)
        while waiting and not self._done(waiting[0]):
            shape = waiting.pop(0)
            try:
                found = self._look(shape)
            except KeyboardInterrupt:  # with no plan yet, the first baseline that fits will do
                self.interrupted, self.deadline, found = True, time.monotonic(), [shape]
            for one in found:
                insort(waiting, one, key=self.bounds.order)
            self._tell()
        self._insist()
        if self.best is None:
            if self.interrupted:
                raise KeyboardInterrupt
            raise no_plan(self.solved, self.refused)
        return self._result(self.best, waiting)

    def _tell(self) -> None:
        """Say how good the best plan is and what is still possible; what waits is sorted, best first."""
        if self.news and self.best:
            rest = [(shape, self.bounds.rate(shape)) for shape in self.waiting[:1]]
            self.news(self.best.value, Outcome(self.solved, rest, self.best.value, 0.0, self.unlike).bound)

    def _resume(self) -> None:
        """Take the earlier plan as it stands for the best one so far, if it still fits and is still allowed."""
        if self.previous is None or not self.previous.usable(self.options, self.rules, self.nodes):
            return
        shape, shards = self.previous.shape, self.previous.plan.shards
        found = Solved(shape, shards, self._problems(shape, shards), 0.0)
        tags, kept = dict(self.previous.plan.tags), allowed_codecs(self.previous.plan.codecs, self.offers)
        for codecs in (self.options.codecs, {**kept, **self.options.codecs}):
            kinds = coded(distinct(found.problems), codecs)
            self._offer(found, kinds, "", tags, evaluate(kinds[0][0], tags))
        found.bound = found.value
        self._keep(found)

    def _sample(self, waiting: list[Shape]) -> None:
        """Where solving a shape takes long: judge all operators data-parallel in the best shape of each group size first."""
        best = {shape.group_size: shape for shape in reversed(waiting)}
        for shape in sorted(best.values(), key=self.bounds.order):
            if self.large and not shares_machine(shape) and time.monotonic() < self.deadline:
                self._sample_one(shape)

    def _sample_one(self, shape: Shape) -> None:
        try:
            shards = self._shards(shape)
        except (DoesNotFit, ConstraintsConflict):  # told when the shape is solved
            return
        found = Solved(shape, shards, self._problems(shape, shards), 0.0)
        if not (data := Contracted(found.problems[0])).barred:  # told when the shape is solved
            first = data_parallel(data)
            self._offer(found, distinct(found.problems), first.name, first.tags, first.evaluation)
        self._keep(found)

    def _look(self, shape: Shape) -> list[Shape]:
        """Sharpen the bound of a shape, or solve it; return the shapes to be looked at instead of it."""
        if not shape.composed:
            return self.compositions.of(shape)
        raised = self.bounds.raised(shape)
        if raised.bound_seconds > shape.bound_seconds:
            return [raised]
        if not shape.refined and (self.best or 2 * time.monotonic() < self.began + self.deadline):
            return [self.bounds.refine(shape)]
        if self._disappointing(shape):
            self._relaxed(shape)
            return [shape]
        self._try(shape)
        return list(self.bounds.siblings(shape))

    def _insist(self) -> None:
        """Solve again, with more effort, the shapes whose bounds keep the gap of the job open."""
        while not self.interrupted and self.best is not None and time.monotonic() < self.deadline:
            goal = self.best.value * (1 + max(self.options.gap, PRECISION))
            open_shapes = [s for s in self.solved if s.bound > goal and s.tags is not None and s.effort < MOST_EFFORT]
            if not open_shapes:
                return
            worst = max(open_shapes, key=lambda solved: solved.bound)
            try:
                self._try(worst.shape, 4 * worst.effort)
            except KeyboardInterrupt:
                self.interrupted = True
                return
            self.solved.remove(worst)
            self.solved[-1].bound = min(self.solved[-1].bound, worst.bound)
            self._tell()

    def _done(self, shape: Shape) -> bool:
        if self.best is None:
            return False
        if self.interrupted:
            return True
        promising = self.bounds.rate(shape) > self.best.score * (1 + max(self.options.gap, PRECISION))
        return not promising or time.monotonic() > self.deadline

    # ---- one shape

    def _try(self, shape: Shape, effort: int = 1) -> None:
        """Solve a shape and remember the outcome."""
        try:
            shards = self._shards(shape)
        except (DoesNotFit, ConstraintsConflict) as error:
            self.refused.append(error)
            self.solved.append(Solved(shape, (), (), 0.0))
            return
        problems = self._problems(shape, shards)
        found, total = Solved(shape, shards, problems, 0.0, effort=effort), 0.0
        kinds = distinct(problems)
        for problem, count in kinds:
            if found.tags is not None and time.monotonic() > self.deadline:  # other kinds are bounded with all shapes
                break
            data = Contracted(problem)
            start = self.previous.tags_for(data) if self.previous else None
            floor = 0.0 if shape.mixed else shape.bound_seconds
            solution = solve_coded(data, self.offers, limits_of(self.options, self.deadline, effort), floor, start)
            if self.previous and solution.tags:
                solution.tags = self.previous.like(data, solution.tags)
            self.interrupted = self.interrupted or solution.interrupted
            total += count * self._rate(shape, shards, solution) / len(shape.groups)
            self._collect(found, kinds, solution)
            if start is not None:
                self._offer(found, kinds, "", start, evaluate(problem, start))
        found.bound = min(total, self.bounds.rate(shape))
        self._keep(found)

    def _keep(self, found: Solved) -> None:
        """Remember a solved shape, and its plan if that is the best."""
        self.solved.append(found)
        if found.tags is not None and (self.best is None or found.better_than(self.best)):
            self.best = found

    def _shards(self, shape: Shape) -> tuple[Shard, ...]:
        """Shard the tables over the servers of a shape."""
        steps = len(shape.groups) * shape.ranks
        previous = self.previous
        options = ShardingOptions(
            sessions=steps * self.hogwild,
            local=self.local,
            deterministic_seconds=0.5,
            deadline=time.monotonic() + SHARDING * max(0.0, self.deadline - time.monotonic()),
            enough_seconds=shape.bound_seconds / steps,
            per_server=shape.per_server,
            rules=self.rules,
            held=previous.held(shape.servers) if previous else {},
            score=lambda shards, _: self._worth(shape, shards),
        )
        shards = shard_tables(self.model, self.batch, shape.servers, self.costs, options).shards
        return previous.aligned(shape.servers, shards) if previous else shards

    def _worth(self, shape: Shape, shards: tuple[Shard, ...]) -> tuple[float, float]:
        """Seconds of a step with all operators data-parallel, what must be moved being charged for; and bytes moved."""
        seconds, moved = evaluate(self._problems(shape, shards)[0], self.all_dp).seconds, 0
        if self.previous:
            moved = self.previous.moved_rows_bytes(shape.servers, self.previous.aligned(shape.servers, shards))
        return seconds + self.options.movement_seconds_per_byte * moved, moved

    def _problems(self, shape: Shape, shards: tuple[Shard, ...]) -> tuple[GroupProblem, ...]:
        return problems_of(shape, shards, self.model, self.costs, (self.batch, self.hogwild), self.options)

    def _rate(self, shape: Shape, shards: tuple[Shard, ...], solution: GroupSolution) -> float:
        """Samples per second of all groups, if all were like this one, that no placement of the shape exceeds.

        What the solver proved holds for these shards. It holds for all shardings of the shape unless a server binds, or
        a table was cut that need not be; then the shape's own bound stands. Of unlike groups it says only what is left to
        gain: what is proven about those is the bound of all ways to put them together.
        """
        if solution.infeasible:
            return 0.0
        if shape.mixed:
            return self.bounds.rate(replace(shape, bound_seconds=solution.bound_seconds))
        cut = len(shards) > self.bounds.fewest_shards(shape)
        seconds = self._relaxed(shape) if solution.server_binds or cut else solution.bound_seconds
        samples = len(shape.groups) * shape.ranks * self.batch
        return samples / seconds if seconds else float("inf")

    def _disappointing(self, shape: Shape) -> bool:
        """Whether groups like this did less than the best plan, so that their placement, not the servers, seems to bind."""
        if self.best is None or self.large or shape.mixed or shares_machine(shape) or self.bounds.knows(shape):
            return False
        alike = [solved for solved in self.solved if solved.shape.group_size == shape.group_size]
        return bool(alike) and self.best not in alike

    def _relaxed(self, shape: Shape) -> float:
        """Bound of a shape whatever the sharding: that of the group's placement with servers that answer for free."""
        if self.large or shares_machine(shape) or self.interrupted or time.monotonic() > self.deadline:
            return shape.bound_seconds
        relaxed = self.bounds.relaxed(shape, self.bounds.least_cuts(shape))
        solution = solve_group(Contracted(relaxed), limits_of(self.options, self.deadline), shape.bound_seconds)
        self.bounds.learn(shape, solution.bound_seconds)
        self.interrupted = solution.interrupted
        return max(shape.bound_seconds, solution.bound_seconds)

    def _collect(self, found: Solved, kinds: Kinds, solution: GroupSolution) -> None:
        """Judge the proposals of one group in all groups; remember the best tags and the baselines."""
        proposed = [(baseline.name, baseline.tags, baseline.evaluation) for baseline in solution.baselines]
        if solution.tags is not None and solution.evaluation is not None:
            self._offer(found, coded(kinds, solution.codecs), "", solution.tags, solution.evaluation)
        for name, tags, evaluation in proposed:
            self._offer(found, kinds, name, tags, evaluation)

    def _offer(self, found: Solved, kinds: Kinds, name: str, tags: dict[str, Tag], evaluation: Evaluation) -> None:
        """Judge tags in all groups of a shape; remember them if they are its best, and what a baseline is worth."""
        value, reason = job_value(kinds, tags, evaluation)
        if name and (name not in found.baselines or (value or 0.0) > (found.baselines[name][0] or 0.0)):
            found.baselines[name] = (value, reason)
        if value is None:
            return
        shape, moved = found.shape, 0
        if self.previous:
            moved = self.previous.moved_operators_bytes(shape.groups, shape.ranks, tags)
            moved += self.previous.moved_rows_bytes(shape.servers, found.shards)
        samples = len(shape.groups) * shape.ranks * self.batch
        charge = self.options.movement_seconds_per_byte * moved
        score = samples / (samples / value + charge) if charge else value
        offered = replace(found, tags=tags, value=value, score=score, moved=moved)
        if found.tags is None or offered.better_than(found):
            found.tags, found.value, found.score, found.moved = tags, value, score, moved
            found.codecs = kinds[0][0].codecs

    # ---- outcome

    def _result(self, best: Solved, waiting: list[Shape]) -> PlacementResult:
        gap = max(self.options.gap, PRECISION)
        outcome = Outcome(
            self.solved, [(shape, self.bounds.rate(shape)) for shape in waiting], best.value, gap, self.unlike
        )
        bound = outcome.bound
        open_ = (bound - best.value) / bound if 0 < bound < float("inf") else 0.0
        evaluation = evaluate(replace(best.problems[0], codecs=best.codecs), best.tags or {})
        return PlacementResult(
            status="optimal" if open_ <= gap else "feasible",
            plan=checked(plan_of(best, self.model, self.batch, self.hogwild, self.options), self.options, self.rules),
            costs=self.costs,
            objective=best.value,
            bound=bound,
            gap=open_,
            solve_seconds=time.monotonic() - self.began,
            bottleneck=evaluation.bottleneck,
            curve=outcome.curve,
            baselines=outcome.baselines,
            evaluation=evaluation,
            assumptions=(*assumptions(self.options, self.hogwild), *self.costs.notes),
            interrupted=self.interrupted,
            moved_bytes=best.moved if self.previous else None,
        )
