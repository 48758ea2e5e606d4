"""How often replicas meet: the sync gap against trainers and sync servers, and what stopping for it costs.

One machine a replica, model m2 (Acun et al., table II), on ``fb-1s-18c`` with cores of 50 GFLOP/s (an assumption: at 6 a
step is so long that any sync hides behind it), exchanges as often as possible in the background, or every ``GAP`` steps
in the foreground. ShadowSync (Zheng et al., 2020) says that foreground EASGD stops scaling and background
EASGD does not; its numbers are not public in what we could read, so none are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from experiments.scenario_file import Job, Machines, Scenario, job_of
from simulator.simulate import simulate

TRAINERS, SYNC_SERVERS, GAP = (2, 4, 8, 12, 16), (1, 2, 4), 5

Row = dict[str, Any]


def sync_gap(watch: Callable[[str], None]) -> list[Row]:
    """How often do replicas exchange, by trainers and sync servers, and what does it cost to stop for it?"""
    rows = []
    for name, servers, mode, trainers in _cases():
        watch(name)
        plan, costs = job_of(_scenario(name, servers, mode, trainers), name)
        result = simulate(plan, costs, steps=8 + 4 * trainers, fidelity="fifo")
        gap = result.average_sync_gap
        rows.append(
            {
                "trainers": trainers,
                "sync_servers": servers,
                "mode": mode,
                "sync_gap": 0.0 if gap is None else gap,
                "samples_per_second": result.samples_per_second,
            }
        )
    return rows


def _cases() -> Iterator[tuple[str, int, str, int]]:
    for mode in ("background", "foreground"):
        for servers in SYNC_SERVERS:
            for trainers in TRAINERS:
                yield f"{mode}, {servers} sync servers, {trainers} trainers", servers, mode, trainers


def _scenario(name: str, servers: int, mode: str, trainers: int) -> Scenario:
    machine = Machines("fb-1s-18c", core_gflops=50)
    job = Job(
        batch=100,
        hogwild=18,
        groups=trainers,
        servers=8,
        sync_servers=servers,
        mode="background" if mode == "background" else "foreground",
        gap=1 if mode == "background" else GAP,
    )
    none: list[str] = []
    return Scenario(name, "", none, none, none, none, {"preset": "m2"}, machine, machine, job, {name: {}})
