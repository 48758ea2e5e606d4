"""Whether operators fit at all: the packing problem beside enumeration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placement.deadline import Deadline
from placement.evaluation.evaluate import evaluate
from placement.evaluation.group import GroupProblem
from placement.tagging.fitting import fitting
from placement.tagging.limits import Limits
from placement.tagging.nets import Contracted
from placement.tagging.packing import impossible, pack
from tests.instances import exhaustive, random_group


def _scarce(seed: int, room: float) -> GroupProblem:
    """A random group on nodes with a share of the memory that its best placement takes."""
    problem = random_group(seed)
    _, best = exhaustive(replace(problem, nodes=tuple(replace(n, memory_bytes=10**15) for n in problem.nodes)))
    held = [load.memory_needed for load in evaluate(problem, best or {}).loads] if best else [0.0]
    return replace(problem, nodes=tuple(replace(n, memory_bytes=int(room * max(held))) for n in problem.nodes))


@pytest.mark.parametrize("count", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_a_packing_is_found_or_refused_as_enumeration_says(count: int) -> None:
    """Of random groups with scarce memory none is called impossible that is not, and every placement that is found fits."""
    proven, found = 0, 0
    for seed in range(count):
        problem = _scarce(seed, (0.3, 0.7, 1.0)[seed % 3])
        data, (_, best) = Contracted(problem), exhaustive(problem)
        packing = pack(data, Deadline())
        assert not (best is not None and (packing.impossible or impossible(data, Deadline())))
        if packing.tags is not None:
            assert evaluate(problem, packing.tags).fits
            found += 1
        proven += packing.impossible
        assert (fitting(data, Limits()).tags is None) == (best is None)
    assert found >= count // 4
    assert proven >= count // 4
