"""Judging proposals in all groups of a shape: what they are worth, what they would move, and which one is best.

Knows evaluated placements and an earlier plan; proposes none but those that are there at once, to sample a shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from placement.deadline import Deadline
from placement.evaluation.evaluate import Evaluation, evaluate_timed, evaluation_of
from placement.evaluation.group import GroupProblem
from placement.plan import Shard, Tag
from placement.search.outcome import Kinds, Solved, coded, distinct, evaluations, job_value
from placement.search.replan import Previous
from placement.search.shapes import Shape
from placement.tagging.baselines import data_parallel
from placement.tagging.nets import Contracted
from placement.tagging.solve import CLUSTERS, GroupSolution, clustered

#: Plans of a shape that are remembered for the orders of their operators, at most.
MOST_RIVALS = 10
#: Share of a shape's bound below which all operators data-parallel say little about what it is worth.
FAR = 0.8


class Judge:
    """Remembers the best placement of shapes.

    Parameters
    ----------
    batch : int
        Samples per thread and step.
    previous : Previous or None
        An earlier plan, from which bytes are moved.
    movement_seconds_per_byte : float
        What moving a byte costs, in seconds of a step.
    deadline : Deadline
        After which nothing is judged any more, once there is a plan.
    """

    def __init__(
        self, batch: int, previous: Previous | None, movement_seconds_per_byte: float, deadline: Deadline
    ) -> None:
        self.batch, self.previous, self.deadline = batch, previous, deadline
        self.movement_seconds_per_byte, self.needed = movement_seconds_per_byte, True

    def collect(self, found: Solved, kinds: Kinds, solution: GroupSolution) -> None:
        """Judge the proposals of one group in all groups: its best tags, then its baselines."""
        if solution.tags is not None and solution.evaluation is not None:
            self.offer(found, coded(kinds, solution.codecs), "", solution.tags, solution.evaluation)
        for baseline in solution.baselines:
            self.offer(found, kinds, baseline.name, baseline.tags, baseline.evaluation)

    def offer(self, found: Solved, kinds: Kinds, name: str, tags: Mapping[str, Tag], evaluation: Evaluation) -> None:
        """Judge tags in all groups of a shape; remember them if they are its best, and what a baseline is worth.

        Parameters
        ----------
        found : Solved
            The shape.
        kinds : Kinds
            Its unlike groups.
        name : str
            Of a baseline; empty for other proposals.
        tags : Mapping of str to Tag
            The proposal.
        evaluation : Evaluation
            Of it in the only group, if all are alike.
        """
        needs = evaluations(kinds, tags)
        if needs and not self.needed and not self.deadline.allows(*needs):
            return
        value, reason = job_value(kinds, tags, evaluation, self.deadline)
        if name and (name not in found.baselines or (value or 0.0) > (found.baselines[name][0] or 0.0)):
            found.baselines[name] = (value, reason)
        if value is None:
            return
        shape, moved = found.shape, self._moved(found, tags)
        samples = len(shape.groups) * shape.ranks * self.batch
        charge = self.movement_seconds_per_byte * moved
        score = samples / (samples / value + charge) if charge else value
        codecs = kinds[0][0].codecs
        offered = replace(found, tags=tags, value=value, score=score, moved=moved, codecs=codecs, rivals=[])
        if evaluation.waits and all(one.tags != tags for one in found.rivals):
            found.rivals = sorted([*found.rivals, offered], key=lambda one: -one.score)[:MOST_RIVALS]
        if found.tags is None or offered.better_than(found):
            found.tags, found.value, found.score, found.moved, found.codecs = tags, value, score, moved, codecs

    def worth(
        self, problem: GroupProblem, tags: Mapping[str, Tag], shape: Shape, shards: tuple[Shard, ...]
    ) -> tuple[float, float]:
        """Return the seconds of a step with some shards, what must be moved being charged for; and the bytes moved.

        Parameters
        ----------
        problem : GroupProblem
            A group with those shards.
        tags : Mapping of str to Tag
            Of its operators.
        shape : Shape
            The machines.
        shards : tuple of Shard
            Parts of the tables.
        """
        seconds, moved = evaluate_timed(problem, tags, self.deadline).seconds, 0
        if self.previous:
            moved = self.previous.moved_rows_bytes(shape.servers, self.previous.aligned(shape.servers, shards))
        return seconds + self.movement_seconds_per_byte * moved, moved

    def sample(self, found: Solved) -> Solved:
        """Judge what is found at once in a shape: all operators data-parallel, and if that is far from its bound, clusters.

        Parameters
        ----------
        found : Solved
            The shape with its bound; it keeps what is better, and is returned.
        """
        data, kinds = Contracted(found.problems[0]), distinct(found.problems)
        if data.barred:  # told when the shape is solved
            return found
        first = data_parallel(data, self.deadline)
        self.offer(found, kinds, first.name, first.tags, first.evaluation)
        if found.value < FAR * found.bound and self.deadline.allows(evaluation_of(data.problem)):
            second = clustered(data, CLUSTERS, self.deadline)
            self.offer(found, kinds, second.name, second.tags, second.evaluation)
        return found

    def _moved(self, found: Solved, tags: Mapping[str, Tag]) -> int:
        """Bytes that machines hold and did not hold in the earlier plan."""
        if self.previous is None:
            return 0
        shape = found.shape
        operators = self.previous.moved_operators_bytes(shape.groups, shape.ranks, tags)
        return operators + self.previous.moved_rows_bytes(shape.servers, found.shards)
