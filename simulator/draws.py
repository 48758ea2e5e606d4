"""What varies from step to step: by how much a worker's core times of a step are multiplied.

Three factors of mean 1, each drawn from the seed and a name alone, whatever others draw:

* *variation*: each worker by itself, uniform;
* *mixing*: all workers of a thread's step alike, uniform, so that threads of a rank drift past each other and the ranks
  that meet in an all-reduce do not; used with fair sharing, where nothing else makes sessions forget how they started
  (docs/simulation.md, "Variation");
* stragglers and bursts (``simulator.conditions``).
"""

from __future__ import annotations

import math
from random import Random

from placement.plan import Plan
from programs.workers import Worker
from simulator.conditions import UNDISTURBED, Conditions, lognormal

#: Half width of a uniform distribution over its standard deviation.
WIDTH = math.sqrt(3.0)
#: Steps over which the mixing draws are stratified: each quarter of the distribution is drawn once.
STRATA = 4


def meets(plan: Plan) -> bool:
    """Whether the ranks of a group meet in every step, by an all-reduce or ordered updates."""
    return plan.ranks > 1 and (plan.synchronous or bool(plan.dp_ops))


def identity(worker: Worker, plan: Plan) -> str:
    """What tells a worker from all others of a plan and does not depend on how groups, nodes and servers are numbered."""
    return f"{worker.node.name}/{worker.role}/{_home(worker, plan)}/{worker.thread:06d}"


def _home(worker: Worker, plan: Plan) -> str:
    """Node that reads the batches of a worker's session (of a shadow worker: its own); none of a sync server."""
    return plan.groups[worker.group][worker.rank].name if worker.group >= 0 else ""


class Draws:
    """The draws of one worker.

    Parameters
    ----------
    worker : Worker
        Whose draws. It is known by the names of its node and of its session's, however these are numbered.
    plan : Plan
        Says which nodes these are.
    variation, mixing : float
        Coefficients of variation of the core time from step to step, of the worker and of its thread's step.
    conditions : Conditions
        Stragglers.
    together : bool
        Whether the ranks of the worker's group meet in every step and therefore share the mixing draws.
    """

    def __init__(
        self,
        worker: Worker,
        plan: Plan,
        variation: float = 0.0,
        mixing: float = 0.0,
        conditions: Conditions = UNDISTURBED,
        together: bool = False,
    ) -> None:
        self._variation, self._mixing, self._conditions = variation, mixing, conditions
        self._random = Random(f"{plan.seed}/{identity(worker, plan)}")
        team = min(node.name for node in plan.groups[worker.group]) if together else _home(worker, plan)
        self._mixed = Random(f"{plan.seed}/mixing/{team}/{worker.thread}")
        self._strata: list[int] = []
        self._burst_left = 0
        self._own = self._shared = 1.0

    def step_factor(self) -> float:
        """Draw what the core times of the next step are multiplied by."""
        if self._variation:
            self._own = 1.0 + self._variation * WIDTH * (2.0 * self._random.random() - 1.0)
        if self._mixing:
            self._shared = 1.0 + self._mixing * WIDTH * (2.0 * self._stratified() - 1.0)
        if self._conditions.workers_differ:
            return self._own * self._shared * self._straggle()
        return self._own * self._shared

    def lag_factor(self, ranks: int) -> float:
        """Draw by how much the slowest of ``ranks`` alike is behind this one, as a part of the core time of the step.

        The largest of n uniform draws is v^(1 / n), v uniform.
        """
        if not self._variation:
            return 0.0
        largest = math.pow(self._random.random(), 1.0 / (ranks - 1))
        slowest = 1.0 + self._variation * WIDTH * (2.0 * largest - 1.0)
        return max(0.0, slowest - self._own) * self._shared

    def _stratified(self) -> float:
        """Draw from 0 to 1, from each of the strata once in as many draws."""
        if not self._strata:
            self._strata = list(range(STRATA))
            self._mixed.shuffle(self._strata)
        return (self._strata.pop() + self._mixed.random()) / STRATA

    def _straggle(self) -> float:
        """Draw by how much the worker is late in this step."""
        conditions = self._conditions
        factor = lognormal(self._random, conditions.worker_sigma)
        if (
            not self._burst_left
            and conditions.burst_probability
            and self._random.random() < conditions.burst_probability
        ):
            self._burst_left = conditions.burst_steps
        if self._burst_left:
            self._burst_left -= 1
            factor *= conditions.burst_factor
        return factor
