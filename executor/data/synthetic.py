"""A click stream drawn from a planted model: seeded, endless, as fast to make as to read.

**Ids.** The popularity of the rows of a table with n rows follows a power law of exponent a = ``table.skew``: rank
r = 0, 1, ... has probability proportional to the integral of x^-a from r + 1 to r + 2, up to x = n + 1 (a = 0 is
uniform). Ranks are drawn by the inverse of that distribution and scattered over the rows by r -> (p r + q) mod n with
p coprime to n and near n times the golden ratio, so that popular rows lie evenly over any division into row ranges; of a
ranked table, rank r is row r. A table with a histogram is drawn by that (``problem.popularity``).

**Bags.** Where a table's bags differ in length (``max_ids`` = m), a sample's is binomial, m tries with mean
``pooling_factor``. Weights are uniform between 1/2 and 3/2.

**Dense features** are independent standard normal.

**Labels.** Every dense feature, and every table (the effects of its ids, pooled by its rule), is a *signal* of mean 0 and
variance 1. The effect of an id is a fixed pseudo-random number of its table and row. A sample's logit is

    bias + sqrt(V) * (sqrt(D) * dense part + sqrt(E) * table part + sqrt(P) * pair part)

where the first two parts are weighted sums of the signals of their kind, the third a weighted sum of products of
two signals (each signal in one pair), all with unit variance; V = :data:`LOGIT_VARIANCE`, D, E, P =
:data:`SHARES`. The bias makes :data:`BASE_RATE` of the samples positive. Nothing here looks at the model that is being
trained, apart from its tables and its number of dense features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from executor.arrays import Floats, generator
from executor.data.batch import NO_ID, Batch, dense_width
from executor.metrics import log_loss, normalized_entropy
from problem.model import Model
from problem.popularity import popularity

#: Share of positive labels, chosen by us: near the 49 of 200 in the public sample of Criteo rows.
BASE_RATE = 0.3
#: Variance of the planted logit; with it the planted model's own normalised entropy is about 0.65.
LOGIT_VARIANCE = 4.5
#: Shares of that variance: dense features, tables, pairs.
SHARES = (0.5, 0.4, 0.1)

#: Samples from which the signals' scale and the bias are fitted, once per stream: at most so many, and so many ids.
_PILOT_SAMPLES = 16384
_PILOT_IDS = 1 << 20
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0

_Int64 = npt.NDArray[np.int64]
_Float64 = npt.NDArray[np.float64]
_Cell = TypeVar("_Cell", bound=np.generic)


@dataclass(frozen=True)
class _Columns:
    """Constants of the table columns, one column for each id of a sample; arrays of shape (columns, 1)."""

    span: _Float64  # (n + 1)^(1 - a) - 1, or log(n + 1) if a = 1
    power: _Float64  # 1 / (1 - a), or 0 if a = 1
    rows: _Int64
    stride: _Int64
    shift: _Int64
    salt: npt.NDArray[np.uint64]


@dataclass(frozen=True)
class _Bags:
    """Which places of the bags hold an id, (columns, size), and the weights of the ids."""

    used: npt.NDArray[np.bool_]
    weights: Floats | None


@dataclass(frozen=True)
class _Teacher:
    """The planted model: scale of each table's signal, and weights of the parts of the logit."""

    mean: _Float64  # (tables,)
    scale: _Float64  # (tables,)
    weights: _Float64  # (signals,)
    pairs: tuple[_Int64, _Int64]  # (pairs,) each: the two signals
    pair_weights: _Float64  # (pairs,)
    bias: float

    def logits(self, dense: Floats, effects: _Float64) -> _Float64:
        """Return logits (size,) of dense features (size, F) and raw effects of the tables (tables, size)."""
        tables = (effects - self.mean[:, None]) * self.scale[:, None]
        signals = np.concatenate([dense.T.astype(np.float64), tables])
        left, right = self.pairs
        logits: _Float64 = self.weights @ signals + self.pair_weights @ (signals[left] * signals[right])
        logits += self.bias
        return logits


