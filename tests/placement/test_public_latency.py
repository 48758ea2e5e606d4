"""Latency of dnn-partitioning instances: judge, intervals, windows, published values."""

import itertools
import json

import numpy as np
import pytest

from placement.errors import InvalidPlan
from placement.public.blocks import units
from placement.public.hypergraph import contract
from placement.public.latency_window import Window, replace_window
from placement.public.msr_latency import intervals, latency, solve_latency
from placement.public.orders import near_order
from problem.public_graphs import MsrInstance, read_msr
from tests.placement.public_instances import chain, published

MSR = "msr-dnn-partitioning"


def random_instance(seed: int, nodes: int = 7) -> MsrInstance:
    """A random graph with two colours, two accelerators, scarce memory."""
    random = np.random.default_rng(seed)
    return chain(
        random.integers(1, 9, nodes).astype(float).tolist(),
        memory_bytes=6,
        edges=tuple((u, v) for u, v in itertools.combinations(range(nodes), 2) if random.random() < 0.35),
        output_ms=tuple(random.integers(1, 4, nodes).astype(float)),
        size_bytes=tuple(random.integers(1, 4, nodes).tolist()),
        colour=tuple(str(i if i < nodes - 1 else nodes - 2) for i in range(nodes)),
    )


def exhaustive(instance: MsrInstance) -> float:
    """The least latency over all plans."""
    graph, best = contract(instance), float("inf")
    for devices in itertools.product(range(instance.accelerators + 1), repeat=graph.items):
        try:
            best = min(best, latency(instance, graph.of_nodes(np.array(devices))))
        except InvalidPlan:
            continue
    return best


def test_a_call_by_hand():
    """A call waits for its inputs, fetches outputs from outside, computes, and hands its outputs over."""
    instance = chain([1.0, 2.0, 3.0], accelerators=1)
    assert latency(instance, [1, 1, 1]) == 60.0
    assert latency(instance, [1, 0, 1]) == 10.0 + (1.0 + 2.0 + 1.0) + 30.0
    assert latency(instance, [0, 0, 0]) == 6.0


def test_cpus_are_enough():
    """Branches on CPUs run side by side."""
    instance = chain([1.0, 2.0, 3.0], accelerators=1, edges=((0, 1), (0, 2)))
    assert latency(instance, [1, 1, 1]) == 40.0


def test_calls_that_wait_for_each_other_are_refused():
    """An accelerator left and entered again has no single call."""
    with pytest.raises(InvalidPlan, match="wait for each other"):
        latency(chain([1.0] * 3), [0, 1, 0])
    with pytest.raises(InvalidPlan, match="more than 2 bytes"):
        latency(chain([1.0] * 3, memory_bytes=2), [0, 0, 0])
    with pytest.raises(InvalidPlan, match="colour"):
        latency(chain([1.0] * 3, colour=("a", "a", "b")), [0, 1, 1])


def test_a_window_of_everything_is_the_whole_problem():
    """The model of a window finds the optimum of an exhaustive search when all units are free."""
    for seed in range(8):
        instance = random_instance(seed)
        graph = units(instance, contract(instance)).graph
        start = np.full(graph.items, instance.accelerators, dtype=np.int64)
        value = latency(instance, graph.of_nodes(start))
        window = Window(instance, graph, start, range(graph.items), range(instance.accelerators + 1), value)
        split, optimal = replace_window(window, 10.0, 0, 1)
        assert optimal
        assert latency(instance, graph.of_nodes(split)) == pytest.approx(exhaustive(instance))


def test_intervals_are_plans():
    """Interval plans of many orders are valid, and their value is at most the sum of calls they were chosen by."""
    for seed in range(20):
        instance = random_instance(seed)
        found = units(instance, contract(instance))
        random = np.random.default_rng(seed)
        for noise in (0.0, 1.0):
            order = near_order(found.graph, found.edges, random, noise)
            assert sorted(order) == list(range(found.graph.items))
            split = intervals(found.graph, order)
            assert latency(instance, found.graph.of_nodes(split)) <= sum(instance.cpu_ms) + 1e-9


def test_small_instances_are_solved():
    """The search proves the optimum of small instances, and its value encloses it from above."""
    for seed in range(20, 22):
        instance = random_instance(seed)
        result = solve_latency(instance, 2.0)
        assert result.value == pytest.approx(exhaustive(instance))
        assert result.bound <= result.value


def test_published_latencies():
    """Two instances reach the best value known from the order alone."""
    known = json.loads(published("msr_best_known.json").read_text())["latency"]
    for name in ("LayerGraphs/bert24_inference", "LayerGraphs/resnet50_inference"):
        result = solve_latency(read_msr(published(MSR, "latency-inputs", f"{name}.json")), 1.0)
        assert result.value <= known[name]["best_found"] * (1 + 1e-5), name


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_published_best_latencies():
    """Every latency instance is within 3 % of the best value known after a minute, most are at it or below."""
    known = json.loads(published("msr_best_known.json").read_text())["latency"]
    better = 0
    for name, row in known.items():
        result = solve_latency(read_msr(published(MSR, "latency-inputs", f"{name}.json")), 60.0)
        assert result.value <= row["best_found"] * 1.03, name
        better += result.value <= row["best_found"] * (1 + 1e-5)
    assert better >= 6
