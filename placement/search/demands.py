"""What the user demands of operators and tables, resolved against a model and its machines; and whether a plan keeps it.

Knows nothing of how a plan is found: :func:`broken` looks at nothing but the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from placement.plan import Plan, Shard
from placement.search.options import SolveOptions
from placement.tables.table_rules import TableRules, resolve_rules
from placement.tagging.candidates import forbidden_tags, resolve_forbids, resolve_pins
from problem.cluster import Cluster
from problem.model import Model


def resolved(model: Model, cluster: Cluster, options: SolveOptions) -> tuple[SolveOptions, TableRules]:
    """Return the options with pins and what is forbidden by operator, and the rules of tables.

    Parameters
    ----------
    model : Model
        Gives operators and tables.
    cluster : Cluster
        Gives the kinds of machines.
    options : SolveOptions
        What the user decided.

    Raises
    ------
    BadInput
        When a name matches nothing, or a tag, server or kind is none.
    ConstraintsConflict
        When demands contradict each other.
    """
    kinds = [node.kind for node in cluster.nodes]
    pins, forbids = resolve_forbids(model.graph, options.forbids, resolve_pins(model.graph, options.pins), kinds)
    demanded = options.table_pins, options.keep_together, options.keep_apart, options.table_forbids
    return replace(options, pins=pins, forbids=forbids), resolve_rules(model, *demanded, kinds)


def broken(plan: Plan, options: SolveOptions, rules: TableRules) -> str:
    """Return a sentence about a demand that a plan does not meet; an empty one if it meets all.

    Parameters
    ----------
    plan : Plan
        The plan.
    options : SolveOptions
        Pins and what is forbidden, by operator (:func:`resolved`).
    rules : TableRules
        Rules of tables.
    """
    return next(iter((*_tags(plan, options), *_tables(plan, rules), *_sets(plan, rules))), "")


def checked(plan: Plan, options: SolveOptions, rules: TableRules) -> Plan:
    """Return a plan that meets all demands: nothing that is found may be another one.

    Raises
    ------
    AssertionError
        With the demand; a fault of the search.
    """
    if fault := broken(plan, options, rules):
        raise AssertionError(f"{fault}; please report this")
    return plan


def _tags(plan: Plan, options: SolveOptions) -> Iterator[str]:
    for name, tag in options.pins.items():
        if plan.tags[name] != tag:
            yield f"operator {name!r} has tag {plan.tags[name]!r}, not {tag!r}"
    for name, tags in forbidden_tags(options.forbids, plan.groups, plan.ranks).items():
        if plan.tags[name] in tags:
            yield f"operator {name!r} has tag {plan.tags[name]!r}, which is forbidden"


def _tables(plan: Plan, rules: TableRules) -> Iterator[str]:
    """Faults of single tables."""
    of: dict[str, list[Shard]] = {name: [] for name in plan.model.table}
    for shard in (shard for shard in plan.shards if shard.rows):
        of[shard.table].append(shard)
    for table in plan.model.tables if rules else ():
        name, shards = table.name, of[table.name]
        at, barred = {shard.server for shard in shards}, rules.barred([table.name], plan.servers)
        if name in rules.pins and at != {rules.pins[name]}:
            yield f"table {name!r} is not whole on server {rules.pins[name]}"
        if any(barred[server] for server in at):
            yield f"table {name!r} is on a server that is forbidden"
        if rules.miscut(name, shards, table.rows):
            yield f"table {name!r} is cut in a way that is forbidden"


def _sets(plan: Plan, rules: TableRules) -> Iterator[str]:
    """Faults of tables that belong together, or apart."""
    at: dict[str, set[int]] = {name: set() for name in plan.model.table}
    for shard in (shard for shard in plan.shards if shard.rows):
        at[shard.table].add(shard.server)
    for tables in rules.together:
        if len(set().union(*(at[name] for name in tables))) != 1:
            yield f"tables {', '.join(tables)} are not together"
    for one, other in (pair for tables in rules.apart for pair in combinations(tables, 2)):
        if at[one] & at[other]:
            yield f"tables {one} and {other} are on one server"
