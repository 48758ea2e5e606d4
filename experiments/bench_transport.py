"""What a message costs: the transports of the executor beside mpi4py alone, from 1 KB to 16 MB.

Usage: ``python -m experiments.bench_transport [--rounds 5]``.

A message is one float32 array, which its sender writes anew and its receiver reads, as training does: the bytes have to come
from one core's cache to the other's. ``latency`` is half of a ping-pong, ``stream`` the time of a message when one side only
sends and the other only receives. Each of the two processes keeps to a core of its own.

The yardstick is ``comm.Send`` and ``comm.Recv`` of mpi4py as its tutorial has them. All three send the same bytes of one
array, written in place and read into another, and use the same memory for every message: mpi4py the array itself and one
that it receives into, ours their slots or frames. The yardstick does less: no clock travels with a message, nobody counts, a
sender may not go on until its array is free, and who waits never sleeps.

Size by size, processes' channels come first, then ours under MPI and mpi4py alone take turns in one job: a host moves cores
closer together or further apart from minute to minute. Of each turn the median counts for the latency, the mean for the
stream, of the turns the median. A ratio is the median of those of the rounds. Wall clock: on a busy machine only the ratios
mean something, and not much.
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
from executor.mpi import Unwatched, library
from executor.mpi_transport import mpi_channel
from executor.prefault import prefault
from executor.transport import Line, Link, SharedMemory, keep_only, looks_of
from experiments.launch import command_of

SIZES = tuple(1 << power for power in (10, 12, 14, 16, 18, 20, 22, 24))
#: Messages of a round: enough to find a median, few enough for a large message.
MESSAGES = {size: max(10, min(1000, (1 << 26) // size)) for size in SIZES}
KINDS = ("processes", "mpi", "mpi4py")
#: How often the two under MPI take turns in a round.
TURNS = 3

#: Sends or receives a message.
Step = Callable[[], None]
#: Microseconds, latency and stream.
Found = tuple[float, float]


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


def _measure(side: Side, messages: int) -> Found:
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
    payload, read = np.ones((2, size // 4), np.float32)
    mine, others = (out, back) if leads else (back, out)

    def send() -> None:
        np.add(payload, 1.0, out=payload)
        mine.send([payload], clock, progress)

    def receive() -> None:
        read[...] = others.receive(clock, progress)[0]

    return Side(send, receive, leads)


def processes_turn(size: int) -> dict[str, Found]:
    """Measure channels in shared memory between this process and a fork of it."""
    transport, layout, cores = SharedMemory(looks_of(2)), [((size // 4,), np.float32)], os.sched_getaffinity(0)
    out, back = (transport.channel(*ends, layout, Link()) for ends in (("a", "b"), ("b", "a")))

    def use(worker: str) -> Found:
        _pin(worker == "b")
        keep_only(*transport.descriptors(worker))
        prefault(transport.memory(worker))  # as a worker does
        return _measure(_ours(out, back, size, worker == "a"), MESSAGES[size])

    child = mp.get_context("fork").Process(target=use, args=("b",), daemon=True)
    child.start()
    found = use("a")
    child.join()
    os.sched_setaffinity(0, cores)
    keep_only(set(), transport.descriptors("a")[0])
    return {"processes": found}


def mpi_turns(size: int) -> dict[str, Found]:
    """Measure our channels and mpi4py alone in turn, as either of two ranks."""
    comm, layout = library().COMM_WORLD, [((size // 4,), np.float32)]
    _pin(comm.rank)
    channels = mpi_channel(comm, 0, 1, 1, layout, Link()), mpi_channel(comm, 1, 0, 2, layout, Link())
    sides = {"mpi": _ours(*channels, size, comm.rank == 0), "mpi4py": _raw(comm, size)}
    found: dict[str, list[Found]] = {kind: [] for kind in sides}
    for kind, side in [*sides.items()] * TURNS:
        comm.Barrier()
        found[kind].append(_measure(side, MESSAGES[size]))
    for channel in channels:
        channel.close(Unwatched())
    return {kind: _medians(turns) for kind, turns in found.items()}


def _medians(found: Sequence[Found]) -> Found:
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


def _round(size: int) -> dict[str, Found]:
    """Measure all three once, in processes of their own, one right after the other."""
    found: dict[str, Found] = {}
    for backend in ("processes", "mpi"):
        command = command_of(backend, 2, "experiments.bench_transport", "--one", backend, "--size", str(size))
        root = Path(__file__).resolve().parents[1]
        done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
        found |= json.loads(done.stdout)
    return found


def transport_rows(rounds: int) -> dict[int, list[dict[str, Found]]]:
    """Return the microseconds of a message, latency and stream, by kind, of each round, by size."""
    found: dict[int, list[dict[str, Found]]] = {size: [] for size in SIZES}
    for size in [*SIZES] * rounds:
        found[size].append(_round(size))
    return found


def _one(backend: str, size: int) -> None:
    found = processes_turn(size) if backend == "processes" else mpi_turns(size)
    if backend == "processes" or library().COMM_WORLD.rank == 0:
        print(json.dumps(found), flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", choices=("processes", "mpi"), help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        _one(chosen.one, chosen.size)
        return
    rows = transport_rows(chosen.rounds)
    for of, title in enumerate(("latency", "stream")):
        heads = f"{'processes us':>13} {'mpi us':>9} {'mpi4py us':>10} {'processes/mpi4py':>17} {'mpi/mpi4py':>11}"
        print(f"{title:>10} {heads}")
        for size in SIZES:
            ours, ranks, raw = ([one[kind][of] for one in rows[size]] for kind in KINDS)
            print(
                f"{size:10,} {median(ours):13.1f} {median(ranks):9.1f} {median(raw):10.1f} "
                f"{_ratio(ours, raw):17.2f} {_ratio(ranks, raw):11.2f}"
            )


def _ratio(ours: Sequence[float], raw: Sequence[float]) -> float:
    return median(mine / theirs for mine, theirs in zip(ours, raw, strict=True))


if __name__ == "__main__":
    main()
