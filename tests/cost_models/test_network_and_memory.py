"""Network and memory: closed forms, and properties that any machine must have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.costs import CostTable, MessageCost
from cost_models.memory import in_flight_bytes, resident_bytes, shard_in_flight_bytes, step_bytes, tensor_bytes
from cost_models.network import (
    Wire,
    all_reduce_bytes,
    all_reduce_seconds,
    at_once,
    in_slices,
    no_slices,
    wire_seconds,
)
from problem.graph import Graph, Kind, Operator
from problem.model import EmbeddingTable, Model
from tests.instances import node, nodes

COSTS = CostTable(1, {}, message=MessageCost(1e-6, 1e-9, 2e-6, 2e-9, 1e-7, 3e-7), sum_seconds_per_byte=1e-9)


def test_wire_time_is_latency_and_bytes_over_the_slower_nic() -> None:
    """1 MB from a 1 GB/s to a 0.5 GB/s NIC with 10 us of latency takes 2.01 ms; on one host nothing."""
    fast, slow = node("a", latency_seconds=1e-5), node("b", nic_bytes_per_second=5e8)
    assert wire_seconds(fast, slow, 1e6) == pytest.approx(2.01e-3)
    assert wire_seconds(fast, node("c", host="a"), 1e6) == 0


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_all_reduce_moves_two_times_n_minus_one_over_n(ranks: int) -> None:
    """Each rank sends 2 (R - 1) / R of the buffer in 2 (R - 1) messages."""
    found = in_slices(800.0, ranks)
    assert found.sent == all_reduce_bytes(800.0, ranks) == pytest.approx(800 * 2 * (ranks - 1) / ranks)
    assert found.messages(ranks) == 2 * (ranks - 1)


def test_all_reduce_of_two_ranks_by_hand() -> None:
    """Two rounds of 500 bytes in a tensor: send 1.6 us, receive 3.3, wire 0.5 each; 500 bytes are added, 500 copied."""
    working = 0.5e-6 + 0.5e-6
    assert _core_seconds(1000, 2) == pytest.approx(2 * (1.6e-6 + 3.3e-6) + working)
    assert all_reduce_seconds(COSTS, in_slices(1000, 2) + no_slices(), nodes(2)) == pytest.approx(
        2 * (1.6e-6 + 0.5e-6 + 3.3e-6) + working
    )


def test_an_all_reduce_at_once_by_hand() -> None:
    """Three ranks keep 90 bytes of 1000: 2 messages of 90 bytes in 2 tensors, encoded once, decoded and added twice."""
    found = at_once(1000, 3, Wire(90, encode_seconds=4e-6, decode_seconds=3e-6, tensors=2))
    assert (found.messages(3), found.sent, found.adds) == (2, 180, 2000)
    assert found.core_seconds(COSTS, 3) == pytest.approx(180 * 3e-9 + 4 * 4e-7 + 4e-6 + 2 * 3e-6 + 2000 * 1e-9)


def test_half_precision_in_slices_by_hand() -> None:
    """Two ranks at 2 bytes an element: half the bytes; each encodes a slice to scatter and its sum, and decodes two."""
    found = in_slices(1000, 2, Wire(500, encode_seconds=4e-6, decode_seconds=3e-6))
    assert (found.messages(2), found.sent, found.adds) == (2, 500, 500)
    assert found.core_seconds(COSTS, 2) == pytest.approx(500 * 3e-9 + 4e-6 + 3e-6 + 500 * 1e-9)


def _core_seconds(size: float, ranks: int) -> float:
    return (in_slices(size, ranks) + no_slices()).thread_seconds(COSTS, ranks)


@given(st.floats(1, 1e9), st.floats(1, 10), st.integers(2, 16))
def test_all_reduce_grows_with_bytes_and_covers_its_core_time(size: float, factor: float, ranks: int) -> None:
    """More bytes never take less time, and the duration is at least the core time of a rank."""
    machines = nodes(ranks, latency_seconds=1e-5)
    short = all_reduce_seconds(COSTS, in_slices(size, ranks) + no_slices(), machines)
    assert all_reduce_seconds(COSTS, in_slices(factor * size, ranks) + no_slices(), machines) >= short * (1 - 1e-12)
    assert short >= _core_seconds(size, ranks) * (1 - 1e-12)


def test_memory_of_a_layer_by_hand() -> None:
    """100 parameters with Adam are 1,200 bytes; in flight: 400 of gradient, output and its gradient of 8 x 5 floats."""
    layer = Operator("layer", Kind.LINEAR, ("x",), 5, 100)
    model = Model("m", Graph((Operator("x", Kind.DENSE_INPUT, (), 3), layer)), optimizer="adam")
    assert resident_bytes(layer, model) == 1200
    assert tensor_bytes(layer, 8) == 160
    assert in_flight_bytes(layer, 8) == 400 + 2 * 160


def test_what_a_step_touches_by_hand() -> None:
    """Batch, layer (parameters and gradient, output and its gradient), look-up at both ends, rows met: each once."""
    source, table = Operator("x", Kind.DENSE_INPUT, (), 3), EmbeddingTable("t", 10**9, 4)
    found, layer = Operator("t", Kind.LOOKUP, (), 4, table="t"), Operator("layer", Kind.LINEAR, ("x", "t"), 5, 100)
    model = Model("m", Graph((source, found, layer)), (table,))
    batch, dense, pooled = 8 * (3 + 1 + 1) * 4, 100 * 4 * 2 + 2 * 8 * (3 + 5) * 4, 2 * 8 * 4 * 4
    assert step_bytes(model, 8) == pytest.approx(batch + dense + 2 * pooled + 8 * 4 + 8 * 4 * 4)


def test_imported_size_is_taken_as_it_is() -> None:
    """An imported operator has one size that includes everything."""
    op = Operator("op", Kind.FIXED, (), 7, 250)
    model = Model("m", Graph((op,)), optimizer="adam")
    assert resident_bytes(op, model) == 1000
    assert in_flight_bytes(op, 8) == 0


def test_memory_of_a_shard_for_one_session() -> None:
    """Ids (int32), pooled rows and their gradient: 8 samples of 3 ids and 16 elements."""
    assert shard_in_flight_bytes(EmbeddingTable("t", 10, 16, 3.0), 8) == 8 * (3 * 4 + 2 * 16 * 4)
