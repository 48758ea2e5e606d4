"""How good was the prediction? Plans are profiled, simulated and run in turn, several rounds, and laid side by side.

Profile and run alternate, because a machine that others use drifts: a ratio is taken within a round, and the median over
rounds is quoted. Yardstick is the ``cpu`` clock (every worker counts as having a core of its own); the wall clock stands
beside it with a verdict on what it is worth. Costs come from this machine's profile only, whatever machine a plan is for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from cost_models.costs import CostTable
from cost_models.memory import step_bytes
from cost_models.profile import Profile
from cost_models.profile_costs import profile_costs
from executor.capacity import free_cores, wall_verdict
from executor.profiler import measure_model, with_messages
from executor.run import RunOptions, run
from placement.plan import Plan
from problem.local import this_node
from problem.model import Model
from programs.timeline import PARTS
from programs.transform import transform
from programs.workers import workers
from simulator.machines import Sharing
from simulator.result import SimulationResult
from simulator.simulate import simulate

#: Core times of a step vary by at most this much in a simulation (``simulator.simulate``).
MOST_VARIATION = 0.5
#: Plans whose throughputs differ by more than this must be ranked alike by prediction and measurement.
RANKING_MARGIN = 0.10
Watch = Callable[[str], None]


@dataclass(frozen=True)
class Round:
    """One plan in one round: samples per second and seconds per step by part, of ranks and of copies of servers."""

    predicted: float
    measured: float
    wall_predicted: float
    wall_measured: float
    predicted_parts: Mapping[str, float]
    measured_parts: Mapping[str, float]
    predicted_servers: Mapping[str, float]
    measured_servers: Mapping[str, float]
    first_loss: float
    last_loss: float
    free_cores: float


@dataclass(frozen=True)
class Comparison:
    """One plan, all rounds.

    Parameters
    ----------
    plan : Plan
        The plan.
    workers : int
        Processes of the run.
    rounds : tuple of Round
        What each round gave.
    """

    plan: Plan
    workers: int
    rounds: tuple[Round, ...] = field(repr=False)

    def middle(self, name: str) -> float:
        """Median over rounds of a field of :class:`Round`."""
        return median(float(getattr(found, name)) for found in self.rounds)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Predicted over measured, by round (cpu clock)."""
        return tuple(found.predicted / found.measured for found in self.rounds)

    @property
    def ratio(self) -> float:
        """Median of :attr:`ratios`."""
        return median(self.ratios)

    @property
    def step_seconds(self) -> float:
        """Measured seconds of a rank's step, median over rounds (cpu clock)."""
        sessions = len(self.plan.groups) * self.plan.ranks * self.plan.hogwild
        return self.plan.batch * sessions / self.middle("measured")

    @property
    def wall_verdict(self) -> str:
        """What the wall clock is worth: empty, or why it is inconclusive."""
        return wall_verdict(self.workers, self.middle("free_cores"))

    def to_json_dict(self) -> dict[str, Any]:
        """Return the figures, ready for ``json.dumps``."""
        fields = ("predicted", "measured", "wall_predicted", "wall_measured", "first_loss", "last_loss", "free_cores")
        return {
            "plan": self.plan.name,
            "ratio": self.ratio,
            "ratios": list(self.ratios),
            "step_seconds": self.step_seconds,
            "workers": self.workers,
            "wall_verdict": self.wall_verdict,
            "blame": {part: list(pair) for part, pair in self.blame().items()},
            **{name: self.middle(name) for name in fields},
        }

    def blame(self) -> dict[str, tuple[float, float]]:
        """Predicted and measured seconds per rank step by part, medians over rounds."""
        return _medians([(found.predicted_parts, found.measured_parts) for found in self.rounds])

    def servers_blame(self) -> dict[str, tuple[float, float]]:
        """The same of the copies of embedding servers, for which ranks wait."""
        return _medians([(found.predicted_servers, found.measured_servers) for found in self.rounds])

    def verdict(self) -> str:
        """Say which part of a rank's step differs most, and if that is waiting, which work of its servers."""
        part, pair = _worst(self.blame())
        if part != "waiting" or not self.plan.servers:
            return f"{part} {_pair(pair)}"
        found = {name: times for name, times in self.servers_blame().items() if name != "waiting"}
        cause, times = _worst(found)
        return f"{part} {_pair(pair)}; its servers' {cause} {_pair(times)}"


def _medians(rounds: Sequence[tuple[Mapping[str, float], Mapping[str, float]]]) -> dict[str, tuple[float, float]]:
    return {part: (median(p[part] for p, _ in rounds), median(m[part] for _, m in rounds)) for part in PARTS}


def _worst(parts: Mapping[str, tuple[float, float]]) -> tuple[str, tuple[float, float]]:
    return max(parts.items(), key=lambda item: abs(item[1][0] - item[1][1]))


