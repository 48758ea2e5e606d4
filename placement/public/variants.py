"""The stages that a Piper instance allows, and what the variants of their layers cost once they fit.

Knows that a stage is the difference of two sets of last layers (closed under "is used by"), and that choosing variants is
a knapsack: begin with the fastest variant of every layer, swap to leaner ones until memory suffices. Swaps are taken by
cost per byte saved, then the dear ones that turn out superfluous are undone, which is never worse than the authors'
heuristic; the relaxation, where a swap may be partial, is a bound. What a swap costs shrinks with the data-parallel
degree, the order of swaps does not, so costs are kept per stage, tensor-parallel degree and number of samples in flight.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placement.public.hypergraph import Floats
from placement.public.ideals import TooManyIdeals, as_words, enumerate_ideals, members_of
from problem.errors import BadInput
from problem.public_graphs import PiperInstance, PiperVariant, topological_order

MAX_IDEALS = 40_000
MAX_PAIRS = 300_000
"""Beyond, stages are intervals of one order (two devices need no more pairs than ideals)."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StageSets:
    """All stages: pairs of a set of last layers (``outer``) and a smaller one (``inner``), sorted by outer.

    Parameters
    ----------
    instance : PiperInstance
        What they are stages of.
    count : int
        Number of sets; 0 is empty, the last one holds all layers.
    complete : bool
        Whether these are all stages.
    degrees : tuple of int
        Tensor-parallel degrees, K of them.
    outer, inner : ndarray of int, shape (pairs,)
        The two sets of each stage.
    layers : ndarray of bool, shape (pairs, layers)
        The layers of each stage.
    compute_seconds, weight_bytes, moved_bytes : ndarray, shape (K, pairs)
        With the fastest variants; inf where a layer has no variant at the degree.
    extra_seconds, relaxed_seconds : ndarray, shape (K, pairs, samples in flight)
        What fitting into memory adds to ``compute_seconds`` with 1, 2, ... samples in flight; inf where nothing fits.
    """

    instance: PiperInstance
    count: int
    complete: bool
    degrees: tuple[int, ...]
    outer: Ints
    inner: Ints
    layers: NDArray[np.bool_]
    compute_seconds: Floats
    weight_bytes: Floats
    moved_bytes: Floats
    extra_seconds: Floats
    relaxed_seconds: Floats

    def least_bytes(self, k: int) -> Floats:
        """Return the memory of each layer's leanest variant with one sample in flight, shape (layers,)."""
        options = (self.instance.variants[i].get(self.degrees[k], ()) for i in range(len(self.instance.ids)))
        return np.array([min((o.memoryUsageA + o.memoryUsageB for o in few), default=np.inf) for few in options])

    def variants(self, pair: int, k: int, y: int) -> dict[int, str]:
        """Return the variant of each layer of a stage, with ``y`` samples in flight."""
        layers = np.flatnonzero(self.layers[pair])
        table = _Variants(self.instance, self.degrees[k])
        swapped = table.swaps(layers, y)[0]
        names = [(table.pairs[i][int(i in swapped)]) for i in layers.tolist()]
        return dict(zip(layers.tolist(), (variant.id for variant in names), strict=True))


class _Variants:
    """Fast and lean variant of every layer at one tensor-parallel degree."""

    def __init__(self, instance: PiperInstance, degree: int) -> None:
        self.memory = instance.memory_bytes
        self.pairs: dict[int, tuple[PiperVariant, PiperVariant]] = {}
        for layer, options in enumerate(instance.variants):
            if options.get(degree):
                self.pairs[layer] = _fast_and_lean(instance, layer, options[degree])
        size = len(instance.ids)
        self.seconds, self.weight = self._column(size, "timePerSample"), self._column(size, "parameterSize")
        self.each, self.base = self._column(size, "memoryUsageA"), self._column(size, "memoryUsageB")

    def _column(self, size: int, field: str) -> Floats:
        """Return a field of both variants, shape (2, layers); inf where the layer has none."""
        column = np.full((2, size), np.inf)
        for layer, pair in self.pairs.items():
            column[:, layer] = [getattr(variant, field) for variant in pair]
        return column

    def swaps(self, layers: Ints, y: int) -> tuple[frozenset[int], float, float]:
        """Return the layers that take their lean variant, the seconds that costs, and a bound on such seconds."""
        fast, lean = (self.each[side, layers] * y + self.base[side, layers] for side in (0, 1))
        excess = float(fast.sum()) - self.memory
        if excess <= 0:
            return frozenset(), 0.0, 0.0
        saved, cost = fast - lean, self.seconds[1, layers] - self.seconds[0, layers]
        useful = np.flatnonzero(saved > 0)
        order = useful[np.argsort(cost[useful] / saved[useful], kind="stable")]
        sums = np.cumsum(saved[order])
        if not len(sums) or sums[-1] < excess:
            return frozenset(), np.inf, np.inf
        last = int(np.searchsorted(sums, excess))
        part = (excess - (sums[last] - saved[order[last]])) / saved[order[last]]
        relaxed = float(cost[order[:last]].sum() + part * cost[order[last]])
        taken = self._without_spare(order[: last + 1], saved, cost, float(sums[last] - excess))
        return frozenset(layers[taken].tolist()), float(cost[taken].sum()), relaxed

    def _without_spare(self, order: Ints, saved: Floats, cost: Floats, spare: float) -> Ints:
        """Undo swaps that memory does not need, the dearest first."""
        kept = order.tolist()
        for item in sorted(order.tolist(), key=lambda i: -float(cost[i])):
            if saved[item] <= spare and cost[item] > 0:
                spare -= float(saved[item])
                kept.remove(item)
        return np.array(kept, dtype=np.int64)


