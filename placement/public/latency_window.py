"""Place a window of units anew for least latency: a CP-SAT model in which everything else stays where it is.

Knows the model: x[i, a] = unit i of the window is on accelerator a (or on CPUs); start and end of every accelerator's
call, end of every node; a node waits for its predecessors unless it shares their call; a call lasts as long as its nodes
and the outputs that cross its border. Calls that wait for each other have no times, so contiguity needs no constraint of
its own. Times are integers, nine digits of the known value; the caller judges the outcome in floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ortools.sat.python import cp_model

from placement.public.hypergraph import Hypergraph, Split
from placement.public.resplit import size_step
from problem.public_graphs import MsrInstance

DIGITS = 1_000_000_000

Literal = cp_model.LiteralT


@dataclass(frozen=True, eq=False)
class Window:
    """What is free: these units may move among these devices, on which all of them are now.

    Parameters
    ----------
    instance : MsrInstance
        Nodes and edges.
    graph : Hypergraph
        Its units; device ``accelerators`` stands for the CPUs.
    split : ndarray of int, shape (units,)
        Where everything is now.
    free : sequence of int
        Units that may move.
    devices : sequence of int
        Where to; the CPUs are always among them.
    value : float
        Latency now, in milliseconds.
    """

    instance: MsrInstance
    graph: Hypergraph
    split: Split
    free: Sequence[int]
    devices: Sequence[int]
    value: float


def replace_window(window: Window, seconds: float, seed: int, workers: int) -> tuple[Split | None, bool]:
    """Return the plan with the window placed anew (None if nothing was found), and whether that is proven best."""
    model = _Model(window)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    status = solver.solve(model.model)
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        return None, False
    found = window.split.copy()
    for unit in window.free:
        found[unit] = next(d for d in window.devices if solver.boolean_value(model.on[unit, d]))
    return found, status == cp_model.OPTIMAL


class _Model:
    """The model of a window."""

    def __init__(self, window: Window) -> None:
        self.window, self.instance, self.graph = window, window.instance, window.graph
        self.model, self.cpu = cp_model.CpModel(), window.instance.accelerators
        self.horizon = DIGITS + 2 * len(self.instance.ids)
        self.on = {(i, d): self.model.new_bool_var("") for i in window.free for d in window.devices}
        for unit in window.free:
            self.model.add_exactly_one(self.on[unit, d] for d in window.devices)
            for device in window.devices:
                self.model.add_hint(self.on[unit, device], bool(window.split[unit] == device))
                if device < self.cpu and self.graph.cpu_only[unit]:
                    self.model.add(self.on[unit, device] == 0)
        self.begin = [self.model.new_int_var(0, self.horizon, "") for _ in range(self.cpu)]
        self.finish = [self.model.new_int_var(0, self.horizon, "") for _ in range(self.cpu)]
        self.end = [self.model.new_int_var(0, self.horizon, "") for _ in self.instance.ids]
        for device in range(self.cpu):
            self._memory(device)
            self._call(device)
        self._waits()
        last = self.model.new_int_var(0, self.horizon, "")
        self.model.add_max_equality(last, self.end)
        self.model.minimize(last)

    def _ms(self, value: float) -> int:
        return round(value * DIGITS / self.window.value)

    @cached_property
    def _consumers(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self.instance.ids]
        for u, v in self.instance.edges:
            found[u].append(v)
        return found

    def _at(self, node: int, device: int) -> Literal:
        """Return whether a node is on a device: a variable, or what is so."""
        return self._holds(device, self.graph.item_of_node[node])

    def _holds(self, device: int, unit: int) -> Literal:
        return self.on.get((unit, device), bool(self.window.split[unit] == device))

    def _memory(self, device: int) -> None:
        sizes, step = self.graph.size_bytes, size_step(self.graph.memory_bytes)
        fixed = self.window.split == device
        fixed[list(self.window.free)] = False
        room = int(self.graph.memory_bytes - sizes[fixed].sum()) // step
        inside = [unit for unit in self.window.free if (unit, device) in self.on and sizes[unit] > 0]
        terms = [-(-int(sizes[unit]) // step) * self.on[unit, device] for unit in inside]
        if terms:
            self.model.add(cp_model.LinearExpr.sum(terms) <= room)

    def _call(self, device: int) -> None:
        """A call lasts as long as its nodes and the outputs that cross its border."""
        fixed, terms = 0.0, list[cp_model.LinearExprT]()
        for node, spent in enumerate(self.instance.accelerator_ms):
            for literal, cost in ((self._at(node, device), spent), (self._crosses(node, device), self._output(node))):
                if isinstance(literal, bool):
                    fixed += cost * literal
                else:
                    terms.append(self._ms(cost) * literal)
        total = cp_model.LinearExpr.sum([self.begin[device], self._ms(fixed), *terms])
        self.model.add(self.finish[device] >= total)

    def _output(self, node: int) -> float:
        return self.instance.output_ms[node]

    def _crosses(self, node: int, device: int) -> Literal:
        """Return whether the output of a node crosses the border of a device."""
        if not self._consumers[node] or self._output(node) <= 0:
            return False
        pins = dict.fromkeys(self.graph.item_of_node[other] for other in (node, *self._consumers[node]))
        literals = [self._holds(device, unit) for unit in pins]
        fixed = {literal for literal in literals if isinstance(literal, bool)}
        free = [literal for literal in literals if not isinstance(literal, bool)]
        if len(fixed) == 2 or not free or len(literals) == 1:
            return len(fixed) == 2
        cut = self.model.new_bool_var("")
        for a, b in zip(free, free[1:] + free[:1], strict=True):
            self.model.add_bool_or(~a, b, cut)
        for value in fixed:
            for literal in free:
                self.model.add_implication(~literal if value else literal, cut)
        return cut

    def _waits(self) -> None:
        """Nodes on CPUs and calls begin when what they need has ended."""
        before: list[list[int]] = [[] for _ in self.instance.ids]
        for u, v in self.instance.edges:
            before[v].append(u)
        for node, inputs in enumerate(before):
            self._on_cpu(node, inputs)
            for device in range(self.cpu):
                here = self._at(node, device)
                if here is False:
                    continue
                self._if([here], self.end[node] >= self.finish[device])
                for other in inputs:
                    there = self._at(other, device)
                    if there is not True and there is not here:
                        apart: Literal = True if isinstance(there, bool) else ~there
                        self._if([here, apart], self.begin[device] >= self.end[other])

    def _on_cpu(self, node: int, inputs: Sequence[int]) -> None:
        here = self._at(node, self.cpu)
        if here is False:
            return
        spent = self._ms(self.instance.cpu_ms[node])
        self._if([here], self.end[node] >= spent)
        for other in inputs:
            self._if([here], self.end[node] >= self.end[other] + spent)

    def _if(self, conditions: Sequence[Literal], constraint: cp_model.BoundedLinearExpression | bool) -> None:
        enforced = [literal for literal in conditions if not isinstance(literal, bool)]
        added = self.model.add(constraint)
        if enforced:
            added.only_enforce_if(enforced)
