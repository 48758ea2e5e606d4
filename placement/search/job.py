"""The search for a plan: group size, number of groups and servers, table shards and tags, with one proven gap.

Best first over shapes (``shapes``): the shape with the highest bound is solved, and its bound replaced by what the
solver proved; the search ends when no shape promises more than the best plan, within the gap. So every shape that was
not solved is excluded by its bound, and the largest remaining bound is a bound for the job.

On unlike machines a shape is first bounded for every way to put its machines together, then opened into a few of them
(``compositions``). Unlike groups share one set of tags: each proposes its best, and those that do most in all groups win.
Last, the plan's operators are put in order (``running_order``).
"""

from __future__ import annotations

from dataclasses import replace

from cost_models.sources import CostsFor, cost_source
from placement.deadline import Deadline, Phase
from placement.errors import ConstraintsConflict, DoesNotFit, PlacementError
from placement.evaluation.evaluate import evaluate, evaluate_timed, evaluation_of
from placement.evaluation.group import GroupProblem
from placement.evaluation.wires import Wires
from placement.plan import DP, Shard
from placement.result import PlacementResult
from placement.search.any_order import in_any_order, ordered
from placement.search.bounds import Bounds, shares_machine
from placement.search.compositions import Compositions
from placement.search.compression import solve_coded
from placement.search.conflict import answered, demands
from placement.search.demands import checked, resolved
from placement.search.feasible import Feasibility
from placement.search.guard import allowed_codecs
from placement.search.input_order import ordered_cluster, ordered_model, ordered_plan
from placement.search.judging import Judge
from placement.search.options import News, SolveOptions, default_threads, limits_of, offers_of
from placement.search.outcome import Kinds, Outcome, Solved, assumptions, coded, distinct, no_plan, plan_of, problems_of
from placement.search.proving import Prover
from placement.search.replan import Previous
from placement.search.resharding import resharded
from placement.search.running_order import ordering_of
from placement.search.shapes import Shape, Shapes, usable
from placement.search.waiting import Waiting
from placement.tables.sharding import ShardingOptions, shard_tables, sharding_of
from placement.tagging.limits import PRECISION, Limits
from placement.tagging.nets import Contracted
from placement.tagging.solve import proves
from problem.cluster import Cluster
from problem.errors import BadInput
from problem.graph import Kind
from problem.model import Model

#: Shapes are solved with effort 1; while the gap is open, the most promising again with four times that, up to this much.
MOST_EFFORT = 16
#: Shares of the time left: for one sharding, before the first plan is sought in a hurry, for judging a shape of each size.
SHARDING, HURRY, SAMPLES = 0.7, 0.5, 0.5


def solve(
    model: Model,
    cluster: Cluster,
    costs_for: CostsFor | None = None,
    options: SolveOptions | None = None,
    news: News | None = None,
    deadline: Deadline | None = None,
) -> PlacementResult:
    """Find the plan that trains most samples per second.

    Parameters
    ----------
    model : Model
        What is trained.
    cluster : Cluster
        On what.
    costs_for : callable, optional
        Gives the cost table for a batch size on a machine (None: the roofline); asked once, for the fastest trainer.
    options : SolveOptions, optional
        What the user decided.
    news : News, optional
        Is told what is assumed before the search, and how it stands whenever a shape has been looked at.
    deadline : Deadline, optional
        When to end, or with the first plan after that; default: the time limit of the options from now.

    Returns
    -------
    PlacementResult
        Also after a time limit or an interruption, if any plan was found.

    Raises
    ------
    DoesNotFit
        When no placement fits: which resource, where, how much is short, and which pins and limits are to blame.
    ConstraintsConflict
        When pins or components contradict each other, or options leave no shape.
    """
    options, costs_for = options or SolveOptions(), costs_for or cost_source(model)
    options = replace(options, warm_start=ordered_plan(options.warm_start))
    end, of, on = deadline or Deadline.after(options.time_limit_seconds), ordered_model(model), ordered_cluster(cluster)
    feasible = Feasibility(of, on, costs_for)

    def search(wanted: SolveOptions, until: Deadline) -> PlacementResult:
        new, first = _Search(of, on, costs_for, wanted, until), wanted is options
        return new.run(news if first else None, feasible if first and demands(options) else None)

    found = answered(search, feasible, options, end)
    return replace(found, plan=replace(found.plan, model=replace(model, graph=found.plan.model.graph)))


