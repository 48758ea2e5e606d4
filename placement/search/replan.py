"""Starting from an earlier plan: who held what, what a new plan has to move, and how to keep things where they are.

Moved are rows of tables with their optimizer state, and parameters and state of operators, that a machine holds in the
new plan and did not hold in the earlier one; machines are told apart by name. Centres on sync servers are not counted:
groups bring them back with their next exchange. Knows no times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from cost_models.memory import resident_bytes
from placement.plan import DP, Plan, Shard, Tag
from placement.search.demands import broken
from placement.search.options import MAX_REPLICAS, SolveOptions
from placement.search.shapes import Shape
from placement.tables.table_rules import TableRules
from placement.tagging.nets import Contracted
from problem.cluster import Node
from problem.errors import BadInput
from problem.graph import Kind
from problem.model import Model

#: Rows of a table, begin and end, on a machine.
Rows = tuple[int, int]


@dataclass(frozen=True)
class Previous:
    """An earlier plan of the same model.

    Parameters
    ----------
    plan : Plan
        The plan.
    """

    plan: Plan

    @classmethod
    def of(cls, model: Model, plan: Plan | None) -> Previous | None:
        """Return an earlier plan of a model; None if there is none.

        Raises
        ------
        BadInput
            When it is a plan of another model: the first operator or table that differs is named.
        """
        if plan is not None:
            check_model(plan, model, "warm start")
        return cls(plan) if plan is not None else None

    def completed(self, options: SolveOptions) -> SolveOptions:
        """Return options with the plan's batch and threads where the user gave none, and at least as many replicas."""
        plan, most = self.plan, options.max_replicas or max(MAX_REPLICAS, len(self.plan.groups))
        return replace(
            options, batch=options.batch or plan.batch, hogwild=options.hogwild or plan.hogwild, max_replicas=most
        )

    def form(self, size: int) -> tuple[int, int] | None:
        """Return the plan's ranks a group and its number of groups, if its groups are of a size."""
        return (self.plan.ranks, len(self.plan.groups)) if size == self.plan.group_size else None

    def usable(self, options: SolveOptions, rules: TableRules, nodes: Sequence[Node]) -> bool:
        """Whether a plan of these machines that the options allow may be this one, as it stands.

        Parameters
        ----------
        options : SolveOptions
            What the user decided, completed; pins and what is forbidden by operator.
        rules : TableRules
            What the user demands of tables.
        nodes : sequence of Node
            Machines of the cluster.
        """
        plan, known = self.plan, {node.name: node for node in nodes}
        used = (*plan.servers, *plan.sync_servers, *(node for group in plan.groups for node in group))
        wanted = (
            (options.group_size, plan.group_size),
            (options.fixed_ranks, plan.ranks),
            (options.servers, len(plan.servers)),
            (options.sync_servers if len(plan.groups) > 1 else None, len(plan.sync_servers)),
        )
        return (
            all(known.get(node.name) == node for node in used)
            and all(want in (None, had) for want, had in wanted)
            and len(plan.groups) <= options.most_groups
            and (len(plan.groups) == 1 or plan.ring == options.ring)
            and (options.batch or plan.batch) * (options.hogwild or plan.hogwild) * plan.ranks * len(plan.groups)
            <= (options.max_elp or float("inf"))
            and not broken(plan, options, rules)
        )

    @property
    def shape(self) -> Shape:
        """The plan's use of the cluster."""
        plan = self.plan
        return Shape(plan.group_size, plan.groups, plan.servers, plan.sync_servers, plan.ranks, refined=True)

    @cached_property
    def rows(self) -> Mapping[tuple[str, str], Rows]:
        """Rows by table and machine, of tables whose columns are together."""
        found: dict[tuple[str, str], Rows] = {}
        for shard in (shard for shard in self.plan.shards if shard.columns is None):
            key = (shard.table, self.plan.servers[shard.server].name)
            begin, end = found.get(key, (shard.row_begin, shard.row_end))
            found[key] = min(begin, shard.row_begin), max(end, shard.row_end)
        return found

    @cached_property
    def shards_on(self) -> Mapping[tuple[str, str], tuple[Shard, ...]]:
        """Shards by table and machine."""
        found: dict[tuple[str, str], tuple[Shard, ...]] = {}
        for shard in self.plan.shards:
            key = (shard.table, self.plan.servers[shard.server].name)
            found[key] = (*found.get(key, ()), shard)
        return found

    @cached_property
    def operators(self) -> frozenset[tuple[str, str]]:
        """Operators by name and machine."""
        plan = self.plan
        return frozenset(
            (name, node.name)
            for group in plan.groups
            for name, tag in plan.tags.items()
            for node in (group[: plan.ranks] if tag == DP else (group[int(tag)],))
        )

    # ---- order of machines

    def trainers(self, nodes: Sequence[Node]) -> list[Node]:
        """Return machines in the order of the earlier groups; others fill the gaps; groups with gaps come last."""
        waiting = {node.name: node for node in nodes}
        groups = [[waiting.pop(node.name, None) for node in group] for group in self.plan.groups]
        serving = {node.name for node in (*self.plan.servers, *self.plan.sync_servers)}
        spare = sorted(waiting.values(), key=lambda node: node.name in serving)
        for group in groups:
            for place, node in enumerate(group):
                if node is None and spare and spare[0].name not in serving:
                    group[place] = spare.pop(0)
        ordered = [node for group in sorted(groups, key=lambda g: None in g) for node in group if node is not None]
        return ordered + spare

    def hosts(self, nodes: Sequence[Node]) -> list[Node]:
        """Return machines in the order of the earlier embedding and sync servers, then those that did not train."""
        position = {node.name: i for i, node in enumerate((*self.plan.servers, *self.plan.sync_servers))}
        training = {node.name for group in self.plan.groups for node in group}
        return sorted(nodes, key=lambda n: (position.get(n.name, len(position)), n.name in training))

    # ---- tables

    def held(self, servers: Sequence[Node]) -> dict[str, tuple[Shard, ...]]:
        """Return the shards of each table that are on servers which are still there, by their new numbers."""
        number = {node.name: i for i, node in enumerate(servers)}
        found: dict[str, tuple[Shard, ...]] = {}
        for (table, machine), shards in self.shards_on.items():
            here = tuple(replace(shard, server=number[machine]) for shard in shards if machine in number and shard.rows)
            found[table] = (*found.get(table, ()), *here)
        return found

    def aligned(self, servers: Sequence[Node], shards: Sequence[Shard]) -> tuple[Shard, ...]:
        """Return shards of the same sizes on the same servers, the rows so ordered that most stay where they are.

        Tables whose columns are cut are left as they are.
        """
        of: dict[str, list[Shard]] = {}
        for shard in shards:
            of.setdefault(shard.table, []).append(shard)
        found: list[Shard] = []
        for table, parts in of.items():
            begin = 0
            if any(shard.columns for shard in parts):
                found += parts
                continue
            for shard in self._in_order(table, parts, servers):
                found.append(Shard(table, shard.server, begin, begin + shard.rows))
                begin += shard.rows
        return tuple(found)

    def _in_order(self, table: str, parts: list[Shard], servers: Sequence[Node]) -> list[Shard]:
        """Servers by their earlier rows; a new one takes the place of one that is gone."""
        kept = {servers[shard.server].name for shard in parts}
        gone = sorted(rows[0] for (name, machine), rows in self.rows.items() if name == table and machine not in kept)
        begins: dict[int, int] = {}
        for shard in parts:
            rows = self.rows.get((table, servers[shard.server].name))
            begins[shard.server] = rows[0] if rows else gone.pop(0) if gone else self.plan.model.table[table].rows
        return sorted(parts, key=lambda shard: (begins[shard.server], shard.server))

    def moved_rows_bytes(self, servers: Sequence[Node], shards: Sequence[Shard]) -> int:
        """Return the bytes of rows, with their state, that are on a server which did not hold them."""
        return sum(self._moved(shard, servers[shard.server].name) for shard in shards)

    def _moved(self, shard: Shard, machine: str) -> int:
        table = self.plan.model.table[shard.table]
        total, (begin, end) = shard.bytes(table), shard.span(table)
        for held in self.shards_on.get((shard.table, machine), ()):
            first, last = held.span(table)
            rows = max(0, min(held.row_end, shard.row_end) - max(held.row_begin, shard.row_begin))
            width = max(0, min(end, last) - max(begin, first))
            total -= rows * table.row_bytes(width) if width else 0
        return total

    # ---- operators

    def moved_operators_bytes(self, groups: Sequence[Sequence[Node]], ranks: int, tags: Mapping[str, Tag]) -> int:
        """Return the bytes of operators that are on a machine which did not hold them."""
        model, total = self.plan.model, 0
        for name, tag in tags.items():
            size = resident_bytes(model.graph[name], model)
            for group in groups if size else ():
                held_by = group[:ranks] if tag == DP else (group[int(tag)],)
                total += size * sum((name, node.name) not in self.operators for node in held_by)
        return total

    def tags_for(self, contracted: Contracted) -> dict[str, Tag] | None:
        """Return the earlier tags for a group, what is pinned or forbidden respected; None if a node is not in it."""
        tags = {name: contracted.problem.pins.get(name, tag) for name, tag in self.plan.tags.items()}
        fixed = {op: item.fixed for item in contracted.items for op in item.ops if item.fixed is not None}
        tags = {name: fixed.get(name, tag) for name, tag in tags.items()}
        if any(tag != DP and int(tag) >= contracted.problem.size for tag in tags.values()):
            return None
        near = {op: contracted.nearest(i, tags[op]) for i in contracted.free for op in contracted.items[i].ops}
        return tags | near

    def like(self, contracted: Contracted, tags: dict[str, Tag]) -> dict[str, Tag]:
        """Return an equal placement in which equal nodes host what they hosted before, as far as they can."""
        problem, model = contracted.problem, contracted.problem.model
        open_ = [op for i in contracted.free for op in contracted.items[i].ops]
        renamed: dict[Tag, Tag] = {}
        for members in contracted.node_classes:
            nodes = [node for node in members if node or problem.ranks > 1]
            common: dict[tuple[Tag, Tag], int] = {}
            for op in open_:
                if tags[op] in nodes and self.plan.tags.get(op) in nodes:
                    pair = (tags[op], self.plan.tags[op])
                    common[pair] = common.get(pair, 0) + resident_bytes(model.graph[op], model)
            renamed |= _matched(nodes, common)
        return tags | {op: renamed.get(tags[op], tags[op]) for op in open_}


