"""Whether there is any plan under some demands; times are not looked at.

One group is enough: more of them hold more, on servers and on nodes, and what is forbidden on a machine of one is forbidden
in all. So of every group size it is asked once whether the operators can fit however the tables lie, and only then whether
tables fit servers. Shardings are remembered, for most demands do not concern tables. Machines that are unlike can be put
together in more ways than are tried here: there only what has no shape or contradicts itself is known to have no plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from cost_models.costs import CostTable
from cost_models.sources import CostsFor
from placement.deadline import Deadline
from placement.errors import PlacementError
from placement.evaluation.group import GroupProblem
from placement.evaluation.loads import fixed_tally
from placement.plan import Shard, Tag
from placement.search.demands import resolved
from placement.search.options import SolveOptions, default_threads
from placement.search.outcome import Solved, no_plan, problems_of
from placement.search.replan import Previous
from placement.search.shapes import Shape, Shapes, usable
from placement.tables.sharding import ShardingOptions, shard_tables
from placement.tables.table_rules import TableRules
from placement.tagging.fitting import fitting
from placement.tagging.limits import Limits
from placement.tagging.nets import Contracted
from placement.tagging.packing import impossible
from placement.tagging.solve import proves
from problem.cluster import Cluster
from problem.model import Model

#: Solver work for one group, in OR-tools' deterministic seconds.
WORK = 2.0
#: Share of the time that a search may ask whether there is any plan, before it looks for the best.
FIRST = 0.25


@dataclass(frozen=True)
class Answer:
    """Whether there is a plan, and the error that says why not.

    Parameters
    ----------
    exists : bool or None
        None: neither was one found, nor is it proven that there is none.
    error : Exception or None
        Why there is none, or none was found.
    asked : bool
        Whether all was tried that is tried here; if not, a search may yet find one.
    """

    exists: bool | None
    error: Exception | None = None
    asked: bool = False


class Feasibility:
    """Answers for one model on one cluster.

    Parameters
    ----------
    model : Model
        What is trained.
    cluster : Cluster
        On what.
    costs_for : callable
        Gives the cost table for a batch size on a machine.
    """

    def __init__(self, model: Model, cluster: Cluster, costs_for: CostsFor) -> None:
        self.model, self.cluster, self.costs_for = model, cluster, costs_for
        self.machines = usable(cluster)
        self.alike = len({replace(node, name="", host="") for node in self.machines}) <= 1
        self._costs: dict[int, CostTable] = {}
        self._shards: dict[object, tuple[Shard, ...] | PlacementError] = {}
        self.placed: dict[tuple[int, int], Mapping[str, Tag]] = {}

    def __call__(self, options: SolveOptions, end: Deadline) -> Answer:
        """Say whether there is a plan under some demands.

        Parameters
        ----------
        options : SolveOptions
            What the user decided.
        end : Deadline
            When to stop.
        """
        if not any(node.may_train for node in self.machines):
            return Answer(None)
        try:
            question = _Question(self, options)
        except PlacementError as error:
            return Answer(False, error)
        return question.answered(end)

    def check(self, options: SolveOptions, end: Deadline) -> None:
        """Refuse demands that no plan meets, as far as that is proven in a part of the time.

        Raises
        ------
        PlacementError
            Saying what does not fit.
        """
        known = self(options, end.share(FIRST))
        if known.exists is False and known.error is not None:
            raise known.error

    def costs(self, batch: int) -> CostTable:
        """Return the cost table for a batch; what a plan holds does not depend on the machine it is for."""
        if batch not in self._costs:
            self._costs[batch] = self.costs_for(batch, self.machines[0])
        return self._costs[batch]

    def shards(
        self, shape: Shape, hogwild: int, batch: int, options: SolveOptions, rules: TableRules
    ) -> tuple[Shard, ...]:
        """Return a sharding that fits the servers of a shape with one group.

        Raises
        ------
        PlacementError
            When there is none.
        """
        demanded = options.table_pins, options.table_forbids, options.keep_together, options.keep_apart
        sessions, servers = shape.ranks * hogwild, tuple(node.name for node in shape.servers)
        key = repr((demanded, servers, sessions, batch))
        if key not in self._shards:
            self._shards[key] = self._sharded(shape, sessions, batch, rules)
        found = self._shards[key]
        if isinstance(found, PlacementError):
            raise found
        return found

    def _sharded(
        self, shape: Shape, sessions: int, batch: int, rules: TableRules
    ) -> tuple[Shard, ...] | PlacementError:
        options = ShardingOptions(
            sessions,
            self.cluster.is_local,
            deterministic_seconds=0.0,
            enough_seconds=float("inf"),
            rules=rules,
            deadline=Deadline(-float("inf")),
        )
        try:
            return shard_tables(self.model, batch, shape.servers, self.costs(batch), options).shards
        except PlacementError as error:
            return error


class _Question:
    """Whether there is a plan under one set of demands."""

    def __init__(self, known: Feasibility, options: SolveOptions) -> None:
        model, cluster = known.model, known.cluster
        options, self.rules = resolved(model, cluster, replace(options, max_replicas=None))
        self.previous = Previous.of(model, options.warm_start)
        if self.previous:
            options = self.previous.completed(options)
        self.known, self.options = known, replace(options, max_replicas=1)
        trainers = [node for node in known.machines if node.may_train]
        self.batch = options.batch or model.batch
        self.hogwild = options.hogwild or (1 if options.synchronous else default_threads(trainers))
        self.costs = known.costs(self.batch)
        load = self.batch, self.hogwild
        self.shapes = Shapes(model, cluster, self.costs, self.options, *load, self.rules, self.previous)
        self.refused: list[PlacementError] = []
        self.solved: list[Solved] = []

    def answered(self, end: Deadline) -> Answer:
        """Look at shapes, small groups first."""
        if self.previous and self.previous.usable(self.options, self.rules, self.known.cluster.nodes):
            return Answer(True)
        try:
            shapes = sorted(self.shapes.all(), key=lambda shape: (shape.group_size, shape.ranks))
        except PlacementError as error:
            return Answer(False, error)
        verdicts = set[bool | None]()
        for _, alike in groupby(shapes, key=lambda shape: (shape.group_size, shape.ranks)):
            for verdict in self._verdicts(list(alike), end):
                if verdict or end.passed:
                    return Answer(verdict or None)
                verdicts.add(verdict)
        known = self.known.alike and None not in verdicts
        return Answer(False if known else None, no_plan(self.solved, self.refused, known), self.known.alike)

    def _verdicts(self, shapes: list[Shape], end: Deadline) -> Iterator[bool | None]:
        """Say of shapes with groups of one size whether there is a plan; of all at once where no tables can change that."""
        first, most = shapes[0], list[tuple[float, ...]]()
        free = self._problem(replace(first, servers=()), ())
        if impossible(Contracted(free), end):
            self.solved.append(Solved(first, (), (free,), 0.0))
            yield False
            return
        for shape in shapes:
            try:
                shards = self.known.shards(shape, self.hogwild, self.batch, self.options, self.rules)
            except PlacementError as error:
                self.refused.append(error)
                yield False
                continue
            problem = self._problem(shape, shards)
            held = tuple(fixed_tally(problem).memory[: problem.size])
            if not any(all(a >= b for a, b in zip(held, less, strict=True)) for less in most):
                most.append(held)
                yield self._fits(shape, problem, end)

    def _fits(self, shape: Shape, problem: GroupProblem, end: Deadline) -> bool | None:
        """Whether the operators fit the group of a shape; near where they were last is tried first."""
        limits = Limits(deadline=end, deterministic_seconds=WORK, rounds=20, seed=self.options.seed)
        key = shape.group_size, shape.ranks
        data = Contracted(problem)
        found = fitting(data, limits, self.known.placed.get(key), hard=proves(data))
        if found.tags is not None:
            self.known.placed[key] = found.tags
            return True
        self.solved.append(Solved(shape, (), (problem,), 0.0 if found.impossible else float("inf")))
        return False if found.impossible else None

    def _problem(self, shape: Shape, shards: tuple[Shard, ...]) -> GroupProblem:
        load = self.batch, self.hogwild
        return problems_of(shape, shards, self.known.model, self.costs, load, self.options)[0]
