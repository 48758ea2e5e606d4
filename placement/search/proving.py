"""What is proven about the groups of a shape, whatever the sharding of the tables over its servers.

What the solver proves about a group holds for its shards. Another sharding of as few shards changes only what servers do,
and when rows come: the loads of the group's nodes are the same, critical paths are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from placement.deadline import Deadline
from placement.plan import Shard
from placement.search.bounds import Bounds, shares_machine
from placement.search.codec_cases import Offers
from placement.search.shapes import Shape
from placement.tagging.branching import least_step
from placement.tagging.limits import PRECISION, Limits
from placement.tagging.nets import Contracted
from placement.tagging.one_round import load_seconds
from placement.tagging.solve import PROOF, GroupSolution, solve_group


class Prover:
    """Proves bounds of shapes; the bounds of the job learn what holds for others, too.

    Parameters
    ----------
    bounds : Bounds
        Of the job.
    offers : Offers
        Codecs that may be chosen.
    limits : callable
        When to stop with a shape.
    deadline : Deadline
        Of the search.
    large : bool
        Whether groups are too large for the integer program.
    """

    def __init__(
        self, bounds: Bounds, offers: Offers, limits: Callable[[Shape], Limits], deadline: Deadline, *, large: bool
    ) -> None:
        self.bounds, self.offers, self.limits, self.deadline, self.large = bounds, offers, limits, deadline, large
        self.interrupted = False

    def seconds(self, data: Contracted, shape: Shape, shards: Sequence[Shard], solution: GroupSolution) -> float:
        """Return a bound of the step of a solved shape with any shards; of unlike groups, one of these shards.

        What the solver proved holds for all shardings if no server binds, no table was cut that need not be, and the
        critical path does not matter (large groups leave it out) or there is one server.

        Parameters
        ----------
        data : Contracted
            The group's problem, with the shards.
        shape : Shape
            The shape.
        shards : sequence of Shard
            How its tables were sharded.
        solution : GroupSolution
            What was found and proven about the group.
        """
        self.interrupted = self.interrupted or solution.interrupted
        seconds, cut = solution.bound_seconds, len(shards) > self.bounds.fewest_shards(shape)
        if shape.mixed:
            return seconds
        if solution.server_binds or cut:
            seconds = self.relaxed(shape)
        elif len(shape.servers) > 1 and not self.large:
            seconds = self._without_paths(data, shape, solution)
        return max(seconds, self._exchanging(shape, solution.seconds)) if self.large else seconds

    def relaxed(self, shape: Shape) -> float:
        """Return the bound of a shape whatever the sharding: that of the group's placement if servers answer for free."""
        if self.large or shares_machine(shape) or self.interrupted or self.deadline.passed:
            return shape.bound_seconds
        data = Contracted(self.bounds.relaxed(shape, self.bounds.least_cuts(shape)))
        solution = solve_group(data, self.limits(shape), self.bounds.group_seconds(shape))
        self.bounds.learn(shape, solution.bound_seconds)
        self.interrupted = solution.interrupted
        return max(shape.bound_seconds, solution.bound_seconds)

    def _without_paths(self, data: Contracted, shape: Shape, solution: GroupSolution) -> float:
        """Return what loads alone prove, or the relaxed problem if that is less than was proven for these shards."""
        least = shape.bound_seconds
        if not (self.interrupted or self.deadline.passed):
            problem = replace(data.problem, open_codecs=self.offers)
            try:
                least = max(least, load_seconds(Contracted(problem), solution.bound_seconds, self.limits(shape)))
            except KeyboardInterrupt:
                self.interrupted = True
        if least >= solution.bound_seconds * (1 - PRECISION):
            return least
        return max(least, min(solution.bound_seconds, self.relaxed(shape)))

    def _exchanging(self, shape: Shape, limit_seconds: float) -> float:
        """Return the bound of a shape with large like groups, none of which takes longer than a limit."""
        if not shares_machine(shape) and not self.bounds.knows(shape):
            data = Contracted(self.bounds.relaxed(shape, self.bounds.least_cuts(shape)))
            self.bounds.learn(shape, least_step(data, limit_seconds, self.deadline.share(PROOF)))
        return self.bounds.raised(shape).bound_seconds
