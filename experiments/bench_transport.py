"""What a message costs: the transports of the executor beside mpi4py alone, from 1 KB to 16 MB.

Usage: ``python -m experiments.bench_transport [--rounds 5]``.

A message is one float32 array, which its sender writes anew and its receiver reads, as training does: the bytes have to come
from one core's cache to the other's. ``latency`` is half of a ping-pong, ``stream`` the time of a message when one side only
sends and the other only receives. Each of the two processes keeps to a core of its own. The three take turns; of each round
the median counts, of the rounds the median. Wall clock: on a busy machine only the ratios mean something, and not much.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from executor.clock import Clock, ClockKind
from executor.mpi import MpiChannel, Unwatched, library
from executor.transport import Channel, Layout, Line, Link, keep_only, looks_of
from experiments.launch import command_of

SIZES = tuple(1 << power for power in (10, 12, 14, 16, 18, 20, 22, 24))
#: Messages of a round: enough to find a median, few enough for a large message.
MESSAGES = {size: max(20, min(1000, (1 << 26) // size)) for size in SIZES}
KINDS = ("processes", "mpi", "mpi4py")

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


def mpi_round(kind: str) -> Found:
    """One round under MPI, as either of two ranks: our channels, or mpi4py alone."""
    comm, found = library().COMM_WORLD, {}
    _pin(comm.rank)
    for size in SIZES:
        comm.Barrier()
        found[size] = _over_channels(comm, size) if kind == "mpi" else _measure(_raw(comm, size), MESSAGES[size])
    return found


def _over_channels(comm: Any, size: int) -> tuple[float, float]:
    layout: Layout = [((size // 4,), np.float32)]
    out, back = MpiChannel(comm, 0, 1, 1, layout, Link()), MpiChannel(comm, 1, 0, 2, layout, Link())
    found = _measure(_ours(out, back, size, comm.rank == 0), MESSAGES[size])
    for channel in (out, back):
        channel.close(Unwatched())
    return found


def _raw(comm: Any, size: int) -> Side:
    peer, payload, received, read = 1 - comm.rank, *np.ones((3, size // 4), np.float32)

    def send() -> None:
        np.add(payload, 1.0, out=payload)
        comm.Send(payload, peer)

    def receive() -> None:
        comm.Recv(received, peer)
        read[...] = received

    return Side(send, receive, comm.rank == 0)


def _round(kind: str) -> Found:
    """One round, in processes of its own."""
    command = command_of("processes" if kind == "processes" else "mpi", 2, "experiments.bench_transport", "--one", kind)
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    return {int(size): tuple(found) for size, found in json.loads(done.stdout).items()}


def transport_rows(rounds: int) -> dict[str, Found]:
    """Return the microseconds of a message, latency and stream, by kind and size: medians of rounds in turn."""
    found = [{kind: _round(kind) for kind in KINDS} for _ in range(rounds)]
    return {
        kind: {size: tuple(median(one[kind][size][of] for one in found) for of in (0, 1)) for size in SIZES}  # type: ignore[misc]
        for kind in KINDS
    }


def _one(kind: str) -> None:
    found = processes_round() if kind == "processes" else mpi_round(kind)
    if kind == "processes" or library().COMM_WORLD.rank == 0:
        print(json.dumps(found), flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        _one(chosen.one)
        return
    rows = transport_rows(chosen.rounds)
    for of, title in enumerate(("latency", "stream")):
        print(
            f"{title:>10} {'processes us':>13} {'mpi us':>9} {'mpi4py us':>10} {'processes/mpi4py':>17} {'mpi/mpi4py':>11}"
        )
        for size in SIZES:
            ours, ranks, raw = (rows[kind][size][of] for kind in KINDS)
            print(f"{size:10,} {ours:13.1f} {ranks:9.1f} {raw:10.1f} {ours / raw:17.2f} {ranks / raw:11.2f}")


if __name__ == "__main__":
    main()
