"""The array types of the executor, where buffers come from, and seeded generators.

Knows nothing of models, kernels or processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from problem.errors import HiertrainError

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]


class Bags(NamedTuple):
    """Ids of some of a table's rows, in bags of any length.

    Parameters
    ----------
    ids : ndarray of int32, shape (n,)
        Row numbers in the whole table, bag by bag.
    offsets : ndarray of int32, shape (B + 1,)
        Where each bag's ids begin; the last entry is n.
    counts : ndarray of int32, shape (B,), optional
        How many ids each bag has in the whole table, of a feature that pools by the mean.
    """

    ids: Ids
    offsets: Ids
    counts: Ids | None = None


#: Gives the zeroed, one-dimensional float32 buffer of a given name and number of elements (shared memory, an arena, ...).
BufferFactory = Callable[[str, int], Floats]


class UnsupportedModel(HiertrainError):
    """The executor has no kernel or no update for a part of the model; the message names the part and what is allowed."""

    exit_code = 2


def add_into(out: Floats, parts: Sequence[Floats]) -> None:
    """Write the sum of arrays of the shape of ``out``, added from left to right, into it; one array is copied."""
    if len(parts) == 1:
        np.copyto(out, parts[0])
        return
    np.add(parts[0], parts[1], out=out)
    for part in parts[2:]:
        np.add(out, part, out=out)


def private_buffer(name: str, elements: int) -> Floats:
    """Return zeroed memory of this process (the default :data:`BufferFactory`); ``name`` is not used."""
    del name
    return np.zeros(elements, dtype=np.float32)


def generator(seed: int, *key: str | int) -> np.random.Generator:
    """Return a generator that depends on ``seed`` and ``key`` alone.

    Keys are names and indices, never positions in a program, so that what is drawn does not change when a model is
    cut or sharded in another way. SHA-256 of the text of seed and key, because Python's ``hash`` of a string differs
    from process to process.
    """
    text = "/".join(str(part) for part in (seed, *key))
    entropy = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
    return np.random.Generator(np.random.SFC64(entropy))
