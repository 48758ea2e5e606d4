"""Nothing fits: the pins and limits that are to blame are named, those that are not are left out."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.deadline import Deadline
from placement.errors import DoesNotFit, PlacementError
from placement.plan import Tag
from placement.result import PlacementResult
from placement.search.conflict import answered, demands, dropped
from placement.search.feasible import Answer
from placement.search.job import solve
from placement.search.options import SolveOptions
from problem.cluster import Cluster, Node
from problem.graph import Graph, Kind, Operator, Work
from problem.model import EmbeddingTable, Model
from tests.instances import nodes

QUICK = SolveOptions(max_replicas=4, time_limit_seconds=30)
GIGABYTES = 10**9


def _chain(*gigabytes: int) -> Model:
    """Operators of some sizes, one after the other."""
    ops = [
        Operator(
            f"op{i}",
            Kind.FIXED,
            (f"op{i - 1}",) if i else (),
            0,
            size * GIGABYTES // 4,
            forward=Work(seconds_per_sample=1e-3),
        )
        for i, size in enumerate(gigabytes)
    ]
    return Model("chain", Graph(tuple(ops)), batch=1)


def _tables(count: int) -> Model:
    """Tables of 640 MB with a layer."""
    tables = tuple(EmbeddingTable(f"t{i}", 10**7, 16) for i in range(count))
    lookups = tuple(Operator(table.name, Kind.LOOKUP, (), 16, table=table.name) for table in tables)
    last = Operator("loss", Kind.LOSS, tuple(table.name for table in tables), 1)
    return Model("tables", Graph((*lookups, last)), tables, batch=64)


def _refused(model: Model, machines: tuple[Node, ...], options: SolveOptions) -> PlacementError:
    with pytest.raises(PlacementError) as caught:
        solve(model, Cluster("small", machines), options=options)
    return caught.value


MACHINES = nodes(4, memory_bytes=10 * GIGABYTES)
SERVERS = nodes(6)


@pytest.mark.parametrize(
    ("model", "machines", "options", "names"),
    [
        (_chain(8, 8, 1), MACHINES, {"pins": {"op2": 0, "op0": 1, "op1": 1}}, ("pin op0=1", "pin op1=1")),
        (
            _chain(8, 8, 1),
            MACHINES,
            {"pins": {"op2": 0, "op0": 1, "op1": 1}, "group_size": 2},
            ("pin op0=1", "pin op1=1"),
        ),
        (_chain(8, 8, 1), MACHINES, {"pins": {"op2": 0}, "group_size": 1}, ("group size 1",)),
        (_chain(8, 8, 1), MACHINES, {"pins": {"op*": 1}}, ("pin op*=1",)),
        (
            _chain(8, 8, 1),
            MACHINES,
            {"forbids": (("op0", "mp"), ("op2", 1), ("op1", "mp")), "pins": {"op2": 0}},
            ("forbid op1=mp",),  # 8 GB on every rank leave no room for the other 8
        ),
        (_chain(8, 8, 1), MACHINES, {"forbids": (("op0", "tiny"), ("op1", "dp"))}, ("forbid op0=tiny",)),
        (
            _chain(1, 1),
            MACHINES,
            {"forbids": (("op*", 0), ("op0", "dp"), ("op1", 1)), "group_size": 1},
            ("forbid op*=0", "forbid op0=dp", "group size 1"),
        ),
        (
            _tables(3),
            SERVERS,
            {"table_pins": {"t0": 1}, "table_forbids": (("t1", 0), ("t[0]", 1)), "servers": 2},
            ("table pin t0=1", "table forbid t[0]=1"),
        ),
        (
            _tables(3),
            SERVERS,
            {"table_forbids": (("t1", 0), ("t1", 1), ("t2", "tiny")), "servers": 2},
            ("table forbid t2=tiny",),
        ),
        (
            _tables(3),
            SERVERS,
            {"keep_together": (("t0", "t1"),), "keep_apart": (("t0", "t2"),)},
            ("keep together t0,t1",),
        ),
        (
            _tables(3),
            SERVERS,
            {"table_pins": {"t0": 1, "t1": 1, "t2": 0}, "group_size": 2},
            ("table pin t0=1", "table pin t1=1"),
        ),
        (_tables(3), SERVERS, {"servers": 1, "keep_apart": (("t0", "t2"),)}, ("servers 1",)),
    ],
)
def test_what_conflicts_is_named_and_nothing_else(
    model: Model, machines: tuple[Node, ...], options: dict, names: tuple[str, ...]
) -> None:
    """Exactly the demands that cannot all be met, in one line with what is short; harmless ones are not there."""
    error = _refused(model, machines, replace(QUICK, **options))
    assert error.conflict == names
    assert all(name in str(error) for name in names)
    assert "\n" not in str(error)


def test_no_pin_is_blamed_where_machines_are_too_small() -> None:
    """Three operators of 6 GB fit no two nodes of 10 GB, pins or not: the line says what is short and blames no pin."""
    error = _refused(_chain(6, 6, 6), nodes(2, memory_bytes=10 * GIGABYTES), replace(QUICK, pins={"op0": 0}))
    assert isinstance(error, DoesNotFit)
    assert error.conflict == ()
    assert "pin op0" not in str(error)


ALL = SolveOptions(
    pins={"a": 0, "b": "dp"},
    forbids=(("a", 1), ("a", "dp"), ("b", "mp")),
    table_pins={"t": 1},
    table_forbids=(("t", 0), ("t", "row")),
    keep_together=(("t", "u"),),
    keep_apart=(("v", "w"), ("t", "v")),
    group_size=3,
    ranks=2,
    servers=2,
    sync_servers=1,
    max_elp=1000,
    hogwild=4,
)


def test_bug_a_conflict_among_fifty_pins_of_a_thousand_operators_was_not_found_in_time() -> None:
    """Two pins that overfill a node are named and nothing else; it said that some of fifty are to blame."""
    model = _chain(8, 8, *[0] * 998)
    pins: dict[str, Tag] = {f"op{i}": i % 4 for i in range(10, 60)}
    error = _refused(model, MACHINES, replace(QUICK, pins={**pins, "op0": 1, "op1": 1}))
    assert error.conflict == error.enough == ("pin op0=1", "pin op1=1")


def test_conflicts_besides_each_other_are_both_named() -> None:
    """Two pairs of pins overfill a node each: no single one of them helps, and none is said to."""
    pins: dict[str, Tag] = {"op0": 0, "op1": 0, "op2": 1, "op3": 1}
    error = _refused(_chain(8, 8, 8, 8), MACHINES, replace(QUICK, pins=pins))
    assert {error.conflict, *error.besides} == {("pin op0=0", "pin op1=0"), ("pin op2=1", "pin op3=1")}
    assert error.enough == ()
    assert "a plan exists" not in str(error)


UNKNOWN = lambda options, deadline: Answer(None)  # noqa: E731
NAMES = [demand[0] for demand in demands(ALL)]


@given(st.lists(st.sets(st.sampled_from(NAMES), min_size=1, max_size=4), min_size=1, max_size=3))
def test_the_filter_leaves_a_conflict_without_any_spare_demand(conflicts: list[set[str]]) -> None:
    """Whatever sets of demands conflict: those named do, and no smaller part of them does."""

    def search(options: SolveOptions, deadline: Deadline) -> PlacementResult:
        left = {demand[0] for demand in demands(options)}
        if any(conflict <= left for conflict in conflicts):
            raise PlacementError("nothing fits")
        return None  # type: ignore[return-value]

    with pytest.raises(PlacementError) as caught:
        answered(search, UNKNOWN, ALL, Deadline())
    named = caught.value.conflict
    assert any(conflict <= set(named) for conflict in conflicts)
    assert not any(c <= set(part) for c in conflicts for part in combinations(named, len(named) - 1))


def test_every_demand_can_be_dropped() -> None:
    """Dropping them one after the other, in any order, leaves options that demand nothing."""
    for order in (demands(ALL), demands(ALL)[::-1]):
        options = ALL
        for number, demand in enumerate(order):
            options = dropped(options, demand)
            assert len(demands(options)) == len(NAMES) - number - 1


def test_what_was_not_proven_in_time_is_said_to_be_so() -> None:
    """With no time for the filter all demands are named, as some of which are to blame."""

    def search(options: SolveOptions, deadline: Deadline) -> PlacementResult:
        raise PlacementError("nothing fits")

    with pytest.raises(PlacementError, match=r"some of: .*pin a=0") as caught:
        answered(search, UNKNOWN, ALL, Deadline(0.0))
    assert list(caught.value.conflict) == NAMES
