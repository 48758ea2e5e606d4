"""What a search found, put together: the curve over group sizes, the baselines, one bound and one gap.

Knows solved shapes and those left open with their bounds; never solves anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cost_models.costs import CostTable
from placement.deadline import Deadline, Phase
from placement.errors import NothingFound, PlacementError
from placement.evaluation.evaluate import Evaluation, evaluate_timed, evaluation_of
from placement.evaluation.group import GroupProblem, near_neighbours, server_links
from placement.plan import Plan, Shard, Tag
from placement.result import BaselineValue, CurvePoint, PointStatus
from placement.search.diagnose import no_fit
from placement.search.options import MOST_RANKS, THREADS_PER_CORE, SolveOptions, sync_of
from placement.search.shapes import Shape
from placement.tables.shares import split_features
from placement.tagging.candidates import forbidden_tags
from placement.tagging.limits import PRECISION
from placement.tagging.nets import Contracted
from problem.errors import BadInput
from problem.model import Model

#: What a user is told of a plan with unlike groups.
ONE_SET = (
    "groups of unlike machines share one set of tags, in the plan and in the bound; others for each kind are not sought"
)
#: Unlike groups of a job, each with how many there are like it.
Kinds = list[tuple[GroupProblem, int]]


@dataclass
class Solved:
    """A shape that was solved: its best tags, their value, and the bound.

    ``score`` is the value with the bytes ``moved`` from an earlier plan charged for; it decides between plans. Critical
    paths bind ``rivals``, plans for the same machines: another order of operators may make one of them the best.
    """

    shape: Shape
    shards: tuple[Shard, ...]
    problems: tuple[GroupProblem, ...]
    bound: float
    tags: Mapping[str, Tag] | None = None
    value: float = 0.0
    baselines: dict[str, tuple[float | None, str]] = field(default_factory=dict)
    effort: int = 1
    score: float = 0.0
    moved: int = 0
    codecs: Mapping[str, str] = field(default_factory=dict)
    rivals: list[Solved] = field(default_factory=list, repr=False, compare=False)

    @property
    def restrictions(self) -> tuple[str, ...]:
        """What its plan is that a better one need not be: of unlike groups, with one set of tags for all."""
        return (ONE_SET,) if self.shape.group_size > 1 and len(distinct(self.problems)) > 1 else ()

    def better_than(self, other: Solved) -> bool:
        """Whether its plan does more, or as much and moves less."""
        if abs(self.score - other.score) <= PRECISION * other.score:
            return self.moved < other.moved
        return self.score > other.score


@dataclass(frozen=True)
class Outcome:
    """Solved shapes and open ones.

    Parameters
    ----------
    solved : list of Solved
        What was solved.
    waiting : list of (Shape, float)
        What was not, each with the samples per second that it cannot exceed.
    best : float
        Samples per second of the plan.
    gap : float
        Relative gap that is good enough.
    unlike : list of (Shape, float)
        Shapes of unlike machines, each with what no way to put its machines together exceeds.
    """

    solved: list[Solved]
    waiting: list[tuple[Shape, float]]
    best: float
    gap: float
    unlike: list[tuple[Shape, float]] = field(default_factory=list)

    @property
    def bound(self) -> float:
        """Samples per second that no plan exceeds."""
        rates = (rate for _, rate in (*self.waiting, *self.unlike))
        return max([self.best, *rates, *(solved.bound for solved in self.solved)])

    @property
    def open(self) -> float:
        """What may still be gained, relative to the bound."""
        return (self.bound - self.best) / self.bound if 0 < self.bound < float("inf") else 0.0

    @property
    def curve(self) -> tuple[CurvePoint, ...]:
        """The best that is known about each group size."""
        solved: dict[int, list[Solved]] = {}
        for one in self.solved:
            solved.setdefault(one.shape.group_size, []).append(one)
        waiting, unlike = _by_size(self.waiting), _by_size(self.unlike)
        parts = {
            size: Outcome(solved.get(size, []), waiting.get(size, []), self.best, self.gap, unlike.get(size, []))
            for size in sorted({*solved, *waiting})
        }
        return tuple(part._point(size) for size, part in parts.items())

    def _point(self, size: int) -> CurvePoint:
        """The best that is known, all shapes being of one group size."""
        solved, rest, others = self.solved, self.waiting, [rate for _, rate in self.unlike]
        fitting = [s for s in solved if s.tags is not None]
        bound = max([*(s.bound for s in solved), *(rate for _, rate in rest), *others])
        top = max(fitting, key=lambda s: s.value, default=None)
        groups = len(top.shape.groups if top else (rest[0][0] if rest else solved[0].shape).groups)
        status: PointStatus = "feasible"
        if top is None:
            pruned = bool(rest) and bound <= self.best * (1 + max(self.gap, PRECISION))
            status = "pruned" if pruned else "not reached" if rest else "does not fit"
        elif top.value >= bound * (1 - max(self.gap, PRECISION)):
            status = "optimal"
        return CurvePoint(size, groups, top.value if top else None, max(bound, top.value if top else 0.0), status)

    @property
    def baselines(self) -> tuple[BaselineValue, ...]:
        """Best value of each baseline over all solved shapes."""
        best: dict[str, BaselineValue] = {}
        for one in self.solved:
            for name, (value, reason) in one.baselines.items():
                row = BaselineValue(name, value, reason)
                known = best.get(name)
                if known is None or (value or 0.0) > (known.samples_per_second or 0.0):
                    best[name] = row
        return tuple(best.values())


def _by_size(rows: list[tuple[Shape, float]]) -> dict[int, list[tuple[Shape, float]]]:
    """Shapes with what they cannot exceed, by group size."""
    found: dict[int, list[tuple[Shape, float]]] = {}
    for row in rows:
        found.setdefault(row[0].group_size, []).append(row)
    return found


def distinct(problems: tuple[GroupProblem, ...]) -> Kinds:
    """Group problems that differ in their machines' data, each with the number of groups like it."""
    found: dict[object, tuple[GroupProblem, int]] = {}
    for problem in problems:
        hosts = {node.host: i for i, node in reversed(list(enumerate(problem.nodes)))}
        kind = tuple(replace(node, name="", host=str(hosts[node.host])) for node in problem.nodes)
        first, count = found.get((kind, problem.near), (problem, 0))
        found[kind, problem.near] = (first, count + 1)
    return list(found.values())


