"""Compiled kernels for the loops that NumPy has no primitive for: pooled sums, scattered updates, SGD, bias with ReLU.

The loops (``native_loops``) are in LLVM's assembly language and compiled for this CPU, when first used, by ``llvmlite``, an
optional package (``pip install hiertrain[fast]``) that needs no compiler. Where it is missing, or the environment variable
``HIERTRAIN_NATIVE`` is 0, :func:`available` is False and the callers (``kernels_sparse``, ``kernels_update``,
``kernels_dense``) do the same with NumPy and SciPy. Same operations in the same order without contraction to fused
multiply-adds: the bits are the same too. Knows arrays and loops only. Bounds are checked for ids alone.

Why it is faster. Pooling keeps up to 128 columns of a bag's sum in vector registers, and asks for the rows of the ids that
are some positions further on (``llvm.prefetch``), so that several cache misses are under way at once; ``np.take`` writes
every row to memory before it is added. A shard's own ids are found in the same pass: no array is made of them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.arrays import Floats, Ids
from executor.native_loops import DESCEND, bags, bias, choosing, scattering

try:
    from llvmlite import binding as _llvm
except ImportError:  # the optional extra "fast"
    _llvm = None

#: Columns of a row that are worked on together: 8 registers of 16 floats (AVX-512), 16 of 8 (AVX2).
BLOCK = 128
_POINTER, _COUNT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_enabled = os.environ.get("HIERTRAIN_NATIVE", "1") != "0"


def available() -> bool:
    """Whether compiled kernels are there and wanted."""
    return _llvm is not None and _enabled


def use(wanted: bool) -> bool:
    """Switch compiled kernels on or off in this process; return whether they were on."""
    global _enabled
    before, _enabled = _enabled, wanted
    return before


def add_bags(rows: Floats, row_begin: int, ids: Ids, offsets: Ids, out: Floats, weights: Floats | None = None) -> None:
    """out[bag] = 0 + the sum of weight * row over the ids of each bag, added in order.

    Parameters
    ----------
    rows : ndarray of float32, shape (rows, dim)
        Rows ``row_begin`` and on; elements of a row side by side. An id outside of them adds a row of zeros.
    row_begin : int
        Number of the first row.
    ids : ndarray of int32, shape (n,)
        Row numbers, those of the first bag first.
    offsets : ndarray of int32, shape (bags + 1,)
        Where each bag's ids begin; the last entry is n.
    out : ndarray of float32, shape (bags, dim)
        Overwritten.
    weights : ndarray of float32, shape (n,), optional
        Of the ids; 1 without.
    """
    kind, given = ("pool", ()) if weights is None else ("weighted", (_at(weights),))
    for begin, width in _blocks(rows.shape[1]):
        _function(kind, width)(
            *(_at(rows, begin), _at(ids), _at(offsets), *given, _at(out, begin)),
            *(row_begin, len(rows), _stride(rows), _stride(out), len(out)),
        )


def scatter(offsets: Ids, ids: Ids, factors: Floats, source: Floats, rows: Floats, row_begin: int = 0) -> None:
    """Row += factor * source[bag] for each id of each bag, in order; ids outside of the rows change nothing.

    Parameters
    ----------
    offsets, ids : ndarray of int32
        As in :func:`add_bags`.
    factors : ndarray of float32, shape (n,)
        One for each id.
    source : ndarray of float32, shape (bags, dim)
        Added.
    rows : ndarray of float32, shape (rows, dim)
        Changed.
    row_begin : int
        Number of the first row.
    """
    source = np.ascontiguousarray(source)
    for begin, width in _blocks(rows.shape[1]):
        _function("scatter", width)(
            *(_at(rows, begin), _at(ids), _at(offsets), _at(factors), _at(source, begin)),
            *(row_begin, len(rows), _stride(rows), _stride(source), len(source)),
        )


def choose(
    ids: Ids,
    first: int,
    count: int,
    out: Ids,
    ends: Ids,
    weights: Floats | None = None,
    out_weights: Floats | None = None,
) -> None:
    """Copy the ids of rows ``first`` to ``first + count``, one bag behind the other, and their weights.

    Parameters
    ----------
    ids : ndarray of int32, shape (B, L)
        Row numbers, C-contiguous.
    first, count : int
        The rows.
    out : ndarray of int32, shape (B L,)
        The ids at its beginning; overwritten beyond them.
    ends : ndarray of int32, shape (B,)
        Where each bag's ids end in ``out``.
    weights, out_weights : ndarray of float32, shapes (B, L) and (B L,), optional
        Weights, and where those of the ids that are copied go.
    """
    pair = () if weights is None or out_weights is None else (_at(weights), _at(out_weights))
    kernel = _function("choose weighted" if pair else "choose", 0)
    kernel(_at(ids), _at(out), _at(ends), *pair, first, count, *ids.shape)


def descend(params: Floats, grads: Floats, rate: float) -> None:
    """Params -= rate * grads, both (n,)."""
    _function("descend", 0)(_at(params), _at(grads), len(params), rate)


def add_bias(output: Floats, bias: Floats, relu: bool) -> None:
    """Add ``bias`` (columns,) to each row of ``output`` (B, columns); with ``relu``, negative sums become 0."""
    _function("relu" if relu else "bias", 0)(_at(output), _at(bias), *output.shape)


def _at(array: npt.NDArray[Any], column: int = 0) -> int:
    """Address of an element of the first row."""
    return int(array.ctypes.data) + column * array.itemsize


def _stride(array: Floats) -> int:
    """Elements from a row to the next."""
    return array.strides[0] // array.itemsize


@lru_cache(maxsize=1024)
def _blocks(columns: int) -> tuple[tuple[int, int], ...]:
    """Cut columns into blocks: (first column, width)."""
    return tuple((begin, min(BLOCK, columns - begin)) for begin in range(0, columns, BLOCK))


# ---- compilation


@lru_cache(maxsize=1024)
def _function(kind: str, width: int) -> Callable[..., None]:
    """Compile a kernel; for pooling and scattering, that of a number of columns."""
    counts = (_COUNT,) * 5
    kernels: dict[str, tuple[Callable[[], str], tuple[Any, ...]]] = {
        "pool": (lambda: bags(width, weighted=False), (*(_POINTER,) * 4, *counts)),
        "weighted": (lambda: bags(width, weighted=True), (*(_POINTER,) * 5, *counts)),
        "scatter": (lambda: scattering(width), (*(_POINTER,) * 5, *counts)),
        "choose": (lambda: choosing(weighted=False), (*(_POINTER,) * 3, *counts[:4])),
        "choose weighted": (lambda: choosing(weighted=True), (*(_POINTER,) * 5, *counts[:4])),
        "descend": (lambda: DESCEND, (_POINTER, _POINTER, _COUNT, _FLOAT)),
        "bias": (lambda: bias(relu=False), (_POINTER, _POINTER, _COUNT, _COUNT)),
        "relu": (lambda: bias(relu=True), (_POINTER, _POINTER, _COUNT, _COUNT)),
    }
    text, types = kernels[kind]
    kernel: Callable[..., None] = ctypes.CFUNCTYPE(None, *types)(_compile(text()))
    return kernel


_engines: list[Any] = []  # keep the machine code


def _compile(text: str) -> int:
    """Return the address of the one function of a module, ``@kernel``."""
    machine = _machine()
    module = _llvm.parse_assembly(text)
    options = _llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    passes = _llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    engine = _llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _engines.append(engine)
    return int(engine.get_function_address("kernel"))


@lru_cache(maxsize=1)
def _machine() -> Any:
    _llvm.initialize_native_target()
    _llvm.initialize_native_asmprinter()
    features = _llvm.get_host_cpu_features().flatten()
    return _llvm.Target.from_default_triple().create_target_machine(
        cpu=_llvm.get_host_cpu_name(), features=features, opt=3
    )
