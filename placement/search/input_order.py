"""Inputs in an order of their own, so that the order in which a file lists tables, features or machines changes nothing.

Operators keep theirs: programs run them in it. Ties of a search go to what comes first, so what comes first must depend on
names alone.
"""

from __future__ import annotations

from dataclasses import replace

from placement.plan import Plan
from problem.cluster import Cluster
from problem.model import Model
from problem.ordering import natural


def ordered_model(model: Model) -> Model:
    """Return a model with its tables and further features by name."""
    tables, shared = (tuple(sorted(of, key=lambda one: natural(one.name))) for of in (model.tables, model.shared))
    return model if (tables, shared) == (model.tables, model.shared) else replace(model, tables=tables, shared=shared)


def ordered_cluster(cluster: Cluster) -> Cluster:
    """Return a cluster with its machines by name."""
    return replace(cluster, nodes=tuple(sorted(cluster.nodes, key=lambda node: natural(node.name))))


def ordered_plan(plan: Plan | None) -> Plan | None:
    """Return a plan, if there is one, of the ordered model."""
    return plan and replace(plan, model=ordered_model(plan.model))
