"""Writes a timeline as Chrome trace JSON, which https://ui.perfetto.dev and chrome://tracing open.

A machine is a process, a worker a thread of it, an instruction a complete event (``ph: X``). Events of one thread follow
each other, so they nest, as the viewers require. Times are microseconds with three decimals: whole nanoseconds. Lines are
written one by one; large timelines need no more memory than they take already.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from problem.whole_file import whole_file
from programs.instructions import (
    AllReduce,
    Average,
    Compute,
    Instruction,
    NextBatch,
    Recv,
    Reduce,
    Send,
    SyncStep,
    Update,
)
from programs.timeline import Timeline, WorkerTimeline, part_of


def write_trace(path: str | Path, timeline: Timeline) -> int:
    """Write a trace file.

    Parameters
    ----------
    path : str or Path
        File to write; nothing of it is there before it is whole.
    timeline : Timeline
        Predicted or measured times.

    Returns
    -------
    int
        Events written, names of processes and threads left out.
    """
    pids = {node: pid for pid, node in enumerate(dict.fromkeys(worker.node for worker in timeline.workers), 1)}
    count = 0
    with whole_file(path) as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        file.write(",\n".join(json.dumps(name, separators=(",", ":")) for name in _names(timeline, pids)))
        for tid, worker in enumerate(timeline.workers, 1):
            for event in _events(worker, pids[worker.node], tid):
                count += 1
                file.write(",\n" + event)
        file.write("\n]}\n")
    return count


def label(instruction: Instruction) -> str:
    """Return what an instruction is called in the viewer."""
    match instruction:
        case Compute(op=op, phase=phase):
            return f"{op} {phase}"
        case Send(channel=channel):
            return f"send {channel}"
        case Recv(channel=channel):
            return f"receive {channel}"
        case Reduce(target=target):
            return f"sum {target}"
        case Update(shards=()):
            return "update"
        case Update():
            return "update rows"
        case NextBatch():
            return "next batch"
        case AllReduce():
            return "all-reduce"
        case SyncStep() | Average():
            return "exchange"
        case _:
            return type(instruction).__name__.lower()


def _names(timeline: Timeline, pids: dict[str, int]) -> Iterator[dict[str, Any]]:
    for node, pid in pids.items():
        yield {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": node}}
        yield {"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    for tid, worker in enumerate(timeline.workers, 1):
        args = {"name": worker.worker}
        yield {"name": "thread_name", "ph": "M", "pid": pids[worker.node], "tid": tid, "args": args}


def _events(worker: WorkerTimeline, pid: int, tid: int) -> Iterator[str]:
    """Complete events of a worker in the order of their starts; those that take no time are left out."""
    heads = [_head(instruction, pid, tid) for instruction in worker.instructions]
    for step, (starts, ends, busy) in enumerate(zip(worker.starts, worker.ends, worker.busy, strict=True)):
        for head, start, end, core in zip(heads, starts.tolist(), ends.tolist(), busy.tolist(), strict=True):
            begin = round(start * 1e9)
            duration = round(end * 1e9) - begin
            if duration > 0:
                yield (
                    f'{head}"ts":{_microseconds(begin)},"dur":{_microseconds(duration)},'
                    f'"args":{{"step":{step},"busy_us":{core * 1e6:.3f}}}}}'
                )


def _microseconds(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _head(instruction: Instruction, pid: int, tid: int) -> str:
    event = {"name": label(instruction), "cat": part_of(instruction), "ph": "X", "pid": pid, "tid": tid}
    if isinstance(instruction, (Send, Recv, AllReduce, Reduce)):
        event["name"] = f"{event['name']} ({instruction.bytes} B)"
    return json.dumps(event, separators=(",", ":"))[:-1] + ","
