"""Costs from a Kineto trace: the measured durations of the operators of a PyTorch execution trace of the same step.

``ts`` and ``dur`` are microseconds, whatever ``displayTimeUnit`` says. An operator is joined to its event by name and
number: the k-th call of a name in the execution trace is the k-th event of that name. Its cost is the duration of the
event, or, when it launched kernels on an accelerator, the sum of theirs: what it would cost there, not on a CPU. Events of
no duration cost nothing and are counted; negative durations are refused. Communication keeps its bytes and no time: how
long a transfer takes follows from the cluster. Everything else (messages, batches) is the
roofline's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from cost_models.costs import CostTable, OpCost, PhaseCost
from cost_models.roofline import roofline_costs
from problem.cluster import Node
from problem.errors import BadInput
from problem.formats.content import Content, unwrap
from problem.formats.pytorch_trace import communicates, label
from problem.formats.registry import sniff
from problem.model import Model

_OPERATORS = {"cpu_op", "user_annotation", "operator"}
MAX_OPEN = 1000
"""Calls before a launch among which the open ones are looked for."""
_LAUNCHES = {"cuda_runtime", "cuda_driver", "hip_runtime", "privateuse1_runtime"}


@dataclass(frozen=True, slots=True)
class _Event:
    name: str
    thread: tuple[Any, Any]
    start: float
    duration: float


@dataclass(frozen=True)
class KinetoTrace:
    """Measured seconds of the calls of a step.

    Parameters
    ----------
    source : str
        File.
    seconds : Mapping of str to float
        By operator name (:func:`problem.formats.pytorch_trace.label`).
    notes : tuple of str
        What is odd in the trace.
    """

    source: str
    seconds: Mapping[str, float]
    notes: tuple[str, ...] = ()

    def costs(self, model: Model, batch: int, node: Node) -> CostTable:
        """Return the cost table of a traced model: measured where the trace has the operator.

        Raises
        ------
        BadInput
            When not one operator of the model is in the trace.
        """
        base = roofline_costs(model, batch, node)
        found = [name for name in base.ops if name in self.seconds]
        if not found:
            raise BadInput(self.source, "traceEvents", model.name, "the trace of the same step as the model's")
        ops = {name: _measured(cost, self.seconds.get(name), batch) for name, cost in base.ops.items()}
        missing = sum(name not in self.seconds and not communicates(name) for name in base.ops)
        notes = [*self.notes, *([f"{missing} of {len(base.ops)} operators are not in the trace"] if missing else [])]
        return replace(base, ops=ops, source=f"Kineto trace {Path(self.source).name}", notes=(*base.notes, *notes))


def is_kineto(path: str | Path) -> bool:
    """Whether a file is a Kineto trace."""
    return sniff(unwrap(path)).name == "kineto"


def load_kineto(path: str | Path) -> KinetoTrace:
    """Read a Kineto trace.

    Raises
    ------
    BadInput
        When it holds no operator, or an event's time is negative or no number.
    """
    content = unwrap(path)
    events = content.json.data["traceEvents"]
    calls = sorted(_events(events, _OPERATORS, content), key=lambda call: call.start)
    if not calls:
        raise BadInput(content.source, "traceEvents", f"{len(events)} events", "at least one of category cpu_op")
    kernels = _kernel_time(events, calls, content)
    count: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = {}
    for i, call in enumerate(calls):
        if not communicates(call.name):
            seconds[label(call.name, count[call.name])] = 1e-6 * (kernels.get(i) or call.duration)
        count[call.name] += 1
    zero = sum(call.duration == 0 for call in calls)
    notes = [f"{zero} of {len(calls)} events have no duration"] if zero else []
    if kernels:
        notes.append(f"{len(kernels)} calls cost what their kernels took on the accelerator, not on a CPU")
    return KinetoTrace(content.source, seconds, tuple(notes))


def _measured(cost: OpCost, seconds: float | None, batch: int) -> OpCost:
    """Return a cost with the measured seconds of a step as those of its forward phase."""
    if seconds is None:
        return cost
    return replace(cost, forward=PhaseCost(seconds * batch, cost.forward.traffic_bytes))


def _events(events: list[Mapping[str, Any]], categories: set[str], content: Content) -> Iterator[_Event]:
    for i, event in enumerate(events):
        if event.get("ph") == "X" and str(event.get("cat", "")).lower() in categories:
            yield _event(event, i, content)


def _event(event: Mapping[str, Any], index: int, content: Content) -> _Event:
    times = [event.get("ts"), event.get("dur", 0)]
    for key, value in zip(("ts", "dur"), times, strict=True):
        if not isinstance(value, int | float) or not isfinite(value) or value < 0:
            where = f"traceEvents[{index}]({event.get('name')}).{key}"
            raise BadInput(content.source, where, value, "microseconds, 0 or more")
    return _Event(str(event.get("name", "")), (event.get("pid"), event.get("tid")), float(times[0]), float(times[1]))


def _kernel_time(events: list[Mapping[str, Any]], calls: list[_Event], content: Content) -> dict[int, float]:
    """Return microseconds of kernels by call: a kernel belongs to every call on whose time its launch falls."""
    took: dict[Any, float] = defaultdict(float)
    for i, event in enumerate(events):
        if event.get("ph") == "X" and event.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}:
            took[event.get("args", {}).get("correlation")] += _event(event, i, content).duration
    by_thread: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    for i, call in enumerate(calls):
        by_thread[call.thread].append(i)
    found: dict[int, float] = defaultdict(float)
    for i, event in enumerate(events):
        if event.get("cat") in _LAUNCHES and event.get("args", {}).get("correlation") in took:
            launch = _event(event, i, content)
            for open_call in _around(launch, calls, by_thread[launch.thread]):
                found[open_call] += took[event["args"]["correlation"]]
    return {call: time for call, time in found.items() if time}


def _around(launch: _Event, calls: list[_Event], thread: list[int]) -> Iterator[int]:
    """Yield the calls of a thread that were under way at a launch; calls nest, so the search ends at the outermost."""
    at = bisect_right(thread, launch.start, key=lambda i: calls[i].start)
    for i in reversed(thread[max(0, at - MAX_OPEN) : at]):
        if calls[i].start + calls[i].duration >= launch.start + launch.duration:
            yield i
