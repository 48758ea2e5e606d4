"""What a message costs: both transports beside mpi4py's own Send and Recv, from 1 KB to 16 MB.

Usage: ``python -m experiments.bench_transport [--rounds 5]``.

Half of a ping-pong between two processes, each message one float32 array that is copied when it is sent and lies in the
receiver's memory when it is received. The three take turns; of each round the median counts, of the rounds the median.
Wall clock: on a busy machine only the ratios mean something, and not much.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from executor.clock import Clock, ClockKind
from executor.mpi import MpiChannel, Unwatched, library
from executor.transport import Channel, Layout, Line, Link, keep_only
from experiments.launch import command_of

SIZES = tuple(1 << power for power in (10, 12, 14, 16, 18, 20, 22, 24))
#: Messages of a round: enough to find a median, few enough for a large message.
MESSAGES = {size: max(20, min(1000, (1 << 26) // size)) for size in SIZES}
KINDS = ("processes", "mpi", "mpi4py")

Exchange = Callable[[], Any]


def _timed(exchange: Exchange, messages: int) -> float:
    """Median microseconds of one way, of a number of ping-pongs."""
    seconds = []
    for _ in range(messages):
        begin = time.perf_counter()
        exchange()
        seconds.append(time.perf_counter() - begin)
    return median(seconds) / 2 * 1e6


def _both_ways(out: Line, back: Line, payload: Any, leads: bool) -> Exchange:
    """Return a ping-pong over two channels, as the one who begins or the one who answers."""
    clock, progress = Clock(ClockKind.WALL, time.perf_counter()), Unwatched()

    def ping() -> None:
        out.send([payload], clock, progress)
        back.receive(clock, progress)

    def pong() -> None:
        out.receive(clock, progress)
        back.send([payload], clock, progress)

    return ping if leads else pong


def processes_round() -> dict[int, float]:
    """One round of channels in shared memory."""
    return {size: _between_processes(size) for size in SIZES}


def _between_processes(size: int) -> float:
    layout: Layout = [((size // 4,), np.float32)]
    out, back = Channel("a", "b", layout), Channel("b", "a", layout)
    payload, everything = np.ones(size // 4, np.float32), out.ends("")[1] | back.ends("")[1]

    def use(worker: str) -> Exchange:
        keep_only(out.ends(worker)[0] | back.ends(worker)[0], everything)
        return _both_ways(out, back, payload, worker == "a")

    def answer() -> None:
        exchange = use("b")
        for _ in range(MESSAGES[size]):
            exchange()

    child = mp.get_context("fork").Process(target=answer, daemon=True)
    child.start()
    found = _timed(use("a"), MESSAGES[size])
    child.join()
    keep_only(set(), out.ends("a")[0] | back.ends("a")[0])
    return found


def mpi_round(kind: str) -> dict[int, float]:
    """One round under MPI, as either of two ranks: our channels, or mpi4py alone."""
    comm, found = library().COMM_WORLD, {}
    for size in SIZES:
        exchange, close = _ours(comm, size) if kind == "mpi" else _raw(comm, size)
        comm.Barrier()
        found[size] = _timed(exchange, MESSAGES[size])
        close()
    return found


def _ours(comm: Any, size: int) -> tuple[Exchange, Callable[[], None]]:
    layout: Layout = [((size // 4,), np.float32)]
    out, back = MpiChannel(comm, 0, 1, 1, layout, Link()), MpiChannel(comm, 1, 0, 2, layout, Link())
    payload = np.ones(size // 4, np.float32)

    def close() -> None:
        for channel in (out, back):
            channel.close(Unwatched())

    return _both_ways(out, back, payload, comm.rank == 0), close


def _raw(comm: Any, size: int) -> tuple[Exchange, Callable[[], None]]:
    sent, received = np.ones(size // 4, np.float32), np.ones(size // 4, np.float32)

    def ping() -> None:
        comm.Send(sent, 1)
        comm.Recv(received, 1)

    def pong() -> None:
        comm.Recv(received, 0)
        comm.Send(sent, 0)

    return (ping if comm.rank == 0 else pong), lambda: None


def _round(kind: str) -> dict[int, float]:
    """One round, in processes of its own."""
    command = command_of("processes" if kind == "processes" else "mpi", 2, "experiments.bench_transport", "--one", kind)
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    return {int(size): found for size, found in json.loads(done.stdout).items()}


def transport_rows(rounds: int) -> dict[str, dict[int, float]]:
    """Return the microseconds of one way by kind and size, medians of rounds in turn."""
    found = [{kind: _round(kind) for kind in KINDS} for _ in range(rounds)]
    return {kind: {size: median(one[kind][size] for one in found) for size in SIZES} for kind in KINDS}


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
    print(
        f"{'bytes':>10} {'processes us':>13} {'mpi us':>9} {'mpi4py us':>10} {'processes/mpi4py':>17} {'mpi/mpi4py':>11}"
    )
    for size in SIZES:
        ours, ranks, raw = (rows[kind][size] for kind in KINDS)
        print(f"{size:10,} {ours:13.1f} {ranks:9.1f} {raw:10.1f} {ours / raw:17.2f} {ranks / raw:11.2f}")


if __name__ == "__main__":
    main()
