"""A profile: what was measured on ONE machine, and what its fits say about batches and shapes that were not.

The measuring is the business of ``executor.profiler``; it fills in a :class:`Profile` and calls :meth:`Profile.fitted`.
:mod:`cost_models.profile_costs` turns a profile into the cost table of a model. Knows nothing of placement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from cost_models.checked_json import build, read_object, write_json
from cost_models.costs import MessageCost
from cost_models.features import Subject, family, features
from cost_models.fit import (
    Residual,
    between,
    fit_measured,
    fit_nonnegative,
    held_out_errors,
    interpolation_errors,
    residual,
)
from problem.errors import BadInput
from problem.graph import Kind, Operator
from problem.model import EmbeddingTable

FORMAT = "hiertrain-profile"
FORMAT_VERSION = 1
#: What was overwritten between messages when profiles did not say: larger than a second-level cache.
UNSAID_TOUCHED_BYTES = 8 << 20
SHAPES_TO_FIT = 3  # a fit over fewer shapes says nothing about another
Phase = Literal["forward", "backward", "update", "lookup", "shard_lookup", "shard_update"]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]


def table_signature(table: EmbeddingTable) -> str:
    """What the cost of a table depends on, apart from the batch: the key of a profile's entries for tables."""
    shape = f"{table.rows}/{table.dim}/{table.ids_per_sample}"
    bags = "" if (table.pooling, table.max_ids) == ("sum", 0) else f"/{table.pooling}/{table.pooling_factor:g}"
    return f"table/{shape}/{table.optimizer}/{table.dtype}/{table.skew:g}{bags}"


def signature(subject: Subject) -> str:
    """Key of a profile's entries for an operator or a table."""
    return table_signature(subject) if isinstance(subject, EmbeddingTable) else subject.signature


