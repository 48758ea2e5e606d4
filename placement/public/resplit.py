"""Move some items among some devices, at best: a small CP-SAT model around a known split.

Knows the model: x[i, d] = item i is on device d; y[e, d] = accelerator d cuts net e, two-literal clauses along the cycle
of the net's pins (equal pins make y free, two unequal ones force it); load of d <= z; minimise z, then the sum of loads.
Items that stay where they are enter as constants. Loads are integers: milliseconds times :attr:`Part.scale`, which keeps
six digits of the largest load; the caller judges what comes out in floats. Refuses to know which items to free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from placement.public.hypergraph import Hypergraph, Split

DIGITS = 1_000_000
"""Integer steps in the largest load."""

SUM_WEIGHT = 20
"""z counts this much per device as the sum of loads does: first level the devices, then save communication."""


@dataclass(frozen=True, eq=False)
class Part:
    """What is free: these items may move among these devices, on which all of them are now.

    Parameters
    ----------
    graph : Hypergraph
        The instance.
    split : ndarray of int, shape (items,)
        Where everything is now.
    free : sequence of int
        Items that may move.
    devices : sequence of int
        Devices that they may move to.
    """

    graph: Hypergraph
    split: Split
    free: Sequence[int]
    devices: Sequence[int]

    @property
    def scale(self) -> float:
        """Integer steps per millisecond."""
        return DIGITS / max(float(self.graph.loads(self.split).max()), 1e-300)


def resplit(part: Part, seconds: float, seed: int, workers: int) -> Split | None:
    """Return the split with the free items where the solver wants them, None if it found nothing."""
    model = _Model(part)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    solver.parameters.relative_gap_limit = 1e-5
    if solver.solve(model.model) not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        return None
    found = part.split.copy()
    for item in part.free:
        found[item] = next(d for d in part.devices if solver.boolean_value(model.on[item, d]))
    return found


def size_step(memory_bytes: float) -> int:
    """Return how many bytes an integer of memory stands for: one, unless sums could overflow."""
    return max(1, int(memory_bytes) >> 40)


class _Model:
    """The model of a part."""

    def __init__(self, part: Part) -> None:
        self.part, self.graph = part, part.graph
        self.model = cp_model.CpModel()
        self.is_free = np.zeros(part.graph.items, dtype=bool)
        self.is_free[list(part.free)] = True
        self.on = {(i, d): self.model.new_bool_var("") for i in part.free for d in part.devices}
        self._place_each()
        self._fit_memory()
        self._minimise()

    def _ms(self, value: float) -> int:
        return round(value * self.part.scale)

    def _place_each(self) -> None:
        for item in self.part.free:
            self.model.add_exactly_one(self.on[item, d] for d in self.part.devices)
            for device in self.part.devices:
                self.model.add_hint(self.on[item, device], bool(self.part.split[item] == device))
                if device < self.graph.accelerators and self.graph.cpu_only[item]:
                    self.model.add(self.on[item, device] == 0)

    def _fit_memory(self) -> None:
        for device in self._accelerators():
            held = float(self.graph.size_bytes[(self.part.split == device) & ~self.is_free].sum())
            sizes = {item: float(self.graph.size_bytes[item]) for item in self.part.free}
            room = self.graph.memory_bytes - held
            if sum(sizes.values()) > room:
                step = size_step(self.graph.memory_bytes)
                terms = [-(-int(size) // step) * self.on[item, device] for item, size in sizes.items()]
                self.model.add(cp_model.LinearExpr.sum(terms) <= int(room) // step)

    def _accelerators(self) -> list[int]:
        return [d for d in self.part.devices if d < self.graph.accelerators]

    def _minimise(self) -> None:
        worst = DIGITS + self.graph.items + len(self.graph.nets)  # every term is rounded by at most a half
        z = self.model.new_int_var(0, worst, "")
        self.model.add_hint(z, worst)
        loads = [self._load(device) for device in self.part.devices]
        for load in loads:
            self.model.add(load <= z)
        self.model.minimize(cp_model.LinearExpr.sum([SUM_WEIGHT * len(loads) * z, *loads]))

    def _load(self, device: int) -> cp_model.LinearExpr:
        """Return the load of a device: constants, items and cut nets."""
        accelerator = device < self.graph.accelerators
        times = self.graph.accelerator_ms if accelerator else self.graph.cpu_ms
        fixed = float(times[(self.part.split == device) & ~self.is_free].sum())
        terms: list[cp_model.LinearExprT] = [
            self._ms(float(times[item])) * self.on[item, device] for item in self.part.free
        ]
        if accelerator:
            for net, pins in enumerate(self.graph.nets):
                cut = self._cut(pins, device)
                fixed += float(self.graph.net_ms[net]) if cut is True else 0.0
                if not isinstance(cut, bool):
                    terms.append(self._ms(float(self.graph.net_ms[net])) * cut)
        return cp_model.LinearExpr.sum([*terms, self._ms(fixed)])

    def _cut(self, pins: Sequence[int], device: int) -> cp_model.IntVar | bool:
        """Return whether the device cuts the net, as a constant or as a variable."""
        fixed = {bool(self.part.split[pin] == device) for pin in pins if not self.is_free[pin]}
        free = [self.on[pin, device] for pin in pins if self.is_free[pin]]
        if len(fixed) == 2 or not free:
            return len(fixed) == 2
        cut = self.model.new_bool_var("")
        self.model.add_hint(cut, len({bool(self.part.split[pin] == device) for pin in pins}) == 2)
        if fixed:
            for on in free:
                self.model.add_implication(~on if True in fixed else on, cut)
        else:
            for a, b in zip(free, free[1:] + free[:1], strict=True):
                self.model.add_bool_or(~a, b, cut)
        return cut