def check_model(plan: Plan, model: Model, source: str | Path) -> None:
    """Refuse an earlier plan of another model.

    Parameters
    ----------
    plan : Plan
        The earlier plan.
    model : Model
        What is trained now.
    source : str or Path
        File of the plan, or what else it is called.

    Raises
    ------
    BadInput
        When operators or tables differ; the first one is named.
    """
    for what, mine, theirs in (
        ("operators", [op.name for op in model.graph], [op.name for op in plan.model.graph]),
        ("tables", list(model.feature.values()), list(plan.model.feature.values())),
    ):
        if mine != theirs:
            different = next((b for a, b in zip(mine, theirs, strict=False) if a != b), len(theirs))
            raise BadInput(source, what, different, f"those of {model.name}: a plan of the same model")


def _matched(nodes: list[int], common: Mapping[tuple[Tag, Tag], int]) -> dict[Tag, Tag]:
    """Give each node the earlier node with which it has most in common, greedily; the rest in order."""
    renamed: dict[Tag, Tag] = {}
    for (new, old), _ in sorted(common.items(), key=lambda row: (-row[1], row[0])):
        if new not in renamed and old not in renamed.values():
            renamed[new] = old
    left = [node for node in nodes if node not in renamed.values()]
    renamed.update(zip([node for node in nodes if node not in renamed], left, strict=True))
    return renamed


def moved_bytes(old: Plan, new: Plan) -> int:
    """Return the bytes of parameters and optimizer state that a new plan has to move.

    Parameters
    ----------
    old, new : Plan
        Plans of one model.
    """
    previous = Previous(old)
    tags = {name: tag for name, tag in new.tags.items() if new.model.graph[name].kind is not Kind.LOOKUP}
    moved = previous.moved_operators_bytes(new.groups, new.ranks, tags)
    return moved + previous.moved_rows_bytes(new.servers, new.shards)
