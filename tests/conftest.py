"""One BLAS thread and OpenBLAS's own kernels, set before NumPy is imported; tiny models and plans for every folder."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # forked workers and bit-identical sums need a BLAS without threads
os.environ["HIERTRAIN_CACHE"] = ""  # nothing that was measured on this machine has a say

import pytest

from placement.plan import Plan
from problem.model import Model
from tests.executor.tiny import dcn, dlrm, tables
from tests.programs import plans


@pytest.fixture(scope="session")
def tiny_dlrm() -> Model:
    """DLRM of seven operators and two tables, two ids a sample."""
    return dlrm([3, 8, 4], tables(2, 40, 4, pooling_factor=2), [8, 1])


@pytest.fixture(scope="session")
def tiny_dcn() -> Model:
    """DCN-v2 with two cross layers and a deep branch; its concatenated input has three consumers."""
    return dcn(3, tables(1, 40, 4)[0], 2)


@pytest.fixture(scope="session")
def tiny_branches() -> Model:
    """Three branches of two layers over the same dense features, joined before the top layer."""
    return plans.branches(3, tables(3, 40, 4))


@pytest.fixture(scope="session")
def all_dp_plan(tiny_dlrm: Model) -> Plan:
    """The DLRM on one rank, nothing cut."""
    return plans.plan(tiny_dlrm, nodes=1)


@pytest.fixture(scope="session")
def cut_plan(tiny_dlrm: Model) -> Plan:
    """The DLRM on two nodes, one rank: the top MLP on node 1."""
    return plans.plan(tiny_dlrm, nodes=2, tags={"top0": 1, "top1": 1})
