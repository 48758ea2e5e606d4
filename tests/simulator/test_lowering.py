"""Every instruction has a duration, and it is the one of the time model."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from cost_models.costs import MessageCost
from placement.plan import Shard, Sync
from programs.instructions import (
    AllReduce,
    Average,
    Compute,
    Instruction,
    Lookup,
    Metric,
    NextBatch,
    Piece,
    Place,
    Recv,
    Reduce,
    Role,
    Send,
    SyncStep,
    Update,
)
from programs.transform import transform
from programs.workers import Worker, workers
from simulator.engine import Engine
from simulator.lowering import Lowering
from simulator.machines import Sharing, build_machines, nodes_of
from simulator.primitives import Await, Emit, EveryGap, Part, Work, busy_ns
from tests.simulator.instances import chain_model, make_costs, make_plan, table

MODEL = chain_model(2, [table()])
PLAN = make_plan(
    MODEL,
    nodes=2,
    groups=2,
    servers=2,
    sync_servers=1,
    ranks=2,
    shards=[Shard("table", 0, 0, 75), Shard("table", 1, 75, 100)],
    sync=Sync("foreground", gap=3),
)
COSTS = make_costs(
    MODEL,
    message=MessageCost(2e-6, 1e-9, 3e-6, 2e-9, 4e-6, 5e-6),
    next_batch_seconds=7e-6,
    metric_seconds=6e-6,
    sum_seconds_per_byte=1e-9,
    exchange_seconds_per_byte=4e-9,
    sum_seconds=8e-6,
)
SERVER = Place(Role.SERVER, 1)

#: Instruction and the core time in microseconds that it costs its worker.
DURATIONS = {
    NextBatch: (NextBatch(), 7),
    Lookup: (Lookup((0,), ("table@ps0",)), 8 * 0.75),
    Compute: (Compute("layer0", "backward", ("d.table",)), 20),
    Send: (Send("c", SERVER, ("x", "y"), 1000), 2 + 1 + 2 * 4),
    Recv: (Recv("c", SERVER, ("x", "y"), 1000), 3 + 2 + 2 * 5),
    Reduce: (Reduce("x", ("a", "b", "c"), 1000), 2 * (1 + 8)),
    AllReduce: (AllReduce(("layer0",), 4000), (2 + 2 + 4) + (3 + 4 + 5) + 2 + (2 + 2 + 4) + (3 + 4 + 5) + 2),
    Update: (Update(("layer0", "layer1")), 10),
    Metric: (Metric(), 6),
    SyncStep: (
        SyncStep((("layer0",),), (1000,), ("layer0",), 1000, (1,)),
        (2 + 1 + 4) + (3 + 2 + 5) + 4 + (2 + 1 + 4),
    ),
    Average: (  # two groups: a chunk round and one back, one addition, one copy, the rule twice; a part passed on, one taken
        Average(
            (Piece("layer0", 0, 500),),
            2000,
            1000,
            (Piece("layer0", 250, 500),),
            1000,
            (1,),
            ((Piece("layer0", 0, 250),),),
            (1000,),
        ),
        2 * ((2 + 1 + 4) + (3 + 2 + 5)) + 1 + 1 + 2 * 4 * 2 + (2 + 1 + 4) + (3 + 2 + 5) + 1,
    ),
}


def lowering(slow: bool = False) -> tuple[Lowering, Worker]:
    """A lowering for the plan and its first rank's worker; ``slow``: on a machine of half the speed."""
    costs = replace(COSTS, kind="other", flops_per_core_second=2e9) if slow else COSTS
    machines = build_machines(Engine(), nodes_of(PLAN), Sharing.NODE, {})
    job = Lowering(PLAN, costs, {machine.node.name: machine for machine in machines})
    return job, workers(transform(PLAN))[0]


def test_the_set_is_closed():
    """The table of durations below names every instruction there is: none lacks a duration."""
    assert set(DURATIONS) == set(get_args(Instruction))


@pytest.mark.parametrize("kind", DURATIONS, ids=lambda kind: kind.__name__)
def test_duration_of_every_instruction(kind):
    """Each instruction costs its worker what the time model says, and exactly its last primitive ends it."""
    instruction, microseconds = DURATIONS[kind]
    job, worker = lowering()
    (primitives,) = job.lower(replace(worker, program=(instruction,)))
    assert busy_ns(primitives) == round(microseconds * 1000)
    assert [primitive.last for primitive in primitives] == [False] * (len(primitives) - 1) + [True]


def test_a_slower_machine_takes_longer():
    """Core time is scaled by the slowdown of the node: half the speed, twice the time."""
    job, worker = lowering(slow=True)
    (primitives,) = job.lower(replace(worker, program=(Compute("layer0", "forward"),)))
    assert busy_ns(primitives) == 20_000


def test_an_unknown_instruction_is_refused():
    """Something outside the closed set raises instead of taking no time."""
    job, worker = lowering()
    with pytest.raises(NotImplementedError, match="no duration"):
        job.lower(replace(worker, program=("nonsense",)))


def test_all_reduce_moves_what_a_ring_moves():
    """Each rank sends and receives 2 (R - 1) / R of the buffer in 2 (R - 1) messages."""
    plan = make_plan(MODEL, nodes=4, servers=1, ranks=4)
    machines = build_machines(Engine(), nodes_of(plan), Sharing.NODE, {})
    job = Lowering(plan, COSTS, {machine.node.name: machine for machine in machines})
    for worker in workers(transform(plan)):
        if worker.role == "rank":
            (primitives,) = job.lower(replace(worker, program=(AllReduce(("layer0",), 4000),)))
            sent = [primitive.bytes for primitive in primitives if isinstance(primitive, Emit)]
            assert len(sent) == 6
            assert sum(sent) == 2 * 3 * 1000
            assert sum(isinstance(primitive, Await) for primitive in primitives) == 6


def test_waits_for_servers_and_for_peers_are_told_apart():
    """A message from a server is booked as PS queue, one from a node as waiting for a peer."""
    job, worker = lowering()
    program = (Recv("a", SERVER, ("x",), 8), Recv("b", Place(Role.NODE, 1), ("y",), 8))
    from_server, from_node = job.lower(replace(worker, program=program))
    assert (from_server[0].part, from_node[0].part) == (Part.PS_QUEUE, Part.PEER)


def test_foreground_exchange_is_passed_over_between_gaps():
    """A foreground SyncStep begins with the choice to pass over all of it, and is booked as sync."""
    job, worker = lowering()
    (primitives,) = job.lower(replace(worker, program=(DURATIONS[SyncStep][0],)))
    assert isinstance(primitives[0], EveryGap)
    assert primitives[0].gap == 3
    assert primitives[0].skip == len(primitives) - 2
    assert all(p.part is Part.SYNC for p in primitives if isinstance(p, Work | Await))