def coded(kinds: Kinds, codecs: Mapping[str, str]) -> Kinds:
    """Return group problems, each with how many there are like it, under other codecs."""
    return [(replace(problem, codecs=codecs), count) for problem, count in kinds]


def problems_of(
    shape: Shape,
    shards: tuple[Shard, ...],
    model: Model,
    costs: CostTable,
    load: tuple[int, int],
    options: SolveOptions,
) -> tuple[GroupProblem, ...]:
    """Return the problem of each group of a shape.

    Parameters
    ----------
    shape : Shape
        The machines.
    shards : tuple of Shard
        Parts of the tables.
    model : Model
        What is trained.
    costs : CostTable
        Costs for the batch.
    load : (int, int)
        Samples per thread and step, threads per rank.
    options : SolveOptions
        Pins and what is forbidden by operator, sync settings, codecs that are decided.
    """
    links = server_links(model, load[0], shape.servers, shards, costs)
    forbids = forbidden_tags(options.forbids, shape.groups, shape.ranks)
    return tuple(
        GroupProblem(
            model,
            costs,
            group,
            *load,
            shape.ranks,
            options.pins,
            links,
            split_features(model, shards),
            len(shape.groups),
            sync_of(options, len(shape.groups)),
            shape.sync_servers,
            options.codecs,
            forbids=forbids,
            near=near_neighbours(shape.groups, number) if not shape.sync_servers else (),
        )
        for number, group in enumerate(shape.groups)
    )


def evaluations(kinds: Kinds, tags: Mapping[str, Tag]) -> tuple[Phase, ...]:
    """Return the phases in which :func:`job_value` judges tags: none if all groups are alike."""
    return () if len(kinds) == 1 else tuple(evaluation_of(problem, tags) for problem, _ in kinds)