@dataclass(frozen=True, slots=True)
class Measurement:
    """Core-seconds of one phase of one operator or table for one batch.

    Parameters
    ----------
    signature : str
        ``Operator.signature`` or :func:`table_signature`.
    phase : str
        ``forward``, ``backward`` or ``update`` of an operator; ``lookup`` or ``update`` of a table, and ``shard_lookup`` or
        ``shard_update``, what every shard of it takes of these, however few of its rows are read.
    batch : int
        Samples.
    seconds : float
        Typical core-seconds (median, or trimmed mean).
    spread : float
        Interquartile range of the repetitions, in seconds.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    signature: Name
    phase: Phase
    batch: Annotated[int, Field(ge=1)]
    seconds: NotNegative
    spread: NotNegative = 0.0


@dataclass(frozen=True, slots=True)
class MessagePoint:
    """Core-seconds that a message of ``bytes`` in some tensors takes from its sender and from its receiver.

    Files that were written before tensors were counted have none: their fit has no part per tensor. ``touched_bytes`` is
    how much memory each end overwrote since the message before, as a step would (``cost_models.memory.step_bytes``): what it
    takes to send one depends most of all on which cache the program itself lies in. ``sum_seconds`` is what it then takes
    to add each tensor received to one that was touched before that, one instruction after the other (0: not measured).
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    bytes: NotNegative
    send_seconds: NotNegative
    receive_seconds: NotNegative
    tensors: Annotated[int, Field(ge=0)] = 0
    touched_bytes: NotNegative = UNSAID_TOUCHED_BYTES
    sum_seconds: NotNegative = 0.0

    @property
    def features(self) -> list[float]:
        """What its seconds are fitted to: once, bytes, tensors."""
        return [1.0, self.bytes, float(self.tensors)]


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """Core-seconds to take a batch of ``bytes`` (all its features, ids and labels) from the data."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    bytes: NotNegative
    seconds: NotNegative


@dataclass(frozen=True)
class Profile:
    """What was measured on one machine.

    Parameters
    ----------
    machine : str
        Fingerprint of the machine; equals ``Node.kind`` of its nodes.
    date : str
        When it was measured, ISO 8601.
    version : str
        Version of hiertrain that measured.
    batches : tuple of int
        Batch sizes that were measured.
    measurements : tuple of Measurement
        Operators and tables. The same entry twice (two operators of one shape) counts with its median.
    messages : tuple of MessagePoint
        Messages of several sizes, with as much memory touched in between as one step touches or several.
    next_batch : tuple of BatchPoint
        Taking batches of several sizes.
    metric_seconds : float
        Core-seconds of recording the loss of a batch.
    sum_seconds_per_byte : float
        As in :class:`cost_models.costs.CostTable`, of files whose messages have no ``sum_seconds``.
    exchange_seconds_per_byte : float
        As in :class:`cost_models.costs.CostTable`.
    variation : float
        Coefficient of variation of a rank's core-seconds from one step to the next, median over batches.
    optimizer : str
        Optimizer of the dense parameters whose updates were measured.
    flops_per_core_second : float
        Best rate seen in a LINEAR forward phase; filled in by :meth:`fitted`.
    coefficients : Mapping
        For each family of unseen shapes: seconds per unit of each feature; filled in by :meth:`fitted`.
    batch_residuals, shape_residuals : Mapping
        For each family the held-out error of interpolating in the batch and of the feature model; the latter also has
        ``message.send``, ``message.receive`` and ``next_batch``, each size left out in turn. By :meth:`fitted`.
    source : str
        File that it was read from, for messages.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    machine: Name
    date: str
    version: str
    batches: tuple[int, ...]
    measurements: tuple[Measurement, ...]
    messages: tuple[MessagePoint, ...] = ()
    next_batch: tuple[BatchPoint, ...] = ()
    metric_seconds: NotNegative = 0.0
    sum_seconds_per_byte: NotNegative = 0.0
    exchange_seconds_per_byte: NotNegative = 0.0
    variation: NotNegative = 0.0
    optimizer: str = "sgd"
    flops_per_core_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    coefficients: Mapping[str, Mapping[str, NotNegative]] = field(default_factory=dict)
    batch_residuals: Mapping[str, Residual] = field(default_factory=dict)
    shape_residuals: Mapping[str, Residual] = field(default_factory=dict)
    source: str = field(default="profile", compare=False)

    @property
    def zeros(self) -> int:
        """Number of measurements of exactly zero seconds: below the clock's resolution, or not measured at all."""
        return sum(m.seconds == 0 for m in self.measurements)

    def message(self, step_bytes: float, sessions: int = 1) -> MessageCost:
        """Fits of the message points on relative error: once, per byte, per tensor.

        Parameters
        ----------
        step_bytes : float
            Memory that a step of one session touches (``cost_models.memory.step_bytes``): so much has come between the last
            message and the next. Between fits for other amounts by a line; beyond the ends as at the ends.
        sessions : int
            Sessions on one machine. Code and the small objects of a message are in use by each or in all at once; its bytes
            lie among those that all sessions touch, so that the parts per byte are those for so many steps.
        """
        if not self.messages:
            return MessageCost()
        alone, beside = (MessageCost(*between(self._message_fits, n * step_bytes)) for n in (1, sessions))
        return replace(
            alone,
            send_seconds_per_byte=beside.send_seconds_per_byte,
            receive_seconds_per_byte=beside.receive_seconds_per_byte,
        )

    def summing(self, step_bytes: float, sessions: int = 1) -> tuple[float, float]:
        """Core-seconds of adding what was received, per byte and beside: as :meth:`message`; of old files their number."""
        fits = self._sum_fits
        if not fits:
            return self.sum_seconds_per_byte, 0.0
        return between(fits, sessions * step_bytes)[0], between(fits, step_bytes)[1]

    @cached_property
    def _message_fits(self) -> dict[float, list[float]]:
        """Fitted parts in the order of :class:`~cost_models.costs.MessageCost`, by the bytes touched between messages."""
        found = {}
        for touched, points in self._messages.items():
            rows = [point.features for point in points]
            send = fit_measured(rows, [point.send_seconds for point in points])
            receive = fit_measured(rows, [point.receive_seconds for point in points])
            found[touched] = [*send[:2], *receive[:2], send[2], receive[2]]
        return found

    @cached_property
    def _sum_fits(self) -> dict[float, list[float]]:
        """Fitted seconds of sums, per byte and per tensor, by the bytes touched between messages."""
        return {
            touched: fit_measured([point.features[1:] for point in points], [point.sum_seconds for point in points])
            for touched, points in self._messages.items()
            if any(point.sum_seconds for point in points)
        }

    @property
    def _messages(self) -> dict[float, list[MessagePoint]]:
        """Message points by the bytes that were touched between them."""
        found: dict[float, list[MessagePoint]] = {}
        for point in self.messages:
            found.setdefault(point.touched_bytes, []).append(point)
        return found

    def next_batch_seconds(self, size_bytes: float) -> float:
        """Core-seconds to take a batch of ``size_bytes``: affine fit of the batch points."""
        points = self.next_batch
        rows = [[1.0, point.bytes] for point in points]
        fixed, per_byte = fit_measured(rows, [point.seconds for point in points]) if rows else (0.0, 0.0)
        return fixed + per_byte * size_bytes

    def knots(self, key: str, phase: str) -> tuple[list[int], list[float]]:
        """Measured batches (increasing) and seconds of one phase of the entry ``key``; empty if there are none."""
        points = self._points.get((key, phase), {})
        return list(points), list(points.values())

    @cached_property
    def _points(self) -> dict[tuple[str, str], dict[int, float]]:
        """Seconds by batch, in increasing order of batches, for each signature and phase."""
        repeated: dict[tuple[str, str], dict[int, list[float]]] = {}
        for m in sorted(self.measurements, key=lambda m: m.batch):
            repeated.setdefault((m.signature, m.phase), {}).setdefault(m.batch, []).append(m.seconds)
        return {
            key: {batch: median(values) for batch, values in by_batch.items()} for key, by_batch in repeated.items()
        }

    def fitted(self, subjects: Iterable[Subject]) -> Profile:
        """Return the profile with its fits, held-out errors and core speed filled in.

        Parameters
        ----------
        subjects : iterable of Operator or EmbeddingTable
            The operators and tables behind the measurements (several of one signature count once).
        """
        samples = _samples(self, {signature(subject): subject for subject in subjects})
        fits = {name: _fit(points) for name, points in samples.items()}
        return replace(
            self,
            flops_per_core_second=_best_rate(samples) or self.flops_per_core_second,
            coefficients={name: fit[0] for name, fit in fits.items() if fit[0]},
            shape_residuals={name: fit[1] for name, fit in fits.items() if fit[1] is not None} | _size_residuals(self),
            batch_residuals=_batch_residuals(self, samples),
        )


