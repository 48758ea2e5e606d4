"""Bounds of shapes: how fast a shape could be at best, without placing anything.

A relaxation: work spread perfectly over the group's cores and memory, what every rank must do itself, the embedding
traffic, the servers, and the longest path of the graph. No placement of the shape is faster, so a shape whose bound is
below a plan in hand is never solved.

Equal tables are bounded jointly with their sharding: less work on a server means more cuts (``cuts``), and each cut is
one more request (and one more whole answer, where columns cannot be cut). A sharding with k cuts loads some server with at
least v(k) tables' work and every rank with k more shards, so the bounds of the leaves (v(k), k) together bound all. Unlike
tables are bounded jointly with their sharding by the level below which they need more shards (``shard_bounds.ShardCurve``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cost_models.costs import CostTable, PhaseCost
from cost_models.memory import pooled_bytes
from cost_models.routing import each_ids_bytes, least_ids_bytes
from placement.evaluation.group import GroupProblem
from placement.evaluation.pull_costs import pull_links, pull_terms, unhurried
from placement.evaluation.wires import Wires
from placement.plan import Tag
from placement.search.cycle import cycle_seconds, session_seconds
from placement.search.shapes import Shape, Side
from placement.tables.cuts import candidates, cut_count, fewest_cuts
from placement.tables.pieces import UNIT
from placement.tables.shard_bounds import ShardCurve, TableNeeds, sharding_bound
from placement.tables.shard_state import Sharding
from placement.tables.table_rules import NO_RULES, TableRules
from placement.tagging.candidates import Forbid, forbidden_tags
from placement.tagging.exchange_bound import Exchange, least_exchange
from placement.tagging.nets import RANK, Contracted
from problem.cluster import Node
from problem.model import EmbeddingTable, Model

#: Most servers for which a table's shards are counted; a level that needs more is not bounded further.
MOST_SHARDS = 512
#: Relative precision of bounds that are found by bisection: rounding down is what keeps them valid.
FINE = 1e-4
#: What a rank pulls at least: messages each way, bytes of ids, bytes of pooled rows.
Pull = tuple[int, int, int]


class Bounds:
    """Bounds of the shapes of one job.

    Parameters
    ----------
    model : Model
        What is trained.
    costs : CostTable
        Costs for the batch.
    batch, hogwild : int
        Samples per thread, threads per rank.
    pins : Mapping of str to Tag
        By operator.
    local : bool
        Whether all machines are on one host.
    all_used : bool
        Whether every server of a shape may be taken to hold shards: fewer used servers are another shape.
    rules : TableRules
        What the user demands of tables.
    wires : Wires, optional
        What messages take, with every codec open that the solver may choose.
    forbids : iterable of Forbid
        What operators may not have.
    """

    def __init__(
        self,
        model: Model,
        costs: CostTable,
        batch: int,
        hogwild: int,
        pins: Mapping[str, Tag],
        *,
        local: bool,
        all_used: bool = True,
        rules: TableRules = NO_RULES,
        wires: Wires | None = None,
        forbids: Iterable[Forbid] = (),
    ) -> None:
        self.wires = wires or Wires(model.graph, batch, {}, {})
        self.all_used = all_used
        self.model, self.costs, self.batch, self.hogwild, self.local = model, costs, batch, hogwild, local
        self.pins, self.forbids = pins, tuple(forbids)
        self.rules = rules
        self.equal_tables = (
            not rules and not model.shared and len({replace(table, name="") for table in model.tables}) == 1
        )
        self._server_bound: dict[tuple[str, ...], float] = {}
        self.proven: dict[object, list[tuple[Pull, float]]] = {}
        self._parts_of: dict[tuple[int, int], npt.NDArray[np.int64]] = {}
        self._least_pulls: dict[tuple[int, int, int], tuple[int, float, float]] = {}
        self._curves: dict[tuple[float, ...], ShardCurve] = {}
        readers = [model.readers[table.name] for table in model.tables]
        self._ids, self._more_ids, self._pooled = (
            np.array([sum(size(f, batch) for f in r) for r in readers], np.int64)
            for size in (least_ids_bytes, each_ids_bytes, self._pooled_bytes)
        )
        self._pulled_whole = int(self._ids.sum()), int(self._pooled.sum())
        self._cut_by_columns = np.array([table.dim >= 2 * UNIT for table in model.tables], bool)

    def order(self, shape: Shape) -> tuple[float, int, int, int]:
        """Sort key of shapes: most promising first, then fewest machines, then smallest groups, then most ranks."""
        return -self.rate(shape), shape.machines, shape.group_size, -shape.ranks

    def rate(self, shape: Shape) -> float:
        """Samples per second that a shape cannot exceed."""
        return self._samples(shape) / shape.bound_seconds if shape.bound_seconds else float("inf")

    def seconds_at(self, shape: Shape, rate: float) -> float:
        """Seconds of a step of a shape that does so many samples per second; 0 for infinitely many."""
        return self._samples(shape) / rate if rate else float("inf")

    def _samples(self, shape: Shape) -> int:
        """Samples of a step of all groups."""
        return len(shape.groups) * shape.ranks * self.batch

    def quick(self, shape: Shape) -> Shape:
        """Return the shape with its quick bound."""
        return replace(shape, bound_seconds=max(self.server_seconds(shape), self.group_seconds(shape)))

    # ---- shapes with their cuts

    def refine(self, shape: Shape) -> Shape:
        """Return the shape with the number of cuts that balances servers and ranks best, and its bound."""
        if not shape.servers or shares_machine(shape):
            return replace(shape, refined=True)
        if not self.equal_tables:
            return replace(shape, bound_seconds=self._level(shape), refined=True)
        values = candidates(len(self.model.tables), len(shape.servers))
        first = bisect_left(values, True, key=lambda v: self._served(shape, v) >= self._pulled(shape, v))
        leaves = (self._leaf(shape, values[i], "both") for i in (first - 1, first) if 0 <= i < len(values))
        best = min(leaves, key=lambda leaf: leaf.bound_seconds)
        return replace(best, bound_seconds=max(best.bound_seconds, shape.bound_seconds))

    def siblings(self, leaf: Shape) -> Iterator[Shape]:
        """Yield the leaves next to a leaf: with fewer cuts, with more cuts."""
        if leaf.per_server is None:
            return
        tables, servers = len(self.model.tables), len(leaf.servers)
        values, cuts = candidates(tables, servers), self._cuts(leaf, leaf.per_server)
        if leaf.side != "more":
            fewer = bisect_left(values, True, key=lambda v: self._cuts(leaf, v) < cuts)
            if fewer < len(values):
                yield self._leaf(leaf, values[fewer], "fewer")
        if leaf.side != "fewer":
            more = bisect_left(values, True, key=lambda v: self._cuts(leaf, v) <= cuts) - 1
            if more >= 0:
                yield self._leaf(leaf, values[more], "more")

    def _leaf(self, shape: Shape, per_server: float, side: Side) -> Shape:
        """The shape with as many cuts as ``per_server`` needs, and the least work on a server that they allow."""
        cuts = self._cuts(shape, per_server)
        values = candidates(len(self.model.tables), len(shape.servers))
        least = values[bisect_left(values, True, key=lambda v: self._cuts(shape, v) <= cuts)]
        quick = self.quick(shape).bound_seconds
        seconds = max(quick, self._served(shape, least), self._pulled(shape, least))
        return replace(shape, bound_seconds=seconds, per_server=least, side=side, refined=True)

    def fewest_shards(self, shape: Shape) -> int:
        """Return how many shards a shape needs at least, with the cuts that it stands for."""
        return max(len(self.model.tables) + self.least_cuts(shape), int(self._parts(shape).sum()))

    def _parts(self, shape: Shape) -> npt.NDArray[np.int64]:
        """Number of servers that the bytes of each table need at least, with a session's buffers on each of them."""
        largest = max((node.memory_bytes for node in shape.servers), default=1)
        sessions = len(shape.groups) * shape.ranks * self.hogwild
        if (largest, sessions) not in self._parts_of:
            self._parts_of[largest, sessions] = self._needs.fewest_shards(largest, sessions).astype(np.int64)
        return self._parts_of[largest, sessions].clip(1, max(1, len(shape.servers)))

    def _cuts(self, shape: Shape, per_server: float) -> float:
        parts = fewest_cuts(len(self.model.tables), len(shape.servers), per_server)
        return float("inf") if parts is None else cut_count(parts)

    def _served(self, shape: Shape, per_server: float) -> float:
        """Step of a server that does the work of ``per_server`` equal tables, if it is the fastest one."""
        cost = self.costs.tables[self.model.tables[0].name]
        work = cost.total
        one = min(
            max(
                work.core_seconds * self.costs.slowdown(node) / node.cores,
                work.traffic_bytes / node.memory_bandwidth_bytes_per_second,
            )
            for node in shape.servers
        )
        return per_server * one * shape.ranks * len(shape.groups)

    def _pulled(self, shape: Shape, per_server: float) -> float:
        """Step of the group, and of the servers' NICs, with the fewest cuts that allow ``per_server``."""
        cuts = self._cuts(shape, per_server)
        if cuts == float("inf"):
            return cuts
        table, step = self.model.tables[0], len(shape.groups) * shape.ranks
        fullest = -(-(len(self.model.tables) + int(cuts)) // len(shape.servers))
        whole = fullest if table.dim < 2 * UNIT else len(self.model.tables) / len(shape.servers)
        more = int(self._more_ids[0])
        spread = (self._pulled_whole[0] + cuts * more) / len(shape.servers)
        arriving = max(more * fullest, spread) + self._pooled_bytes(table, self.batch) * whole
        rate = float("inf") if self.local else max(node.nic_bytes_per_second for node in shape.servers)
        return max(self.group_seconds(shape, int(cuts)), step * arriving / rate)

    def _pooled_bytes(self, feature: EmbeddingTable, batch: int) -> int:
        """Bytes that the pooled rows of a feature, or their gradients, take at least."""
        return int(self.wires.least_part_bytes(pooled_bytes(feature, batch), feature.dim))

    # ---- relaxations

    @cached_property
    def work(self) -> tuple[PhaseCost, PhaseCost, float, float]:
        """One batch's work of all operators, of those that stay; core-seconds of the longest path, and of a session."""
        data = self._alone
        total = sum((work.work for work in data.work), PhaseCost())
        stay = [w.work for item, w in zip(data.items, data.work, strict=True) if data.item_of[item.ops[0]] == RANK]
        return total, sum(stay, PhaseCost()), cycle_seconds(data.problem), session_seconds(data.problem)

    @cached_property
    def _alone(self) -> Contracted:
        """The operators, without machines."""
        codecs, open_codecs = self.wires.codecs, self.wires.open
        problem = GroupProblem(self.model, self.costs, (), self.batch, pins=self.pins, codecs=codecs)
        return Contracted(replace(problem, open_codecs=open_codecs, forbids=forbidden_tags(self.forbids, (), 0)))

    @cached_property
    def exchange(self) -> Exchange:
        """What a group exchanges at least for each rank but one."""
        return least_exchange(self._alone)

    @cached_property
    def _needs(self) -> TableNeeds:
        """What tables ask of any server."""
        return TableNeeds(self._sharding(()))

    def _sharding(self, servers: tuple[Node, ...], rules: TableRules = NO_RULES) -> Sharding:
        """Servers without tables, whose pooled rows travel as small as any codec makes them."""
        share = self.wires.least_share
        args = self.model, self.batch, servers, self.costs, 1
        return Sharding(*args, local=self.local, rules=rules, columns=True, pooled_share=share)

    def group_seconds(self, shape: Shape, cuts: int = 0, more_ids_bytes: int = 0) -> float:
        """Return a lower bound of the step of the first group, with some more shards, or bytes of ids, than tables have.

        Of unlike groups, the mean step: the harmonic one, as rates add up.
        """
        if shape.mixed:
            alone = [replace(shape, groups=(group,), mixed=False) for group in shape.groups]
            seconds = [self.group_seconds(one, cuts, more_ids_bytes) for one in alone]
            return len(seconds) / sum(1 / s for s in seconds) if all(seconds) else 0.0
        (total, stay, path, session), group, others = self.work, shape.groups[0], shape.ranks - 1
        own, moved = (0.0, 0.0) if shares_machine(shape) else self.pulls(shape, cuts, more_ids_bytes)
        slow = [self.costs.slowdown(node) for node in group]
        cores = sum(node.cores / s for node, s in zip(group, slow, strict=True))
        bandwidth = sum(node.memory_bandwidth_bytes_per_second for node in group)
        least = [(own + stay.core_seconds) * s / n.cores for n, s in zip(group[: shape.ranks], slow, strict=False)]
        hosts, served = {node.host for node in group}, {node.host for node in shape.servers}
        nic = [moved / node.nic_bytes_per_second for node in group[: shape.ranks] if moved and node.host not in served]
        sent = (0.0 if hosts & served else shape.ranks * moved) + others * self.exchange.sent_bytes
        if others and len(hosts) == len(group):
            nic.append(sent / sum(node.nic_bytes_per_second for node in group))
        return max(
            (shape.ranks * (own + total.core_seconds) + others * self.exchange.core_seconds) / cores,
            shape.ranks * total.traffic_bytes / bandwidth,
            *least,
            *nic,
            path * min(slow) / self.hogwild,
            session / sum(1 / s for s in slow) / self.hogwild,
        )

    def _level(self, shape: Shape) -> float:
        """Least step of servers and group together: the faster the servers, the more shards, and the more ranks send."""
        steps, curve, low = len(shape.groups) * shape.ranks, self._curve(shape), shape.bound_seconds

        def group(seconds: float) -> float:
            return self.group_seconds(shape, more_ids_bytes=curve.more_ids_bytes(seconds / steps))

        high = group(low)
        while high - low > FINE * low:
            middle = (low + high) / 2
            low, high = (middle, high) if group(middle) > middle else (low, middle)
        return low

    def _curve(self, shape: Shape) -> ShardCurve:
        """How the tables' shards depend on the load of servers as fast as the fastest."""
        state = Sharding(self.model, self.batch, shape.servers, self.costs, 1, local=self.local)
        fastest = state.rates.max(axis=0)
        key = tuple(fastest.tolist())
        if key not in self._curves:
            self._curves[key] = ShardCurve(self._needs, fastest, self._more_ids, MOST_SHARDS)
        return self._curves[key]

    def pulls(self, shape: Shape, cuts: int, more_ids_bytes: int = 0) -> tuple[float, float]:
        """Return the core-seconds of a rank's fixed work, and bytes on its NIC if it shares no host with a server."""
        core, tx, rx = self._pull_terms @ np.array([1.0, *self._pull(shape, cuts, more_ids_bytes)])
        return float(core), float(max(tx, rx))

    @cached_property
    def _pull_terms(self) -> npt.NDArray[np.float64]:
        return pull_terms(self.model, self.costs, self.batch)

    def relaxed(self, shape: Shape, cuts: int = 0) -> GroupProblem:
        """Return a group's problem that no sharding of a shape makes harder.

        The servers answer for free, with as many messages as servers and as many bytes as shards.

        Parameters
        ----------
        shape : Shape
            The shape.
        cuts : int
            How many more shards than tables there are at least.
        """
        count, ids, pooled = self._pull(shape, cuts)
        links = pull_links(self.model, [unhurried(node) for node in shape.servers[:count]], ids, pooled)
        return GroupProblem(
            replace(self.model, tables=(), shared=()),
            self.costs,
            shape.groups[0],
            self.batch,
            self.hogwild,
            shape.ranks,
            self.pins,
            links,
            codecs=self.wires.inside(self.wires.codecs),
            open_codecs=self.wires.inside(self.wires.open),
            forbids=forbidden_tags(self.forbids, shape.groups, shape.ranks),
        )

    def _pull(self, shape: Shape, cuts: int, more_ids_bytes: int = 0) -> Pull:
        """Every shard takes all ids of its table, or its own; pooled rows come once, or with every shard of few columns."""
        (parts, ids, pooled), more = self._pulled_at_least(shape), cuts / max(1, len(self.model.tables))
        ids = max(ids, self._pulled_whole[0] + more * int(self._more_ids.sum()) + more_ids_bytes)
        if self.equal_tables and self.model.tables[0].dim < 2 * UNIT:
            pooled = max(pooled, (1 + more) * self._pulled_whole[1])
        shards = max(parts, len(self.model.tables) + cuts)
        count = max(1, min(len(shape.servers), shards)) if self.all_used or not shape.servers else 1
        return count, int(ids), int(pooled)

    def _pulled_at_least(self, shape: Shape) -> tuple[int, float, float]:
        """Shards that memory makes necessary, and the bytes of ids and of pooled rows that come with them."""
        sessions = len(shape.groups) * shape.ranks * self.hogwild
        key = max((node.memory_bytes for node in shape.servers), default=1), sessions, len(shape.servers)
        if key not in self._least_pulls:
            parts = self._parts(shape)
            pooled = np.where(self._cut_by_columns, 1, parts) @ self._pooled
            ids = self._ids.sum() + (parts - 1) @ self._more_ids
            self._least_pulls[key] = int(parts.sum()), float(ids), float(pooled)
        return self._least_pulls[key]

    # ---- what was proven

    def least_cuts(self, shape: Shape) -> int:
        """Return how many cuts a shape stands for at least, besides those that memory forces."""
        return int(self._cuts(shape, shape.per_server)) if shape.per_server else 0

    def knows(self, shape: Shape) -> bool:
        """Whether a relaxed problem of such a group was solved."""
        return _group_kind(shape) in self.proven

    def learn(self, shape: Shape, seconds: float) -> None:
        """Remember what was proven for the relaxed problem of a shape: it holds wherever no less is pulled."""
        pull = self._pull(shape, self.least_cuts(shape))
        self.proven.setdefault(_group_kind(shape), []).append((pull, seconds))

    def raised(self, shape: Shape) -> Shape:
        """Return the shape with its bound raised to what was proven for relaxed problems that are no harder."""
        apart = not shape.mixed and not shares_machine(shape)
        known = self.proven.get(_group_kind(shape), ()) if apart else ()
        pull = self._pull(shape, self.least_cuts(shape)) if known else (0, 0, 0)
        proven = [s for least, s in known if all(a <= b for a, b in zip(least, pull, strict=True))]
        return replace(shape, bound_seconds=max([shape.bound_seconds, *proven])) if proven else shape

    def server_seconds(self, shape: Shape, rules: TableRules | None = None) -> float:
        """Return a lower bound of the busiest embedding server's step, under some rules of tables or those of the job."""
        names = tuple(node.name for node in shape.servers)
        if names and names not in self._server_bound:
            self._server_bound[names] = sharding_bound(self._sharding(shape.servers, rules or self.rules), self._needs)
        return self._server_bound.get(names, 0.0) * len(shape.groups) * shape.ranks


def _group_kind(shape: Shape) -> object:
    """What two shapes have in common if a placement of the first group is worth the same in both."""
    return shape.ranks, tuple(replace(node, name="", host="") for node in shape.groups[0])


def shares_machine(shape: Shape) -> bool:
    """Whether a server is one of the group's nodes (a cluster of one machine)."""
    return bool({n.name for n in shape.servers} & {n.name for group in shape.groups for n in group})
