"""Kernels and whole iterations of the executor beside PyTorch's, one thread: ``python -m experiments.bench_executor``.

Same shapes, same ids, same start values, in one process and in turn, so that what else the machine does hits both. Each
figure is the median of the CPU time of a call over the rounds; a ratio below 1 means that ours is faster. Ids are fresh from
call to call (a set of batches far larger than a core's cache). For whole iterations the losses of both are compared.
Prints ours alone where PyTorch is not installed (``pip install torch``). Takes a minute or two. OpenBLAS runs with the
kernels that are fastest here (``executor.coretype``), as for the command line after ``hiertrain profile``.
"""

from __future__ import annotations

from executor.coretype import VARIABLE, settle

settle(measured=__name__ == "__main__")  # before NumPy is loaded

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from executor.arrays import Floats
from executor.data import SyntheticStream
from executor.kernels import make_kernel
from executor.kernels_rows import Read, update_rows
from executor.kernels_sparse import pool
from executor.oracle import Oracle
from executor.parameters import TableRows
from experiments import torch_reference
from problem.graph import Kind, Operator
from problem.model import EmbeddingTable
from problem.readers import load_model, with_max_rows

Call = Callable[[int], Any]

PRESETS = ("dlrm-kaggle", "rm1", "rm2", "rm3")
#: Rows of a table at most: eight of the largest tables are larger than any cache, and all of them fit into 2 GiB.
MAX_ROWS = 100_000
BATCHES = 24
#: (B, in, out); (rows, dim, B, L); (B, F, D).
LINEAR_SHAPES = ((128, 13, 512), (128, 367, 512), (512, 512, 256), (2048, 13, 64), (2048, 512, 256), (512, 256, 1))
EMBEDDING_SHAPES = ((100_000, 16, 2048, 1), (100_000, 64, 512, 10), (1_000_000, 64, 512, 10), (100_000, 32, 200, 80))
INTERACTION_SHAPES = ((128, 27, 16), (512, 9, 64), (512, 27, 64))
RATE = 1e-4
#: CPU seconds of one round of one side, at least one call; and rounds.
ROUND_SECONDS, ROUNDS = 0.01, 15


@dataclass(frozen=True)
class Case:
    """One thing to time on both sides; ``theirs`` is None without PyTorch."""

    name: str
    shape: str
    ours: Call
    theirs: Call | None


@dataclass(frozen=True)
class Row:
    """Median microseconds of CPU time a call, and how many calls a round had."""

    name: str
    shape: str
    ours: float
    theirs: float | None
    calls: int

    def text(self) -> str:
        """Return the row of the table."""
        line = f"{self.name:22} {self.shape:28} {self.ours:12,.1f}"
        return line if self.theirs is None else f"{line} {self.theirs:12,.1f} {self.ours / self.theirs:8.2f}"


def measure(case: Case) -> Row:
    """Time both sides in turn, after a round that is not counted."""
    sides = [case.ours] + ([case.theirs] if case.theirs is not None else [])
    calls = max(1, int(ROUND_SECONDS / max(1e-7, *(_seconds(side, 0, 1) for side in sides))))
    found: list[list[float]] = [[] for _ in sides]
    for number in range(ROUNDS + 1):
        for side, times in zip(sides, found, strict=True):
            times.append(_seconds(side, number * calls, calls))
    micro = [1e6 * median(times[1:]) for times in found]
    return Row(case.name, case.shape, micro[0], micro[1] if len(micro) > 1 else None, calls)


def _seconds(call: Call, first: int, calls: int) -> float:
    """CPU seconds of a call, mean of several."""
    begin = time.process_time()
    for number in range(first, first + calls):
        call(number)
    return (time.process_time() - begin) / calls


# ---- kernels


def kernel_cases(torch: Any | None) -> Iterator[Case]:
    """Forward, and forward with backward (and update), of each kind of kernel."""
    draw = np.random.default_rng(0)
    for batch, inputs, width in LINEAR_SHAPES:
        yield from _linear_cases(torch, draw, batch, inputs, width)
    for rows, dim, batch, length in EMBEDDING_SHAPES:
        yield from _embedding_cases(torch, draw, rows, dim, batch, length)
    for batch, count, dim in INTERACTION_SHAPES:
        yield from _interaction_cases(torch, draw, batch, count, dim)


def _pair(name: str, shape: str, ours: tuple[Call, Call], theirs: tuple[Call, ...] | None) -> Iterator[Case]:
    yield Case(f"{name} forward", shape, ours[0], theirs[0] if theirs else None)
    both = "step" if name == "embedding" else "both ways"  # a step: forward, backward and update
    yield Case(f"{name} {both}", shape, ours[1], theirs[1] if theirs else None)