def job_value(
    kinds: Kinds, tags: Mapping[str, Tag], known: Evaluation, deadline: Deadline | None = None
) -> tuple[float | None, str]:
    """Return the samples per second of all groups with some tags; None and a reason if some group lacks memory.

    Parameters
    ----------
    kinds : Kinds
        Unlike groups, each with how many there are like it.
    tags : Mapping of str to Tag
        The tags.
    known : Evaluation
        Of the only group, if all are alike.
    deadline : Deadline, optional
        Is told how long evaluations take.
    """
    end = deadline or Deadline()
    values = [known] if len(kinds) == 1 else [evaluate_timed(problem, tags, end) for problem, _ in kinds]
    for value in values:
        if value.overflow is not None:
            load = value.overflow
            return None, f"{load.node} needs {load.memory_needed:,.0f} bytes, has {load.memory_had:,.0f}"
    return (known.samples_per_second if len(kinds) == 1 else shared_rate(values, [count for _, count in kinds])), ""


def shared_rate(values: Sequence[Evaluation], counts: Sequence[int]) -> float:
    """Return the samples per second of unlike groups that share servers.

    Groups step at their own pace. Where a server is short, the faster groups share what the slower ones leave of it, in
    equal steps: the fair share is the largest number of steps per second with which every server keeps up.

    Parameters
    ----------
    values : sequence of Evaluation
        Of each kind of group; a server's load is that of all groups at the pace of this one.
    counts : sequence of int
        How many groups there are of each kind.
    """
    groups = sum(counts)
    if not all(value.seconds for value in values):
        return float("inf")
    pace = [1 / value.group_seconds if value.group_seconds else float("inf") for value in values]
    shared = zip(*(value.shared_loads for value in values), strict=True)
    fair = min((_fair(pace, [c * s / groups for c, s in zip(counts, each, strict=True)]) for each in shared), default=0)
    steps = [min(own, fair) if fair else own for own in pace]
    return sum(n * x * value.samples_per_step / groups for n, x, value in zip(counts, steps, values, strict=True))


def _fair(pace: Sequence[float], seconds: Sequence[float]) -> float:
    """Steps per second that none may exceed for a server to keep up: sum of min(pace, fair) x seconds = 1; or infinite."""
    left, rest = 1.0, sum(seconds)
    for own, each in sorted(zip(pace, seconds, strict=True)):
        if own * rest > left:
            return left / rest
        left, rest = left - own * each, rest - each
    return float("inf")


def plan_of(best: Solved, batch: int, hogwild: int, options: SolveOptions) -> Plan:
    """Return the plan of a solved shape.

    Parameters
    ----------
    best : Solved
        The shape, with tags, and operators in the order in which the plan runs them.
    batch, hogwild : int
        Samples per thread and step, threads per rank.
    options : SolveOptions
        Sync settings, mode and seed.
    """
    shape, model = best.shape, best.problems[0].model
    return Plan(
        model=model,
        groups=shape.groups,
        servers=shape.servers,
        batch=batch,
        tags=dict(best.tags or {}),
        shards=best.shards,
        sync_servers=shape.sync_servers,
        hogwild=hogwild,
        ranks=shape.ranks,
        sync=sync_of(options, len(shape.groups)),
        synchronous=options.synchronous,
        name=model.name,
        seed=options.seed,
        codecs=dict(best.codecs),
    )


def no_plan(solved: list[Solved], refused: list[PlacementError], complete: bool = True) -> Exception:
    """Return the error that says why nothing fits, by the shape that came closest: the one with the largest groups.

    Parameters
    ----------
    solved : list of Solved
        Shapes that have no plan.
    refused : list of PlacementError
        What sharding said about shapes whose tables fit nowhere.
    complete : bool
        Whether all shapes were looked at.
    """
    shaped = [one for one in solved if one.problems]
    if not shaped:
        if refused and not complete:
            return NothingFound("the embedding tables")
        return refused[-1] if refused else BadInput("options", "time_limit_seconds", 0, "more time")
    proven = complete and all(one.bound <= 0 for one in shaped)
    return no_fit(Contracted(max(shaped, key=lambda one: one.shape.group_size).problems[0]), proven)


def assumptions(options: SolveOptions, hogwild: int) -> tuple[str, ...]:
    """Return what was assumed because the user did not decide it."""
    found = [f"at most {options.most_groups} groups (replicas)"]
    if options.hogwild is None and not options.synchronous:
        found.insert(0, f"{hogwild} Hogwild threads per rank: {THREADS_PER_CORE} per core, to hide waiting")
    if options.ranks == "auto":
        found.append(
            f"of the ranks of a group at most {MOST_RANKS} numbers are looked at: its nodes, halves, and some between"
        )
    if options.guard is not None:
        found.append(options.guard.said())
    return tuple(found)
