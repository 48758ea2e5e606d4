"""What is forbidden of operators: read, contradicted, and kept by whole plans, on unlike machines as well."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placement.errors import ConstraintsConflict
from placement.plan import DP
from placement.search.demands import broken, checked, resolved
from placement.tagging.candidates import forbidden_tags, resolve_forbids
from problem.cluster import Cluster
from problem.errors import BadInput
from tests.instances import nodes
from tests.placement.test_search import QUICK, _model, _solve

GRAPH = _model().graph


def test_patterns_and_mp_become_tags_of_operators() -> None:
    """No node at all is a pin to DP; a pattern leaves out inputs and the loss, which have no other tag than DP."""
    pins, forbids = resolve_forbids(GRAPH, [("top_*", "mp"), ("[!t]*", "dp"), ("bottom_0", 1)], {}, [])
    assert {name for name, tag in pins.items() if tag == DP} == {name for name in pins if name.startswith("top_")}
    assert ("bottom_0", 1) in forbids
    assert not [name for name, what in forbids if what == DP and GRAPH[name].kind in ("loss", "dense_input")]


def test_patterns_of_everything_but_dp_contradict_mp() -> None:
    """No node and not DP leaves nothing: the operator is named, as are pins to what is forbidden and a loss without DP."""
    for forbids, pins, name in (
        ([("top_0", "mp"), ("top_*", "dp")], {}, "top_0"),
        ([("top_0", "mp")], {"top_0": 1}, "top_0"),
        ([("top_0", 1)], {"top_0": 1}, "top_0"),
        ([("loss", "dp")], {}, "loss"),
    ):
        with pytest.raises(ConstraintsConflict, match=name):
            resolve_forbids(GRAPH, forbids, pins, [])


def test_unknown_names_and_kinds_are_bad_input() -> None:
    """An operator, a node or a kind of machine that is not there is named with what is allowed."""
    for forbid in (("nothing", "dp"), ("top_0", "gpu"), ("top_0", -1)):
        with pytest.raises(BadInput, match=str(forbid[1] if forbid[0] == "top_0" else forbid[0])):
            resolve_forbids(GRAPH, [forbid], {}, ["tiny"])


def test_a_kind_forbids_its_nodes_and_dp_if_it_is_among_the_ranks() -> None:
    """Two groups, the second with an old machine at index 2: forbidden is node 2, and DP if that node is a rank."""
    old = replace(nodes(1)[0], kind="old")
    groups = (nodes(3), (*nodes(2), old))
    assert forbidden_tags([("a", "old"), ("a", 0)], groups, 2) == {"a": frozenset({0, 2})}
    assert forbidden_tags([("a", "old")], groups, 3) == {"a": frozenset({2, DP})}


def test_what_is_forbidden_reaches_the_plan() -> None:
    """Without DP, all layers that were data-parallel are on nodes; without a node, on another; the plan is checked."""
    free = _solve(_model(), nodes(5), replace(QUICK, group_size=3)).plan.tags
    assert free["top_0"] == DP
    options = replace(QUICK, group_size=3, forbids=(("top_*", "dp"), ("top_0", 0), ("bottom_*", "mp")))
    result = _solve(_model(), nodes(5), options)
    tags = result.plan.tags
    assert all(tag != DP for name, tag in tags.items() if name.startswith("top_"))
    assert tags["top_0"] != 0
    assert all(tag == DP for name, tag in tags.items() if name.startswith("bottom_"))
    demanded = resolved(_model(), Cluster("c", nodes(5)), options)
    assert broken(result.plan, *demanded) == ""
    with pytest.raises(AssertionError, match=r"top_0.*report this"):
        checked(replace(result.plan, tags={**tags, "top_0": DP}), *demanded)


def test_a_forbidden_kind_of_machine_trains_no_such_operator() -> None:
    """No operator on old machines: none is in a group as a rank, whatever else they do."""
    machines = (*nodes(3), *(replace(n, name=f"old{n.name}", host=f"old{n.name}", kind="old") for n in nodes(3)))
    plan = _solve(_model(), machines, replace(QUICK, forbids=(("*", "o*"),), ranks=None)).plan
    assert all(node.kind != "old" for group in plan.groups for node in group)


def test_an_earlier_plan_that_is_forbidden_now_is_no_start() -> None:
    """Planned again with the tags of the earlier plan forbidden: none of them is in the new one."""
    first = _solve(_model(), nodes(5), replace(QUICK, group_size=2)).plan
    again = _solve(_model(), nodes(5), replace(QUICK, group_size=2, warm_start=first, forbids=(("top_*", "dp"),))).plan
    assert all(tag != DP for name, tag in again.tags.items() if name.startswith("top_"))
