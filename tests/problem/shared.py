"""Where the public inputs beside the repository are; tests that read them are skipped without them."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
EDGE_CASES = SHARED / "inputs" / "edge_cases"
MSR = SHARED / "workloads" / "msr-dnn-partitioning"

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the public inputs are not beside the repository")
