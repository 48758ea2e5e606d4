"""Where cost tables come from: the roofline of a machine, or a profile of one.

Knows how to choose between the two; refuses to know which batch and which machine a search will ask for.
"""

from __future__ import annotations

from collections.abc import Callable

from cost_models.costs import CostTable
from cost_models.profile import Profile
from cost_models.profile_costs import profile_costs
from cost_models.roofline import roofline_costs
from problem.cluster import Node
from problem.model import Model

CostsFor = Callable[[int, Node], CostTable]
"""Gives the cost table of one model for a batch size on a machine."""


def cost_source(model: Model, profile: Profile | None = None, *, foreign_ok: bool = False) -> CostsFor:
    """Return what gives the costs of a model: measured if there is a profile, else the roofline of the machine.

    Parameters
    ----------
    model : Model
        What is trained.
    profile : Profile, optional
        Measured costs (:func:`cost_models.profile.load_profile`).
    foreign_ok : bool
        Whether a profile may be used for machines of another kind than the one it was measured on.

    Returns
    -------
    callable
        (samples per thread and step, machine) -> cost table; raises ``BadInput`` where the profile does not fit.
    """
    if profile is None:
        return lambda batch, node: roofline_costs(model, batch, node)
    return lambda batch, node: profile_costs(profile, model, batch, node, foreign_ok=foreign_ok)
