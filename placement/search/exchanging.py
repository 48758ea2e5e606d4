"""What large groups exchange at least, as a bound of shapes: the linear relaxation, once for all groups that are alike.

It is asked about servers that answer for free, so what it proves holds for every sharding, and for every shape with such
groups that pulls no less: ``bounds`` remembers it.
"""

from __future__ import annotations

from placement.deadline import Deadline
from placement.search.bounds import Bounds, shares_machine
from placement.search.shapes import Shape
from placement.tagging.branching import least_step
from placement.tagging.nets import Contracted
from placement.tagging.solve import PROOF


def exchanging_seconds(bounds: Bounds, shape: Shape, limit_seconds: float, deadline: Deadline) -> float:
    """Return a bound of the step of a shape with large groups that are all alike.

    Parameters
    ----------
    bounds : Bounds
        Of the job; it learns what is proven.
    shape : Shape
        The shape.
    limit_seconds : float
        The best step of it that is known.
    deadline : Deadline
        Of the search; a share of what is left may be taken (``solve.PROOF``).
    """
    if not shares_machine(shape) and not bounds.knows(shape):
        data = Contracted(bounds.relaxed(shape, bounds.least_cuts(shape)))
        bounds.learn(shape, least_step(data, limit_seconds, deadline.share(PROOF)))
    return bounds.raised(shape).bound_seconds
