"""What the cost of an operator of an unseen shape may depend on: named non-negative features for each kind and phase.

Physical terms, so that a fit with non-negative coefficients extrapolates sanely: arithmetic, arithmetic rounded up to
the kernel's tile, each operand's size, rows of tables that are not in the cache. docs/costs.md has the held-out errors
that they give. Knows nothing of seconds or fits.
"""

from __future__ import annotations

from math import ceil

from cost_models.traffic import distinct_rows
from problem.errors import HiertrainError
from problem.graph import Kind, Operator
from problem.model import EmbeddingTable

CACHE_BYTES = 16 * 2**20  # half of the 32 MB L3 of the machine of docs/costs.md: where look-ups began to slow down
TILE = 16  # float32 elements of an AVX-512 register: matrix kernels work on whole tiles of columns

Subject = Operator | EmbeddingTable


def family(subject: Subject, phase: str) -> str:
    """Name of the set of measurements that one fit covers: ``linear.forward``, ``table.lookup``, ``update``..."""
    if isinstance(subject, EmbeddingTable):
        return f"table.{phase}"
    return phase if phase == "update" else f"{subject.kind}.{phase}"


def features(subject: Subject, phase: str, batch: int) -> dict[str, float]:
    """Return the features of one phase of an operator or a table for ``batch`` samples.

    Parameters
    ----------
    subject : Operator or EmbeddingTable
        What is run.
    phase : str
        ``forward``, ``backward`` or ``update``; of a table ``lookup`` or ``update``, or what every
        shard takes of these.
    batch : int
        Samples.

    Returns
    -------
    dict of str to float
        Values by name, the same names for every subject of a family.

    Raises
    ------
    HiertrainError
        For kinds that are known by their own costs only (FIXED) or belong to a table (LOOKUP).
    """
    if isinstance(subject, EmbeddingTable):
        return _table(subject, batch)
    if phase == "update":
        return {"call": 1.0, "parameters": float(subject.parameters)}
    if subject.kind is Kind.LINEAR:
        return _linear(subject, phase, batch)
    if subject.kind is Kind.INTERACTION:
        return _interaction(subject, batch)
    if subject.kind is Kind.CROSS:
        return _cross(subject, phase, batch)
    if subject.kind in {Kind.CONCAT, Kind.FM, Kind.LOSS, Kind.DENSE_INPUT}:
        return {
            "call": 1.0,
            "inputs": float(len(subject.inputs)),
            "b": float(batch),
            "bn": batch * float(subject.width),
        }
    raise HiertrainError(f"operator {subject.name!r}: kind {subject.kind} has no cost features")


def _linear(op: Operator, phase: str, batch: int) -> dict[str, float]:
    """Features of ``x W + b``: x (b, m), W (m, n). ``flops`` are the phase's own: half without an input gradient."""
    n, m = op.width, op.parameters / op.width - 1
    work = op.forward if phase == "forward" else op.backward
    flops = work.flops_per_sample * batch
    tiled = flops * ceil(n / TILE) * TILE / n
    return {"call": 1.0, "flops": flops, "bm": batch * m, "bn": float(batch * n), "mn": m * n, "tiled": tiled}


def _interaction(op: Operator, batch: int) -> dict[str, float]:
    """Features of all pairwise dots of f vectors of d elements; the output is d + f (f - 1) / 2 wide."""
    f = len(op.inputs)
    d = op.width - f * (f - 1) // 2
    tiled = batch * f * ceil(f / TILE) * TILE * d
    powers = {"b": 1, "bf": f, "bff": f * f, "bfd": f * d, "bffd": f * f * d}
    return {"call": 1.0, **{name: float(batch * power) for name, power in powers.items()}, "tiled": float(tiled)}


def _cross(op: Operator, phase: str, batch: int) -> dict[str, float]:
    """Features of ``x0 * ((x V) U + b) + x``: width d, inner dimension r."""
    d, r = op.width, op.rank
    work = op.forward if phase == "forward" else op.backward
    values = {"flops": work.flops_per_sample * batch, "bd": batch * d, "br": batch * r, "dr": d * r}
    return {"call": 1.0, **{name: float(value) for name, value in values.items()}}


def _table(table: EmbeddingTable, batch: int) -> dict[str, float]:
    """Features of pooling or updating ``l`` rows of ``d`` elements a sample (the mean, where samples differ).

    ``touched`` are the distinct rows that a batch meets, the ones that are not in the cache yet, for uniform ids (skew is
    the same for all tables of a model, so it goes into the coefficient). ``cold`` ones grow from 0 as the table outgrows
    the cache.
    """
    ids, d = table.mean_ids, table.dim
    cold = max(0.0, 1 - CACHE_BYTES / table.total_bytes)
    touched = distinct_rows(table, batch)
    counts = {"l": ids, "bl": batch * ids, "bld": batch * ids * d, "bd": batch * d}
    misses = {"cold_bl": cold * batch * ids, "cold_bld": cold * batch * ids * d}
    rows = {"touched": touched, "touched_d": touched * d}
    return {"call": 1.0, **{name: float(value) for name, value in (counts | misses | rows).items()}}