class _Search:
    """One search."""

    def __init__(
        self, model: Model, cluster: Cluster, costs_for: CostsFor, options: SolveOptions, deadline: Deadline
    ) -> None:
        self.model, self.began = model, deadline.clock()
        self.deadline = replace(deadline, reserved=[])
        self.hurry = self.deadline.share(HURRY)
        self.demanded, (self.options, self.rules) = options, resolved(model, cluster, options)
        self.offers = offers_of(model, options)
        trainers = [node for node in usable(cluster) if node.may_train]
        if not trainers or not len(model.graph):
            allowed = "at least one usable machine that may train, and one operator"
            raise BadInput(cluster.name, "nodes", len(trainers), allowed)
        self.previous = Previous.of(model, options.warm_start)
        if self.previous:
            options = self.options = self.previous.completed(self.options)
        self.batch = options.batch or model.batch
        self.hogwild = options.hogwild or (1 if options.synchronous else default_threads(trainers))
        self.costs = costs_for(self.batch, max(trainers, key=lambda node: node.cores * node.flops_per_core_second))
        self.local, self.nodes = cluster.is_local, cluster.nodes
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
        self.large = not proves(Contracted(GroupProblem(model, self.costs, (), self.batch, pins=self.options.pins)))
        self.solved, self.refused = list[Solved](), list[PlacementError]()
        self.best: Solved | None = None
        self.prover = Prover(self.bounds, self.offers, self._limits, self.deadline, large=self.large)
        self.interrupted = False
        self.assumed = (*assumptions(self.options, self.hogwild), *self.costs.notes)
        self.judge = Judge(self.batch, self.previous, options.movement_seconds_per_byte, self.deadline)

    def run(self, news: News | None = None, feasible: Feasibility | None = None) -> PlacementResult:
        """Return the best plan, once the bound of the next shape meets it; ask first whether there is any."""
        self.news = news
        if news:
            news.assumed(self.assumed)
        if feasible:
            feasible.check(self.demanded, self.deadline)
        self._resume()
        self.waiting = Waiting(self.shapes.all(), self.bounds, self.compositions, self.deadline)
        self._sample()
        while self.waiting and not self._done(self.waiting.head):
            hurries = self.best is None and (self.interrupted or self.hurry.passed)
            roomier = self.waiting.roomier() if hurries else None
            shape = roomier or self.waiting.next
            self.waiting.remove(shape)
            try:
                found = self._first(shape) if roomier else self._look(shape)
            except KeyboardInterrupt:  # with no plan yet, the first baseline that fits will do
                self.interrupted, found = True, [shape]
                self.deadline.stop()
            self.waiting.add(found)
            self._tell()
        self._insist()
        if self.best is None:
            raise KeyboardInterrupt if self.interrupted else no_plan(self.solved, self.refused, not self.waiting)
        return self._result(self.best)

    def _tell(self) -> None:
        """Say how good the best plan is and what is still possible."""
        if self.news and self.best:
            outcome = Outcome(self.solved, self.waiting.rates(1), self.best.value, 0.0, self.waiting.unlike)
            self.news.standing(outcome.best, outcome.bound)

    def _resume(self) -> None:
        """Take the earlier plan as it stands for the best one so far, if it still fits and is still allowed."""
        if self.previous is None or not self.previous.usable(self.options, self.rules, self.nodes):
            return
        shape, shards = self.previous.shape, self.previous.plan.shards
        found = Solved(shape, shards, self._problems(shape, shards), 0.0)
        tags, kept = dict(self.previous.plan.tags), allowed_codecs(self.previous.plan.codecs, self.offers)
        for codecs in (self.options.codecs, {**kept, **self.options.codecs}):
            kinds = coded(distinct(found.problems), codecs)
            self.judge.offer(found, kinds, "", tags, evaluate_timed(kinds[0][0], tags, self.deadline))
        found.bound = found.value
        self._keep(found)

    def _sample(self) -> None:
        """Where solving a shape takes long: sample the best shape of each group size; the best of these is solved first."""
        until = self.deadline.share(SAMPLES)
        for shape in self.waiting.sizes() if self.large else ():
            if not shares_machine(shape) and until.allows(*self._phases(shape)):
                self._sample_one(shape)
        self.waiting.favourite = self.best.shape if self.large and self.best else None

    def _sample_one(self, shape: Shape) -> None:
        try:
            shards = self._shards(shape)
        except (DoesNotFit, ConstraintsConflict):  # told when the shape is solved
            return
        found = Solved(shape, shards, self._problems(shape, shards), self.bounds.rate(shape))
        self._keep(replace(self.judge.sample(found), bound=0.0))

    def _look(self, shape: Shape) -> list[Shape]:
        """Sharpen the bound of a shape, or solve it; return the shapes to be looked at instead of it."""
        if not shape.bounded:
            return [self.waiting.bound(shape)]
        if (raised := self.waiting.raised(shape)).bound_seconds > shape.bound_seconds:
            return [raised]
        if not shape.composed:
            return self._opened(shape) if shape.refined else [self.waiting.refined(shape)]
        if not shape.refined:
            return [self.bounds.refine(shape)]
        if self._disappointing(shape):
            return self._proven(shape, shape)
        return list(self.bounds.siblings(shape)) if self._try(shape) else [shape]

    def _opened(self, shape: Shape) -> list[Shape]:
        """Ways to put unlike machines together; before that, what groups can do that are the same in all of them."""
        unknown = self.compositions.unproven(shape) if self.best and not (self.large or self.interrupted) else None
        if unknown is None or not self.deadline.allows(*self._phases(shape)):
            return self.waiting.opened(shape)
        return self._proven(unknown, shape)

    def _proven(self, shape: Shape, then: Shape) -> list[Shape]:
        """Prove what holds for a shape whatever its shards; return what is to be looked at then."""
        self.prover.relaxed(shape)
        self.interrupted = self.interrupted or self.prover.interrupted
        return [then]

    def _first(self, shape: Shape) -> list[Shape]:
        """Solve a shape as it is, in a hurry; return the shapes to be looked at instead of it."""
        self._try(shape if shape.composed else self.compositions.given(shape))
        return list(self.bounds.siblings(shape)) if shape.composed else [shape]

    def _insist(self) -> None:
        """Solve again, with more effort, the shapes whose bounds keep the gap of the job open."""
        while not self.interrupted and self.best is not None:
            goal = self.best.value * (1 + max(self.options.gap, PRECISION))
            open_shapes = [s for s in self.solved if s.bound > goal and s.tags is not None and s.effort < MOST_EFFORT]
            worst = max(open_shapes, key=lambda solved: solved.bound, default=None)
            if worst is None or not self.deadline.allows(*self._phases(worst.shape)):
                return
            try:
                done = self._try(worst.shape, 4 * worst.effort)
            except KeyboardInterrupt:
                self.interrupted, done = True, False
            if not done:
                return
            self.solved.remove(worst)
            self.solved[-1].bound = min(self.solved[-1].bound, worst.bound)
            self._tell()

    def _done(self, shape: Shape) -> bool:
        """Whether to end; without a plan only where the last shape had too little room and none has more."""
        if self.best is None:
            return (self.interrupted or self.deadline.passed) and self.waiting.roomier() is None
        promising = self.bounds.rate(shape) > self.best.score * (1 + max(self.options.gap, PRECISION))
        return self.interrupted or not promising or not self.deadline.allows(*self._phases(shape))

    def _phases(self, shape: Shape) -> tuple[Phase, ...]:
        """What solving a shape takes at least."""
        return sharding_of(self.model, shape.servers), ("evaluation", len(self.model.graph))

    def _try(self, shape: Shape, effort: int = 1) -> bool:
        """Solve a shape and remember the outcome; return whether there was time to."""
        try:
            shards = self._shards(shape)
        except (DoesNotFit, ConstraintsConflict) as error:
            self.refused.append(error)
            self.waiting.lacks_room(shape, tables=True)
            self.solved.append(Solved(shape, (), (), 0.0))
            return True
        found = Solved(shape, shards, self._problems(shape, shards), 0.0, effort=effort)
        kinds, rates = distinct(found.problems), list[float]()
        for problem, count in kinds:
            if self.judge.needed or self.deadline.allows(evaluation_of(problem, self.all_dp)):
                rates.append(count * self._solve_kind(found, kinds, problem) / len(shape.groups))
        if not rates:
            return False
        found.bound = min(sum(rates) if len(rates) == len(kinds) else float("inf"), self.bounds.rate(shape))
        if found.tags is None:
            self.waiting.lacks_room(shape, tables=False)
        self.waiting.favourite = None
        self._keep(found)
        return True

    def _solve_kind(self, found: Solved, kinds: Kinds, problem: GroupProblem) -> float:
        """Solve one of the unlike groups of a shape; return what no placement exceeds if all were like it."""
        data, shape = Contracted(problem), found.shape
        start = self.previous.tags_for(data) if self.previous else None
        known, limits = start or (dict(found.tags) if found.tags else None), self._limits(shape, found.effort)
        solution = solve_coded(data, self.offers, limits, self.compositions.floor_seconds(shape, problem.nodes), known)
        if self.previous and solution.tags:
            solution.tags = self.previous.like(data, solution.tags)
        self.interrupted = self.interrupted or solution.interrupted
        self.judge.collect(found, kinds, solution)
        if start is not None and self.deadline.allows(evaluation_of(problem, start)):
            self.judge.offer(found, kinds, "", start, evaluate_timed(problem, start, self.deadline))
        if solution.infeasible:
            return 0.0
        seconds = self.prover.seconds(data, shape, found.shards, solution)
        self.interrupted = self.interrupted or self.prover.interrupted
        return self.bounds.rate(replace(shape, bound_seconds=seconds))

    def _limits(self, shape: Shape, effort: int = 1) -> Limits:
        """Return when to stop with the groups of a shape."""
        best = 0.0 if self.best is None or self.previous or shape.mixed else self.best.value
        return limits_of(self.options, self.deadline, effort, len(shape.groups) * shape.ranks * self.batch, best)

    def _keep(self, found: Solved) -> None:
        """Remember a solved shape, and its plan if that is the best."""
        self.solved.append(found)
        if found.tags is not None and (self.best is None or found.better_than(self.best)):
            self.best, self.judge.needed = found, False
            orders = ordering_of(found.rivals if self.large else [], self.deadline)
            self.deadline.reserve(evaluation_of(found.problems[0], found.tags), *orders)

    def _shards(self, shape: Shape) -> tuple[Shard, ...]:
        """Shard the tables over the servers of a shape."""
        steps, previous = len(shape.groups) * shape.ranks, self.previous
        options = ShardingOptions(
            sessions=steps * self.hogwild,
            local=self.local,
            deterministic_seconds=0.5,
            deadline=self.deadline.share(SHARDING),
            enough_seconds=shape.bound_seconds / steps,
            per_server=shape.per_server,
            rules=self.rules,
            held=previous.held(shape.servers) if previous else {},
            score=lambda shards, _: self.judge.worth(self._problems(shape, shards)[0], self.all_dp, shape, shards),
        )
        shards = shard_tables(self.model, self.batch, shape.servers, self.costs, options).shards
        return previous.aligned(shape.servers, shards) if previous else shards

    def _problems(self, shape: Shape, shards: tuple[Shard, ...]) -> tuple[GroupProblem, ...]:
        return problems_of(shape, shards, self.model, self.costs, (self.batch, self.hogwild), self.options)

    def _disappointing(self, shape: Shape) -> bool:
        """Whether groups like this did less than the best plan, so that their placement, not the servers, seems to bind."""
        if self.best is None or self.large or shape.mixed or shares_machine(shape) or self.bounds.knows(shape):
            return False
        alike = [solved for solved in self.solved if solved.shape.form == shape.form]
        return bool(alike) and self.best not in alike

    def _result(self, best: Solved) -> PlacementResult:
        earlier, enough = self.solved[:1] if self.previous else [], max(self.options.gap, PRECISION)
        self.deadline.reserve(*self.deadline.reserved[:1])
        if self.interrupted:  # neither orders nor proofs after that
            self.deadline.stop()
        limits, again = self._limits(best.shape), not (self.previous or self.interrupted)
        if again and not shares_machine(best.shape):
            best = resharded(best, lambda shards: self._problems(best.shape, shards), self.rules, self.deadline)
        best, said = ordered([best, *earlier], limits, best.rivals if self.large else (), again=again)
        outcome = Outcome([*self.solved, best], self.waiting.rates(), best.value, enough, self.waiting.unlike)
        if said:
            outcome = in_any_order(outcome, self.compositions, limits, self.offers)
            if self.news:
                self.news.standing(best.value, outcome.bound)
        with self.deadline.phase("answer"):
            evaluation = evaluate(replace(best.problems[0], codecs=best.codecs), best.tags or {})
        return PlacementResult(
            status="optimal" if outcome.open <= outcome.gap else "feasible",
            plan=checked(plan_of(best, self.batch, self.hogwild, self.options), self.options, self.rules),
            costs=self.costs,
            objective=best.value,
            bound=outcome.bound,
            gap=outcome.open,
            solve_seconds=self.deadline.clock() - self.began,
            bottleneck=evaluation.bottleneck,
            curve=outcome.curve,
            baselines=outcome.baselines,
            evaluation=evaluation,
            assumptions=(*self.assumed, *said, *best.restrictions),
            interrupted=self.interrupted,
            moved_bytes=best.moved if self.previous else None,
        )
