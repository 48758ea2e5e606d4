"""Questions about whole systems: published points as they are, one fitted scale, parts one at a time, codecs on plans."""

import itertools
from math import log
from statistics import fmean

import pytest

from experiments.questions import modern, wide
from experiments.systems.ablation import PARTS, _coded
from experiments.systems.suite import NOISE, _published, _scaled
from experiments.systems.sync import sync_gap
from placement.search.job import solve
from placement.search.options import SolveOptions


def test_all_published_points_are_there():
    """48 points of figure 11, normalised to the smallest, and 9 of figure 13, normalised to the largest MLP."""
    points = {figure: [float(row["throughput"]) for row in _published(figure)] for figure in ("11", "13")}
    assert [len(points[figure]) for figure in ("11", "13")] == [48, 9]
    assert min(points["11"]) == min(points["13"]) == 1.0
    assert NOISE[0] < 1 < NOISE[1]


def test_one_scale_is_fitted_and_nothing_else():
    """Ratios of ours among each other stay as simulated, and the geometric mean of ours over published is one."""
    rows = _scaled({"published": float(p), "ours": float(o)} for p, o in ((1, 300), (2, 700), (4, 900)))
    assert rows[1]["ours"] / rows[0]["ours"] == pytest.approx(7 / 3)
    assert fmean(log(row["ratio"]) for row in rows) == pytest.approx(0, abs=1e-12)


def test_parts_are_added_one_at_a_time():
    """Each part changes one setting of the part before it."""
    for before, after in itertools.pairwise(PARTS):
        changed = [name for name in vars(before) if name != "name" and getattr(before, name) != getattr(after, name)]
        assert len(changed) == 1, after.name


def test_codecs_go_on_every_edge_of_a_plan():
    """A plan with compressed messages is valid, and sends pooled rows, cuts and gradients in half the bytes."""
    options = SolveOptions(hogwild=4, group_size=2, max_replicas=1, time_limit_seconds=5, gap=0.2)
    plan = solve(wide(2), modern(3), options=options).plan
    coded = _coded(plan, "fp16")
    assert coded.codec("pooled") == coded.codec("push") == "fp16"
    assert all(coded.codec(op.name) == "fp16" for op in plan.model.graph if op.parameters)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_gap_grows_with_trainers():
    """Background exchanges get rarer with more trainers and more frequent with more sync servers."""
    rows = {(r["trainers"], r["sync_servers"]): r for r in sync_gap(lambda news: None) if r["mode"] == "background"}
    assert rows[2, 1]["sync_gap"] < rows[4, 1]["sync_gap"] < rows[8, 1]["sync_gap"]
    assert rows[8, 2]["sync_gap"] < rows[8, 1]["sync_gap"]
