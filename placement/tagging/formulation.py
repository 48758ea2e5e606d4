"""The model, said before solving it.

Problem. Place the operators of a training graph on the K nodes of a group, some on one node (model-parallel, MP), some
replicated on all R ranks (data-parallel, DP), so that the busiest resource of any node, and the critical path over the
Hogwild threads, are as short as possible. In the literature: min-max device placement (Tarnawski et al., NeurIPS 2020,
"max-load" objective, non-contiguous) with replication, that is multi-resource assignment with hypergraph cut costs.
NP-hard already with one resource and no cuts (makespan on identical machines).

Sets
    I   items: components, or lone operators (``nets.Contracted``); LOOKUPs, inputs and the loss are the place RANK
    T   nets: tensors with one producer p(t) and consumers C(t)
    N   nodes 0..K-1 of the group; the first R are ranks. Equal nodes beyond the number of items never host: one row of
        ``rows`` stands for all of them
Data (seconds and bytes of one batch; ``cost_models``)
    w_i core-seconds, q_i bytes of memory traffic, g_i bytes of parameters, m_i bytes of memory (per copy and per session)
    b_t bytes and k_t number of tensors of a net; r_t = 1 if gradients travel back
    s_n slowdown, c_n cores, and the rates of memory and NIC of node n; F_n what rank n does whatever the tags
Variables
    dp_i        1 if item i is data-parallel
    on_in       1 if item i is on node n
    need_tn     1 if another item that consumes t is on node n (the item's own ``on`` if there is only one)
    any_tn      1 if need_tn, or n is a rank and a DP item consumes t
    from_dp_tn  dp_p(t) and need_tn: every other rank sends t to n
    far_tn      need_tn and not on_p(t)n: t comes from elsewhere, for the sessions of other ranks
    own_tn      not dp_p(t), not on_p(t)n, any_tn: t comes to the rank's own session on n from an MP node
    out_tn      messages of t that n sends forward; add_tn additions of partial gradients of t on n
    Z           seconds of a step, in units of 1 / ``scale`` of the best known step
Objective
    minimise Z; samples per second = R B / Z
Constraints
    (1) ``_assign``       each item is DP or on exactly one node
    (2) ``_pins``         pinned items, inputs and the loss have their tag; a component is one item; a tag that is
                          forbidden has no variable
    (3) ``_assign``       with R = 1, node 0 and DP are the same place: only DP is used where it is allowed
    (4) ``_order_nodes``  of equal nodes a later one hosts an item only if the one before hosts an earlier item
    (5) ``_needs``        need and any follow the consumers
    (6) ``_cuts``         from_dp, far, own: a cut net is paid once per (tensor, place), in either direction
    (7) ``_sends``        out: a DP producer sends from each rank, an MP producer from its node
    (8) ``_additions``    k consumers cost k - 1 additions, first where they are, then at the producer
    (9) ``_cores``        core-seconds over cores <= Z: work, messages, additions, all-reduce, sync
    (10) ``_bandwidth``   memory traffic over bandwidth <= Z
    (11) ``_nics``        bytes sent over NIC rate <= Z, bytes received over NIC rate <= Z, separately
    (12) ``_memory``      resident + H (buffers of a session) <= memory
    (13) ``ExchangeTerms`` (``exchange_terms``): a node exchanges with a sync server, or averages with the same node of other
                          groups, if it holds an operator that is exchanged there
    (14) ``LatencyModel`` (``latency_model``): lower bound of the critical path <= H Z

Numbers. Every coefficient is divided by the best known step, multiplied by ``scale`` and rounded DOWN, and one that is
larger than the best known step is cut off there. So the model never overstates a placement: its optimum is a valid
lower bound of the step, however far costs are apart. ``evaluate`` judges every placement that the solver proposes.
Rows whose NIC is shared with another node of the same host leave NIC traffic out, which is again a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil, floor
from typing import Any, Literal

from ortools.sat.python import cp_model

from placement.evaluation.loads import Tally, fixed_tally, server_seconds
from placement.plan import DP, Tag
from placement.tagging.exchange_terms import ExchangeTerms
from placement.tagging.latency_model import LatencyModel
from placement.tagging.net_variables import NetVariables
from placement.tagging.nets import RANK, Contracted

#: Units in which the best known step is counted: 8 digits are kept, and a sum of 1e9 terms stays below 2**63.
SCALE = 10**8
#: Bytes are scaled down only when a sum of them could pass 2**60.
BYTE_LIMIT = 2**60

Expr = Any  # a variable, an expression or an int: OR-tools' own union does not add up for type checkers
Term = tuple[float, Expr]
Paths = Literal["in order", "in any order", "left out"]


@dataclass(frozen=True, slots=True)
class Row:
    """A node of the group in the model, or a representative of equal nodes that never host.

    Parameters
    ----------
    node : int
        Index in the group.
    hosts : bool
        Whether MP items may be on it.
    copies : int
        Nodes it stands for.
    rank : bool
        Whether it reads data.
    """

    node: int
    hosts: bool
    copies: int
    rank: bool


class Formulation:
    """The integer program of one group.

    Parameters
    ----------
    contracted : Contracted
        The group problem.
    best_seconds : float
        Seconds of the best placement known; only placements at least as good are sought.
    objective : bool
        False: look at memory alone, (1)-(8) and (12).
    paths : {"in order", "in any order", "left out"}
        Whether (14) holds for the order of the graph, for every order in which operators may run, or is left out.
    """

    def __init__(
        self, contracted: Contracted, best_seconds: float, *, objective: bool = True, paths: Paths = "in order"
    ) -> None:
        self.data, self.problem = contracted, contracted.problem
        self.best_seconds = best_seconds
        self.model = cp_model.CpModel()
        self.z_limit = SCALE
        self.z = self.model.new_int_var(0, SCALE, "Z")
        self.ranks = self.problem.ranks
        self.dp: dict[int, Expr] = {RANK: 1}
        self.on: dict[tuple[int, int], Expr] = {}
        self._assign()
        self._pins()
        self._order_nodes()
        self.nets = [NetVariables(self, net, index) for index, net in enumerate(self.data.nets)]
        self.has_dp = self._has_dp()
        self.exchange = ExchangeTerms(self)
        self._memory()
        if objective:
            self._loads()
            if paths != "left out":
                LatencyModel(self, any_order=paths == "in any order").add()
            self.model.minimize(self.z)

    # ---- nodes and items

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Nodes of the model: of each class of equal nodes, as many hosts as there are open items, and one for the rest."""
        found: list[Row] = []
        for members in self.data.node_classes:
            hosts = min(len(members), len(self.data.free)) if len(members) > 1 else 1
            found += [Row(node, True, 1, node < self.ranks) for node in members[:hosts]]
            if hosts < len(members):
                found.append(Row(members[hosts], False, len(members) - hosts, members[hosts] < self.ranks))
        return tuple(sorted(found, key=lambda row: row.node))

    def _assign(self) -> None:
        """(1) Each item is DP or on exactly one node; (3) with one rank, on node 0 only where DP is forbidden."""
        for index, allowed in self.data.allowed.items():
            name = self.data.items[index].name
            self.dp[index] = self.model.new_bool_var(f"dp[{name}]") if DP in allowed else 0
            for node in (row.node for row in self.rows if row.hosts and row.node in allowed):
                self.on[index, node] = self.model.new_bool_var(f"on[{name},{node}]")
            places = [self._literal(index, tag) for tag in allowed if tag == DP or (index, tag) in self.on]
            self.model.add_exactly_one(places).with_name(f"(1) assign {name}")

    def _pins(self) -> None:
        """(2) Pinned items have their tag."""
        for index, item in enumerate(self.data.items):
            if item.fixed is not None:
                self.dp[index] = int(item.fixed == DP)
                if item.fixed != DP:
                    self.on[index, int(item.fixed)] = 1

    def _order_nodes(self) -> None:
        """(4) Of equal nodes a later one hosts an item only if the one before hosts an earlier item."""
        hosting = {row.node for row in self.rows if row.hosts}
        for members in self.data.node_classes:
            hosts = [node for node in members if node in hosting]
            if self.ranks == 1 and 0 in hosts:
                hosts.remove(0)
            for before, node in pairwise(hosts):
                open_ = [index for index in self.data.free if (index, node) in self.on]
                for position, index in enumerate(open_):
                    earlier = sum(self.on[i, before] for i in open_[:position])
                    self.model.add(self.on[index, node] <= earlier).with_name(f"(4) order {index},{node}")

    def is_on(self, item: int, node: int) -> Expr:
        """Return ``on`` of an item and a node; 0 where it cannot be."""
        return self.on.get((item, node), 0)

    # ---- loads

    def units(self, seconds: float) -> int:
        """Return seconds in units of the model, rounded down, and cut off just above the best known step."""
        return min(floor(seconds / self.best_seconds * SCALE * (1 - 1e-12)), 2 * SCALE)

    def scaled(self, terms: Iterable[Term]) -> Expr:
        """Return the sum of terms (seconds, non-negative expression) in units."""
        return sum(self.units(seconds) * expression for seconds, expression in terms if seconds > 0)

    def _has_dp(self) -> Expr:
        """1 if some DP operator has parameters."""
        holders = [self.dp[i] for i, work in enumerate(self.data.work) if work.parameter_bytes]
        if not holders or any(isinstance(holder, int) and holder for holder in holders):
            return int(bool(holders))
        found = self.model.new_bool_var("has_dp")
        for holder in holders:
            self.model.add(found >= holder)
        return found

    def dp_terms(self, per_byte: float) -> list[Term]:
        """Return terms for the parameter bytes of DP items, at ``per_byte`` each."""
        return [(per_byte * work.parameter_bytes, self.dp[i]) for i, work in enumerate(self.data.work)]

    def reduce_terms(self, slow: float = 1.0) -> list[Term]:
        """Return the core-seconds of a rank's part of the all-reduce, ``slow`` times."""
        costs = self.problem.costs
        own = [slow * work.reduced.core_seconds(costs, self.ranks) for work in self.data.work]
        empty = slow * self.problem.wires.empty_reduction().thread_seconds(costs, self.ranks)
        return [(empty, self.has_dp), *((seconds, self.dp[i]) for i, seconds in enumerate(own))]

    def _loads(self) -> None:
        """(9)-(11): each resource of each row takes at most Z."""
        fixed, exchange = fixed_tally(self.problem), self.exchange.cores()
        self.model.add(self.z >= self.units(server_seconds(fixed))).with_name("(9)-(11) servers")
        for row in self.rows:
            self._cores(row, fixed, exchange)
            self._bandwidth(row, fixed)
            self._nics(row, fixed)

    def item_terms(self, row: Row, of: Sequence[float]) -> list[Term]:
        """Return terms for a quantity of the items: once on a rank if DP, R times on its node if MP."""
        terms: list[Term] = [(self.ranks * of[i], self.is_on(i, row.node)) for i in range(len(of))]
        return terms + [(of[i], self.dp[i]) for i in range(len(of)) if row.rank]

    def _cores(self, row: Row, fixed: Tally, exchange: Mapping[int, list[Term]]) -> None:
        """(9) Core-seconds over cores."""
        problem = self.problem
        terms = self.item_terms(row, [work.work.core_seconds for work in self.data.work])
        terms.append((sum(part[row.node] for part in fixed.core.values()), 1))
        for net in self.nets:
            terms += net.core_terms(row)
        if row.rank and self.ranks > 1:
            terms += self.reduce_terms()
        terms += exchange.get(row.node, [])
        speed = problem.slowdown[row.node] / problem.nodes[row.node].cores
        load = self.scaled((seconds * speed, expression) for seconds, expression in terms)
        self.model.add(load <= self.z).with_name(f"(9) cores {row.node}")

    def _bandwidth(self, row: Row, fixed: Tally) -> None:
        """(10) Memory traffic over bandwidth."""
        rate = self.problem.nodes[row.node].memory_bandwidth_bytes_per_second
        terms = self.item_terms(row, [work.work.traffic_bytes / rate for work in self.data.work])
        terms.append((fixed.traffic[row.node] / rate, 1))
        self.model.add(self.scaled(terms) <= self.z).with_name(f"(10) memory bandwidth {row.node}")

    def _nics(self, row: Row, fixed: Tally) -> None:
        """(11) Bytes over the rate of the NIC, out and in."""
        node, others = self.problem.nodes[row.node], enumerate(self.problem.nodes)
        rate, inside = node.nic_bytes_per_second, not any(o.host == node.host for i, o in others if i != row.node)
        for name, sums in (("tx", fixed.tx), ("rx", fixed.rx)):
            terms: list[Term] = [(sums[row.node] / rate, 1)] if sums[row.node] else []
            if inside:
                for net in self.nets:
                    terms += [(size / rate, count) for size, count in net.nic_terms(row, name)]
                if row.rank and self.ranks > 1:
                    terms += [(w.reduced.sent / rate, self.dp[i]) for i, w in enumerate(self.data.work)]
            terms += self.exchange.nic(row, name, inside, rate)
            self.model.add(self.scaled(terms) <= self.z).with_name(f"(11) {name} {row.node}")

    # ---- memory

    def _memory(self) -> None:
        """(12) What is resident and what the sessions hold fits."""
        fixed, hogwild, unit = fixed_tally(self.problem), self.problem.hogwild, self._byte_unit()
        for row in self.rows:
            terms: list[Term] = [(fixed.memory[row.node], 1)]
            for i, work in enumerate(self.data.work):
                copies = self.ranks * hogwild * work.session_bytes
                terms.append((work.resident_bytes + copies, self.is_on(i, row.node)))
                if row.rank:
                    reduced = work.parameter_bytes if self.ranks > 1 else 0
                    terms.append((work.resident_bytes + hogwild * (work.session_bytes + reduced), self.dp[i]))
            for net in self.nets:
                terms += [(hogwild * size, count) for size, count in net.memory_terms(row)]
            terms += self.exchange.memory(row)
            load = sum(int(size // unit) * expression for size, expression in terms if size)
            had = -(-self.problem.nodes[row.node].memory_bytes // unit)
            self.model.add(load <= had).with_name(f"(12) memory {row.node}")

    def _byte_unit(self) -> int:
        """Bytes per unit of memory: 1, unless a sum could overflow."""
        total = sum(w.resident_bytes + self.problem.sessions * 4 * w.session_bytes for w in self.data.work)
        total += 4 * self.problem.sessions * self.problem.size * sum(net.bytes for net in self.data.nets)
        return 1 + total // BYTE_LIMIT

    # ---- solutions

    def hint(self, tags: Mapping[str, Tag]) -> None:
        """Start from a (canonical) placement."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for index in self.data.free:
            tag = tags[self.data.items[index].ops[0]]
            for place in self.data.allowed[index]:
                if place == DP or (index, place) in self.on:
                    self.model.add_hint(self._literal(index, place), int(tag == place))

    def exclude(self, tags: Mapping[str, Tag]) -> None:
        """Forbid one (canonical) placement, which was evaluated already."""
        chosen = [self._literal(index, tags[self.data.items[index].ops[0]]) for index in self.data.free]
        self.model.add(sum(chosen) <= len(chosen) - 1)

    def _literal(self, index: int, tag: Tag) -> Expr:
        return self.dp[index] if tag == DP else self.on[index, int(tag)]

    @property
    def limit_seconds(self) -> float:
        """Seconds of the longest step that the model admits."""
        return self.best_seconds

    def seconds(self, units: float) -> float:
        """Return a value of Z in seconds."""
        return units / SCALE * self.best_seconds

    def tighten(self, seconds: float) -> None:
        """Admit only steps up to ``seconds``."""
        self.model.add(self.z <= min(SCALE, ceil(seconds / self.best_seconds * SCALE)))

    def read(self, solver: cp_model.CpSolver) -> dict[str, Tag]:
        """Return the tags of the solver's placement."""
        tags: dict[str, Tag] = {}
        for index, item in enumerate(self.data.items):
            tag = self._tag(solver, index) if item.fixed is None else item.fixed
            tags.update(dict.fromkeys(item.ops, tag))
        return tags

    def _tag(self, solver: cp_model.CpSolver, index: int) -> Tag:
        if solver.value(self.dp[index]):
            return DP
        return next(row.node for row in self.rows if solver.value(self.is_on(index, row.node)))