def _fast_and_lean(
    instance: PiperInstance, layer: int, options: tuple[PiperVariant, ...]
) -> tuple[PiperVariant, PiperVariant]:
    """Return the fastest variant and the other one (itself if there is no other).

    Raises
    ------
    BadInput
        On more than two variants, or variants of unlike traffic: the authors' files have neither.
    """
    field = f"nodes[{layer}]({instance.ids[layer]}).TMPCs"
    if len(options) > 2:
        raise BadInput(instance.name, field, len(options), "at most two variants for a tensor-parallel degree")
    traffic = {
        (tuple(sorted(o.syncTimeFw.items())), tuple(sorted(o.syncTimeBw.items())), o.parameterSize) for o in options
    }
    if len(traffic) > 1:
        raise BadInput(instance.name, field, "unlike traffic", "variants of equal parameterSize and sync times")
    fast = min(options, key=lambda option: option.timePerSample)
    return fast, next((option for option in options if option is not fast), fast)


def stage_sets(instance: PiperInstance) -> StageSets:
    """Return all stages of an instance, or those along one order where they are too many."""
    members, complete = _last_layers(instance)
    outer, inner = _pairs(members, instance.devices)
    if len(outer) > MAX_PAIRS:
        members, complete = _chain(instance), False
        outer, inner = _pairs(members, instance.devices)
    layers = members[outer] & ~members[inner]
    degrees = tuple(sorted({t for options in instance.variants for t in options if t <= instance.devices}))
    tables = [_Variants(instance, t) for t in degrees]
    most = min(instance.devices, instance.microbatches)
    extra = np.array([_extra(table, layers, most) for table in tables])
    return StageSets(
        instance=instance,
        count=len(members),
        complete=complete,
        degrees=degrees,
        outer=outer,
        inner=inner,
        layers=layers,
        compute_seconds=np.array([_sums(layers, table.seconds[0]) for table in tables]),
        weight_bytes=np.array([_sums(layers, table.weight[0]) for table in tables]),
        moved_bytes=np.array([_moved(instance, table, layers) for table in tables]),
        extra_seconds=extra[:, 0],
        relaxed_seconds=extra[:, 1],
    )


def _sums(layers: NDArray[np.bool_], values: Floats) -> Floats:
    """Return the sum of ``values`` over each stage; inf if one is."""
    finite = np.isfinite(values)
    sums = layers @ np.where(finite, values, 0.0)
    sums[(layers & ~finite).any(axis=1)] = np.inf
    return np.asarray(sums)


def _moved(instance: PiperInstance, table: _Variants, layers: NDArray[np.bool_]) -> Floats:
    """Return the bytes over the cut edges of each stage, shape (pairs,)."""
    moved = np.zeros(len(layers))
    for (u, v), cost in instance.edges.items():
        for near, far, field in ((u, v, "syncTimeBw"), (v, u, "syncTimeFw")):
            if near in table.pairs:
                sync = getattr(table.pairs[near][0], field)[instance.ids[far]]
                moved += 2 * (cost + sync) * (layers[:, near] & ~layers[:, far])
    return moved


def _extra(table: _Variants, layers: NDArray[np.bool_], most: int) -> Floats:
    """Return the seconds of swaps and their bound, shape (2, pairs, samples in flight)."""
    extra = np.full((2, len(layers), most), np.inf)
    y = np.arange(1, most + 1)
    runs = np.isfinite(_sums(layers, table.seconds[0]))
    fast, lean = (
        _sums(layers, table.each[side])[:, None] * y + _sums(layers, table.base[side])[:, None] for side in (0, 1)
    )
    least = np.minimum(fast, lean) if not len(layers) else _least(table, layers, y)
    extra[:, (fast <= table.memory) & runs[:, None]] = 0.0
    for pair, at in np.argwhere((fast > table.memory) & (least <= table.memory) & runs[:, None]).tolist():
        extra[:, pair, at] = table.swaps(np.flatnonzero(layers[pair]), at + 1)[1:]
    return extra


def _least(table: _Variants, layers: NDArray[np.bool_], y: Ints) -> Floats:
    """Return the memory of the leanest variants of each stage, shape (pairs, samples in flight)."""
    each = np.minimum(*(table.each[side][:, None] * y + table.base[side][:, None] for side in (0, 1)))
    return np.stack([_sums(layers, column) for column in each.T], axis=1)


def _last_layers(instance: PiperInstance) -> tuple[NDArray[np.bool_], bool]:
    """Return the sets of layers that hold every user of theirs, smallest first, and whether these are all."""
    size = len(instance.ids)
    try:
        masks: Iterable[int] = enumerate_ideals(size, [(v, u) for u, v in instance.edges], MAX_IDEALS)
    except TooManyIdeals:
        return _chain(instance), False
    return members_of(as_words(list(masks), size), size) > 0, True


def _chain(instance: PiperInstance) -> NDArray[np.bool_]:
    size = len(instance.ids)
    members = np.zeros((size + 1, size), dtype=bool)
    for k, layer in enumerate(reversed(topological_order(size, instance.edges, instance.name))):
        members[k + 1 :, layer] = True
    return members


def _pairs(members: NDArray[np.bool_], devices: int) -> tuple[Ints, Ints]:
    """Return outer and inner set of every stage; with two devices, stages are first or last ones."""
    last = len(members) - 1
    outer, inner = [], []
    for i in range(1, last + 1):
        within = np.flatnonzero(~(members[:i] & ~members[i]).any(axis=1)) if devices > 2 or i == last else np.array([0])
        outer.append(np.full(len(within), i))
        inner.append(within)
    return np.concatenate(outer), np.concatenate(inner)
