"""The trace file: what the viewers require, and that nothing is lost on the way."""

from __future__ import annotations

import json
import os
from collections import defaultdict

import pytest

from placement.plan import Sync
from simulator.perfetto import write_trace
from simulator.simulate import simulate
from tests.simulator.instances import chain_model, make_costs, make_plan, table

MODEL = chain_model(2, [table()])


def nesting_faults(events: list[dict]) -> list[str]:
    """Complete events of one thread must follow or contain each other; returns those that overlap otherwise."""
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            threads[event["pid"], event["tid"]].append((begin, -(begin + round(event["dur"] * 1000)), event["name"]))
    faults = []
    for spans in threads.values():
        open_until: list[int] = []
        for begin, negative_end, name in sorted(spans):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            if open_until and -negative_end > open_until[-1]:
                faults.append(name)
            open_until.append(-negative_end)
    return faults


def test_the_checker_finds_a_fault():
    """The nesting checker accepts containment and sequence, and finds a partial overlap."""

    def event(begin, duration):
        return {"ph": "X", "pid": 1, "tid": 1, "ts": begin, "dur": duration, "name": f"{begin}"}

    assert nesting_faults([event(0, 10), event(2, 3), event(5, 5), event(10, 1)]) == []
    assert nesting_faults([event(0, 10), event(5, 6)]) == ["5"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Timeline and parsed trace of a plan with ranks, serving copies, servers, shadow workers and a sync server."""
    plan = make_plan(
        MODEL,
        nodes=2,
        groups=2,
        ranks=2,
        hogwild=2,
        servers=1,
        sync_servers=1,
        tags={"layer1": 1},
        sync=Sync("background", gap=2),
    )
    timeline = simulate(plan, make_costs(MODEL), steps=6).timeline
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    count = write_trace(path, timeline)
    events = json.loads(path.read_text())["traceEvents"]
    assert count == sum(event["ph"] == "X" for event in events)
    return timeline, events


def test_events_nest(trace):
    """No two instructions of a thread overlap in part."""
    assert nesting_faults(trace[1]) == []


def test_machines_are_processes_and_workers_threads(trace):
    """Every machine has a process name, every worker a thread name under its machine."""
    timeline, events = trace
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {(processes[e["pid"]], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert threads == {(worker.node, worker.worker) for worker in timeline.workers}
    known = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= known


def test_events_are_the_instructions_that_take_time(trace):
    """One complete event for each instruction of each step that takes time, with its nanoseconds intact."""
    timeline, events = trace
    lengths = sorted(
        round(end * 1e9) - round(start * 1e9)
        for worker in timeline.workers
        for start, end in zip(worker.starts.flat, worker.ends.flat, strict=True)
        if end > start
    )
    assert sorted(round(e["dur"] * 1000) for e in events if e["ph"] == "X") == lengths
    names = {e["name"] for e in events if e["ph"] == "X"}
    assert {"layer0 forward", "layer1 backward", "exchange", "update rows", "lookup"} <= names
    assert any(name.startswith("all-reduce (") for name in names)


def test_events_follow_the_schema(trace):
    """Every event has the fields that the trace event format asks of its phase, of the right kinds, and no others."""
    fields = {
        "X": {"name": str, "cat": str, "ph": str, "pid": int, "tid": int, "ts": float, "dur": float, "args": dict},
        "M": {"name": str, "ph": str, "pid": int, "tid": int, "args": dict},
    }
    for event in trace[1]:
        kinds = fields[event["ph"]]
        assert set(event) == set(kinds)
        assert all(isinstance(event[name], kind) for name, kind in kinds.items())
        assert event["ph"] == "M" or (event["ts"] >= 0 and event["dur"] > 0)


@pytest.mark.slow
def test_perfetto_reads_the_file(tmp_path):
    """Perfetto's own trace processor finds every event, none of them misplaced. Its Python package does not ship that
    program and would fetch it from the network; ``TRACE_PROCESSOR`` names a copy."""
    processor = pytest.importorskip("perfetto.trace_processor", reason="the package perfetto is not installed")
    binary = os.environ.get("TRACE_PROCESSOR")
    if not binary:
        pytest.skip("the package perfetto does not ship the trace processor, and TRACE_PROCESSOR names no copy of it")
    plan = make_plan(MODEL, nodes=2, ranks=2, servers=1, hogwild=2)
    path = tmp_path / "trace.json"
    count = write_trace(path, simulate(plan, make_costs(MODEL), steps=6).timeline)
    config = processor.TraceProcessorConfig(bin_path=binary)
    with processor.TraceProcessor(trace=str(path), config=config) as loaded:
        assert next(iter(loaded.query("select count(*) as n from slice"))).n == count
        faults = "select sum(value) as n from stats where severity = 'error' or name like '%misplaced%'"
        assert not next(iter(loaded.query(faults))).n


def test_bug_an_interrupted_trace_was_left_half_written(tmp_path, monkeypatch):
    """Ctrl-C while a trace is written leaves the earlier file as it was, and nothing beside it."""

    def interrupted(*asked):
        yield "{}"
        raise KeyboardInterrupt

    target = tmp_path / "trace.json"
    target.write_text("earlier")
    monkeypatch.setattr("simulator.perfetto._events", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_trace(target, simulate(make_plan(MODEL, servers=1), make_costs(MODEL), steps=4, record=True).timeline)
    assert target.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [target]
