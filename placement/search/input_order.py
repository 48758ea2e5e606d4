"""Inputs in an order of their own, so that the order in which a file lists anything changes nothing.

Ties of a search go to what comes first, so what comes first must depend on names and links alone. Programs run operators in
the order of the graph, so a plan keeps that order; tables, features and machines go back to theirs.
"""

from __future__ import annotations

from dataclasses import replace

from placement.plan import Plan
from problem.cluster import Cluster
from problem.graph import Graph, Kind, Operator
from problem.model import Model
from problem.ordering import natural


def ordered_model(model: Model) -> Model:
    """Return a model with its tables and further features by name, and its operators in an order of their own."""
    tables, shared = (tuple(sorted(of, key=lambda one: natural(one.name))) for of in (model.tables, model.shared))
    return replace(model, tables=tables, shared=shared, graph=ordered_graph(model.graph))


def ordered_graph(graph: Graph) -> Graph:
    """Return a graph whose order depends on nothing but names and links: depth first from its ends.

    Ends are the operators that nothing consumes, by name; inputs come in the order in which an operator takes them. Those of
    imported (FIXED) operators have none that matters, and come by name.

    Parameters
    ----------
    graph : Graph
        The operators in any order.
    """
    ops = sorted(graph, key=lambda op: (bool(graph.consumers[op.name]), natural(op.name)))
    return Graph(tuple(replace(op, inputs=_named(op)) for op in ops))


def _named(op: Operator) -> tuple[str, ...]:
    return tuple(sorted(op.inputs, key=natural)) if op.kind is Kind.FIXED else op.inputs


def ordered_cluster(cluster: Cluster) -> Cluster:
    """Return a cluster with its machines by name."""
    return replace(cluster, nodes=tuple(sorted(cluster.nodes, key=lambda node: natural(node.name))))


def ordered_plan(plan: Plan | None) -> Plan | None:
    """Return a plan, if there is one, of the ordered model."""
    return plan and replace(plan, model=ordered_model(plan.model))