def _pair(times: tuple[float, float]) -> str:
    return f"{1e3 * times[0]:.2f} > {1e3 * times[1]:.2f} ms"


def compare(
    plans: Sequence[Plan],
    *,
    rounds: int = 5,
    steps: int = 30,
    seconds: float = 0.0,
    watch: Watch | None = None,
    finished: Callable[[tuple[Comparison, ...]], None] | None = None,
) -> tuple[Comparison, ...]:
    """Profile, simulate and run plans on this machine, ``rounds`` times in turn.

    Parameters
    ----------
    plans : sequence of Plan
        What to compare.
    rounds, steps : int
        Rounds; steps of each run (a fifth of them, 20 at most, is warm-up).
    seconds : float
        Runs that are predicted to be shorter are given more steps.
    watch : callable, optional
        Told what is going on.
    finished : callable, optional
        Given what there is after each round, so that an interruption loses one round only.

    Raises
    ------
    WorkerFailed
        A run failed.
    """
    tell = watch or (lambda news: None)
    found = tuple(Comparison(plan, _workers(plan), ()) for plan in plans)
    for number in range(rounds):
        title = f"round {number + 1} of {rounds}"
        costs, outcomes = _Costs(tell, title), []
        for plan in plans:
            tell(f"{title}, running {plan.name}")
            outcomes.append(_round(plan, costs, steps, seconds))
        found = tuple(replace(c, rounds=(*c.rounds, outcome)) for c, outcome in zip(found, outcomes, strict=True))
        if finished is not None:
            finished(found)
    return found


def _workers(plan: Plan) -> int:
    return len(workers(transform(plan)))


class _Costs:
    """Costs measured in one round, once for each model and batch."""

    def __init__(self, watch: Watch, title: str) -> None:
        self._watch, self._title = watch, title
        self._profiles: dict[tuple[str, int], Profile] = {}

    def variation(self, plan: Plan) -> float:
        """By how much the core time of a step varies: ranks that meet in every step wait for the slowest of them."""
        return min(MOST_VARIATION, self._profile(plan).variation)

    def of(self, plan: Plan) -> CostTable:
        """What everything costs, all sessions on this machine."""
        sessions = plan.elp // plan.batch
        return profile_costs(self._profile(plan), plan.model, plan.batch, this_node(), sessions=sessions)

    def _profile(self, plan: Plan) -> Profile:
        key = (plan.model.name, plan.batch)
        if key not in self._profiles:
            self._watch(f"{self._title}, measuring {plan.model.name}")
            self._profiles[key] = measure_at(plan.model, plan.batch)
        return self._profiles[key]


def measure_at(model: Model, batch: int) -> Profile:
    """Measure a model at one batch size, and messages."""
    profile = with_messages(measure_model(model, [batch]), [step_bytes(model, batch)])
    return profile.fitted([*model.graph, *model.feature.values()])


def _round(plan: Plan, measured: _Costs, steps: int, seconds: float) -> Round:
    costs, free = measured.of(plan), free_cores()
    alone = simulate(plan, costs, sharing=Sharing.NONE, variation=measured.variation(plan))
    steps = max(steps, round(seconds * alone.samples_per_second / plan.elp))
    result = run(plan, RunOptions(steps=steps))
    shared = simulate(plan, costs, sharing=Sharing.HOST, record=False)
    warmup = min(20, steps // 5)
    tenth = max(1, steps // 10)
    return Round(
        predicted=alone.samples_per_second,
        measured=result.samples_per_second,
        wall_predicted=shared.samples_per_second,
        wall_measured=result.wall_samples_per_second,
        predicted_parts=_parts(alone),
        measured_parts=result.timeline.seconds_per_step("rank", warmup),
        predicted_servers=_parts(alone, "server"),
        measured_servers=result.timeline.seconds_per_step("server", warmup),
        first_loss=float(result.losses[:, :tenth].mean()),
        last_loss=float(result.losses[:, -tenth:].mean()),
        free_cores=free,
    )


def _parts(result: SimulationResult, role: str = "rank") -> dict[str, float]:
    assert result.timeline is not None
    return result.timeline.seconds_per_step(role, result.warmup)


def misranked(comparisons: Sequence[Comparison]) -> Iterator[tuple[str, str]]:
    """Pairs of plans that measurement tells apart by more than :data:`RANKING_MARGIN`, but prediction orders otherwise."""
    for a, b in itertools.combinations(comparisons, 2):
        measured = a.middle("measured") / b.middle("measured")
        predicted = a.middle("predicted") / b.middle("predicted")
        if max(measured, 1 / measured) > 1 + RANKING_MARGIN and (measured > 1) != (predicted > 1):
            yield a.plan.name, b.plan.name
