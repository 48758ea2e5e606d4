"""Move some items among some devices, at best: a mixed-integer program around a known split.

Knows the model of :mod:`placement.public.resplit` in rows: x[i, d] = item i is on device d, one for each item; y[e, d] at
least the difference of x[., d] between neighbouring pins along the net; load of d at most z; minimise z, and a trace of
the sum of loads. HiGHS balances the layer graphs (light nets, many items of unlike times) where clauses do little.
"""

from __future__ import annotations

import numpy as np

from placement.public.hypergraph import Floats, Hypergraph, Split
from placement.public.mip import Program, solve
from placement.public.resplit import Part

TRACE = 1e-3
"""Weight of the sum of loads beside the largest one."""


def solve_whole(graph: Hypergraph, split: Split, seconds: float, seed: int = 0) -> tuple[Split, float]:
    """Return a split no worse than the given one, and a bound on every split: the program of the whole instance.

    Equal accelerators are interchangeable, so the r-th heaviest item is on one of the first r (one more where a lighter
    item opened a device); the start is renumbered to agree. A bound that is known already is not told: as a row on the
    largest load it took HiGHS from four seconds to more than a minute on BERT-24.
    """
    heavy = np.argsort(-graph.accelerator_ms, kind="stable").tolist()
    split = _renumbered(graph, split, heavy)
    model = _Model(Part(graph, split, range(graph.items), range(graph.devices)), trace=0.0)
    for rank, item in enumerate(heavy[: graph.accelerators]):
        for device in range(rank + 1, graph.accelerators):
            model.program.upper[model.on[item, device]] = 0.0
    outcome = solve(model.program, seconds, start=np.array(model.start), seed=seed)
    return split if outcome.solution is None else model.read(outcome.solution), outcome.bound


def _renumbered(graph: Hypergraph, split: Split, heavy: list[int]) -> Split:
    """Return the split with accelerators numbered in the order of their heaviest items."""
    seen = dict.fromkeys(int(split[item]) for item in heavy if split[item] < graph.accelerators)
    number = np.arange(graph.devices)
    for new, old in enumerate([*seen, *(d for d in range(graph.accelerators) if d not in seen)]):
        number[old] = new
    return np.asarray(number[split])


def resplit_mip(part: Part, seconds: float, seed: int) -> Split | None:
    """Return the split with the free items where the solver wants them, None if it found nothing."""
    model = _Model(part)
    outcome = solve(model.program, seconds, start=np.array(model.start), seed=seed)
    return None if outcome.solution is None else model.read(outcome.solution)


class _Model:
    """The program of a part, and the present split as its start."""

    def __init__(self, part: Part, trace: float = TRACE) -> None:
        self.part, self.graph, self.program = part, part.graph, Program()
        self.start: list[float] = []
        self.trace = trace
        self.free = frozenset(part.free)
        self.fixed = np.ones(part.graph.items, dtype=bool)
        self.fixed[list(part.free)] = False
        self.on = {(i, d): self._binary(i, d) for i in part.free for d in part.devices}
        for item in part.free:
            self.program.row({self.on[item, d]: 1.0 for d in part.devices}, low=1.0, high=1.0)
        loads = part.graph.loads(part.split)
        self.z = self._column(float(max(loads[d] for d in part.devices)), cost=1.0, upper=np.inf)
        for device in part.devices:
            self._load(device)
            if device < self.graph.accelerators:
                self._memory(device)

    def read(self, solution: Floats) -> Split:
        """Return the split that a solution describes."""
        found = self.part.split.copy()
        for item in self.part.free:
            found[item] = max(self.part.devices, key=lambda d: float(solution[self.on[item, d]]))
        return found

    def _column(self, start: float, cost: float = 0.0, upper: float = 1.0, integer: bool = False) -> int:
        self.start.append(start)
        return self.program.column(cost, upper, integer)

    def _binary(self, item: int, device: int) -> int:
        allowed = device >= self.graph.accelerators or not self.graph.cpu_only[item]
        return self._column(float(self.part.split[item] == device), upper=float(allowed), integer=True)

    def _held(self, device: int, values: Floats) -> float:
        return float(values[(self.part.split == device) & self.fixed].sum())

    def _load(self, device: int) -> None:
        accelerator = device < self.graph.accelerators
        times = self.graph.accelerator_ms if accelerator else self.graph.cpu_ms
        held = self._held(device, times)
        terms = {self.on[item, device]: float(times[item]) for item in self.part.free}
        for net in range(len(self.graph.nets)) if accelerator else ():
            state = self._cut(self.graph.nets[net], device)
            if state is True:
                held += float(self.graph.net_ms[net])
            elif state is not False:
                terms[state] = float(self.graph.net_ms[net])
        for column, value in terms.items():
            self.program.costs[column] += self.trace * value
        self.program.row({**terms, self.z: -1.0}, high=-held)

    def _cut(self, pins: tuple[int, ...], device: int) -> int | bool:
        """Return whether the device cuts the net: a constant, or the column that says so."""
        fixed = {bool(self.part.split[pin] == device) for pin in pins if pin not in self.free}
        free = [self.on[pin, device] for pin in pins if pin in self.free]
        if len(fixed) == 2 or not free:
            return len(fixed) == 2
        touched = {bool(self.part.split[pin] == device) for pin in pins}
        cut = self._column(float(len(touched) == 2))
        for column in free if fixed else ():
            inside = True in fixed
            self.program.row({cut: 1.0, column: 1.0 if inside else -1.0}, low=float(inside))
        for a, b in zip(free, free[1:] + free[:1], strict=True) if not fixed else ():
            self.program.row({cut: 1.0, a: -1.0, b: 1.0}, low=0.0)
        return cut

    def _memory(self, device: int) -> None:
        shares = self.graph.size_bytes / self.graph.memory_bytes
        room = 1.0 - self._held(device, shares)
        terms = {self.on[item, device]: float(shares[item]) for item in self.part.free}
        if sum(terms.values()) > room:
            self.program.row(terms, high=room)
