"""Items and nets: the group problem as the solver sees it, after contracting what cannot be separated.

An item is a component (or a lone operator). A net is a tensor with its producer and consumers; tensors with the same
producer, consumers and need of a gradient are merged by adding their bytes. Operators that stay with the rank, and
LOOKUPs, are one place: the rank. Knows the work and the memory of items; knows no solver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cost_models.costs import CostTable, PhaseCost
from cost_models.memory import resident_bytes
from cost_models.network import Reduction, Wire
from placement.evaluation.group import GroupProblem
from placement.evaluation.loads import runs_backward, session_memory
from placement.plan import DP, Tag
from placement.tagging.candidates import Item, items_of, tied
from problem.graph import FLOAT_BYTES

#: Index that stands for the rank: producer or consumer that is always data-parallel.
RANK = -1


@dataclass(frozen=True, slots=True)
class Net:
    """Tensors with one producer and the same consumers.

    Parameters
    ----------
    producer : int
        Item, or ``RANK``.
    own : int
        Consumers inside the producer's own item.
    consumers : tuple of (int, int)
        Other consuming items (or ``RANK``), each with the number of its operators that consume.
    gradient : bool
        Whether gradients travel back.
    messages, bytes : int
        Messages to a place that consumes them (pooled tables of the same consumers travel together), and the bytes of the
        tensors for one batch.
    there, back : Wire
        What the messages, and those of the gradients, take on the wire, all together.
    ops : tuple of str
        Producing operators.
    """

    producer: int
    own: int
    consumers: tuple[tuple[int, int], ...]
    gradient: bool
    messages: int
    bytes: int
    there: Wire
    back: Wire
    ops: tuple[str, ...]

    @property
    def additions(self) -> bool:
        """Whether partial gradients are added up somewhere."""
        return self.gradient and self.own + sum(count for _, count in self.consumers) > 1


@dataclass(frozen=True, slots=True)
class ItemWork:
    """One batch's work of an item, its parameters and its memory: per copy and per session.

    ``reduced`` is what its gradients take of an all-reduce, ``pushed`` and ``answered`` what its parameters take to the
    sync servers and back.
    """

    work: PhaseCost
    parameter_bytes: int
    resident_bytes: int
    session_bytes: int
    reduced: Reduction
    pushed: Wire
    answered: Wire

    @property
    def parameters(self) -> Wire:
        """The parameters as they are passed on inside a group: uncoded, in as many tensors."""
        return Wire(self.parameter_bytes, tensors=self.pushed.tensors)

    def exchange_seconds(self, costs: CostTable) -> float:
        """Core-seconds of its part of an exchange with a sync server, without the fixed part of messages."""
        rest = costs.message.unfixed
        moved = costs.exchange_seconds_per_byte * self.parameter_bytes
        return self.pushed.sending(rest) + self.answered.receiving(rest) + moved


@dataclass(frozen=True)
class Contracted:
    """A group problem with components contracted.

    Parameters
    ----------
    problem : GroupProblem
        The group; its pins are by operator.
    ties : Mapping of str to str
        Cluster of open items, by name, that are placed together to make the problem smaller (``coarsen``).
    """

    problem: GroupProblem
    ties: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """All items in graph order."""
        problem = self.problem
        return tied(items_of(problem.model.graph, problem.pins, problem.forbids, problem.size), self.ties)

    @cached_property
    def item_of(self) -> Mapping[str, int]:
        """Item of each operator, ``RANK`` for LOOKUPs and for items that stay with the rank."""
        found = {op.name: RANK for op in self.problem.model.graph}
        for index, item in enumerate(self.items):
            if item.fixed != DP:
                found.update(dict.fromkeys(item.ops, index))
        return found

    @cached_property
    def free(self) -> tuple[int, ...]:
        """Items whose tag is open."""
        return tuple(index for index, item in enumerate(self.items) if item.fixed is None)

    @cached_property
    def allowed(self) -> Mapping[int, tuple[Tag, ...]]:
        """Tags that each open item may have, DP first; with one rank node 0 is left out where DP, the same place, is not."""
        found: dict[int, tuple[Tag, ...]] = {}
        for i in self.free:
            tags = [tag for tag in (DP, *range(self.problem.size)) if tag not in self.items[i].forbidden]
            found[i] = tuple(tag for tag in tags if tag or self.problem.ranks > 1 or DP not in tags)
        return found

    @cached_property
    def barred(self) -> tuple[Item, ...]:
        """Items that may have no tag at all: there is no placement."""
        pinned = [item for item in self.items if item.fixed is not None and item.fixed in item.forbidden]
        return tuple(pinned + [self.items[i] for i, tags in self.allowed.items() if not tags])

    def nearest(self, index: int, tag: Tag) -> Tag:
        """Return a tag that an open item may have: the given one, else a node after it, else the first one."""
        tags = self.allowed[index]
        if tag == DP or (tag == 0 and self.problem.ranks == 1 and DP in tags):
            return tags[0]
        return next((other for other in tags if other != DP and other >= tag), tags[0])

    @cached_property
    def work(self) -> tuple[ItemWork, ...]:
        """Work of each item."""
        return tuple(self._work(item) for item in self.items)

    def _work(self, item: Item) -> ItemWork:
        problem, total, parameters, resident, session = self.problem, PhaseCost(), 0, 0, 0
        reduced, pushed, answered = problem.wires.empty_reduction().nothing, Wire(), Wire()
        for name in item.ops:
            op, cost = problem.model.graph[name], problem.costs.ops[name]
            total = total + cost.forward
            total = total + cost.backward if runs_backward(problem, op) else total
            total = total + cost.update if op.parameters else total
            parameters += op.parameters * FLOAT_BYTES
            resident += resident_bytes(op, problem.model)
            session += session_memory(problem, op)
            if op.parameters:
                reduced = reduced + problem.wires.reduced(op, problem.ranks)
                pushed, answered = pushed + problem.wires.pushed(op), answered + problem.wires.answered(op)
        return ItemWork(total, parameters, resident, session, reduced, pushed, answered)

    @cached_property
    def nets(self) -> tuple[Net, ...]:
        """Nets with at least one consumer, in graph order."""
        graph, merged = self.problem.model.graph, dict[tuple[object, ...], list[str]]()
        for op in graph:
            if graph.consumers[op.name]:
                users = Counter(self.item_of[consumer] for consumer in graph.consumers[op.name])
                key = (self.item_of[op.name], tuple(sorted(users.items())), graph.needs_gradient[op.name])
                merged.setdefault(key, []).append(op.name)
        return tuple(self._net(ops) for ops in merged.values())

    def _net(self, ops: list[str]) -> Net:
        graph, first = self.problem.model.graph, ops[0]
        producer = self.item_of[first]
        users = Counter(self.item_of[consumer] for consumer in graph.consumers[first])
        own = users.pop(producer, 0)
        size = sum(self.problem.bytes_of(name) for name in ops)
        gradient = graph.needs_gradient[first]
        wires = self.problem.wires
        messages = len({wires.bundle(name) for name in ops})
        there, back = (sum((wires.tensor(op, gradient=way) for op in ops), Wire()) for way in (False, True))
        return Net(producer, own, tuple(sorted(users.items())), gradient, messages, size, there, back, tuple(ops))

    @cached_property
    def node_classes(self) -> tuple[tuple[int, ...], ...]:
        """Nodes that may be exchanged for each other without changing anything, in order."""
        problem = self.problem
        special = {item.fixed for item in self.items if item.fixed not in (None, DP)}
        forbidden = [(i, self.items[i].forbidden) for i in self.free if self.items[i].forbidden]
        servers = {link.node.host for link in problem.servers} | {node.host for node in problem.sync_servers}
        classes: dict[object, list[int]] = {}
        for index, node in enumerate(problem.nodes):
            unique = index in special or (problem.groups > 1 and index == 0) or problem.hosts_mixed
            kind = (
                problem.slowdown[index],
                node.cores,
                node.memory_bandwidth_bytes_per_second,
                node.memory_bytes,
                node.nic_bytes_per_second,
                node.latency_seconds,
                index < problem.ranks,
                node.host if node.host in servers and not problem.one_host else "",
                index if unique else None,
                problem.abroad(index),
                tuple(i for i, tags in forbidden if index in tags),
            )
            classes.setdefault(kind, []).append(index)
        return tuple(tuple(members) for members in classes.values())

    @cached_property
    def descendants(self) -> Mapping[str, frozenset[str]]:
        """Operators downstream of each operator."""
        graph, found = self.problem.model.graph, dict[str, frozenset[str]]()
        for op in reversed(graph.operators):
            below = graph.consumers[op.name]
            found[op.name] = frozenset(below).union(*(found[name] for name in below))
        return found

    def canonical(self, tags: Mapping[str, Tag]) -> dict[str, Tag]:
        """Return an equal placement in which, of equal nodes, the first ones host the first items."""
        renamed: dict[Tag, Tag] = {}
        for members in self.node_classes:
            open_ = [tags[self.items[i].ops[0]] for i in self.free]
            used = [tag for tag in dict.fromkeys(open_) if tag != DP and tag in members]
            first = [node for node in members if node or self.problem.ranks > 1]
            renamed.update(zip(used, first, strict=False))
        moved = {op: self.nearest(i, 0) for i in self.free for op in self.items[i].ops}
        if self.problem.ranks == 1:
            tags = {op: moved[op] if tag == 0 and op in moved else tag for op, tag in tags.items()}
        return {op: renamed.get(tag, tag) if op in moved else tag for op, tag in tags.items()}