@dataclass(frozen=True, slots=True)
class _Sample:
    subject: Subject
    key: str
    phase: str
    batch: int
    seconds: float


def _samples(profile: Profile, subjects: Mapping[str, Subject]) -> dict[str, list[_Sample]]:
    """Points of the profile by family, without zeros (a relative error needs something to be relative to)."""
    samples: dict[str, list[_Sample]] = {}
    for (key, phase), points in profile._points.items():
        subject = subjects.get(key)
        if subject is None or (isinstance(subject, Operator) and subject.kind in {Kind.FIXED, Kind.LOOKUP}):
            continue
        found = samples.setdefault(family(subject, phase), [])
        found.extend(_Sample(subject, key, phase, batch, seconds) for batch, seconds in points.items() if seconds > 0)
    return {name: found for name, found in samples.items() if found}


def _fit(points: list[_Sample]) -> tuple[dict[str, float], Residual | None]:
    """Coefficients by feature and their held-out error; nothing if there are too few shapes."""
    groups = [point.key for point in points]
    if len(set(groups)) < SHAPES_TO_FIT:
        return {}, None
    rows = [features(point.subject, point.phase, point.batch) for point in points]
    matrix = [list(row.values()) for row in rows]
    seconds = [point.seconds for point in points]
    coefficients = dict(zip(rows[0], fit_nonnegative(matrix, seconds).tolist(), strict=True))
    return coefficients, residual(held_out_errors(matrix, seconds, groups))


def _best_rate(samples: Mapping[str, list[_Sample]]) -> float:
    """Highest flops per core-second of a LINEAR forward phase; 0 if none was measured."""
    rates = [
        point.subject.forward.flops_per_sample * point.batch / point.seconds
        for point in samples.get(f"{Kind.LINEAR}.forward", [])
        if isinstance(point.subject, Operator)
    ]
    return max(rates, default=0.0)


def _batch_residuals(profile: Profile, samples: Mapping[str, list[_Sample]]) -> dict[str, Residual]:
    found: dict[str, Residual] = {}
    for name, points in samples.items():
        curves = dict.fromkeys((point.key, point.phase) for point in points)
        errors = [error for key, phase in curves for error in interpolation_errors(*profile.knots(key, phase))]
        summary = residual(errors)
        if summary is not None:
            found[name] = summary
    return found


def _size_residuals(profile: Profile) -> dict[str, Residual]:
    """Held-out errors of the fits of messages and batches, each size left out in its turn."""
    messages = profile._messages.values()
    curves = {
        "message.send": [[(point.features, point.send_seconds) for point in points] for points in messages],
        "message.receive": [[(point.features, point.receive_seconds) for point in points] for points in messages],
        "next_batch": [[([1.0, point.bytes], point.seconds) for point in profile.next_batch]],
    }
    summaries = {name: residual([e for curve in found for e in _size_errors(curve)]) for name, found in curves.items()}
    return {name: summary for name, summary in summaries.items() if summary is not None}


def _size_errors(curve: list[tuple[list[float], float]]) -> list[float]:
    """Relative errors of one fit at each of its points, left out."""
    rows, seconds = [row for row, each in curve if each > 0], [each for _, each in curve if each > 0]
    errors: list[float] = held_out_errors(rows, seconds, [str(row) for row in rows], folds=len(rows) or 1).tolist()
    return errors


def save_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile as JSON, atomically.

    Raises
    ------
    BadInput
        If a duration is negative, infinite or not a number; then nothing is written.
    """
    values = asdict(profile)
    del values["source"]
    doc = {"format": FORMAT, "format_version": FORMAT_VERSION, **values}
    _from_json(doc, path)
    write_json(doc, path)


def load_profile(path: str | Path) -> Profile:
    """Read a profile.

    Raises
    ------
    BadInput
        If the file is missing or not a profile of a known version, or if a value is not allowed; an entry of an
        operator is named by its signature and phase.
    """
    return _from_json(read_object(path), path)


def _from_json(doc: Mapping[str, object], source: str | Path) -> Profile:
    values = dict(doc)
    if values.pop("format", None) != FORMAT:
        raise BadInput(source, "format", doc.get("format"), f"{FORMAT!r}")
    if values.pop("format_version", None) != FORMAT_VERSION:
        raise BadInput(source, "format_version", doc.get("format_version"), f"{FORMAT_VERSION}")
    values.pop("source", None)
    return replace(build(Profile, values, source), source=str(source))