def _linear_cases(torch: Any, draw: np.random.Generator, batch: int, inputs: int, width: int) -> Iterator[Case]:
    op = Operator("x", Kind.LINEAR, ("in",), width, parameters=(inputs + 1) * width, activation="relu")
    params, values = _normal(draw, op.parameters), _normal(draw, batch, inputs)
    kernel, gradient, grads = make_kernel(op, [inputs], batch), np.ones((batch, width), np.float32), params.copy()

    def train(_: int) -> None:
        kernel.forward([values], params)
        kernel.backward(gradient, [values], params, grads, [True])

    weight, bias = params[: inputs * width].reshape(inputs, width), params[inputs * width :]
    theirs = torch_reference.linear_calls(torch, weight, bias, values) if torch else None
    ours = (lambda _: kernel.forward([values], params)), train
    yield from _pair("linear", f"B {batch}, {inputs} to {width}", ours, theirs)


def _embedding_cases(
    torch: Any, draw: np.random.Generator, rows: int, dim: int, batch: int, length: int
) -> Iterator[Case]:
    held = TableRows(
        EmbeddingTable("t", rows, dim, optimizer="sgd"), 0, _normal(draw, rows, dim), np.zeros(0, np.float32)
    )
    ids = [(rows * draw.random((batch, length)) ** 3).astype(np.int32) for _ in range(2 * BATCHES)]
    out, gradient = np.empty((batch, dim), np.float32), np.ones((batch, dim), np.float32)

    def train(number: int) -> None:
        pool(held.rows, 0, ids[number % len(ids)], out)
        update_rows(held, [Read(ids[number % len(ids)], gradient)], RATE)

    ours = (lambda number: pool(held.rows, 0, ids[number % len(ids)], out)), train
    theirs = torch_reference.embedding_calls(torch, held.rows, ids, RATE) if torch else None
    yield from _pair("embedding", f"{rows:,} x {dim}, B {batch}, L {length}", ours, theirs)


def _interaction_cases(torch: Any, draw: np.random.Generator, batch: int, count: int, dim: int) -> Iterator[Case]:
    names = tuple(f"f{i}" for i in range(count))
    op = Operator("x", Kind.INTERACTION, names, dim + count * (count - 1) // 2)
    kernel, features = make_kernel(op, [dim] * count, batch), [_normal(draw, batch, dim) for _ in names]
    nothing, gradient = np.zeros(0, np.float32), np.ones((batch, op.width), np.float32)

    def train(_: int) -> None:
        kernel.forward(features, nothing)
        kernel.backward(gradient, features, nothing, nothing, [True] * count)

    theirs = torch_reference.interaction_calls(torch, features) if torch else None
    yield from _pair(
        "interaction", f"B {batch}, F {count}, D {dim}", (lambda _: kernel.forward(features, nothing), train), theirs
    )


def _normal(draw: np.random.Generator, *shape: int) -> Floats:
    return draw.standard_normal(shape, np.float32)


# ---- whole iterations


def iteration_case(torch: Any | None, preset: str) -> tuple[Case, str]:
    """Forward, backward and update of a whole model, tables capped; and how well the two first losses agree."""
    model = with_max_rows(load_model(preset), MAX_ROWS)
    oracle, stream = Oracle(model), SyntheticStream(model, 0)
    batches = [stream.batch(number, model.batch) for number in range(BATCHES)]
    theirs, agreement = None, ""
    if torch is not None:
        peer = torch_reference.TorchModel(torch, oracle)
        losses = [(oracle.step(batch), peer.step(batch)) for batch in batches[:3]]
        worst = max(abs(mine / other - 1) for mine, other in losses)
        agreement = f"{preset}: the first three losses agree to {worst:.0e}"
        theirs = _cycled(peer.step, batches)
    shape = f"B {model.batch}, {len(model.tables)} tables"
    return Case(f"iteration {preset}", shape, _cycled(oracle.step, batches), theirs), agreement


def _cycled(step: Callable[[Any], float], batches: list[Any]) -> Call:
    return lambda number: step(batches[number % len(batches)])


def main() -> None:
    """Print the tables, a row as soon as it is known."""
    torch = torch_reference.load_torch()
    if torch is None:
        print("PyTorch not installed: ours alone")
    print(f"OpenBLAS's core type: {os.environ.get(VARIABLE) or 'its own choice'}")
    head = f"{'':22} {'shape':28} {'ours us':>12}"
    print(head if torch is None else f"{head} {'torch us':>12} {'ratio':>8}")
    with threadpool_limits(1):
        for case in kernel_cases(torch):
            print(measure(case).text(), flush=True)
        for case, agreement in map(partial(iteration_case, torch), PRESETS):
            print(measure(case).text(), flush=True)
            if agreement:
                print(f"  {agreement}")


if __name__ == "__main__":
    main()
