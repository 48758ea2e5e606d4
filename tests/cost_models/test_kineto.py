"""Costs from Kineto traces."""

from __future__ import annotations

import json

import pytest

from cost_models.kineto import is_kineto, load_kineto
from problem.cluster_io import load_cluster
from problem.errors import BadInput
from problem.readers import load_model
from tests.problem.shared import SHARED, needs_shared

TRACES = SHARED / "inputs" / "traces"


def event(name, start, duration, category="cpu_op", **extra):
    """A complete event."""
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 2, "ts": start, "dur": duration, **extra}


def trace(tmp_path, *events, **extra):
    """Write a trace."""
    path = tmp_path / "k.json"
    path.write_text(json.dumps({"traceEvents": events, **extra}))
    return path


def test_calls_are_numbered_in_their_order(tmp_path):
    """The k-th event of a name is the k-th call; times are microseconds whatever the display unit; zeros are counted."""
    found = load_kineto(trace(tmp_path, event("b", 5, 0), event("a", 9, 7), event("a", 1, 3.5), displayTimeUnit="ns"))
    assert found.seconds == {"a [0]": 3.5e-6, "a [1]": pytest.approx(7e-6), "b [0]": 0.0}
    assert found.notes == ("1 of 3 events have no duration",)


def test_kernels_count_for_the_calls_that_launched_them(tmp_path):
    """A call on whose time two kernels were launched costs what they took; so does the call around it; others do not."""
    found = load_kineto(
        trace(
            tmp_path,
            event("outer", 0, 100),
            event("inner", 10, 30),
            event("other", 50, 20),
            event("cudaLaunchKernel", 12, 1, "cuda_runtime", args={"correlation": 7}),
            event("cudaLaunchKernel", 14, 1, "cuda_runtime", args={"correlation": 8}),
            event("k", 200, 40, "kernel", args={"correlation": 7}),
            event("k", 240, 2, "kernel", args={"correlation": 8}),
        )
    )
    microseconds = {name: round(seconds * 1e6, 3) for name, seconds in found.seconds.items()}
    assert microseconds == {"outer [0]": 42, "inner [0]": 42, "other [0]": 20}


@pytest.mark.parametrize("duration", [-1, None, float("nan"), "3"])
def test_broken_times_are_refused(tmp_path, duration):
    """Negative, missing and not-a-number durations are refused with the event."""
    with pytest.raises(BadInput, match=r"traceEvents\[0\]\(a\)\.dur"):
        load_kineto(trace(tmp_path, event("a", 1, duration)))


def test_an_empty_trace_is_refused(tmp_path):
    """A trace without operators measures nothing."""
    path = trace(tmp_path, event("k", 1, 1, "kernel"))
    assert is_kineto(path)
    with pytest.raises(BadInput, match="cpu_op"):
        load_kineto(path)


@needs_shared
def test_the_dlrm_step_is_costed():
    """Execution trace and Kineto trace of one rank fit: every operator but the collectives is measured."""
    folder = TRACES / "pytorch_et" / "dlrm_8rank"
    model = load_model(folder / "dlrm_eg_0.json")
    costs = load_kineto(folder / "kineto_worker0.json").costs(model, 1, load_cluster("fb-1s-18c").nodes[0])
    assert not [note for note in costs.notes if "not in the trace" in note]
    assert costs.ops["aten::linear [0]"].forward.core_seconds > 0
    assert costs.ops["c10d::allreduce_ [0]"].forward.core_seconds == 0
    assert sum(cost.total.core_seconds for cost in costs.ops.values()) == pytest.approx(2.72e-3, rel=0.2)


@needs_shared
def test_a_trace_of_another_model_is_refused():
    """Costs of one model's trace are not taken for another model."""
    trace_of_dlrm = load_kineto(TRACES / "pytorch_et" / "dlrm_8rank" / "kineto_worker0.json")
    with pytest.raises(BadInput, match="same step"):
        trace_of_dlrm.costs(load_model("demo"), 1, load_cluster("fb-1s-18c").nodes[0])