class SyntheticStream:
    """Endless batches for a model; batch i depends only on the seed, the model's tables, i and the size.

    Parameters
    ----------
    model : Model
        Gives the tables and the number of dense features.
    seed : int
        Seed of the planted model and of every batch.
    """

    def __init__(self, model: Model, seed: int = 0) -> None:
        self._seed = seed
        self._dense = dense_width(model)
        self._tables = tuple(model.feature.values())
        ends = np.cumsum([table.ids_per_sample for table in self._tables], dtype=np.int64)
        self._starts = np.concatenate([np.zeros(1, np.int64), ends])
        self._columns = _columns(model, seed)
        self._teacher = self._fit_teacher()

    def batch(self, index: int, size: int) -> Batch:
        """Return batch number ``index`` of ``size`` samples."""
        return self._sample(index, size)[0]

    def logits(self, index: int, size: int) -> _Float64:
        """Return the planted model's logits of that batch's samples, (size,): the best prediction there is."""
        return self._sample(index, size)[1]

    def bayes_normalized_entropy(self, batches: int, size: int) -> float:
        """Return the normalised entropy of the planted model itself over the first batches."""
        samples = [self._sample(index, size) for index in range(batches)]
        labels = np.concatenate([batch.labels for batch, _ in samples])
        return normalized_entropy(
            log_loss(np.concatenate([logits for _, logits in samples]), labels), float(labels.mean(dtype=np.float64))
        )

    def _sample(self, index: int, size: int) -> tuple[Batch, _Float64]:
        draw = generator(self._seed, "batch", index, size)
        dense = draw.standard_normal((size, self._dense), dtype=np.float32)
        rows = self._draw_rows(draw, size)
        bags = self._draw_bags(generator(self._seed, "bags", index, size), size)
        logits = self._teacher.logits(dense, self._raw_effects(rows, bags))
        labels = draw.random(size) < 1.0 / (1.0 + np.exp(-logits))
        ids = self._per_table(np.where(bags.used, rows, NO_ID).astype(np.int32))
        weights = self._per_table(bags.weights) if bags.weights is not None else {}
        weighted = {table.name: weights[table.name] for table in self._tables if table.pooling == "weighted"}
        return Batch(dense, ids, labels.astype(np.float32), weighted), logits

    def _draw_rows(self, draw: np.random.Generator, size: int) -> _Int64:
        """Return row numbers, (columns, size)."""
        column = self._columns
        uniform = draw.random((len(column.rows), size))
        log = np.where(column.power == 0.0, uniform * column.span, np.log1p(uniform * column.span) * column.power)
        ranks = np.minimum(np.exp(log).astype(np.int64) - 1, column.rows - 1)
        rows: _Int64 = (ranks * column.stride + column.shift) % column.rows
        for table, begin, end in zip(self._tables, self._starts[:-1], self._starts[1:], strict=True):
            if table.histogram:
                rows[begin:end] = popularity(table).draw(uniform[begin:end])
        return rows

    def _draw_bags(self, draw: np.random.Generator, size: int) -> _Bags:
        """Return which places of the bags are used, and the weights of their ids."""
        tables, columns = self._tables, int(self._starts[-1])
        used = np.ones((columns, size), np.bool_)
        for table, begin in zip(tables, self._starts[:-1], strict=True):
            if table.max_ids:
                lengths = draw.binomial(table.max_ids, table.pooling_factor / table.max_ids, size)
                used[begin : begin + table.max_ids] = np.arange(table.max_ids)[:, None] < lengths
        weighted = any(table.pooling == "weighted" for table in tables)
        weights = draw.random((columns, size), np.float32) + np.float32(0.5) if weighted else None
        return _Bags(used, weights)

    def _per_table(self, columns: npt.NDArray[_Cell]) -> dict[str, npt.NDArray[_Cell]]:
        """Cut an array of all ids' columns, (columns, size), into one (size, L) for each table."""
        spans = zip(self._tables, self._starts[:-1], self._starts[1:], strict=True)
        return {table.name: np.ascontiguousarray(columns[begin:end].T) for table, begin, end in spans}

    def _raw_effects(self, rows: _Int64, bags: _Bags) -> _Float64:
        """Return the pooled effects of each table's ids, (tables, size)."""
        if not self._tables:
            return np.zeros((0, rows.shape[1]))
        effects = _effects(rows, self._columns.salt) * bags.used
        for table, begin, end in zip(self._tables, self._starts[:-1], self._starts[1:], strict=True):
            if table.pooling == "weighted" and bags.weights is not None:
                effects[begin:end] *= bags.weights[begin:end]
            elif table.pooling == "mean":
                effects[begin:end] /= np.maximum(1, bags.used[begin:end].sum(axis=0))
        pooled: _Float64 = np.add.reduceat(effects, self._starts[:-1], axis=0)
        return pooled

    def _fit_teacher(self) -> _Teacher:
        """Draw the planted model and fit its scales and its bias on a pilot sample."""
        draw = generator(self._seed, "teacher")
        size = max(1024, min(_PILOT_SAMPLES, _PILOT_IDS // max(1, len(self._columns.rows))))
        dense = draw.standard_normal((size, self._dense), dtype=np.float32)
        bags = self._draw_bags(generator(self._seed, "bags", "teacher"), size)
        raw = self._raw_effects(self._draw_rows(draw, size), bags)
        deviation = raw.std(axis=1)
        scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 1e-9)
        teacher = _weights(draw, self._dense, raw.mean(axis=1), scale)
        return _with_bias(teacher, teacher.logits(dense, raw))


def _columns(model: Model, seed: int) -> _Columns:
    """Draw each table's constants and repeat them for each id of a sample."""
    real, whole, salt = np.zeros((2, 0, 1)), np.zeros((3, 0, 1), np.int64), np.zeros((0, 1), np.uint64)
    for table in model.feature.values():
        draw, times = generator(seed, "ids", table.name), table.ids_per_sample
        shift = int(draw.integers(table.rows))
        constants = [table.rows, 1, 0] if table.ranked else [table.rows, _coprime(table.rows), shift]
        real = np.append(real, np.repeat(np.array(_inverse(table.rows, table.skew)), times).reshape(2, -1, 1), axis=1)
        whole = np.append(whole, np.repeat(np.array(constants), times).reshape(3, -1, 1), axis=1)
        salt = np.append(salt, np.full((times, 1), draw.integers(2**63), np.uint64), axis=0)
    return _Columns(real[0], real[1], whole[0], whole[1], whole[2], salt)


def _inverse(rows: int, skew: float) -> tuple[float, float]:
    """Return span and power of a column: u -> (1 + u * span) ** power is the inverse of the distribution of ranks + 1."""
    rest, log_rows = 1.0 - skew, math.log(rows + 1.0)
    return (math.expm1(rest * log_rows), 1.0 / rest) if abs(rest) > 1e-9 else (log_rows, 0.0)


def _coprime(rows: int) -> int:
    """Return the number nearest above ``rows`` times the golden ratio that has no common divisor with ``rows``."""
    stride = max(1, round(rows * _GOLDEN))
    while math.gcd(stride, rows) != 1:
        stride += 1
    return stride


def _effects(rows: _Int64, salt: npt.NDArray[np.uint64]) -> _Float64:
    """Return a fixed pseudo-random number, uniform in [-1, 1), for each row number of each column.

    The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) of row + salt.
    """
    mixed = rows.astype(np.uint64) + salt
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0


def _weights(draw: np.random.Generator, dense: int, mean: _Float64, scale: _Float64) -> _Teacher:
    """Draw weights of unit norm for each part and give it its share of the variance; parts without signals drop out."""
    tables = len(mean)
    order = draw.permutation(dense + tables)
    pairs = len(order) // 2
    parts = [_unit(draw.uniform(0.5, 1.5, count) * draw.choice([-1.0, 1.0], count)) for count in (dense, tables, pairs)]
    shares = [share if len(part) else 0.0 for share, part in zip(SHARES, parts, strict=True)]
    total = max(sum(shares), 1e-9)
    first, second, third = (
        part * math.sqrt(LOGIT_VARIANCE * share / total) for part, share in zip(parts, shares, strict=True)
    )
    chosen = (order[:pairs], order[pairs : 2 * pairs])
    return _Teacher(mean, scale, np.concatenate([first, second]), chosen, third, 0.0)


def _unit(weights: _Float64) -> _Float64:
    """Return the weights scaled to norm 1 (no weights: as they are)."""
    norm = float(np.sqrt(np.sum(weights * weights)))
    return weights / norm if norm else weights


def _with_bias(teacher: _Teacher, logits: _Float64) -> _Teacher:
    """Choose the bias by bisection so that the mean click probability of the pilot's logits is the base rate."""
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2.0
        if float(np.mean(1.0 / (1.0 + np.exp(-(logits + middle))))) < BASE_RATE:
            low = middle
        else:
            high = middle
    return replace(teacher, bias=low)
