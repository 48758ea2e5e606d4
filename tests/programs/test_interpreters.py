"""One program, two interpreters: every instruction of the closed set has a meaning and a duration."""

from __future__ import annotations

import functools
import typing
from dataclasses import replace

import pytest

from cost_models.costs import CostTable, MessageCost, OpCost, PhaseCost, TableCost
from executor.clock import Clock, ClockKind
from executor.data import SyntheticStream
from executor.exchange import Endpoint
from executor.interpreter import Context, Interpreter
from executor.pool import read_ahead
from executor.state import Record, allocate_state
from executor.transport import SharedMemory
from executor.wiring import wire
from placement.plan import Plan, Sync
from programs.instructions import Average, Instruction, SyncStep
from programs.text import describe
from programs.timeline import PARTS, part_of
from programs.transform import transform
from programs.workers import workers
from simulator.simulate import simulate
from tests.programs import plans

PLANS = {
    "with sync servers": plans.easgd_plan("foreground"),
    "without": replace(plans.easgd_plan(), sync_servers=(), sync=Sync("foreground", 2, 1.0, "ma")),
}


@pytest.fixture(scope="module", params=PLANS.values(), ids=PLANS.keys())
def everything(request: pytest.FixtureRequest) -> Plan:
    """Plans whose programs have every instruction of the set together, each all but the other's exchange."""
    plan: Plan = request.param
    found = {name: {type(i) for w in workers(transform(one)) for i in w.program} for name, one in PLANS.items()}
    every = set(typing.get_args(Instruction))
    assert set.union(*found.values()) == every, "extend these plans when the instruction set grows"
    assert every - found["with sync servers"] == {Average}
    assert every - found["without"] == {SyncStep}
    return plan


def a_microsecond_each(plan: Plan) -> CostTable:
    """Costs in which everything takes time."""
    phase = PhaseCost(1e-6)
    return CostTable(
        batch=plan.batch,
        ops={op.name: OpCost(phase, phase, phase) for op in plan.model.graph},
        tables={table.name: TableCost(phase, phase) for table in plan.model.tables},
        message=MessageCost(1e-6, 0.0, 1e-6, 0.0),
        next_batch_seconds=1e-6,
        metric_seconds=1e-6,
        sum_seconds_per_byte=1e-8,
        exchange_seconds_per_byte=1e-8,
        kind=plan.groups[0][0].kind,
    )


def test_the_executor_has_a_meaning_for_every_instruction(everything: Plan) -> None:
    """Binding a program of all instructions gives one action each."""
    transport = SharedMemory()
    wiring = wire(transform(everything), transport)
    try:
        state = allocate_state(everything)
        pool = read_ahead(SyntheticStream(everything.model), everything.model, everything.batch, 4, 1)
        context = Context(everything, state, functools.partial(pool.take, 0))
        for worker in wiring.workers:
            end = Endpoint(worker, wiring, Clock(ClockKind.CPU, 0.0), Record(worker, range(1)))
            actions = Interpreter(end, context).actions if worker.role != "sync" else []
            assert len(actions) == len(worker.program)
            assert all(callable(action) for action in actions)
    finally:
        transport.close()


def test_the_simulator_has_a_duration_for_every_instruction(everything: Plan) -> None:
    """In a simulation of all instructions each of them begins and ends in every step, and keeps a core busy in some."""
    timeline = simulate(everything, a_microsecond_each(everything), steps=4, warmup=0).timeline
    assert timeline is not None
    programs = {worker.name: worker.program for worker in workers(transform(everything)) if worker.program}
    busy = [worker for worker in timeline.workers if worker.instructions]
    assert {worker.worker: worker.instructions for worker in busy} == programs
    for worker in busy:
        assert (worker.ends >= worker.starts).all()
        assert (worker.busy > 0).any(axis=0).all(), worker.worker


def test_every_instruction_has_a_line_of_text_and_a_part_of_the_time(everything: Plan) -> None:
    """The text form and the parts that a second is booked under know every instruction."""
    job = transform(everything)
    parts = {part_of(i) for worker in workers(job) for i in worker.program}
    assert parts == set(PARTS) - {"waiting"}
    for worker in workers(job):
        for i in worker.program:
            assert describe(job, i).startswith(type(i).__name__)
