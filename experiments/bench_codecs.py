"""What the executor's codecs cost here, beside the constants of the cost model: ``python -m experiments.bench_codecs``.

Thread CPU time for 300,000 elements (rows of 256 where a codec goes by rows), median of many; seconds per element, and per
kept element for decoding a sparse message.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from cost_models.codecs import Codec, Message
from executor.arrays import Floats
from executor.codecs.ablations import Sketch
from executor.codecs.dct import GradientCodec, GradientSettings
from executor.codecs.dense import decode_dense, encode_dense

ROWS, COLS, REPETITIONS = 1172, 256, 15


def typical(action: Callable[[], Any]) -> float:
    """Median CPU seconds of an action, after one call that is not counted."""
    action()
    seconds = []
    for _ in range(REPETITIONS):
        begin = time.thread_time()
        action()
        seconds.append(time.thread_time() - begin)
    return median(seconds)


def rows() -> list[tuple[str, float, float, float, float]]:
    """Name, measured seconds to encode and decode, and the cost model's."""
    draw = np.random.default_rng(0)
    values = draw.standard_normal((ROWS, COLS)).astype(np.float32)
    out, found = np.empty_like(values), []
    for codec in (Codec.FP16, Codec.BF16, Codec.ROWWISE8, Codec.ROWWISE4, Codec.ROWWISE2, Codec.ROWWISE1):
        wire = encode_dense(codec, values, draw)
        encode = typical(functools.partial(encode_dense, codec, values, draw))
        decode = typical(functools.partial(decode_dense, codec, wire, out))
        model = Message(ROWS, COLS, codec)
        found.append((str(codec), encode, decode, model.encode_seconds, model.decode_seconds))
    found += [_sketch(values, rows, keep) for rows in (128, ROWS) for keep in (0.1, 0.5)]
    return found + [_gradient(values.reshape(-1), keep, draw) for keep in (0.01, 0.1, 0.25)]


def _sketch(values: Floats, rows: int, keep: float) -> tuple[str, float, float, float, float]:
    """Projections of some rows; each end draws the matrix."""
    coder, part, out = Sketch(keep, 0, "bench"), values[:rows], np.zeros_like(values[:rows])
    wire = coder.encode(part, 0)
    encode = typical(functools.partial(coder.encode, part, 0))
    decode = typical(functools.partial(coder.decode, wire, out, 0))
    model = Message(rows, COLS, Codec.SKETCH, keep)
    return f"sketch keeping {keep:g}, {rows} rows", encode, decode, model.encode_seconds, model.decode_seconds


def _gradient(values: Floats, keep: float, draw: np.random.Generator) -> tuple[str, float, float, float, float]:
    """DCT-DP between two exact thresholds."""
    coder = GradientCodec(GradientSettings(keep=keep, every=1000), values.size)
    out = np.zeros_like(values)
    wire = coder.encode(values, 0, draw)
    encode = typical(lambda: coder.encode(values, 1, draw))
    decode = typical(lambda: coder.decode(wire, out))
    model = Message(1, values.size, Codec.COO32, keep, 1000)
    return f"dct-dp keeping {keep:g}", encode, decode, model.encode_seconds, model.decode_seconds


def main() -> None:
    """Print the table."""
    print(f"{'microseconds for 300,032 elements':34} {'encode':>8} {'decode':>8}   {'model: encode':>13} {'decode':>8}")
    for name, *seconds in rows():
        a, b, c, d = (1e6 * value for value in seconds)
        print(f"{name:34} {a:8.0f} {b:8.0f}   {c:13.0f} {d:8.0f}")


if __name__ == "__main__":
    main()
