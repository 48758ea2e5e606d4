"""Embedding rows: pooled bags and the transpose of pooling, on any contiguous range of a table's rows.

Ids outside the range contribute nothing, so that several shards of one table can be fed the same ids, and -1 can fill up
short bags. Ids come as a rectangle, (B, L), or, where a server is sent only those of its rows, as :class:`Bags`; both give
the same bits. Whether ids lie inside the TABLE is checked where they are read (``data.batch``). Ids that appear again
in a batch accumulate, in the order in which they appear in the batch, so that results do not vary from run to run.

Pooling (``EmbeddingTable.pooling``): the sum of a bag's rows; their mean, the sum divided by the ids of the bag; or the sum
of weight * row. An empty bag gives zeros.

The loops run in ``native`` where that is available. Else the transpose goes through ``scipy.sparse._sparsetools`` (matrix
products of SciPy's sparse matrices, in C, without a check of bounds or a copy of rows), 7 to 44 times as fast as
``np.add.at`` on 64 to 128 wide rows. That module is private to SciPy: where it is missing, ``np.add.at`` does the same. All
three give the same bits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from executor import native
from executor.arrays import Bags, Floats, Ids

try:
    from scipy.sparse import _sparsetools
except ImportError:  # private module of SciPy
    _sparsetools = None

#: Places in an array seen as a row, rising.
Places = npt.NDArray[np.int64]


def pool(
    rows: Floats, row_begin: int, ids: Ids | Bags, out: Floats, weights: Floats | None = None, *, mean: bool = False
) -> None:
    """Write the pooled rows of each bag into ``out``.

    Parameters
    ----------
    rows : ndarray of float32, shape (rows, dim)
        Rows ``row_begin`` to ``row_begin + rows`` of a table.
    row_begin : int
        First row held.
    ids : ndarray of int32, shape (B, L), or Bags
        Row numbers in the whole table; those outside the range count as a row of zeros.
    out : ndarray of float32, shape (B, dim)
        Overwritten.
    weights : ndarray of float32, shape of the ids, optional
        Factor of each row.
    mean : bool
        Divide by the number of ids of the bag, those outside the range (but not -1) included.
    """
    if native.available():
        flat = None if weights is None else np.ascontiguousarray(weights)
        native.add_bags(rows, row_begin, *_in_a_row(ids), out, flat)
    elif isinstance(ids, Bags):
        local, kept = _local(ids.ids, row_begin, len(rows))
        given = None if weights is None else _taken(weights, kept)
        _add_bags(_ends(ids.offsets, kept), _taken(local, kept), rows, out, given)
    else:
        _pool(rows, *_local(ids, row_begin, len(rows)), out, weights)
    if mean:
        out *= share_of(ids)


def share_of(ids: Ids | Bags) -> Floats:
    """Return 1 / ids of each bag, (B, 1); 1 of an empty one: what pooling by the mean multiplies by. ``ids`` (B, L)."""
    if isinstance(ids, Bags):
        assert ids.counts is not None
        counts = ids.counts[:, None]
    else:
        counts = (ids >= 0).sum(axis=1, keepdims=True)
    share: Floats = np.float32(1.0) / np.maximum(counts, 1).astype(np.float32)
    return share


def chosen(
    ids: Ids, first: int, count: int, weights: Floats | None = None, *, out: Ids | None = None
) -> tuple[Bags, Floats | None]:
    """Return the ids of a range of rows, in their bags and order, and their weights.

    Parameters
    ----------
    ids : ndarray of int32, shape (B, L)
        Row numbers; -1 is of no row.
    first, count : int
        The rows.
    weights : ndarray of float32, shape (B, L), optional
        Weights of the ids.
    out : ndarray of int32, shape (B L + B + 1,), optional
        Memory for offsets and, behind them, ids.
    """
    bags = len(ids) + 1
    out = np.empty(bags + ids.size, np.int32) if out is None else out
    offsets, places = out[:bags], out[bags:]
    offsets[0] = 0
    if native.available():
        taken = None if weights is None else np.empty(ids.size, np.float32)
        given = None if weights is None else np.ascontiguousarray(weights)
        native.choose(np.ascontiguousarray(ids), first, count, places, offsets[1:], given, taken)
    else:
        _, kept = _local(ids, first, count)
        found = _taken(ids, kept)
        offsets[:], places[: len(found)] = _bags(ids.shape, kept), found
        taken = None if weights is None else _taken(weights, kept)
    total = int(offsets[-1])
    return Bags(places[:total], offsets), None if taken is None else taken[:total]


def _pool(rows: Floats, local: Ids, kept: Places | None, out: Floats, weights: Floats | None) -> None:
    """Pool without compiled loops; bags of one length by columns, two to four times as fast as a sparse product."""
    if kept is not None or weights is not None:
        given = None if weights is None else _taken(weights, kept)
        _add_bags(_bags(local.shape, kept), _taken(local, kept), rows, out, given)
        return
    np.take(rows, local[:, 0], axis=0, out=out, mode="clip")
    out += np.float32(0.0)  # sums begin at 0, and 0 + -0 is 0
    column = np.empty_like(out) if local.shape[1] > 1 else out
    for position in range(1, local.shape[1]):
        np.take(rows, local[:, position], axis=0, out=column, mode="clip")
        np.add(out, column, out=out)


def coalesce(
    ids: Ids | Bags, row_begin: int, count: int, d_pooled: Floats, weights: Floats | None = None
) -> tuple[Ids, Floats]:
    """Sum the gradients of each row, each times the weight of its id.

    Sorts keys made of id and position: they are distinct, so NumPy's fast unstable sort puts them in one order only.

    Parameters
    ----------
    ids : ndarray of int32, shape (B, L), or Bags
        Row numbers in the whole table.
    row_begin, count : int
        Range of rows held; other ids are left out.
    d_pooled : ndarray of float32, shape (B, dim)
        Gradient with respect to the pooled embeddings.
    weights : ndarray of float32, shape of the ids, optional
        Factors; 1 without.

    Returns
    -------
    touched : ndarray of int32, shape (U,)
        Distinct rows, relative to ``row_begin``, ascending.
    gradient : ndarray of float32, shape (U, dim)
        Their gradients, summed in the order of the batch.
    """
    flat, offsets = _in_a_row(ids)
    local, kept = _local(flat, row_begin, count)
    bits = max(1, flat.size - 1).bit_length()
    keys = (_taken(local, kept).astype(np.int64) << bits) | (np.arange(flat.size) if kept is None else kept)
    keys.sort()
    sorted_ids = (keys >> bits).astype(np.int32)
    places = keys & ((1 << bits) - 1)
    starts = np.flatnonzero(np.diff(sorted_ids, prepend=-1)).astype(np.int32)
    gradient = np.empty((len(starts), d_pooled.shape[1]), np.float32)
    ends, factors = np.append(starts, np.int32(len(keys))), None if weights is None else weights.reshape(-1)[places]
    if isinstance(ids, Bags):
        bags = np.repeat(np.arange(len(d_pooled), dtype=np.int32), np.diff(offsets))[places]
    else:
        bags = (places // ids.shape[1]).astype(np.int32)
    _add_bags(ends, bags, d_pooled, gradient, factors)
    return sorted_ids[starts], gradient


def scatter_bags(
    rows: Floats, row_begin: int, ids: Ids | Bags, source: Floats, factor: float, weights: Floats | None = None
) -> None:
    """Add ``factor`` times the row of each bag to the table's rows that it reads, once for every occurrence of an id.

    Parameters
    ----------
    rows : ndarray of float32, shape (rows, width)
        Rows ``row_begin`` to ``row_begin + rows`` of a table, changed.
    row_begin : int
        First row held.
    ids : ndarray of int32, shape (B, L), or Bags
        Row numbers in the whole table; those outside the range are left out.
    source : ndarray of float32, shape (B, width)
        What is added for each bag.
    factor : float
        Multiplies all of it.
    weights : ndarray of float32, shape of the ids, optional
        Factors of single ids.
    """
    flat, offsets = _in_a_row(ids)
    factors = np.full(len(flat), factor, np.float32)
    if weights is not None:
        factors *= weights.reshape(-1)
    if native.available():
        native.scatter(offsets, flat, factors, source, rows, row_begin)
        return
    local, kept = _local(flat, row_begin, len(rows))
    _scatter(_ends(offsets, kept), _taken(local, kept), _taken(factors, kept), source, rows)


def scatter(touched: Ids, factors: Floats, source: Floats, rows: Floats) -> None:
    """rows[touched[i]] += factors[i] * source[i]; ``touched`` and ``factors`` (U,), ``source`` (U, width)."""
    _scatter(_offsets(len(touched), 1), touched, factors, source, rows)


def _in_a_row(ids: Ids | Bags) -> tuple[Ids, Ids]:
    """Return ids one behind the other, (n,), and the offsets of their bags, (B + 1,)."""
    return (ids.ids, ids.offsets) if isinstance(ids, Bags) else (ids.reshape(-1), _offsets(*ids.shape))


def _local(ids: Ids, row_begin: int, count: int) -> tuple[Ids, Places | None]:
    """Return ids relative to the first row, in their shape, and the places of those in the range (None: all)."""
    local = ids - np.int32(row_begin) if row_begin else np.ascontiguousarray(ids)
    inside = local.view(np.uint32) < count
    return local, None if inside.all() else np.flatnonzero(inside)


def _taken(array: npt.NDArray[Any], kept: Places | None) -> npt.NDArray[Any]:
    """Return what is at some places of an array (B, L), in a row; all of it for None."""
    return array.reshape(-1) if kept is None else array.reshape(-1).take(kept)


def _bags(shape: tuple[int, ...], kept: Places | None) -> Ids:
    """Return the offsets of bags, (B + 1,), of which some places are kept; all of them for None."""
    return _ends(_offsets(*shape), kept)


def _ends(offsets: Ids, kept: Places | None) -> Ids:
    """Return the offsets of bags, (B + 1,), of whose ids some are kept; all of them for None."""
    return offsets if kept is None else np.searchsorted(kept, offsets).astype(np.int32)


@lru_cache(maxsize=256)
def _offsets(bags: int, length: int) -> Ids:
    """Return the offsets of ``bags`` bags of one length, (bags + 1,)."""
    offsets = np.arange(0, bags * length + 1, max(1, length), dtype=np.int32)
    offsets.setflags(write=False)
    return offsets


def _add_bags(offsets: Ids, ids: Ids, rows: Floats, out: Floats, weights: Floats | None) -> None:
    """out[bag] = 0 + the sum of weight * rows[id] over each bag, in order (sparse CSR matrix times ``rows``)."""
    if native.available():
        native.add_bags(rows, 0, ids, offsets, out, weights)
        return
    out.fill(0.0)
    factors = np.ones(len(ids), np.float32) if weights is None else weights
    if _sparsetools is None:
        np.add.at(out, np.repeat(np.arange(len(out)), np.diff(offsets)), factors[:, None] * rows[ids])
        return
    _sparsetools.csr_matvecs(len(out), len(rows), rows.shape[1], offsets, ids, factors, rows.ravel(), out.reshape(-1))


def _scatter(offsets: Ids, ids: Ids, factors: Floats, source: Floats, rows: Floats) -> None:
    """rows[id] += factor * source[bag] for each id of each bag, in order (sparse CSC matrix times ``source``)."""
    if native.available():
        native.scatter(offsets, ids, factors, source, rows)
        return
    if _sparsetools is None:
        bags = np.repeat(np.arange(len(source)), np.diff(offsets))
        np.add.at(rows, ids, factors[:, None] * source[bags])
        return
    _sparsetools.csc_matvecs(
        len(rows), len(source), rows.shape[1], offsets, ids, factors, source.ravel(), rows.reshape(-1)
    )
