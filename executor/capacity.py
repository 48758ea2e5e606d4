"""How much of this machine is free: what a wall-clock number is worth right now.

Spinners on every core for a moment; each should get nearly a core. Knows nothing of plans.
"""

from __future__ import annotations

import multiprocessing as mp
import signal
import time

from problem.local import usable_cores

PROBE_SECONDS = 0.15
#: Share of a core below which a spinner was disturbed.
FREE_SHARE = 0.95


def _spin(seconds: float, shares: mp.SimpleQueue[float]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asked; this ends by itself in a moment
    begin, used = time.perf_counter(), time.thread_time()
    while time.perf_counter() - begin < seconds:
        pass
    shares.put((time.thread_time() - used) / (time.perf_counter() - begin))


def free_cores(seconds: float = PROBE_SECONDS) -> float:
    """Return how many cores' worth of CPU one spinner per core gets at this moment."""
    context = mp.get_context("fork")
    shares: mp.SimpleQueue[float] = context.SimpleQueue()
    spinners = [context.Process(target=_spin, args=(seconds, shares), daemon=True) for _ in range(usable_cores())]
    for spinner in spinners:
        spinner.start()
    for spinner in spinners:
        spinner.join()
    return sum(shares.get() for _ in spinners)


def wall_verdict(workers: int, free: float) -> str:
    """Say whether a wall-clock throughput means anything: empty if it does, else why it does not."""
    cores = usable_cores()
    if free < FREE_SHARE * cores:
        return f"inconclusive: machine busy, {free:.1f} of {cores} cores free"
    if workers > cores:
        return f"inconclusive: {workers} processes on {cores} cores"
    return ""
