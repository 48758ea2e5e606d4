"""What a server is asked for: sizes by hand, and that bounds of sharding hold where ids are sent apart."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from cost_models.constants import Constant
from cost_models.costs import CostTable, MessageCost, PhaseCost, TableCost
from cost_models.routing import is_routed, least_ids_bytes, routed_sizes
from placement.plan import Shard
from placement.tables.pieces import Piece
from placement.tables.requests import request_sizes, routed_rows
from placement.tables.shard_bounds import sharding_bound
from placement.tables.shard_state import Sharding
from problem.graph import Graph, Kind, Operator
from problem.model import EmbeddingTable, Model
from tests.programs.plans import machine


def model_of(*found: EmbeddingTable) -> Model:
    """Tables and nothing else."""
    return Model("tables", Graph(tuple(Operator(t.name, Kind.LOOKUP, width=t.dim, table=t.name) for t in found)), found)


def test_sizes_by_hand() -> None:
    """1,000 samples of 10 ids: a quarter of them and 1,001 ends; weights besides; ends and counts for a mean of 4 of 10."""
    table = EmbeddingTable("t", 100, 8, 10.0)
    assert routed_sizes(table, 1000, 0.25) == (4 * (2500 + 1001), 0)
    weighted = EmbeddingTable("t", 100, 8, 10.0, pooling="weighted")
    assert routed_sizes(weighted, 1000, 0.25) == (4 * (2500 + 1001), 4 * 2500)
    short = EmbeddingTable("t", 100, 8, 4.0, pooling="mean", max_ids=10)
    assert routed_sizes(short, 1000, 0.5) == (4 * (2000 + 2001), 0)
    assert request_sizes(short, 1000, None).total == 4 * 10_000
    assert least_ids_bytes(short, 1000) == 4 * (4000 + 2001)
    assert least_ids_bytes(table, 1000) == 4 * 10_000


def test_ids_are_sent_apart_where_that_saves_enough() -> None:
    """One id a sample is never sent apart, ten are from some batch on; whole tables are asked for all ids."""
    one, ten = EmbeddingTable("one", 100, 8, 1.0), EmbeddingTable("ten", 100, 8, 10.0)
    assert [is_routed(one, batch) for batch in (32, 10**6)] == [False, False]
    assert [is_routed(ten, batch) for batch in (32, 512, 513)] == [False, False, True]
    shards = [Shard("one", 0, 0, 50), Shard("ten", 0, 0, 20), Shard("ten", 0, 60, 60), Shard("ten", 0, 30, 50)]
    assert routed_rows(model_of(one, ten), 1024, shards) == {"ten": (0, 50)}
    assert routed_rows(model_of(one, ten), 32, shards) == {}
    assert routed_rows(model_of(one, ten), 1024, [Shard("ten", 0, 0, 100)]) == {}


@pytest.mark.parametrize("seed", range(12))
def test_no_sharding_beats_the_bound(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Tables of all poolings cut at random over three servers, ids dear to send: the busiest is never below the bound."""
    monkeypatch.setattr("cost_models.routing.LEAST_SAVED", Constant(-1e9, "bytes", "test"))
    draw = np.random.default_rng(seed)
    found = [
        EmbeddingTable(
            f"t{i}", 1000, 16, float(draw.integers(1, 9)), pooling=str(kind), max_ids=int(draw.choice([0, 12]))
        )
        for i, kind in enumerate(draw.choice(["sum", "mean", "weighted"], 3))
    ]
    cost = TableCost(PhaseCost(1e-4, 100.0), PhaseCost(2e-4, 100.0), PhaseCost(1e-5, 10.0), PhaseCost(1e-5, 10.0))
    message = MessageCost(1e-6, 1e-9, 1e-6, 1e-9)
    costs = CostTable(64, {}, {t.name: cost for t in found}, message, kind="test", flops_per_core_second=1e9)
    nodes = [machine(f"s{i}", nic_bytes_per_second=float(draw.choice([1e6, 1e9]))) for i in range(3)]
    state = Sharding(model_of(*found), 64, nodes, costs, 1, local=False, columns=bool(seed % 2))
    bound = sharding_bound(state)
    for _ in range(30):
        load = np.zeros((3, 4))
        for table in found:
            edges = [0, *np.sort(draw.integers(0, 1001, draw.integers(0, 3))), 1000]
            for server, (begin, end) in zip(draw.permutation(3), pairwise(edges), strict=False):
                if begin < end:
                    load[server] += state.demand(Piece((table,), int(begin), int(end)))
        assert (load / state.rates).max() >= bound * (1 - 1e-9)
