"""What a message costs: the transports of the executor beside mpi4py alone, from 1 KB to 16 MB.

Usage: ``python -m experiments.bench_transport [--rounds 5]``.

A message is one float32 array, which its sender writes anew and its receiver reads, as training does: the bytes have to come
from one core's cache to the other's. ``latency`` is half of a ping-pong, ``stream`` the time of a message when one side only
sends and the other only receives. Each of the two processes keeps to a core of its own.

The yardstick is ``comm.Send`` and ``comm.Recv`` of mpi4py as its tutorial has them. All three send the same bytes of one
array, written in place and read into another, and use the same memory for every message: mpi4py the array itself and one
that it receives into, ours their slots or frames. The yardstick does less: no clock travels with a message, nobody counts, a
sender may not go on until its array is free, and who waits never sleeps.

Ours under MPI and mpi4py alone take turns in one job, size by size, with processes' channels before or after; of each turn
the median counts for the latency, the mean for the stream, of the turns the median. A ratio is the median of those of the
turns. Wall clock: on a busy machine only the ratios mean something, and not much.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from executor.clock import Clock, ClockKind
from executor.frame import Layout
from executor.mpi import Unwatched, library
from executor.mpi_transport import mpi_channel
from executor.transport import Channel, Line, Link, keep_only, looks_of
from experiments.launch import command_of

SIZES = tuple(1 << power for power in (10, 12, 14, 16, 18, 20, 22, 24))
#: Messages of a round: enough to find a median, few enough for a large message.
MESSAGES = {size: max(10, min(1000, (1 << 26) // size)) for size in SIZES}
KINDS = ("processes", "mpi", "mpi4py")
#: How often the two under MPI take turns in a round.
TURNS = 3

#: Sends or receives a message.
Step = Callable[[], None]
#: Microseconds, latency and stream, by size.
Found = dict[int, tuple[float, float]]


@dataclass(frozen=True)
class Side:
    """What one of the two processes does with messages of one size."""

    send: Step
    receive: Step
    leads: bool


def _pin(number: int) -> None:
    """Keep to one core, another one for each side: where the scheduler puts them must not decide the comparison."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


def _measure(side: Side, messages: int) -> tuple[float, float]:
    """Median microseconds of one way of a ping-pong, and those of a message of a stream, which an answer ends."""
    seconds = []
    first, second = (side.send, side.receive) if side.leads else (side.receive, side.send)
    for _ in range(messages):
        begin = time.perf_counter()
        first()
        second()
        seconds.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    for _ in range(messages):
        first()
    second()
    return median(seconds) / 2 * 1e6, (time.perf_counter() - begin) / messages * 1e6


def _ours(out: Line, back: Line, size: int, leads: bool) -> Side:
    """Messages of a size over two channels, as the one who begins or the one who answers."""
    clock, progress = Clock(ClockKind.WALL, time.perf_counter()), Unwatched()
    payload, read = np.ones(size // 4, np.float32), np.empty(size // 4, np.float32)
    mine, others = (out, back) if leads else (back, out)

    def send() -> None:
        np.add(payload, 1.0, out=payload)
        mine.send([payload], clock, progress)

    def receive() -> None:
        read[...] = others.receive(clock, progress)[0]

    return Side(send, receive, leads)


def processes_round() -> Found:
    """One round of channels in shared memory."""
    return {size: _between_processes(size) for size in SIZES}


def _between_processes(size: int) -> tuple[float, float]:
    layout: Layout = [((size // 4,), np.float32)]
    out, back = (Channel(*ends, layout, looks=looks_of(2)) for ends in (("a", "b"), ("b", "a")))
    cores, everything = os.sched_getaffinity(0), out.ends("")[1] | back.ends("")[1]

    def use(worker: str) -> tuple[float, float]:
        _pin(worker == "b")
        keep_only(out.ends(worker)[0] | back.ends(worker)[0], everything)
        return _measure(_ours(out, back, size, worker == "a"), MESSAGES[size])

    child = mp.get_context("fork").Process(target=use, args=("b",), daemon=True)
    child.start()
    found = use("a")
    child.join()
    os.sched_setaffinity(0, cores)
    keep_only(set(), out.ends("a")[0] | back.ends("a")[0])
    return found


def mpi_round() -> dict[str, Found]:
    """One round under MPI, as either of two ranks: our channels and mpi4py alone, in turn."""
    comm = library().COMM_WORLD
    _pin(comm.rank)
    by_size = {size: _by_turns(comm, size) for size in SIZES}
    return {kind: {size: found[kind] for size, found in by_size.items()} for kind in ("mpi", "mpi4py")}


def _by_turns(comm: Any, size: int) -> dict[str, tuple[float, float]]:
    layout: Layout = [((size // 4,), np.float32)]
    channels = mpi_channel(comm, 0, 1, 1, layout, Link()), mpi_channel(comm, 1, 0, 2, layout, Link())
    sides = {"mpi": _ours(*channels, size, comm.rank == 0), "mpi4py": _raw(comm, size)}
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in sides}
    for kind, side in [*sides.items()] * TURNS:
        comm.Barrier()
        found[kind].append(_measure(side, MESSAGES[size]))
    for channel in channels:
        channel.close(Unwatched())
    return {kind: _medians(turns) for kind, turns in found.items()}


def _medians(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return median(one[0] for one in found), median(one[1] for one in found)


def _raw(comm: Any, size: int) -> Side:
    peer, payload, received, read = 1 - comm.rank, *np.ones((3, size // 4), np.float32)

    def send() -> None:
        np.add(payload, 1.0, out=payload)
        comm.Send(payload, peer)

    def receive() -> None:
        comm.Recv(received, peer)
        read[...] = received

    return Side(send, receive, comm.rank == 0)


def _round() -> dict[str, Found]:
    """One round of all three, in processes of their own."""
    found: dict[str, Found] = {}
    for backend in ("processes", "mpi"):
        command = command_of(backend, 2, "experiments.bench_transport", "--one", backend)
        root = Path(__file__).resolve().parents[1]
        done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
        for kind, by_size in json.loads(done.stdout).items():
            found[kind] = {int(size): tuple(seconds) for size, seconds in by_size.items()}
    return found


def transport_rows(rounds: int) -> dict[str, dict[int, list[tuple[float, float]]]]:
    """Return the microseconds of a message, latency and stream, of each round, by kind and size."""
    found = [_round() for _ in range(rounds)]
    return {kind: {size: [one[kind][size] for one in found] for size in SIZES} for kind in KINDS}


def _one(backend: str) -> None:
    found = {"processes": processes_round()} if backend == "processes" else mpi_round()
    if backend == "processes" or library().COMM_WORLD.rank == 0:
        print(json.dumps(found), flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", choices=("processes", "mpi"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        _one(chosen.one)
        return
    rows = transport_rows(chosen.rounds)
    for of, title in enumerate(("latency", "stream")):
        heads = f"{'processes us':>13} {'mpi us':>9} {'mpi4py us':>10} {'processes/mpi4py':>17} {'mpi/mpi4py':>11}"
        print(f"{title:>10} {heads}")
        for size in SIZES:
            ours, ranks, raw = ([one[of] for one in rows[kind][size]] for kind in KINDS)
            print(
                f"{size:10,} {median(ours):13.1f} {median(ranks):9.1f} {median(raw):10.1f} "
                f"{_ratio(ours, raw):17.2f} {_ratio(ranks, raw):11.2f}"
            )


def _ratio(ours: Sequence[float], raw: Sequence[float]) -> float:
    return median(mine / theirs for mine, theirs in zip(ours, raw, strict=True))


if __name__ == "__main__":
    main()
